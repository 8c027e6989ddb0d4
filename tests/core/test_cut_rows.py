"""Rows too long to be held are worked on in pieces; here the limits are small, and nothing may change by it."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import torch
from checkpoint_files import LLAMA_CONFIG
from job_help import convert, digest, interrupt
from safetensors.torch import save_file

from core.checkpoint import open_checkpoint
from core.checkpoint.reading import windows
from core.checkpoint.value_scan import scan_values
from core.errors import UserError
from core.formats import FORMATS
from core.formats.base import Method
from core.models import read_mapped
from core.models.gguf_tensors import MappedTensor, Piece
from core.plan import make_plan
from core.preview import preview
from core.progress import CancelToken
from core.recipe import Recipe
from core.verify import verify_against, verify_alone

COLUMNS = 41 * 128  # five whole pieces and one of 128
GGUF_COLUMNS = 21 * 256
# A model of one long matrix can not be run for the range of its activations.
SCHEMES = [
    f.name for f in FORMATS if f.container == "safetensors" and f.contract.scale is not None and not f.needs_input
]
TYPES = [f.name for f in FORMATS if f.container == "gguf" and not f.needs_importance]


@pytest.fixture
def cut(monkeypatch):
    """Call it, and rows of more than 2048 values are cut from then on."""

    def now() -> None:
        monkeypatch.setattr("core.blocks.BLOCK_VALUES", 2048)
        monkeypatch.setattr("core.blocks.LONG_ROW", 2048)
        monkeypatch.setattr("core.checkpoint.value_scan.BLOCK_VALUES", 2048)

    return now


def values(*shape: int) -> torch.Tensor:
    x = np.random.default_rng(0).standard_t(4, shape).astype(np.float32)
    x[0] *= 100
    return torch.from_numpy(x)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "source"
    path.mkdir()
    layer = "model.layers.0."
    tensors = {
        layer + "mlp.down_proj.weight": values(11, COLUMNS).to(torch.bfloat16),
        layer + "mlp.up_proj.weight": values(3, COLUMNS).to(torch.float64),
        layer + "input_layernorm.weight": values(COLUMNS),
        layer + "mlp.experts.gate_up_proj": values(2, 3, COLUMNS),
    }
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A GGUF whose tensors have long rows: plain, quantized, a stack of experts, a vector."""
    path = tmp_path_factory.mktemp("cut") / "source.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    x = values(6, GGUF_COLUMNS).numpy()
    writer.add_tensor("blk.0.attn_q.weight", x)
    q8 = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_down_exps.weight", x.reshape(2, 3, -1).astype(np.float16))
    writer.add_tensor("blk.0.attn_norm.weight", x[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def both(source, target, tmp_path, cut) -> None:
    convert(source, target, tmp_path / "whole", threads=2)
    cut()
    convert(source, target, tmp_path / "cut", threads=2)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    with open_checkpoint(source) as a, open_checkpoint(tmp_path / "cut") as b:
        plan = make_plan(a, Recipe(target))
        assert len(list(verify_against(plan, a, b, CancelToken()))) == len(plan.tensors)
        assert verify_alone(b, CancelToken()).nonfinite == 0


@pytest.mark.parametrize("target", SCHEMES)
def test_a_folder_has_the_same_bytes(folder, target, tmp_path, cut) -> None:
    both(folder, target, tmp_path, cut)


@pytest.mark.parametrize("target", TYPES)
def test_a_file_has_the_same_bytes(model, target, tmp_path, cut) -> None:
    both(model, target, tmp_path, cut)


def test_a_run_that_was_interrupted_goes_on(folder, tmp_path, cut) -> None:
    convert(folder, "w4a16-channel-asym", tmp_path / "whole")
    cut()
    interrupt(folder, "w4a16-channel-asym", tmp_path / "out", 3)
    convert(folder, "w4a16-channel-asym", tmp_path / "out", resume=True)
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_a_damaged_output_is_found(folder, tmp_path, cut) -> None:
    cut()
    convert(folder, "w4a16-channel", tmp_path / "out")
    file = tmp_path / "out" / "model.safetensors"
    with open_checkpoint(tmp_path / "out") as made:
        at = made.stored.tensor("model.layers.0.mlp.down_proj.weight_scale").offset
    raw = bytearray(file.read_bytes())
    raw[at + 1] ^= 0x10
    file.write_bytes(raw)
    with (
        open_checkpoint(folder) as a,
        open_checkpoint(tmp_path / "out") as b,
        pytest.raises(UserError, match="further"),
    ):
        list(verify_against(make_plan(a, Recipe("w4a16-channel")), a, b, CancelToken()))


def test_nan_in_a_long_row_is_named(tmp_path, cut) -> None:
    x = values(2, COLUMNS)
    x[1, 4000:4003] = float("nan")
    save_file({"model.layers.0.mlp.up_proj.weight": x}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    cut()
    with pytest.raises(UserError, match=r"up_proj\.weight' holds 3 NaN or infinite values, which w8a16-channel"):
        convert(tmp_path, "w8a16-channel", tmp_path / "out")


def test_a_scan_finds_the_same(tmp_path, cut) -> None:
    x = values(3, COLUMNS + 8)
    x[1] = 0
    x[2] = 0
    x[2, -1] = 1
    y = values(2, COLUMNS) * 1e-9
    y[0, :3] = torch.tensor([float("nan"), float("inf"), 1e6])
    save_file({"model.a.weight": x, "model.b.weight": y}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        whole = [f for step in scan_values(checkpoint, CancelToken()) for f in step.findings]
        cut()
        assert [f for step in scan_values(checkpoint, CancelToken()) for f in step.findings] == whole
    assert {f.code for f in whole} >= {"nan", "inf", "overflows-f16", "zero-rows", "scale-underflow"}


def test_a_preview_looks_at_pieces(folder, monkeypatch) -> None:
    monkeypatch.setattr("core.preview.MAX_VALUES", 16_384)
    with open_checkpoint(folder) as checkpoint:
        for target in ("w4a16-channel", "w4a16-g32-asym"):
            t = next(t for t in make_plan(checkpoint, Recipe(target)).tensors if t.shape == (11, COLUMNS))
            part = preview(checkpoint, t, Method.SEARCH, CancelToken(), max_values=16_384)
            assert 16 * 1024 <= part.error.values <= 16 * 1024 * t.format.unit_rows(t.shape)
            assert part.sampled_rows == part.error.values // COLUMNS
            assert part.error.snr_db > 10


def test_transposed_tensors_are_read_in_strips(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("core.checkpoint.pytorch.MAX_GAPS", 256)
    monkeypatch.setattr("core.checkpoint.pytorch.MAX_SPAN", 4096)
    wide, cube = torch.randn(50, 3000), torch.randn(7, 5, 2048)
    state = {"a": wide.T, "b": cube.permute(2, 0, 1), "c": cube.permute(1, 0, 2), "d": wide[:, 5:2900], "e": wide[:, 7]}
    torch.save(state, tmp_path / "a.pt")
    with open_checkpoint(tmp_path / "a.pt") as checkpoint:
        for t in checkpoint.tensors:
            want = state[t.name].numpy().reshape(t.rows, t.columns)
            rows = [(0, t.rows), (t.rows // 3, t.rows // 3 + min(9, t.rows // 2)), (t.rows - 1, t.rows), (0, 0)]
            for start, stop in rows:
                np.testing.assert_array_equal(checkpoint.read_rows(t, start, stop), want[start:stop])
            ends = (t.columns // 3, t.columns // 2)
            np.testing.assert_array_equal(checkpoint.read_rows(t, 0, 1, ends), want[:1, slice(*ends)])


def test_interleaved_rows_and_vectors_can_be_cut(tmp_path) -> None:
    matrix, vector = values(12, COLUMNS), values(4096)
    save_file({"a.weight": matrix, "a.bias": vector}, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        for name, heads in (("a.weight", 2), ("a.bias", 4)):
            t = checkpoint.tensor(name)
            mapped = MappedTensor(name, t.shape, (Piece(t, 0, t.rows),), permute_heads=heads, add=1.0)
            whole = read_mapped(checkpoint, mapped)
            for start, stop, columns in windows(t.rows, t.columns, 1024):
                part = read_mapped(checkpoint, mapped, start, stop, columns)
                np.testing.assert_array_equal(part, whole[start:stop, slice(*columns)])


def test_windows_cover_everything_once_and_end_where_blocks_do() -> None:
    cases = ((5, 10, 30, 1), (1, 5000, 2048, 1), (11, 5000, 2048, 8), (0, 7, 5, 1), (3, 0, 5, 1))
    for rows, columns, size, unit in cases:
        seen = np.zeros((rows, columns), int)
        for start, stop, (left, right) in windows(rows, columns, size, unit):
            seen[start:stop, left:right] += 1
            assert left % 1024 == 0
            assert (stop - start) * (right - left) <= max(size, unit * 1024)
            assert start % unit == 0
        assert (seen == 1).all()
    assert list(windows(4, 8, 16, 2)) == [(0, 2, (0, 8)), (2, 4, (0, 8))]
