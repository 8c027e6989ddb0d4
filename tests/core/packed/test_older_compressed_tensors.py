"""Folders of compressed-tensors' earlier releases: columns grouped by activations, zero points in bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from job_help import convert
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import load
from kernels.matrix import Activations

GROUP, K = 32, 128


def pack(codes: np.ndarray, axis: int) -> torch.Tensor:
    """int32 words of eight unsigned 4-bit codes along `axis`, the first in the lowest bits."""
    parts = np.moveaxis(codes.astype(np.uint32), axis, -1)
    words = sum(parts[..., i::8] << np.uint32(4 * i) for i in range(8))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


def write(
    folder: Path, ordered: bool, zeros: str, change: Any = lambda tensors: None
) -> tuple[Path, dict[str, np.ndarray]]:
    """A Llama whose projections of 128 columns are packed in groups of 32, and their values, float32 by name.

    zeros: '' for none, 'bytes' or 'words', in which they are stored.
    """
    write_llama(folder, hidden=K, ffn=K, layers=1, tied=False)
    tensors = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(5)
    values = {}
    for name in [n for n in tensors if "_proj" in n]:
        rows = tensors.pop(name).shape[0]
        base = name.removesuffix(".weight")
        codes = rng.integers(-8, 8, (rows, K))
        index = rng.permutation(np.arange(K) // GROUP) if ordered else np.arange(K) // GROUP
        scales = torch.from_numpy(rng.uniform(0.005, 0.02, (rows, K // GROUP))).to(torch.bfloat16)
        zero = rng.integers(-8, 8, (rows, K // GROUP)) if zeros else np.zeros((rows, K // GROUP), int)
        values[name] = ((codes - zero[:, index]) * scales.float().numpy()[:, index]).astype(np.float32)
        tensors |= {
            f"{base}.weight_packed": pack(codes + 8, 1),
            f"{base}.weight_scale": scales,
            f"{base}.weight_shape": torch.tensor([rows, K]),
        }
        if zeros:
            byte = torch.from_numpy(zero.astype(np.int8))
            tensors[f"{base}.weight_zero_point"] = byte if zeros == "bytes" else pack(zero + 8, 0)
        if ordered:
            tensors[f"{base}.weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    weights = {"num_bits": 4, "type": "int", "symmetric": not zeros, "strategy": "group", "group_size": GROUP}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {**weights, "actorder": "group" if ordered else None}}
        },
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder, values


@pytest.mark.parametrize("zeros", ["", "bytes", "words"])
@pytest.mark.parametrize("ordered", [False, True])
def test_values_are_code_less_zero_times_the_scale_of_the_columns_group(
    ordered: bool, zeros: str, tmp_path: Path
) -> None:
    folder, values = write(tmp_path / "m", ordered, zeros)
    with open_checkpoint(folder) as checkpoint:
        for name, want in values.items():
            tensor = checkpoint.tensor(name)
            np.testing.assert_array_equal(checkpoint.read_rows(tensor), want)
            np.testing.assert_array_equal(checkpoint.read_rows(tensor, 3, 17), want[3:17])
        assert not [t.name for t in checkpoint.tensors if "weight_" in t.name]


@pytest.mark.parametrize("zeros", ["", "bytes"])
def test_the_engine_computes_with_them(zeros: str, tmp_path: Path) -> None:
    folder, _ = write(tmp_path / "m", True, zeros)
    plain = tmp_path / "plain"
    convert(folder, "F32", plain)
    ids = np.arange(2, 26, dtype=np.int32)
    found = []
    for path in (folder, plain):
        model = load(
            open_checkpoint(path), cache_dtype="F32", arithmetic=Arithmetic(Activations.EXACT), threads=2, capacity=64
        )
        places = np.arange(len(ids), dtype=np.int32)
        found.append(model.engine.run(ids, np.zeros(len(ids), np.int32), places, places).copy())
        model.unload()
    assert np.abs(found[0] - found[1]).max() < 1e-5 * np.abs(found[1]).max()


def test_zero_points_in_bytes_move_into_words_without_loss(tmp_path: Path) -> None:
    folder, values = write(tmp_path / "m", False, "bytes")
    convert(folder, f"w4a16-g{GROUP}-asym", tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert all(t.dtype == torch.int32 for name, t in written.items() if name.endswith("zero_point"))
    with open_checkpoint(tmp_path / "out") as checkpoint:
        for name, want in values.items():
            np.testing.assert_array_equal(checkpoint.read_rows(checkpoint.tensor(name)), want)


def no_order(tensors: dict[str, torch.Tensor]) -> None:
    tensors |= {n.replace("_packed", "_g_idx"): torch.full((K,), -1) for n in list(tensors) if "_packed" in n}


def short_shapes(tensors: dict[str, torch.Tensor]) -> None:
    tensors |= {n: t.to(torch.int32) for n, t in tensors.items() if n.endswith("_shape")}


@pytest.mark.parametrize("change", [no_order, short_shapes])
def test_an_order_of_minus_one_and_shapes_in_32_bits(change: Any, tmp_path: Path) -> None:
    folder, values = write(tmp_path / "m", False, "", change)
    with open_checkpoint(folder) as checkpoint:
        for name, want in values.items():
            np.testing.assert_array_equal(checkpoint.read_rows(checkpoint.tensor(name)), want)


@pytest.mark.parametrize(
    ("ending", "wrong", "said"),
    [
        ("g_idx", torch.zeros(K, dtype=torch.int32), "does not make 4 groups of one size"),
        ("g_idx", torch.arange(K, dtype=torch.int32), "does not make 4 groups of one size"),
        ("g_idx", torch.zeros(K // 2, dtype=torch.int32), "can not be the groups of 128 columns"),
        ("zero_point", torch.full((K, K // GROUP), 8, dtype=torch.int8), "zero points that 4 bits do not hold"),
        ("zero_point", torch.zeros((K, 2), dtype=torch.int8), "needs I8"),
    ],
)
def test_what_contradicts_itself_is_named(ending: str, wrong: torch.Tensor, said: str, tmp_path: Path) -> None:
    name = f"model.layers.0.self_attn.q_proj.weight_{ending}"
    folder, _ = write(tmp_path / "m", True, "bytes", lambda tensors: tensors.update({name: wrong}))
    with pytest.raises(UserError) as refused:
        convert(folder, "F32", tmp_path / "out")
    assert said in refused.value.message
    assert "q_proj" in refused.value.message
