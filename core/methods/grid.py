"""Numbers whose scales are fixed, as plain values to choose from: step · level + offset for each group of a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.formats.affine import Affine, RealZeros
from core.formats.base import EncodeOptions, Method
from core.formats.codebook import Codebook
from core.formats.float4 import LEVELS, Float4
from core.formats.float8 import Float8, float_scales
from core.formats.numbers import Codes, Integers, Numbers, joined
from core.progress import CancelToken
from kernels import ops

_PIECE_VALUES = 1 << 20  # values that are quantized between two looks at the token
_PIECE_ROWS = 64  # pieces are multiples of it


@dataclass(frozen=True)
class Grid:
    """What codes of a weight [R, K] stand for, up to float32's rounding.

    levels: float32 [n ≤ 256], ascending; codes: uint8 [n], of each level; places: uint8 [256], the level of each code.
    steps, offsets: float32 [R, G]; group: int32 [K], of each column, into G. chosen: codes that the scales came with.
    """

    levels: np.ndarray
    codes: np.ndarray
    places: np.ndarray
    steps: np.ndarray
    offsets: np.ndarray
    group: np.ndarray
    chosen: Codes

    def index(self) -> np.ndarray:
        """Of each chosen code the place among the levels, uint8 [R, K]."""
        return self.places[self.chosen.codes]

    def values(self, index: np.ndarray) -> np.ndarray:
        """What places among the levels stand for, float32 [R, K]."""
        rows, columns = index.shape
        each = columns // max(1, self.steps.shape[1])
        if self.steps.shape[1] * each == columns and np.array_equal(self.group, np.arange(columns) // each):
            found = self.levels.take(index).reshape(rows, -1, each)
            found *= self.steps[:, :, None]
            if self.offsets.any():
                found += self.offsets[:, :, None]
            return found.reshape(rows, columns)
        return self.steps[:, self.group] * self.levels[index] + self.offsets[:, self.group]

    def rows(self, start: int, stop: int) -> Grid:
        """Rows start…stop of it."""
        return replace(
            self, steps=self.steps[start:stop], offsets=self.offsets[start:stop], chosen=self.chosen.rows(start, stop)
        )

    def with_index(self, index: np.ndarray) -> Codes:
        """Other codes under the same scales."""
        return replace(self.chosen, codes=self.codes[index])


def why_no_grid(numbers: Numbers) -> str:
    """'' where codes can be chosen one by one under fixed scales, else one clause that says why not."""
    if isinstance(numbers, Codebook) and numbers.nested:
        return "its scales are rounded once more when they are written"
    if isinstance(numbers, Float8) and numbers.fnuz:
        return "nothing is written in AMD's variant of 8-bit floats"
    if isinstance(numbers, Integers | Affine | RealZeros | Codebook | Float4 | Float8):
        return ""
    return f"{numbers.label} are no levels times a scale"


def quantized(numbers: Numbers, weight: np.ndarray, options: EncodeOptions, token: CancelToken) -> Codes:
    """`numbers.quantize` of a whole weight float32 [R, K], in pieces of rows where that gives the same."""
    rows, columns = weight.shape
    step = max(1, _PIECE_VALUES // columns // _PIECE_ROWS) * _PIECE_ROWS
    unit = numbers.size // numbers.run(columns) if isinstance(numbers, Codebook) else 1
    if numbers.tile != 1 or _PIECE_ROWS % unit:
        step = max(1, rows)
    pieces = []
    for start in range(0, rows, step):
        token.check()
        pieces.append(numbers.quantize(weight[start : start + step], options))
    return joined(pieces)


def valued(numbers: Numbers, codes: Codes, token: CancelToken) -> np.ndarray:
    """`numbers.values` of a whole weight, float32 [R, K], piece by piece."""
    rows, columns = codes.codes.shape
    out = np.empty((rows, columns), np.float32)
    step = max(1, _PIECE_VALUES // max(1, columns) // _PIECE_ROWS) * _PIECE_ROWS
    if numbers.tile != 1 or isinstance(numbers, Codebook):
        step = max(1, rows)
    for start in range(0, rows, step):
        token.check()
        out[start : start + step] = numbers.values(codes.rows(start, start + step))
    return out


def grid_of(numbers: Numbers, chosen: Codes) -> Grid:
    """The levels of each group under the scales of codes [R, K]. Raises ValueError where `why_no_grid` says why."""
    if reason := why_no_grid(numbers):
        raise ValueError(reason)
    columns = chosen.codes.shape[1]
    table = _table(numbers)
    finite = np.flatnonzero(np.isfinite(table))
    levels, first = np.unique(table[finite], return_index=True)
    places = np.zeros(256, np.uint8)
    places[finite] = np.searchsorted(levels, table[finite])
    steps = _steps(numbers, chosen)
    size = numbers.run(columns) if isinstance(numbers, Codebook) else numbers.group or columns
    group = (np.arange(columns) // size).astype(np.int32)
    return Grid(levels, finite[first].astype(np.uint8), places, steps, _offsets(numbers, chosen, steps), group, chosen)


def _table(numbers: Numbers) -> np.ndarray:
    """float32, the value of each code under a scale of 1 without an offset."""
    if isinstance(numbers, Codebook):
        return numbers.levels
    if isinstance(numbers, Float4):
        return np.array(LEVELS, np.float32)
    if isinstance(numbers, Float8):
        return ops.to_float32(np.arange(256, dtype=np.uint8).reshape(1, -1), numbers.element.label).reshape(-1)
    assert isinstance(numbers, Integers | Affine | RealZeros)
    return np.arange(1 << numbers.bits, dtype=np.float32)


def _steps(numbers: Numbers, chosen: Codes) -> np.ndarray:
    """float32 [R, G]."""
    if isinstance(numbers, Float4):
        scales = ops.to_float32(chosen.scales, numbers.scale.label) * np.float32(chosen.tensor_scale)
    elif isinstance(numbers, Float8):
        scales = float_scales(chosen.scales)
    else:
        scales = chosen.scales
    if chosen.tile != 1:
        rows = len(chosen.codes)
        scales = np.repeat(scales, chosen.tile or rows, axis=0)[:rows]
    return np.ascontiguousarray(scales, np.float32)


def _offsets(numbers: Numbers, chosen: Codes, steps: np.ndarray) -> np.ndarray:
    """float32 [R, G]."""
    if isinstance(numbers, Affine):
        return np.ascontiguousarray(numbers.offsets(chosen), np.float32)
    if isinstance(numbers, Integers | RealZeros):
        zeros = np.float32(1 << (numbers.bits - 1)) if chosen.zeros is None else chosen.zeros.astype(np.float32)
        return -zeros * steps
    return np.zeros_like(steps)


def search_options(
    numbers: Numbers, weight: np.ndarray, importance: np.ndarray | None, amax: float, threads: int
) -> EncodeOptions:
    """To choose scales by the least squared error, each column's weighted. amax: see `Problem`."""
    method = Method.SEARCH if Method.SEARCH in numbers.methods else Method.ROUND
    amax = amax or (max(float(weight.max()), -float(weight.min())) if weight.size else 0.0)
    return EncodeOptions(method, importance=importance, amax=amax, threads=threads)
