"""8-bit floats with scales of tiles, and E8M0 scales. The codes themselves are those of floats.py."""

from __future__ import annotations

import numpy as np

from kernels.reference import floats

# Largest finite value, by type.
LARGEST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0}


@np.errstate(invalid="ignore")  # signalling NaN
def to_float8(x: np.ndarray, dtype: str, _threads: int) -> np.ndarray:
    return floats.to_float8(x, dtype)


def from_float8(codes: np.ndarray, dtype: str, _threads: int) -> np.ndarray:
    return floats.table(dtype)[codes]


def _spread(scales: np.ndarray, a: int, b: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.repeat(np.repeat(scales, a, axis=0)[: shape[0]], b, axis=1)[:, : shape[1]]


@np.errstate(over="ignore")
def encode_float8(x: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, _threads: int) -> np.ndarray:
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    largest = np.float32(LARGEST[dtype])
    return floats.to_float8(np.clip(x / _spread(scales, a, b, x.shape), -largest, largest), dtype)


@np.errstate(all="ignore")
def decode_float8(codes: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, _threads: int) -> np.ndarray:
    return floats.table(dtype)[codes] * _spread(scales, a, b, codes.shape)


def tile_amax(x: np.ndarray, a: int, b: int, _threads: int) -> np.ndarray:
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    rows, columns = np.arange(0, x.shape[0], a), np.arange(0, x.shape[1], b)
    return np.maximum.reduceat(np.maximum.reduceat(np.abs(x), columns, axis=1), rows, axis=0)


def e8m0_from_amax(amax: np.ndarray, emax: int, largest: float, rule: str) -> np.ndarray:
    """amax float32, finite → E8M0 uint8; see kernels.families.e8m0_from_amax."""
    if rule == "mlx":
        share = amax / np.float32(largest)
        mantissa, exponent = np.frexp(share)  # share = mantissa · 2^exponent, mantissa in ½ … 1
        code = exponent.astype(np.int32) - 1 + (mantissa > np.float32(0.5)) + 127
        code = np.where(share == 0, 127, code)
    else:
        word = np.ascontiguousarray(amax).view(np.uint32)
        if rule == "compressed-tensors":
            word = word + np.uint32(1 << 21)  # from 1.75 · 2^k up
        code = (word >> 23).astype(np.int32) - emax
        code = np.where(amax == 0, 0, code)
    return np.clip(code, 0, 254).astype(np.uint8)
