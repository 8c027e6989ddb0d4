"""A finished output against its source."""

import json

import numpy as np
import pytest
from checkpoint_files import LLAMA_CONFIG, safetensors_bytes, write_folder
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import UserError
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.verify import verify_against, verify_alone

NUMBERS = np.array([[2**60, 1], [2, 3]], np.int64)
WAVES = np.array([[1 + 2j, 3j]], np.complex64)


@pytest.fixture
def odd(tmp_path):
    """A folder with tensors whose values float32 can not tell apart, or not hold at all."""
    folder = write_folder(tmp_path / "source", {}, LLAMA_CONFIG)
    raw = NUMBERS.tobytes() + WAVES.tobytes()
    header = {
        "positions": {"dtype": "I64", "shape": [2, 2], "data_offsets": [0, 32]},
        "waves": {"dtype": "C64", "shape": [1, 2], "data_offsets": [32, 48]},
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, raw))
    return folder


def compare(source, output, target):
    with open_checkpoint(source) as a, open_checkpoint(output) as b:
        return [r for _, r in verify_against(make_plan(a, Recipe(target)), a, b, CancelToken())]


def test_copies_are_compared_byte_by_byte(odd, tmp_path):
    output = tmp_path / "out"
    convert(odd, "w4a16-g32", output)
    assert [r.error for r in compare(odd, output, "w4a16-g32")] == [None, None]
    with open_checkpoint(output) as made:
        assert verify_alone(made, CancelToken()).tensors == 2
    file = output / "model.safetensors"
    changed = np.array([[2**60 + 1, 1], [2, 3]], np.int64).tobytes()  # the same number as float32
    file.write_bytes(file.read_bytes().replace(NUMBERS.tobytes(), changed))
    with pytest.raises(UserError, match="'positions' should be an exact copy"):
        compare(odd, output, "w4a16-g32")


def test_another_shape_or_type_of_as_many_bytes_is_refused(odd, tmp_path):
    output = tmp_path / "out"
    convert(odd, "w4a16-g32", output)
    file = output / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"shape":[2,2]', b'"shape":[1,4]'))
    with pytest.raises(UserError, match="'positions' is not stored as planned"):
        compare(odd, output, "w4a16-g32")


def test_values_that_no_scale_can_hold_are_not_blamed_on_the_disk(tmp_path):
    def enlarge(tensors):
        tensors["model.layers.0.mlp.up_proj.weight"][:] = 1e9

    source = write_llama(tmp_path / "source", layers=1, change=enlarge)
    with pytest.raises(UserError, match=r"blk\.0\.ffn_up\.weight' is further from its source than Q8_0") as e:
        convert(source, "Q8_0", tmp_path / "out")
    assert "keep" in e.value.hint
    assert "disk" not in str(e.value)


@pytest.mark.parametrize("target", ["gptq-4bit-g32", "gptq-3bit-g32", "gptq-2bit-g32-asym-v2", "gptq-4bit-channel"])
def test_a_weight_that_float16_scales_do_not_reach_is_not_halved(target, tmp_path):
    """4 bits with a scale of 65504 end at 524,032; a search may clip, but not because the scale ends."""

    def enlarge(tensors):
        tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = 1e6

    source = write_llama(tmp_path / "source", layers=1, change=enlarge)
    with pytest.raises(UserError, match=r"up_proj\.weight' is further from its source than gptq-") as e:
        convert(source, target, tmp_path / "out")
    assert "too large" in e.value.hint
    convert(source, "w4a16-g32", tmp_path / "wide")  # BF16 scales reach it
    with open_checkpoint(tmp_path / "wide") as checkpoint:
        rows = checkpoint.read_rows(checkpoint.tensor("model.layers.0.mlp.up_proj.weight"))
    assert rows[3, 5] == pytest.approx(1e6, rel=0.1)


def test_verify_of_another_model_says_so(tmp_path, capsys):
    source, other = write_llama(tmp_path / "a", layers=1), write_llama(tmp_path / "b", layers=1, seed=1)
    convert(source, "Q8_0", tmp_path / "out")
    assert main(["verify", str(tmp_path / "out"), "--source", str(other), "--to", "Q8_0", "--json"]) == 1
    assert "another source" in json.loads(capsys.readouterr().out)["hint"]
