"""Products of packed weights on a GPU: vector, tensor-core and library regime, and which one runs.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1) on CPU tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.gpu import configurations
from kernels.gpu.configurations import LIBRARY, VECTOR, Configuration, configuration
from kernels.gpu.launcher import card_of, launch
from kernels.gpu.products import decoders, matmul
from kernels.gpu.weights.forms import Form
from kernels.gpu.weights.layout import Packed

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
_SIGNED = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}  # Triton's pointers are of signed words
_BLOCK = 1024


@dataclass(frozen=True)
class Weights:
    """`Packed`, its planes on a device."""

    form: Form
    rows: int
    columns: int
    low: torch.Tensor
    high: torch.Tensor | None
    scales: torch.Tensor
    third: torch.Tensor | None
    table: torch.Tensor | None
    order: torch.Tensor | None
    tensor_scale: float
    nbytes: int


def upload(packed: Packed, device: str) -> Weights:
    """Planes copied to 'cuda:0' … or 'cpu' (interpreter)."""

    def plane(values: np.ndarray | None, kind: str = "") -> torch.Tensor | None:
        if values is None:
            return None
        values = np.require(values, requirements=["C", "W"])
        tensor = torch.from_numpy(values.view(_SIGNED.get(values.dtype, values.dtype)))
        return (tensor.view(FLOATS[kind]) if kind else tensor).to(device)

    low, scales = plane(packed.low), plane(packed.scales, packed.scale_type)
    assert low is not None
    assert scales is not None
    third = plane(packed.third, packed.scale_type if packed.form.scales == "minimums" else "")
    high, table, order = plane(packed.high), plane(packed.table), plane(packed.order)
    return Weights(
        packed.form, packed.rows, packed.columns, low, high, scales, third, table, order, packed.tensor_scale,
        packed.nbytes,
    )  # fmt: skip


def constants(form: Form) -> dict[str, Any]:
    """What the kernels are compiled with for a format."""
    return {
        "LEVELS": getattr(decoders, form.levels),
        "SCALES": getattr(decoders, form.scales),
        "BITS": form.bits,
        "HIGH": form.high,
        "MIDDLE": form.middle,
        "GROUP": form.group,
        "SPAN": form.span,
        "WORDS": form.words,
        "SCALE_ROWS": form.scale_rows,
        "OFFSET": form.offset,
    }


def chosen(weights: Weights, tokens: int) -> Configuration:
    """How a product of so many tokens runs."""
    form, tiles = weights.form, weights.form.tiles(weights.columns)
    return configuration(card_of(weights.low), tokens, weights.rows, form.words, tiles, weights.nbytes, form.codes)


def product(x: torch.Tensor, weights: Weights, how: Configuration | None = None) -> torch.Tensor:
    """float16 or bfloat16 [M, K] · weightsᵀ → float32 [M, N]; the library's product gives x's own type.

    Raises ValueError for other shapes and types.
    """
    if x.ndim != 2 or x.shape[1] != weights.columns:
        raise ValueError(f"{list(x.shape)} does not multiply a matrix of {weights.columns} columns")
    if x.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"activations are float16 or bfloat16, not {x.dtype}")
    if not len(x):
        return torch.empty((0, weights.rows), dtype=torch.float32, device=x.device)
    how = how or chosen(weights, len(x))
    x = x.contiguous()
    if how.regime == LIBRARY:
        places = x if weights.order is None else x[:, weights.order]
        return places @ dequantized(weights, x.dtype, how).T
    parts = torch.empty((how.split, len(x), weights.rows), dtype=torch.float32, device=x.device)
    grid = (-(-weights.rows // how.rows), how.split, 1 if how.regime == VECTOR else -(-len(x) // how.batch))
    kernel: Any = matmul.vector_product
    sizes: tuple[int, ...] = (weights.rows, weights.columns)
    stages: dict[str, Any] = {}
    if how.regime != VECTOR:
        kernel, sizes = matmul.tile_product, (len(x), *sizes)
        stages = {"STAGES": how.stages}
    launch(
        kernel,
        grid,
        x,
        *_planes(weights),
        weights.order if weights.order is not None else weights.low,
        parts,
        *sizes,
        weights.form.tiles(weights.columns),
        weights.scales.shape[1],
        weights.tensor_scale,
        **constants(weights.form),
        ORDERED=weights.order is not None,
        EVEN=weights.columns % weights.form.tile == 0,
        BATCH=how.batch,
        ROWS=how.rows,
        SPLIT=how.split,
        UNROLLED=how.unrolled,
        **stages,
        warps=how.warps,
        stages=None,
    )
    if how.split == 1:
        return parts[0]
    out = torch.empty_like(parts[0])
    blocks = (-(-out.numel() // _BLOCK),)
    launch(matmul.add_parts, blocks, parts, out, out.numel(), SPLIT=how.split, BLOCK=_BLOCK, stages=None)
    return out


def dequantized(weights: Weights, dtype: torch.dtype, how: Configuration | None = None) -> torch.Tensor:
    """[N, K] in stored order: column i is that of place i of `order`."""
    how = how or chosen(weights, configurations.library_from())
    out = torch.empty((weights.rows, weights.columns), dtype=dtype, device=weights.low.device)
    grid = (-(-weights.rows // how.rows), weights.form.tiles(weights.columns))
    launch(
        matmul.dequantize,
        grid,
        *_planes(weights),
        out,
        weights.rows,
        weights.columns,
        weights.scales.shape[1],
        weights.tensor_scale,
        **constants(weights.form),
        ROWS=how.rows,
        warps=how.warps,
        stages=None,
    )
    return out


def _planes(weights: Weights) -> tuple[torch.Tensor, ...]:
    """low, high, scales, third, table; a plane that a format has not is never read."""
    low, scales = weights.low, weights.scales
    return (
        low,
        weights.high if weights.high is not None else low,
        scales,
        weights.third if weights.third is not None else scales,
        weights.table if weights.table is not None else scales,
    )
