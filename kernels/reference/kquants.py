"""Encoders of Q2_K, Q3_K, Q4_K, Q5_K and Q6_K in numpy: the definition, slow and plain.

Super-blocks of 256 values. The searches choose scales and codes, this file packs them; layouts as in ggml-common.h.
Each encoder: x float32 [B, 256], weights [B, 256] or None → uint8 [B, bytes of the type].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.reference.arithmetic import column_bytes
from kernels.reference.search import GAIN, normalise
from kernels.reference.search_affine import AffineScales, AffineSearch, affine_codes, search_affine
from kernels.reference.search_symmetric import (
    SymmetricScales,
    SymmetricSearch,
    integer_codes,
    scaled_values,
    search_symmetric,
)

# The first margin or reach is used alone when there is no search; kernels/cpu/encode/kquants.h has the same numbers.
Q2_K_SEARCH = AffineSearch(3, 15, (0.0, -0.9, -0.65, -0.4, -0.15, 0.1, 0.35, 0.6), 2, 16, 2, 0.98, True)
Q4_K_SEARCH = AffineSearch(
    15, 63, (0.0, -0.9, -0.56, -0.22, 0.12, 0.46, 0.8, 1.14, 1.48, 1.82, 2.16, 2.5), 2, 16, 2, 0.49, True, GAIN / 8
)
Q5_K_SEARCH = AffineSearch(31, 63, (0.0, -0.9, -0.42, 0.07, 0.55, 1.03, 1.52, 2.0), 2, 16, 2, 0.29, True, GAIN / 8)
Q3_K_SEARCH = SymmetricSearch((-4.0, -5.0, -4.33, -3.67, -3.0, 3.6, 3.2, 2.85, 2.5), 0, -32.0, 31.0, 16, 0, 0.78, True)
# The gain of the longer list is in weighted data; without weights its time is not worth it.
Q3_K_WEIGHTED_SEARCH = SymmetricSearch(
    (
        *(-4.0, -5.2, -5.0, -4.9, -4.8, -4.7, -4.6, -4.5, -4.4, -4.3, -4.2, -4.1, -3.9, -3.8),
        *(-3.7, -3.6, -3.5, -3.4, -3.3, -3.2, -3.1, -3.0, -2.8, 3.8, 3.6, 3.4, 3.2, 3.0, 2.8, 2.6, 2.4),
    ),
    *(1, -32.0, 31.0, 16, 1, 0.78, True),
)
Q6_K_SEARCH = SymmetricSearch(
    (
        *(
            -32.0,
            -33.0,
            -32.75,
            -32.5,
            -32.25,
            -31.72,
            -31.44,
            -30.91,
            -30.38,
            -29.85,
            -29.31,
            -28.25,
            -27.19,
            -26.12,
            -25.06,
            -24.0,
        ),
        *(31.0, 30.39, 29.78, 29.17, 28.56, 27.94, 27.33, 26.72, 26.11, 25.5),
    ),
    *(0, -128.0, 127.0, 16, 1, 0.145, True, 4 * GAIN),
)


def nearest_line(search: AffineSearch) -> AffineSearch:
    """The same type without a search."""
    return replace(search, margins=search.margins[:1], refits=0, d_steps=1, d_refits=0, neighbours=False)


def nearest_scale(search: SymmetricSearch) -> SymmetricSearch:
    """The same type without a search."""
    return replace(search, reaches=search.reaches[:1], refits=0, d_steps=1, d_refits=0, neighbours=False)


def fields(codes: np.ndarray, count: int, bits: int) -> np.ndarray:
    """32 bytes for each 32 · count codes: byte i holds codes i, 32 + i, … , `bits` bits apart, the first lowest."""
    parts = codes.reshape(len(codes), -1, count, 32)
    out = np.zeros((len(codes), parts.shape[1], 32), np.uint8)
    for field in range(count):
        out |= parts[:, :, field] << (field * bits)
    return out.reshape(len(codes), -1)


def _affine(
    x: np.ndarray, weights: np.ndarray | None, search: bool, full: AffineSearch, sub_blocks: int
) -> tuple[AffineScales, np.ndarray]:
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        scales = search_affine(block, sub_blocks, full if search else nearest_line(full))
        return scales, affine_codes(block, scales, full.levels).astype(np.uint8)


def _symmetric(
    x: np.ndarray, weights: np.ndarray | None, search: bool, full: SymmetricSearch, half: int
) -> tuple[SymmetricScales, np.ndarray]:
    """Scales of 16 sub-blocks, and codes 0 … 2 · half − 1."""
    codes = integer_codes(half)
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        scales = search_symmetric(codes, block, 16, full if search else nearest_scale(full))
        return scales, (codes.nearest(scaled_values(block, scales)) + half).astype(np.uint8)


def encode_q2_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """16 × (L, M nibbles), 2-bit codes[64], d, dmin."""
    scales, codes = _affine(x, weights, search, Q2_K_SEARCH, 16)
    nibbles = scales.sub.astype(np.uint8) | scales.sub_min.astype(np.uint8) << 4
    return np.hstack([nibbles, fields(codes, 4, 2), column_bytes(scales.d.bits), column_bytes(scales.dmin.bits)])


def encode_q3_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """High bits[32], low 2 bits[64], 16 six-bit L + 32 [12], d.

    Of the twelve, byte j < 8 has the low nibbles of sub-blocks j and j + 8, byte 8 + j the top bit pairs of j, j + 4,
    j + 8 and j + 12.
    """
    scales, codes = _symmetric(x, weights, search, Q3_K_SEARCH if weights is None else Q3_K_WEIGHTED_SEARCH, 4)
    sub = (scales.sub + 32).astype(np.uint8)
    low = sub[:, :8] & 15 | (sub[:, 8:] & 15) << 4
    top = np.zeros((len(sub), 4), np.uint8)
    for k in range(4):
        top |= (sub[:, 4 * k : 4 * k + 4] >> 4) << (2 * k)
    return np.hstack([fields(codes >> 2, 8, 1), fields(codes & 3, 4, 2), low, top, column_bytes(scales.d.bits)])


def _affine_head(scales: AffineScales) -> np.ndarray:
    """d, dmin, and eight six-bit L and M in 12 bytes.

    Byte j < 4: L_j, above it the top two bits of L_{j+4}. Byte 4 + j: the same of M. Byte 8 + j: low nibbles of L_{j+4}
    and M_{j+4}.
    """
    sub, low = scales.sub.astype(np.uint8), scales.sub_min.astype(np.uint8)
    packed = np.hstack(
        [
            sub[:, :4] | (sub[:, 4:] >> 4) << 6,
            low[:, :4] | (low[:, 4:] >> 4) << 6,
            sub[:, 4:] & 15 | (low[:, 4:] & 15) << 4,
        ]
    )
    return np.hstack([column_bytes(scales.d.bits), column_bytes(scales.dmin.bits), packed])


def encode_q4_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """d, dmin, scales[12], nibbles[128]."""
    scales, codes = _affine(x, weights, search, Q4_K_SEARCH, 8)
    return np.hstack([_affine_head(scales), fields(codes, 2, 4)])


def encode_q5_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """d, dmin, scales[12], high bits[32], low nibbles[128]."""
    scales, codes = _affine(x, weights, search, Q5_K_SEARCH, 8)
    return np.hstack([_affine_head(scales), fields(codes >> 4, 8, 1), fields(codes & 15, 2, 4)])


def encode_q6_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """Low nibbles[128], high bit pairs[64], int8 L[16], d. In each half of 128, value i shares a byte with 64 + i."""
    scales, codes = _symmetric(x, weights, search, Q6_K_SEARCH, 32)
    halves = (codes & 15).reshape(len(codes), 2, 2, 64)
    low = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(codes), -1)
    sub = scales.sub.astype(np.int8).view(np.uint8)
    return np.hstack([low, fields(codes >> 4, 4, 2), sub, column_bytes(scales.d.bits)])
