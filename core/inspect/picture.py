"""The heat map of a tensor: the largest |x| of each cell of a window, down to single values.

A cell that holds a NaN is NaN, else one that holds an Inf is Inf: neither disappears, and an outlier does not either.
"""

from __future__ import annotations

import numpy as np

from core.checkpoint.dtypes import BLOCK_TYPES
from core.inspect.matrix import CELL, Matrix, Span, to_values
from core.threads import worker_count
from kernels import ops

HELD_BYTES = 256 << 20  # a tensor whose values take no more is held, so that any window of it is drawn from memory
POOLED_AT_ONCE = 1 << 26  # held values that a picture is still drawn from: some 10 ms on two cores
LONG_ROW = 1 << 17  # bytes: below, reading a whole row takes less than finding a part of it
READ_AT_ONCE = 1 << 22  # values of a window that a picture is drawn from, of a tensor that is not held: some 5 ms
READ_VALUES = 1 << 22  # read from the file in one piece
SMALLEST_LEVEL = 64  # cells along the longer side of the coarsest level, at least


class Pyramid:
    """A tensor's (or one expert's) picture, ready to be panned and zoomed at any size. Thread-safe, read only.

    Holds the values when they take at most `HELD_BYTES`, and the largest |x| of each 8 × 8 values, of each 16 × 16 and
    so on. rows, columns: of the matrix. nbytes: memory it takes.
    """

    def __init__(self, matrix: Matrix, cells: np.ndarray, held: np.ndarray | None) -> None:
        """cells: float32, largest |x| of each CELL × CELL values. held: all stored values, or None."""
        self._matrix, self._held = matrix, held
        self.rows, self.columns = matrix.rows, matrix.columns
        self._levels = [cells]
        while max(self._levels[-1].shape) >= 2 * SMALLEST_LEVEL:
            last = self._levels[-1]
            self._levels.append(ops.pool_max(last, "F32", _pairs(last.shape[0]), _pairs(last.shape[1])))
        self.nbytes = sum(level.nbytes for level in self._levels) + (held.nbytes if held is not None else 0)

    def pooled(self, rows: Span, columns: Span, height: int, width: int) -> np.ndarray:
        """float32 [height, width]: largest |x| of each cell of the window rows × columns.

        Cell i of h over n rows covers rows ⌊i·n/h⌋ … ⌊(i+1)·n/h⌋, at least one: with more cells than rows, rows are
        repeated. Where a kept level is used, cells reach outward to whole cells of that level, which are 8 × 8 values
        or no larger than the picture's cells: for windows of more than `POOLED_AT_ONCE` values, and of tensors that are
        not held for those of more than `READ_AT_ONCE` or of cells of 8 × 8 values and more.
        Raises IndexError for a window outside of the tensor, ValueError for an empty one, UserError when a tensor that
        is not held can not be read.
        """
        check_window(self._matrix, rows, columns)
        down, across = cell_spans(rows, height), cell_spans(columns, width)
        values = (rows[1] - rows[0]) * (columns[1] - columns[0])
        if self._held is not None and values <= POOLED_AT_ONCE:
            return ops.pool_max(self._held, self._matrix.dtype, down, across, worker_count())
        size = min((rows[1] - rows[0]) / height, (columns[1] - columns[0]) / width)
        if size < CELL and values <= READ_AT_ONCE:
            return _pool_from(self._matrix, self._held, columns, down, across)
        level = min(max(0, int(np.log2(max(size, CELL) / CELL))), len(self._levels) - 1)
        cell = CELL << level
        spans = [(starts // cell, -(-stops // cell)) for starts, stops in (down, across)]
        return ops.pool_max(self._levels[level], "F32", spans[0], spans[1], worker_count())

    def values(self, rows: Span, columns: Span) -> np.ndarray:
        """Signed values float32 [rows, columns] of a window, for the numbers under the pointer. Raises as `pooled`."""
        check_window(self._matrix, rows, columns)
        if self._held is not None:
            return to_values(self._held[slice(*rows), slice(*columns)], self._matrix.dtype)
        stored, left = _window(self._matrix, rows, columns)
        return to_values(stored[:, columns[0] - left : columns[1] - left], self._matrix.dtype)


class PictureParts:
    """Fills a `Pyramid` block by block, from any thread."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self._cells = np.zeros((-(-matrix.rows // CELL), -(-matrix.columns // CELL)), np.float32)
        dtype = np.float32 if matrix.dtype == "F32" else np.uint16
        self.held = np.empty((matrix.rows, matrix.columns), dtype) if matrix.nbytes <= HELD_BYTES else None

    def add(self, row: int, column: int, stored: np.ndarray, cells: np.ndarray) -> None:
        """A block of stored values whose first is [row, column], both multiples of CELL, and its cells."""
        if self.held is not None:
            self.held[row : row + stored.shape[0], column : column + stored.shape[1]] = stored
        y, x = row // CELL, column // CELL
        self._cells[y : y + cells.shape[0], x : x + cells.shape[1]] = cells

    def pyramid(self) -> Pyramid:
        """The picture of all that was added."""
        return Pyramid(self.matrix, self._cells, self.held)


def cell_spans(span: Span, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of the cells starts and stops, int64 [cells]. Raises ValueError for none."""
    if cells < 1:
        raise ValueError("a picture has at least one row and column")
    n = span[1] - span[0]
    edges = np.arange(cells + 1, dtype=np.int64) * n // cells
    return span[0] + edges[:-1], span[0] + np.maximum(edges[1:], edges[:-1] + 1)


def check_window(matrix: Matrix, rows: Span, columns: Span) -> None:
    """Raises IndexError for a window outside of the matrix, ValueError for an empty one."""
    for (first, last), limit in ((rows, matrix.rows), (columns, matrix.columns)):
        if first < 0 or last > limit:
            raise IndexError(f"{first}…{last} of {limit} in {matrix.tensor.name}")
        if first >= last:
            raise ValueError("the window is empty")


def _pool_from(
    matrix: Matrix, held: np.ndarray | None, columns: Span, down: ops.Spans, across: ops.Spans
) -> np.ndarray:
    """From values: in memory, or read in blocks of whole bands of cells, or of parts of one band."""
    if held is not None:
        return ops.pool_max(held, matrix.dtype, down, across, worker_count())
    out = np.zeros((len(down[0]), len(across[0])), np.float32)
    keys = out.view(np.uint32)  # a NaN has a larger one than Inf, Inf than all numbers
    limit = max(1, READ_VALUES // (columns[1] - columns[0]))  # rows read at once
    first = 0
    while first < len(out):
        last = first + 1
        while last < len(out) and down[1][last] - down[0][first] <= limit:
            last += 1
        top, bottom = int(down[0][first]), int(down[1][last - 1])
        for start in range(top, bottom, limit):
            stop = min(bottom, start + limit)
            stored, left = _window(matrix, (start, stop), columns)
            part = (np.maximum(down[0][first:last], start) - start, np.minimum(down[1][first:last], stop) - start)
            found = ops.pool_max(stored, matrix.dtype, part, (across[0] - left, across[1] - left), worker_count())
            keys[first:last] = np.maximum(keys[first:last], found.view(np.uint32))
        first = last
    return out


def _window(matrix: Matrix, rows: Span, columns: Span) -> tuple[np.ndarray, int]:
    """Stored values that hold a window, and the column of the first: whole rows, unless those are much more to read."""
    if matrix.columns * 2 < LONG_ROW or (columns[1] - columns[0]) * 2 > matrix.columns:
        return matrix.read(*rows), 0
    layout = BLOCK_TYPES.get(matrix.tensor.dtype)
    unit = layout.block if layout else 1
    left, right = columns[0] // unit * unit, min(matrix.columns, -(-columns[1] // unit) * unit)
    return matrix.read(*rows, (left, right)), left


def _pairs(n: int) -> ops.Spans:
    starts = np.arange(0, n, 2)
    return starts, np.minimum(starts + 2, n)
