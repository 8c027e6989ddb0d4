"""Launches products of activations and weights that are both codes: int8, E4M3, MXFP8, MXFP4 and NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl

from kernels.gpu.configurations import VECTOR, ScaledConfiguration, scaled_configuration
from kernels.gpu.launcher import card_of, launch
from kernels.gpu.products import matmul, scaled_matmul
from kernels.gpu.products.scaled_ways import FNUZ, KINDS, way_of, work_of
from kernels.gpu.steps.apply import FLOATS, Outliers, Tokens, aligned_bytes

# Sums of int8 products stay below 2³¹ for as many columns.
MOST_COLUMNS = (2**31 - 1) // (127 * 128)
_PARTS_BLOCK = 1024
MOST_PROGRAMS = 65535  # that a grid has in its third dimension


@dataclass(frozen=True)
class ScaledWeights:
    """A matrix [rows, columns] of codes. kind: of `kernels.gpu.products.scaled_ways.KINDS`.

    codes: int8 or uint8 [N, bytes], rows as those of `kernels.gpu.steps.apply.Tokens`. scales: float32 [N], float32
    [⌈N / 128⌉, groups], or uint8 [N, groups].
    """

    kind: str
    rows: int
    columns: int
    codes: torch.Tensor
    scales: torch.Tensor
    tensor_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def upload_scaled(
    kind: str, codes: np.ndarray, scales: np.ndarray, device: str, tensor_scale: float = 1.0
) -> ScaledWeights:
    """Codes [N, K], one an element, and their scales, copied to 'cuda:0' … or 'cpu' (interpreter).

    int8: codes int8, scales float32 [N] (or one). e4m3: codes uint8, scales as int8's; 'e4m3 128 × 128': float32
    [⌈N / 128⌉, ⌈K / 128⌉]. mxfp8, mxfp4: uint8 codes, E8M0 scales uint8 [N, ⌈K / 32⌉]. nvfp4: E4M3 scales uint8
    [N, ⌈K / 16⌉]. Raises ValueError for a wrong shape, and for codes and scales that are no number.
    """
    if kind not in KINDS:
        raise ValueError(f"products of codes are of {', '.join(KINDS)}, not {kind}")
    shape = KINDS[kind]
    rows, columns = codes.shape
    if kind == "int8" and columns > MOST_COLUMNS:
        raise ValueError(f"sums over {columns} columns of int8 leave 32 bits; {MOST_COLUMNS} columns are the most")
    if codes.dtype != (np.int8 if kind == "int8" else np.uint8):
        raise ValueError(f"codes of {kind} are not {codes.dtype}")
    if shape.format == "e4m3":
        if (codes & 0x7F == 0x7F).any():
            raise ValueError("some weights are not numbers")
        codes = np.where(codes == 0x80, np.uint8(0), codes)  # −0, which some cards take for NaN
    if shape.format == "e2m1" and codes.max(initial=0) > 15:
        raise ValueError("codes of 4-bit floats are 0 … 15")
    width = aligned_bytes(columns, shape.bits)
    padded = np.zeros((rows, width * 8 // shape.bits), codes.dtype)
    padded[:, :columns] = codes
    if shape.bits == 4:
        padded = padded[:, ::2] | padded[:, 1::2] << np.uint8(4)
    stored = _scales(kind, scales, rows, columns, width)
    return ScaledWeights(
        kind, rows, columns, torch.from_numpy(padded).to(device), torch.from_numpy(stored).to(device), tensor_scale
    )


def _scales(kind: str, scales: np.ndarray, rows: int, columns: int, width: int) -> np.ndarray:
    shape = KINDS[kind]
    if not shape.group:
        flat = np.asarray(scales, np.float32).reshape(-1)
        if len(flat) not in (1, rows):
            raise ValueError(f"scales of {kind} are one a row, {rows}, not {len(flat)}")
        return np.broadcast_to(flat, rows).copy()
    wanted = (-(-rows // shape.scale_rows), -(-columns // shape.group))
    dtype = np.float32 if shape.scale == "single" else np.uint8
    if scales.shape != wanted or scales.dtype != dtype:
        raise ValueError(
            f"scales of {kind} are {dtype.__name__} {list(wanted)}, not {scales.dtype} {list(scales.shape)}"
        )
    if shape.scale == "e4m3" and scales.max(initial=0) > 0x7E:
        raise ValueError("some scales of NVFP4 are negative or not numbers")
    padded = np.zeros((len(scales), -(-width * 8 // shape.bits // shape.group)), dtype)
    padded[:, : scales.shape[1]] = scales
    return padded


def scaled_product(
    x: Tokens,
    weights: ScaledWeights,
    out: torch.Tensor | None = None,
    outliers: Outliers | None = None,
    how: ScaledConfiguration | None = None,
    way: str = "",
) -> torch.Tensor:
    """x [M, K] · weightsᵀ → float32 [M, N], or floats of out's type. x's kind is the weights' (`KINDS`).

    outliers: of int8, the columns that x has zeros for; they are multiplied as the floats that they are. how, way: as
    `scaled_configuration` and `way_of` give them for the card, if left out.
    """
    shape = KINDS[weights.kind]
    rows, columns = weights.rows, weights.columns
    if (x.kind, x.group, x.columns) != (shape.tokens, shape.group, columns):
        raise ValueError(f"{x.kind} of {x.columns} columns, groups of {x.group}, do not multiply {weights.kind}")
    tokens = len(x.codes)
    if outliers is not None and (weights.kind != "int8" or outliers.x.shape != (tokens, columns)):
        raise ValueError("outliers are of int8 products, and of the same activations")
    if out is None:
        out = torch.empty((tokens, rows), dtype=torch.float32, device=x.codes.device)
    if out.shape != (tokens, rows) or out.dtype not in FLOATS or not out.is_contiguous():
        raise ValueError(f"the result is contiguous floats {[tokens, rows]}, not {out.dtype} {list(out.shape)}")
    if not tokens:
        return out
    card = card_of(x.codes)
    way = way or way_of(weights.kind, card)
    how = how or scaled_configuration(card, work_of(weights.kind, way), tokens, rows, x.codes.shape[1], shape.bits)
    if -(-tokens // how.batch) > MOST_PROGRAMS:
        raise ValueError(f"{tokens} tokens are more than one call takes on {card}")
    fnuz = way == "fp8" and card in FNUZ
    parts = out
    if how.split > 1:
        parts = torch.empty((how.split, tokens, rows), dtype=torch.float32, device=out.device)
    tile: dict[str, Any] = {}
    if how.regime != VECTOR:
        tile = {"HOW": way, "FLOAT8": tl.float8e4b8 if fnuz else tl.float8e4nv, "MIDDLE": _middle(weights.kind)}
    launch(
        scaled_matmul.scaled_vector_product if how.regime == VECTOR else scaled_matmul.scaled_tile_product,
        (-(-rows // how.rows), how.split, -(-tokens // how.batch)),
        *(x.codes, x.scales, weights.codes, weights.scales),
        *((outliers.x, outliers.flags, outliers.blocks) if outliers else (x.codes, x.codes, x.codes)),
        *(parts, tokens, rows, columns, x.codes.shape[1], x.scales.shape[1]),
        *(weights.scales.shape[1] if shape.group else 1, outliers.x.stride(0) if outliers else 0),
        x.tensor_scale * weights.tensor_scale * (4.0 if fnuz and how.regime != VECTOR else 1.0),
        FORMAT=shape.format,
        SCALE=shape.scale,
        GROUP=shape.group,
        W_ROWS=shape.scale_rows,
        OUTLIERS=outliers is not None,
        BATCH=how.batch,
        ROWS=how.rows,
        BLOCK=how.block,
        SPLIT=how.split,
        **tile,
        warps=how.warps,
        stages=how.stages,
    )
    if how.split > 1:
        count = out.numel()
        launch(matmul.add_parts, (-(-count // _PARTS_BLOCK),), parts, out, count, SPLIT=how.split, BLOCK=_PARTS_BLOCK)
    return out


def _middle(kind: str) -> Any:
    """What upcast codes become: E4M3 is exact in float16; with a power of two it needs bfloat16's range."""
    return tl.float16 if kind.startswith("e4m3") else tl.bfloat16
