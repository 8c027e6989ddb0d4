"""What a look at every value finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import gguf_bytes, gguf_tensor, gguf_text, write_safetensors

from core.checkpoint import open_checkpoint
from core.checkpoint import value_scan as module
from core.checkpoint.doctor import Finding, scan_values
from core.errors import Cancelled
from core.progress import CancelToken
from core.units import format_count
from kernels import ops

NAME = "model.layers.0.mlp.up_proj.weight"


def scan(tmp_path: Path, values: np.ndarray, name: str = NAME) -> dict[str, Finding]:
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "a.safetensors", {name: values}))
    steps = list(scan_values(checkpoint, CancelToken()))
    assert steps[-1].bytes_done == steps[-1].bytes_total == values.nbytes
    found = [finding for step in steps for finding in step.findings]
    assert all(f.tensor == name and f.message.endswith(".") and f.hint.endswith(".") for f in found)
    return {finding.code: finding for finding in found}


def usual(rows: int = 4, columns: int = 512) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.02, (rows, columns)).astype(np.float32)


def test_usual_values_have_nothing(tmp_path: Path) -> None:
    assert scan(tmp_path, usual()) == {}
    assert scan(tmp_path, usual(4, 33)) == {}


@pytest.mark.parametrize("columns", [512, 33])
def test_nan_inf_and_large_values_are_counted(tmp_path: Path, columns: int) -> None:
    values = usual(4, columns)
    values[1, 3:5] = np.nan
    values[1, 7] = np.inf
    values[2, 0:3] = -np.inf
    values[3, 1] = -70000
    values[3, 2] = 65504
    found = scan(tmp_path, values)
    assert set(found) == {"nan", "inf", "overflows-f16"}
    assert f"has 2 of {format_count(values.size)} values that are NaN" in found["nan"].message
    assert "has 4 of" in found["inf"].message
    assert "has 1 of" in found["overflows-f16"].message
    assert "7e+04" in found["overflows-f16"].hint


def test_zeros(tmp_path: Path) -> None:
    values = usual()
    values[2] = 0
    assert "1 of 4 rows of zeros only" in scan(tmp_path, values)["zero-rows"].message
    assert scan(tmp_path, values, "model.embed_tokens.weight")["zero-rows"].severity == "info"
    assert set(scan(tmp_path, np.zeros((4, 64), np.float32))) == {"zero-tensor"}
    # An all-zero bias or norm offset is usual.
    assert scan(tmp_path, np.zeros(64, np.float32), "model.layers.0.self_attn.q_proj.bias") == {}
    assert scan(tmp_path, np.zeros(64, np.float32), "model.norm.weight") == {}


def test_scales_that_would_be_zero(tmp_path: Path) -> None:
    values = usual()
    values[0, :32] = 1e-6
    assert "1 of 64 blocks of 32" in scan(tmp_path, values)["scale-underflow"].message
    values = usual()
    values[0, :256] = 1e-4
    assert "1 of 8 blocks of 256" in scan(tmp_path, values)["super-scale-underflow"].message


def test_the_limits_are_those_where_the_scale_is_zero() -> None:
    def lost(value: float) -> bool:
        block = np.full((1, 32), value, np.float32)
        return not ops.decode_blocks("Q8_0", ops.encode_blocks("Q8_0", block, search=False), 32).any()

    assert lost(module.Q8_0_FLUSH * 0.99)
    assert not lost(module.Q8_0_FLUSH * 1.01)
    # Q6_K: 6-bit codes −32…31, 8-bit scales −128…127 of a float16.
    assert np.float16(module.Q6_K_FLUSH / 32 / 128) == 0
    assert np.float16(module.Q6_K_FLUSH * 1.01 / 32 / 128) > 0


def test_large_tensors_come_in_blocks_and_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_VALUES", 1024)
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "a.safetensors", {NAME: usual(16)}))
    token = CancelToken()
    steps = scan_values(checkpoint, token)
    done = [next(steps).bytes_done for _ in range(3)]
    assert done == [4096, 8192, 12288]
    token.cancel()
    with pytest.raises(Cancelled):
        next(steps)


def test_quantized_and_integer_tensors(tmp_path: Path) -> None:
    block = np.float16(np.nan).tobytes() + bytes(32)
    tensors = [gguf_tensor("blk.0.ffn_up.weight", (32, 1), 8, 0), gguf_tensor("codes", (4,), 26, 64)]
    raw = gguf_bytes([gguf_text("general.architecture", "llama")], tensors, block.ljust(64, b"\0") + bytes(16))
    (tmp_path / "a.gguf").write_bytes(raw)
    steps = list(scan_values(open_checkpoint(tmp_path / "a.gguf"), CancelToken()))
    assert [step.tensor for step in steps] == ["blk.0.ffn_up.weight"]
    assert [finding.code for finding in steps[0].findings] == ["nan"]
