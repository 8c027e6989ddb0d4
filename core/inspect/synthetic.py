"""Teaching data: well-behaved weights with one outlier that can be moved and scaled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.errors import UserError
from core.units import format_count

MOST_VALUES = 1 << 20


@dataclass(frozen=True)
class Synthetic:
    """rows × columns of normal values with standard deviation `std`; in every row (row=None) or one, the value in
    `column` is `size` standard deviations instead, of the sign it had. size 0: no outlier."""

    rows: int = 8
    columns: int = 128
    std: float = 0.04
    column: int = 40
    size: float = 20.0
    row: int | None = None
    seed: int = 11


def synthetic_rows(data: Synthetic) -> np.ndarray:
    """float32 [rows, columns], the same for the same arguments on every machine; moving or scaling the outlier changes
    no other value.

    Raises UserError for a shape or numbers of which nothing can be made, IndexError for an outlier outside.
    """
    if not (data.rows > 0 and data.columns > 0 and data.rows * data.columns <= MOST_VALUES):
        raise UserError(f"Teaching data has 1 to {format_count(MOST_VALUES)} values.", "Choose fewer rows or columns.")
    if not (np.isfinite(data.std) and data.std > 0 and np.isfinite(data.size) and data.size >= 0):
        raise UserError("The spread is a number above 0, the outlier's size one of 0 or more.", "Change them.")
    values = _normal(data.seed, data.rows * data.columns).reshape(data.rows, data.columns) * data.std
    if data.size:
        rows = slice(None) if data.row is None else slice(data.row, data.row + 1)
        if not (0 <= data.column < data.columns and (data.row is None or 0 <= data.row < data.rows)):
            raise IndexError(f"an outlier at {data.row}, {data.column} of {data.rows} × {data.columns}")
        values[rows, data.column] = np.copysign(data.size * data.std, values[rows, data.column])
    return values.astype(np.float32)


def _normal(seed: int, count: int) -> np.ndarray:
    """Standard normal values by Box and Muller's transform of PCG64's stream, which numpy keeps the same for ever."""
    raw = np.random.PCG64(seed & (1 << 64) - 1).random_raw(2 * count)
    uniform = ((raw >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # (0, 1]
    u, v = uniform[:count], uniform[count:]
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
