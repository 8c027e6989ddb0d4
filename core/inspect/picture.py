"""The heat map of a tensor: the largest |x| of each cell of a window, down to single values.

A cell that holds a NaN is NaN, else one that holds an Inf is Inf: neither disappears, and an outlier does not either.
"""

from __future__ import annotations

import numpy as np

from core.checkpoint.base import Checkpoint
from core.progress import CancelToken
from core.tensor_info import TensorInfo

Span = tuple[int, int]  # first … last, the last not included
CELL = 8  # rows and columns of a cell of the finest level that is kept


class Pyramid:
    """A tensor's (or one expert's) picture, ready to be panned and zoomed at any size. Thread-safe, read only.

    Holds the values when they take at most `HELD_BYTES`, and the largest |x| of each 8 × 8 values, of each 16 × 16 and
    so on. rows, columns: of the matrix. nbytes: memory it takes.
    """

    rows: int
    columns: int
    nbytes: int

    def pooled(self, rows: Span, columns: Span, height: int, width: int) -> np.ndarray:
        """float32 [height, width]: largest |x| of each cell of the window rows × columns.

        Cell i of h over n rows covers rows ⌊i·n/h⌋ … ⌊(i+1)·n/h⌋, at least one: with more cells than rows, rows are
        repeated. Seen through a kept level, a cell's edges lie at most one cell of that level, less than half a cell
        of the picture, further out. Raises IndexError for a window outside of the tensor, ValueError for an empty one.
        """
        raise NotImplementedError

    def values(self, rows: Span, columns: Span) -> np.ndarray:
        """Signed values float32 [rows, columns] of a window, for the numbers under the pointer."""
        raise NotImplementedError


def build_pyramid(
    checkpoint: Checkpoint, tensor: TensorInfo, token: CancelToken, expert: int | None = None
) -> Pyramid:
    """The picture without the statistics; `core.inspect.statistics.inspect_tensor` gives both in one pass."""
    raise NotImplementedError


def pooled(
    checkpoint: Checkpoint,
    tensor: TensorInfo,
    rows: Span,
    columns: Span,
    height: int,
    width: int,
    expert: int | None = None,
) -> np.ndarray:
    """One picture of a window, float32 [height, width], exactly and without a pyramid; reads only those rows."""
    raise NotImplementedError
