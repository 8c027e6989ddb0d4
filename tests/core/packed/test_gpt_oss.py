"""MXFP4 experts as gpt-oss stores them: read as the model's own tensors, and written as a plain folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from job_help import convert
from safetensors.torch import load_file, save_file

from core.checkpoint.opening import open_checkpoint
from core.errors import UserError
from core.inspect.group_map import stored_group
from core.plan import make_plan
from core.recipe import Recipe
from core.tensor_info import Role

EXPERTS, HIDDEN, WIDE = 3, 64, 96
NAME = "model.layers.0.mlp.experts."


def write_gpt_oss(folder: Path, change: Callable[[dict], object] = lambda arrays: None) -> Path:
    """A random model, its experts replaced by any blocks and scales."""
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(5)
    config = GptOssConfig(
        vocab_size=96,
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        layer_types=["full_attention"],
        dtype="bfloat16",
    )
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    arrays = load_file(folder / "model.safetensors")
    rng = torch.Generator().manual_seed(6)
    for part, rows, columns in (("gate_up_proj", 2 * WIDE, HIDDEN), ("down_proj", HIDDEN, WIDE)):
        assert arrays.pop(NAME + part).shape == (EXPERTS, columns, rows)
        shape = (EXPERTS, rows, columns // 32)
        arrays[f"{NAME}{part}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=rng, dtype=torch.uint8)
        arrays[f"{NAME}{part}_scales"] = torch.randint(117, 123, shape, generator=rng, dtype=torch.uint8)
    change(arrays)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    about["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    path.write_text(json.dumps(about), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss(tmp_path_factory.mktemp("gpt-oss"))


def decoded(folder: Path) -> dict[str, torch.Tensor]:
    """By transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    arrays = load_file(folder / "model.safetensors")
    return {
        NAME + part: convert_moe_packed_tensors(arrays[f"{NAME}{part}_blocks"], arrays[f"{NAME}{part}_scales"])
        for part in ("gate_up_proj", "down_proj")
    }


def test_values_are_those_of_transformers_in_any_window(folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.packed_problem is None
        for name, want in decoded(folder).items():
            t = checkpoint.tensor(name)
            assert (t.shape, t.dtype, t.packed, t.numbers) == (tuple(want.shape), "MXFP4 g32", True, None)
            assert t.role is (Role.FFN_GATE_UP if "gate_up" in name else Role.FFN_DOWN)
            assert (t.layer, t.experts) == (0, EXPERTS)
            rows = want.float().reshape(-1, want.shape[-1]).numpy()
            assert np.array_equal(checkpoint.read_rows(t), rows)
            for start, stop, columns in (
                (0, 1, (0, 5)),
                (33, 70, (7, 40)),
                (t.shape[1] - 1, 2 * t.shape[1] + 3, (1, 9)),
            ):
                assert np.array_equal(checkpoint.read_rows(t, start, stop, columns), rows[start:stop, slice(*columns)])
        assert not [t.name for t in checkpoint.tensors if t.name.endswith(("_blocks", "_scales"))]
        with pytest.raises(UserError, match="rows and columns exchanged"):
            stored_group(checkpoint, checkpoint.tensor(NAME + "down_proj"), 0, 0)


def test_a_plain_folder_of_it_computes_the_same(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, Mxfp4Config

    _, result = convert(folder, "hf-bf16", tmp_path / "out")
    assert result.predicted_bytes == result.actual_bytes
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    source = load_file(folder / "model.safetensors")
    want = decoded(folder)
    assert all(torch.equal(arrays[name], tensor) for name, tensor in want.items())
    kept = [name for name in source if not name.endswith(("_blocks", "_scales"))]
    assert set(arrays) == {*kept, *want}
    assert all(torch.equal(arrays[name], source[name]) for name in kept)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))

    ids = torch.tensor([[1, 5, 9, 2, 77]])
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=Mxfp4Config(dequantize=True)).eval()
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda a: a.pop(NAME + "down_proj_scales"), "down_proj_scales'"),
        (
            lambda a: a.update({NAME + "down_proj_scales": torch.zeros(EXPERTS, HIDDEN, 2, dtype=torch.uint8)}),
            "_scales'",
        ),
        (
            lambda a: a.update({NAME + "down_proj_blocks": torch.zeros(EXPERTS, HIDDEN, 48, dtype=torch.uint8)}),
            "no blocks",
        ),
        (lambda a: a.update({NAME + "down_proj": torch.zeros(EXPERTS, WIDE, HIDDEN)}), "a second time"),
    ],
)
def test_what_contradicts_itself_is_named(change: Callable[[dict], object], named: str, tmp_path: Path) -> None:
    with open_checkpoint(write_gpt_oss(tmp_path, change)) as checkpoint:
        assert checkpoint.packed_problem is not None
        assert named in checkpoint.packed_problem.message
        with pytest.raises(UserError):
            make_plan(checkpoint, Recipe(target="hf-bf16"))
