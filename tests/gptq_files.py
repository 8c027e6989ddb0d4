"""GPTQ and AWQ folders with any codes, packed one code at a time; and what they stand for, in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each nibble of a word
Arrays = dict[str, torch.Tensor]


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [R, n] → words uint32 [R, ⌈n·bits/32⌉], code i at bit i·bits of its row."""
    out = np.zeros((len(codes), -(-codes.shape[1] * bits // 32)), np.uint32)
    for row, values in enumerate(codes):
        whole = sum(int(v) << (i * bits) for i, v in enumerate(values))
        for word in range(out.shape[1]):
            out[row, word] = whole >> (32 * word) & 0xFFFFFFFF
    return out


def awq_words(values: np.ndarray) -> np.ndarray:
    """Codes [R, n] → words uint32 [R, n / 8]."""
    words = np.zeros((len(values), values.shape[1] // 8), np.uint32)
    for nibble, output in enumerate(AWQ_ORDER):
        words |= values[:, output::8].astype(np.uint32) << np.uint32(4 * nibble)
    return words


def tensor(words: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int32))


@dataclass
class Layer:
    """codes [N, K], zeros and scales [N, G], index [K]: group of each column."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    index: np.ndarray

    @property
    def values(self) -> np.ndarray:
        zeros, scales = (a.astype(np.float64)[:, self.index] for a in (self.zeros, self.scales))
        return scales * (self.codes - zeros)


def make_layer(
    shape: tuple[int, int], bits: int, group: int, symmetric: bool, seed: int, lowest: int = 1, ordered: bool = False
) -> Layer:
    """Any layer. group: 0 for the row. ordered: columns belong to groups in an order of their own."""
    rng = np.random.default_rng(seed)
    rows, columns = shape
    index = np.arange(columns) // (group or columns)
    if ordered:
        index = rng.permutation(index)
    groups = int(index.max()) + 1
    middle = 1 << (bits - 1)
    zeros = np.full((rows, groups), middle) if symmetric else rng.integers(lowest, 2 * middle, (rows, groups))
    scales = rng.uniform(0.001, 0.02, (rows, groups)).astype(np.float16).astype(np.float32)
    return Layer(rng.integers(0, 2 * middle, shape), zeros, scales, index)


def gptq_arrays(base: str, layer: Layer, bits: int, version: int = 1, borrow: bool = True) -> Arrays:
    """borrow: layout 1 takes 1 from whole words, as GPTQModel does; else from each field."""
    zeros = layer.zeros.T
    if version == 1 and not (borrow and 32 % bits == 0):
        zeros = (zeros - 1) % (1 << bits)
    words = stream(zeros, bits)
    if version == 1 and borrow and 32 % bits == 0:
        words = words - np.uint32(sum(1 << at for at in range(0, 32, bits)))
    return {
        f"{base}.qweight": tensor(stream(layer.codes, bits).T),
        f"{base}.qzeros": tensor(words),
        f"{base}.scales": torch.from_numpy(np.ascontiguousarray(layer.scales.T)).half(),
        f"{base}.g_idx": torch.from_numpy(layer.index.astype(np.int32)),
    }


def awq_arrays(base: str, layer: Layer) -> Arrays:
    return {
        f"{base}.qweight": tensor(awq_words(layer.codes.T)),
        f"{base}.qzeros": tensor(awq_words(layer.zeros.T)),
        f"{base}.scales": torch.from_numpy(np.ascontiguousarray(layer.scales.T)).half(),
    }


def write_quantized(
    folder: Path,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    version: int = 1,
    *,
    awq: bool = False,
    lowest: int = 1,
    ordered: bool = False,
    borrow: bool = True,
    change: Callable[[Arrays], object] = lambda arrays: None,
    config: Callable[[dict], object] = lambda config: None,
    **model: object,
) -> dict[str, Layer]:
    """A Llama of such layers. change and config may spoil it. Returns the layers by the names of their weights."""
    write_llama(folder, **model)  # type: ignore[arg-type]
    arrays: Arrays = {}
    layers: dict[str, Layer] = {}
    for seed, (name, weight) in enumerate(load_file(folder / "model.safetensors").items()):
        if not name.endswith("proj.weight"):
            arrays[name] = weight
            continue
        shape = (weight.shape[0], weight.shape[1])
        layers[name] = layer = make_layer(shape, bits, group, symmetric, seed, lowest, ordered)
        base = name.removesuffix(".weight")
        arrays |= awq_arrays(base, layer) if awq else gptq_arrays(base, layer, bits, version, borrow)
    change(arrays)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    own: dict = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    if not awq:
        layout = "gptq" if version == 1 else "gptq_v2"
        own = {"quant_method": "gptq", "bits": bits, "group_size": group or -1, "sym": symmetric}
        own |= {"checkpoint_format": layout, "desc_act": ordered}
    config(own)
    about["quantization_config"] = own
    path.write_text(json.dumps(about), encoding="utf-8")
    return layers
