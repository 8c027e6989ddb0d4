"""The rows of a tensor, or of one expert of a stack, as the kernels of Inspect take them: in their stored bits."""

from __future__ import annotations

from functools import cache

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.tensor_info import TensorInfo
from kernels import ops
from kernels.reference import floats

BLOCK_VALUES = 1 << 21  # values in a block of rows
WHOLE_ROWS = 1 << 26  # values: blocks of up to eight rows this large are not cut
CELL = 8  # rows of a cell of the picture: blocks begin at multiples of it

Span = tuple[int, int]  # first … last, the last not included


class Matrix:
    """rows × columns of a tensor. dtype: 'BF16' or 'F16', read as uint16, or 'F32', read as float32.

    8-bit floats are read as BF16, which holds them exactly; integers, 64-bit floats and quantized blocks as F32.
    Raises IndexError for an expert that there is not.
    """

    def __init__(self, checkpoint: Checkpoint, tensor: TensorInfo, expert: int | None = None) -> None:
        self.checkpoint, self.tensor, self.expert = checkpoint, tensor, expert
        self.columns = tensor.columns
        self.first, self.rows = 0, tensor.rows
        if expert is not None:
            if len(tensor.shape) != 3 or not 0 <= expert < tensor.shape[0]:
                raise IndexError(f"expert {expert} of {tensor.name}, of shape {tensor.shape}")
            self.rows = tensor.shape[1]
            self.first = expert * self.rows
        halves = tensor.dtype if tensor.dtype in floats.HALVES else "F32"
        self.dtype = "BF16" if tensor.dtype in floats.FLOAT8 else halves

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor, or of the one expert."""
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as they are read."""
        return self.rows * self.columns * (4 if self.dtype == "F32" else 2)

    def read(self, start: int, stop: int, columns: Columns | None = None) -> np.ndarray:
        """Rows start…stop, uint16 or float32. Raises UserError when the file is short or the type has no decoder."""
        start, stop = self.first + start, self.first + stop
        if self.dtype == "F32":
            return self.checkpoint.read_rows(self.tensor, start, stop, columns)
        raw = self.checkpoint.read_raw(self.tensor, start, stop, columns)
        if self.tensor.dtype in floats.FLOAT8:
            return _float8_as_bf16(self.tensor.dtype)[raw]
        return raw.reshape(-1).view("<u2").reshape(len(raw), -1)

    @property
    def cut(self) -> bool:
        """Whether rows are so long that CELL of them can not be held, and are read in pieces."""
        return min(CELL, self.rows) * self.columns > WHOLE_ROWS

    def blocks(self) -> list[tuple[int, int, Columns]]:
        """(first row, last row, columns) of blocks in reading order. They begin at multiples of CELL rows and columns.

        Whole rows, unless they are `cut`.
        """
        if not self.rows or not self.columns:
            return []
        if self.cut:
            width = BLOCK_VALUES // CELL
            return [
                (row, min(self.rows, row + CELL), (left, min(self.columns, left + width)))
                for row in range(0, self.rows, CELL)
                for left in range(0, self.columns, width)
            ]
        height = max(CELL, BLOCK_VALUES // self.columns // CELL * CELL)
        return [(r, min(self.rows, r + height), (0, self.columns)) for r in range(0, self.rows, height)]


def to_values(stored: np.ndarray, dtype: str) -> np.ndarray:
    """What `Matrix.read` gives, as float32 of the same shape."""
    if dtype == "F32":
        return stored
    return ops.to_float32(np.ascontiguousarray(stored).view(np.uint8), dtype)


@cache
def _float8_as_bf16(dtype: str) -> np.ndarray:
    return (floats.table(dtype).view(np.uint32) >> 16).astype(np.uint16)
