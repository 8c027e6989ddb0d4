"""Checks that the public operations on arrays share. Each raises ValueError with one plain clause."""

from __future__ import annotations

from typing import Any

import numpy as np

SCALE_TYPES = ("F16", "BF16", "F32")


def matrix(x: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """x as a C-contiguous matrix of the type."""
    x = np.ascontiguousarray(x, dtype=dtype)
    if x.ndim != 2:
        raise ValueError(f"rows are a matrix [R, K], not {x.ndim}-dimensional")
    return x


def weights(importance: np.ndarray | None, columns: int) -> np.ndarray | None:
    """Importance as float32 [columns], or None."""
    if importance is None:
        return None
    importance = np.ascontiguousarray(importance, dtype=np.float32)
    if importance.shape != (columns,):
        raise ValueError(f"importance has one weight for each of {columns} columns, not shape {importance.shape}")
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise ValueError("importance weights are finite and not negative")
    return importance


def group(x: np.ndarray, size: int) -> None:
    if size < 1 or x.shape[1] % size:
        raise ValueError(f"groups of {size} do not divide rows of {x.shape[1]}")


def bits(number: int) -> None:
    if not 1 <= number <= 8:
        raise ValueError(f"codes have 1 to 8 bits, not {number}")


def scale_type(name: str) -> None:
    if name not in SCALE_TYPES:
        raise ValueError(f"scales are F16, BF16 or F32, not {name}")


def finite(x: np.ndarray) -> None:
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
