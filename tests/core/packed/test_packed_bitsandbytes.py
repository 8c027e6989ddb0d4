"""bitsandbytes folders as other programs leave them, read as plain weights; and damaged ones, refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import write_safetensors

from core.checkpoint.base import Checkpoint
from core.checkpoint.opening import open_checkpoint
from core.formats.codebook import dynamic_map
from kernels.families import FP4_LEVELS, NF4_LEVELS

BASE = "model.layers.0.mlp.up_proj"
W = BASE + ".weight"
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
EIGHT = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
Tensors = dict[str, np.ndarray]


def folder(path: Path, tensors: Tensors, config: dict[str, Any], dtypes: dict[str, str] | None = None) -> Checkpoint:
    tensors = {"model.norm.weight": np.ones(4, np.float32), **tensors}
    write_safetensors(path / "model.safetensors", tensors, dtypes)
    whole = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": config}
    (path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    return open_checkpoint(path)


def four(
    rows: int, columns: int, kind: str = "nf4", size: int = 64, nested: bool = False, dtype: str = "bfloat16"
) -> tuple[Tensors, np.ndarray]:
    """The tensors of one weight by hand, and its values."""
    rng = np.random.default_rng(rows + columns)
    levels = {"nf4": NF4_LEVELS, "fp4": FP4_LEVELS}[kind]
    count = rows * columns
    codes = rng.integers(0, 16, count + count % 2).astype(np.uint8)
    blocks = -(-count // size)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": size, "dtype": dtype, "shape": [rows, columns]}
    tensors: Tensors = {W: (codes[::2] << 4 | codes[1::2])[:, None], W + ".quant_map": levels}
    if nested:
        small = rng.integers(0, 256, blocks).astype(np.uint8)
        outer = rng.uniform(0.1, 0.2, -(-blocks // 256)).astype(np.float32)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.75}
        scales = dynamic_map()[small] * np.repeat(outer, 256)[:blocks] + np.float32(0.75)
        tensors |= {W + ".absmax": small, W + ".nested_absmax": outer, W + ".nested_quant_map": dynamic_map()}
    else:
        scales = rng.uniform(0.1, 2, blocks).astype(np.float32)
        tensors[W + ".absmax"] = scales
    name = f"{W}.quant_state.bitsandbytes__{kind}"
    tensors[name] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    values = levels[codes[:count]] * np.repeat(scales, size)[:count]
    return tensors, values.reshape(rows, columns)


def check(checkpoint: Checkpoint, want: np.ndarray) -> None:
    """All rows, and windows of them that begin and end anywhere."""
    t = checkpoint.tensor(W)
    assert t.packed
    assert t.shape == want.shape
    assert np.array_equal(checkpoint.read_rows(t), want)
    rows = len(want)
    for start in {0, 1, rows // 3, rows - 1}:
        for stop in {start + 1, min(rows, start + 3), rows}:
            assert np.array_equal(checkpoint.read_rows(t, start, stop), want[start:stop])
    half = want.shape[1] // 2
    assert np.array_equal(checkpoint.read_rows(t, 0, rows, (half, want.shape[1])), want[:, half:])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("shape", [(6, 128), (70, 96), (5, 33), (300, 576)])
def test_four_bits_are_read(shape: tuple[int, int], kind: str, nested: bool, tmp_path: Path) -> None:
    tensors, want = four(*shape, kind=kind, nested=nested)
    check(folder(tmp_path, tensors, FOUR), want)


@pytest.mark.parametrize("size", [32, 128, 256, 1024, 4096])
@pytest.mark.parametrize("nested", [False, True])
def test_blocks_of_other_sizes(size: int, nested: bool, tmp_path: Path) -> None:
    tensors, want = four(40, 160, size=size, nested=nested)
    check(folder(tmp_path, tensors, FOUR), want)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_the_model_computes_in_does_not_matter(dtype: str, tmp_path: Path) -> None:
    tensors, want = four(8, 64, dtype=dtype)
    check(folder(tmp_path, tensors, {}), want)


@pytest.mark.parametrize(("dtype", "item"), [("BF16", 2), ("F16", 2), ("F32", 4)])
def test_codes_under_the_name_of_a_float_type(dtype: str, item: int, tmp_path: Path) -> None:
    """As QLoRA with FSDP stores them, which wraps only tensors of one type together."""
    tensors, want = four(12, 96, nested=True)
    view = {2: np.uint16, 4: np.uint32}[item]
    tensors[W] = tensors[W].reshape(-1).view(view)[:, None]
    check(folder(tmp_path, tensors, FOUR, {W: dtype}), want)


def test_scales_in_half_precision(tmp_path: Path) -> None:
    tensors, _ = four(8, 64)
    tensors[W + ".absmax"] = np.full(8, 0.5, np.float16)
    values = folder(tmp_path, tensors, FOUR).tensor(W)
    assert values.dtype == "NF4 g64"


@pytest.mark.parametrize("with_format", [True, False])
def test_int8_rows_are_read(with_format: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(-128, 128, (9, 40)).astype(np.int8)
    scales = rng.uniform(0.1, 2, 9).astype(np.float32)
    tensors: Tensors = {W: codes, BASE + ".SCB": scales}
    if with_format:
        tensors[BASE + ".weight_format"] = np.array(0, np.uint8)
    checkpoint = folder(tmp_path, tensors, EIGHT)
    check(checkpoint, codes.astype(np.float32) * scales[:, None] * np.float32(1 / 127))
    assert checkpoint.tensor(W).dtype == "LLM.int8() per row"


def test_pytorch_files_are_read(tmp_path: Path) -> None:
    import torch

    tensors, want = four(70, 96, nested=True)
    torch.save({k: torch.from_numpy(np.array(v)) for k, v in tensors.items()}, tmp_path / "pytorch_model.bin")
    whole = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": FOUR}
    (tmp_path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    check(open_checkpoint(tmp_path), want)


def drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def put(name: str, array: np.ndarray) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: array})


def state(**changes: Any) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        name = W + ".quant_state.bitsandbytes__nf4"
        text = json.loads(tensors[name].tobytes()) | changes
        tensors[name] = np.frombuffer(json.dumps(text).encode(), np.uint8)

    return change


ROWS: Tensors = {W: np.zeros((2, 4), np.int8), BASE + ".SCB": np.zeros(2, np.float32)}
STATE = W + ".quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop(W + ".absmax"), W + ".absmax"),
        (drop(W), W),
        (drop(W + ".quant_map"), W + ".quant_map"),
        (drop(W + ".nested_absmax"), W + ".nested_absmax"),
        (drop(W + ".nested_quant_map"), W + ".nested_quant_map"),
        (drop(STATE), W + ".absmax"),
        (put(W + ".absmax", np.zeros(7, np.uint8)), W + ".absmax"),
        (put(W, np.zeros((3, 1), np.uint8)), W),
        (put(W, np.zeros((256, 1), np.int64)), W),
        (put(W + ".quant_map", FP4_LEVELS), W + ".quant_map"),
        (put(W + ".nested_quant_map", np.zeros(255, np.float32)), W + ".nested_quant_map"),
        (put(STATE, np.frombuffer(b"{not json", np.uint8)), STATE),
        (put(STATE, np.frombuffer(b"[1]", np.uint8)), STATE),
        (put(STATE, np.frombuffer(b"\xff\xfe", np.uint8)), STATE),
        (state(shape=[8, 64, 1]), STATE),
        (state(shape=[-8, 64]), STATE),
        (state(shape=[8, True]), STATE),
        (state(shape=[8, 96]), W),
        (state(blocksize=48), STATE),
        (state(blocksize=[64]), STATE),
        (state(quant_type="fp4"), STATE),
        (state(dtype="int4"), STATE),
        (state(nested_offset=None), STATE),
        (state(nested_offset="1"), STATE),
        (state(nested_offset=float("nan")), STATE),
        (state(nested_blocksize=128), STATE),
    ],
)
def test_what_is_damaged_is_named(change: Callable[[Tensors], None], named: str, tmp_path: Path) -> None:
    tensors, _ = four(8, 64, nested=True)
    change(tensors)
    problem = folder(tmp_path, tensors, FOUR).packed_problem
    assert problem is not None
    assert f"'{named}'" in problem.message


@pytest.mark.parametrize(
    ("tensors", "config", "named"),
    [
        ({W: np.zeros((2, 4), np.int8)}, EIGHT, BASE + ".SCB"),
        ({BASE + ".SCB": np.zeros(2, np.float32)}, EIGHT, W),
        ({W: np.zeros((2, 4), np.int8), BASE + ".SCB": np.zeros(3, np.float32)}, EIGHT, BASE + ".SCB"),
        ({W: np.zeros((2, 4), np.float32), BASE + ".SCB": np.zeros(2, np.float32)}, EIGHT, W),
        ({W: np.zeros((2, 4), np.int8), BASE + ".SCB": np.zeros(2, np.int32)}, EIGHT, BASE + ".SCB"),
        ({**ROWS, BASE + ".weight_format": np.array(2, np.uint8)}, EIGHT, BASE + ".weight_format"),
        (ROWS, FOUR, BASE + ".SCB"),
        (four(8, 64)[0], EIGHT, STATE),
        (four(8, 64)[0], {"quant_method": "gptq", "bits": 4}, STATE),
    ],
)
def test_what_contradicts_is_named(tensors: Tensors, config: dict[str, Any], named: str, tmp_path: Path) -> None:
    problem = folder(tmp_path, tensors, config).packed_problem
    assert problem is not None
    assert f"'{named}'" in problem.message
