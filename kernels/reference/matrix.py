"""What a product of activations and stored weights is: the definition that compiled kernels are compared with.

Σ over k of x̂[m, k] · w[n, k] in float64: w as any reader of the format decodes it, x̂ as the activation contract
rounds it. Weights stay as stored, and are decoded a few rows at a time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kernels import ops
from kernels.layouts import LAYOUTS
from kernels.reference.arithmetic import bf16_bits, bf16_values

_DECODED = 1 << 20  # weights that are decoded at a time


class Weights(Protocol):
    """kind: 'integer', 'BF16' or 'float', which decides what the activations become."""

    @property
    def kind(self) -> str: ...

    def take(self, rows: np.ndarray) -> np.ndarray: ...


class Blocks:
    """GGML blocks, uint8 [N, row bytes]."""

    kind = "integer"

    def __init__(self, name: str, rows: int, columns: int, tensor_scale: float) -> None:
        self._name, self._columns, self._tensor_scale = name, columns, tensor_scale
        self._data = np.zeros((rows, LAYOUTS[name].row_bytes(columns)), np.uint8)
        self.nbytes = self._data.nbytes

    def put_blocks(self, start: int, data: np.ndarray) -> None:
        self._data[start : start + len(data)] = data

    def take(self, rows: np.ndarray) -> np.ndarray:
        return ops.decode_blocks(self._name, self._data[rows], self._columns, tensor_scale=self._tensor_scale)


class Groups:
    """Codes as a dense bit stream, one scale and maybe one zero or offset a group.

    third: '', 'zeros' or 'minimums' (offsets). order: see `kernels.matrix.Matrix`.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        bits: int,
        group: int,
        scale_dtype: str,
        third: str,
        table: np.ndarray | None,
        order: np.ndarray | None = None,
    ) -> None:
        self._order = order
        self._bits, self._group, self._columns, self._table = bits, group, columns, table
        self.kind = "integer" if table is None or integer_levels(table) is not None else "float"
        shape = (rows, -(-columns // group))
        self._codes = np.zeros((rows, -(-columns * bits // 32)), np.int32)
        self._scales = np.zeros(shape, np.float32)
        self._zeros: np.ndarray | None = np.zeros(shape, np.uint8) if third == "zeros" else None
        self._offsets: np.ndarray | None = np.zeros(shape, np.float32) if third == "minimums" else None
        scale_bytes = 4 if scale_dtype == "F32" else 2
        third_bytes = {"": 0, "zeros": 1, "minimums": scale_bytes}[third]
        self.nbytes = self._codes.nbytes + self._scales.size * (scale_bytes + third_bytes)

    def put_groups(
        self, start: int, codes: np.ndarray, scales: np.ndarray, third: np.ndarray | None, _group: int
    ) -> None:
        stop = start + len(codes)
        self._codes[start:stop] = ops.pack_bits(codes, self._bits)
        self._scales[start:stop] = scales
        if self._zeros is not None:
            self._zeros[start:stop] = third
        if self._offsets is not None:
            self._offsets[start:stop] = third

    def take(self, rows: np.ndarray) -> np.ndarray:
        values = self._decoded(rows)
        if self._order is None:
            return values
        ordered = np.empty_like(values)
        ordered[:, self._order] = values
        return ordered

    def _decoded(self, rows: np.ndarray) -> np.ndarray:
        codes = ops.unpack_bits(self._codes[rows], self._bits, self._columns)
        scales = self._each(self._scales[rows])
        if self._table is not None:
            return self._table[codes] * scales
        if self._offsets is not None:
            return codes.astype(np.float32) * scales + self._each(self._offsets[rows])
        middle: np.ndarray | np.float32 = np.float32(1 << (self._bits - 1))
        if self._zeros is not None:
            middle = self._each(self._zeros[rows]).astype(np.float32)
        return (codes.astype(np.float32) - middle) * scales

    def _each(self, of_groups: np.ndarray) -> np.ndarray:
        return np.repeat(of_groups, self._group, axis=1)[:, : self._columns]


class Elements:
    """Floats as stored; 8-bit ones may have scales, float32 [N, ⌈K / b⌉]."""

    def __init__(self, dtype: str, rows: int, columns: int) -> None:
        self._dtype, self._columns = dtype, columns
        self._scales: list[np.ndarray] = []
        self._group = columns  # of values with one scale
        self.kind = "BF16" if dtype == "BF16" else "float"
        self._data = np.zeros((rows, columns * element_bytes(dtype)), np.uint8)

    @property
    def nbytes(self) -> int:
        return self._data.nbytes + sum(scales.nbytes for scales in self._scales)

    def put_elements(self, start: int, data: np.ndarray, scales: np.ndarray | None, group: int) -> None:
        self._group = group
        self._data[start : start + len(data)] = data
        if scales is not None:
            self._scales.append(scales)

    def take(self, rows: np.ndarray) -> np.ndarray:
        values = ops.to_float32(self._data[rows], self._dtype)
        if not self._scales:
            return values
        scales = np.concatenate(self._scales)[rows]
        return values * np.repeat(scales, self._group, axis=1)[:, : self._columns]


STORED = (Blocks, Groups, Elements)


def element_bytes(dtype: str) -> int:
    return 1 if dtype.startswith("F8") else 4 if dtype == "F32" else 2


def integer_levels(table: np.ndarray) -> np.ndarray | None:
    """int8 [16] with table = levels · step for one power of two `step`, as E2M1's 0, ½ … 6 have; None without one."""
    smallest = np.float32(2.0) ** np.floor(np.log2(max(np.abs(table).max(), np.float32(2.0**-100))) - 6)
    for step in (smallest * 4, smallest * 2, smallest):
        levels = table / step
        if (levels == np.rint(levels)).all() and np.abs(levels).max() <= 127:
            return levels.astype(np.int8)
    return None


def round_activations(x: np.ndarray, kind: str, activations: str, order: np.ndarray | None = None) -> np.ndarray:
    """float32 [M, K] → what weights of `kind` are multiplied with, float64. activations: a name of `Activations`.

    order: of `kernels.matrix.Matrix`: the neighbours that share a scale are neighbours in that order.

    int8: scale = amax / 127, code = x · (127 / amax) to nearest, ties to even; a block too small for 127 / amax to be
    finite counts as zeros; a block with NaN or Inf is NaN.
    """
    if kind == "float" or activations == "EXACT" or (kind == "BF16" and activations == "TOKEN"):
        return x.astype(np.float64)
    if kind == "BF16":
        return bf16_values(bf16_bits(x)).astype(np.float64)
    if order is not None:
        rounded = np.empty(x.shape, np.float64)
        rounded[:, order] = round_activations(x[:, order], kind, activations)
        return rounded
    rows, columns = x.shape
    block = columns if activations == "TOKEN" else 32
    padded = np.zeros((rows, -(-columns // block) * block), np.float32)
    padded[:, :columns] = x
    blocks = padded.reshape(rows, padded.shape[1] // block, block)
    with np.errstate(all="ignore"):
        amax = np.abs(blocks).max(axis=2, keepdims=True)
        inverse = np.float32(127) / amax
        usable = np.isfinite(inverse)
        codes = np.where(usable, np.rint(blocks * np.where(usable, inverse, 0)), 0)
        scales = np.where(usable, amax / np.float32(127), 0).astype(np.float64)
        scales[~np.isfinite(amax)] = np.nan
    return (np.where(np.isfinite(scales), codes, 0) * scales).reshape(padded.shape)[:, :columns]


def product(
    x: np.ndarray, weights: Weights, rows: int, activations: str, order: np.ndarray | None = None
) -> np.ndarray:
    """float32 [M, K] · weightsᵀ → float32 [M, rows]."""
    rounded = round_activations(x, weights.kind, activations, order)
    out = np.empty((len(x), rows), np.float32)
    step = max(_DECODED // x.shape[1], 1)
    with np.errstate(all="ignore"):
        for start in range(0, rows, step):
            some = np.arange(start, min(start + step, rows))
            out[:, some] = rounded @ weights.take(some).astype(np.float64).T
    return out


def add_gram(x: np.ndarray, total: np.ndarray) -> None:
    """total float32 [K, K] += Σ x xᵀ over the rows of x float32 [R, K], on and above the diagonal at least."""
    wide = x.astype(np.float64)
    step = max(_DECODED // x.shape[1], 1)
    for start in range(0, len(total), step):
        total[start : start + step, start:] += wide[:, start : start + step].T @ wide[:, start:]
