"""One step of learned rounding, and the weights that its codes stand for: the definition of `kernels.learn`."""

from __future__ import annotations

import numpy as np

from kernels.reference import floats
from kernels.reference.arithmetic import ZERO, clamp, maximum, minimum

EDGE = np.float32(0.49)  # how far past the last codes a latent value may be
_LANES = 16


def step(
    grad: np.ndarray,
    first: np.ndarray,
    latent: np.ndarray,
    zeros: np.ndarray,
    slopes: np.ndarray,
    rate: float,
    top: int,
    _threads: int,
) -> None:
    """As `kernels.learn.step`; latent is empty where codes stay as they are."""
    wide = floats.from_half(grad, "BF16", 1)
    products = wide * (_codes(first, latent, top) - _each(zeros, first))
    grouped = products.reshape(*zeros.shape, first.shape[1] // zeros.shape[1])
    short = -grouped.shape[2] % _LANES
    lanes = np.zeros((*zeros.shape, _LANES), np.float32)
    padded = np.pad(grouped, ((0, 0), (0, 0), (0, short)))
    for at in range(0, padded.shape[2], _LANES):
        lanes += padded[:, :, at : at + _LANES]
    while lanes.shape[2] > 1:
        half = lanes.shape[2] // 2
        lanes = lanes[:, :, :half] + lanes[:, :, half:]
    slopes[...] = lanes[:, :, 0]
    if latent.size and rate:
        base, by = first.astype(np.float32), np.float32(rate)
        moved = latent.astype(np.float32) - np.where(wide > 0, by, ZERO) + np.where(wide < 0, by, ZERO)
        latent[...] = minimum(maximum(moved, -EDGE - base), np.float32(top) + EDGE - base)


def weight(
    first: np.ndarray,
    latent: np.ndarray,
    zeros: np.ndarray,
    scales: np.ndarray,
    out: np.ndarray,
    top: int,
    _threads: int,
) -> None:
    """As `kernels.learn.weight`."""
    values = (_codes(first, latent, top) - _each(zeros, first)) * _each(scales, first)
    out[...] = floats.to_half(values, "BF16", 1)


def _codes(first: np.ndarray, latent: np.ndarray, top: int) -> np.ndarray:
    codes = first.astype(np.float32)
    return clamp(np.rint(codes + latent.astype(np.float32)), 0, top) if latent.size else codes


def _each(groups: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Of each column."""
    return np.repeat(groups, first.shape[1] // groups.shape[1], axis=1)
