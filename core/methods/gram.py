"""Sums over the inputs of a weight: what methods need to know of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from core.methods.transform import InputStatistics


def gram(pieces: Iterable[np.ndarray], columns: int) -> tuple[np.ndarray, int]:
    """Mean of x xᵀ over the rows of all pieces (float32 [R, K]) → float32 [K, K], and how many rows there were."""
    total, rows = np.zeros((columns, columns), np.float32), 0
    for x in pieces:
        total += x.T @ x  # numpy takes the product that fills one triangle only
        rows += len(x)
    return total / np.float32(max(rows, 1)), rows


def squares(pieces: Iterable[np.ndarray], columns: int) -> tuple[np.ndarray, int]:
    """Σx² of each channel, float32 [K], and over how many rows."""
    total, rows = np.zeros(columns, np.float64), 0
    for x in pieces:
        total += np.einsum("rk,rk->k", x, x)
        rows += len(x)
    return total.astype(np.float32), rows


def drift(pieces: Iterable[np.ndarray], full: Iterable[np.ndarray], columns: int) -> np.ndarray:
    """Mean of (x_full − x) xᵀ, float32 [K, K], over the same rows of both."""
    total, rows = np.zeros((columns, columns), np.float32), 0
    for x, wanted in zip(pieces, full, strict=True):
        total += (wanted - x).T @ x
        rows += len(x)
    return total / np.float32(max(rows, 1))


def input_statistics(
    pieces: Iterable[np.ndarray], columns: int, rows: int, with_gram: bool, samples: int
) -> InputStatistics:
    """What transforms see of an input of so many rows; `samples` of them, evenly over all, are kept."""
    absolute, largest = np.zeros(columns, np.float64), np.zeros(columns, np.float32)
    total = np.zeros((columns, columns), np.float32) if with_gram else None
    step = max(1, -(-rows // max(1, samples)))
    kept, seen = [np.zeros((0, columns), np.float32)], 0
    for x in pieces:
        size = np.abs(x)
        absolute += size.sum(axis=0, dtype=np.float64)
        np.maximum(largest, size.max(axis=0, initial=0.0), out=largest)
        if total is not None:
            total += x.T @ x
        kept.append(x[-seen % step :: step].copy())
        seen += len(x)
    count = max(seen, 1)
    mean = (absolute / count).astype(np.float32)
    gram_of = None if total is None else total / np.float32(count)
    return InputStatistics(seen, mean, largest, gram_of, np.concatenate(kept))
