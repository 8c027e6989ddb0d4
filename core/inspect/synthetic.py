"""Teaching data: well-behaved weights with one outlier that can be moved and scaled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
    no other value."""
    raise NotImplementedError
