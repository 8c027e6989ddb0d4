"""Encoders of Q2_K, Q3_K, Q4_K, Q5_K and Q6_K in numpy: the definition, slow and plain.

Super-blocks of 256 values. The searches choose scales and codes, this file packs them; layouts as in ggml-common.h.
Each encoder: x float32 [B, 256], weights [B, 256] or None → uint8 [B, bytes of the type].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.reference.arithmetic import column_bytes
from kernels.reference.search import GAIN, normalise
from kernels.reference.search_affine import (
    AffineScales,
    AffineSearch,
    GgmlFits,
    LineFits,
    affine_codes,
    search_affine,
)
from kernels.reference.search_symmetric import (
    GgmlScales,
    SymmetricScales,
    SymmetricSearch,
    integer_codes,
    scaled_values,
    search_symmetric,
)

# The first margin or reach is used alone when there is no search; kernels/cpu/encode/kquants.h has the same numbers.
# ggml's margins with importance.
_FINE = GgmlFits(-0.9, 0.05, 37)
_Q2_K_OWN = LineFits((0.0, -0.9, -0.4, 0.1, 0.6), 1)
_Q4_K_OWN = LineFits((0.0, -0.9, -0.56, -0.22, 0.12, 0.46, 0.8, 1.14, 1.48, 1.82, 2.16, 2.5), 2, GAIN / 8)
_Q5_K_OWN = LineFits((0.0, -0.9, -0.42, 0.07, 0.55, 1.03, 1.52, 2.0), 2, GAIN / 8)
# Without importance, and with it.
Q2_K_SEARCHES = (
    AffineSearch(3, 15, _Q2_K_OWN, GgmlFits(-0.5, 0.1, 16), 16, 1, 0.999, True),
    AffineSearch(3, 15, _Q2_K_OWN, _FINE, 16, 2, 0.999, True),
)
Q4_K_SEARCHES = (
    AffineSearch(15, 63, _Q4_K_OWN, GgmlFits(-1.0, 0.1, 21), 16, 2, 0.499, True),
    AffineSearch(15, 63, _Q4_K_OWN, _FINE, 16, 2, 0.499, True),
)
Q5_K_SEARCHES = (
    AffineSearch(31, 63, _Q5_K_OWN, GgmlFits(-0.5, 0.1, 16), 16, 2, 0.299, True),
    AffineSearch(31, 63, _Q5_K_OWN, _FINE, 16, 2, 0.299, True),
)
# ggml's choice without importance takes longer to find than all of ours, and fitting d to all codes does as well.
Q3_K_SEARCHES = (
    SymmetricSearch((-4.0, -4.8, -4.33, -3.67, 3.5, 3.1, 2.7), 0, -32.0, 31.0, 16, 1, 0.799, True),
    SymmetricSearch(
        (-5.2, -5.0, -3.0, -2.8, 3.8, 3.6, 3.4, 3.2, 3.0, 2.8, 2.6, 2.4),
        *(1, -32.0, 31.0, 16, 1, 0.799, True, GAIN, GgmlScales(-4.0, -3.1, -0.1, 19, True, True), 1 / 512),
    ),
)
_Q6_K_REACHES = (-30.4, -29.3, -28.1, -26.9, 31.0, 30.1, 29.2, 28.3, 27.3, 26.3, -25.6)
_Q6_K_GGML = GgmlScales(-32.0, -31.1, -0.1, 19, False, False)
Q6_K_SEARCHES = (
    SymmetricSearch(_Q6_K_REACHES, 0, -128.0, 127.0, 16, 0, 0.149, True, 4 * GAIN, _Q6_K_GGML),
    SymmetricSearch(_Q6_K_REACHES[:-2], 0, -128.0, 127.0, 16, 1, 0.149, True, 4 * GAIN, _Q6_K_GGML),
)


def nearest_line(search: AffineSearch) -> AffineSearch:
    """The same type without a search."""
    own = LineFits((0.0,), 0)
    return replace(search, own=own, ggml=None, d_steps=1, d_refits=0, neighbours=False)


def nearest_scale(search: SymmetricSearch, reach: float) -> SymmetricSearch:
    """The same type without a search."""
    return replace(
        search, reaches=(reach,), refits=0, d_steps=1, d_refits=0, neighbours=False, gain=GAIN, ggml=None, polished=0.0
    )


def fields(codes: np.ndarray, count: int, bits: int) -> np.ndarray:
    """32 bytes for each 32 · count codes: byte i holds codes i, 32 + i, … , `bits` bits apart, the first lowest."""
    parts = codes.reshape(len(codes), -1, count, 32)
    out = np.zeros((len(codes), parts.shape[1], 32), np.uint8)
    for field in range(count):
        out |= parts[:, :, field] << (field * bits)
    return out.reshape(len(codes), -1)


def _affine(
    x: np.ndarray,
    weights: np.ndarray | None,
    search: bool,
    searches: tuple[AffineSearch, AffineSearch],
    sub_blocks: int,
) -> tuple[AffineScales, np.ndarray]:
    full = searches[weights is not None]
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        scales = search_affine(block, sub_blocks, full if search else nearest_line(full))
        return scales, affine_codes(block, scales, full.levels).astype(np.uint8)


def _symmetric(
    x: np.ndarray,
    weights: np.ndarray | None,
    search: bool,
    searches: tuple[SymmetricSearch, SymmetricSearch],
    half: int,
) -> tuple[SymmetricScales, np.ndarray]:
    """Scales of 16 sub-blocks, and codes 0 … 2 · half − 1."""
    codes, full = integer_codes(half), searches[weights is not None]
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        scales = search_symmetric(codes, block, 16, full if search else nearest_scale(full, -half))
        return scales, (codes.nearest(scaled_values(block, scales)) + half).astype(np.uint8)


def encode_q2_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """16 × (L, M nibbles), 2-bit codes[64], d, dmin."""
    scales, codes = _affine(x, weights, search, Q2_K_SEARCHES, 16)
    nibbles = scales.sub.astype(np.uint8) | scales.sub_min.astype(np.uint8) << 4
    return np.hstack([nibbles, fields(codes, 4, 2), column_bytes(scales.d.bits), column_bytes(scales.dmin.bits)])


def encode_q3_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """High bits[32], low 2 bits[64], 16 six-bit L + 32 [12], d.

    Of the twelve, byte j < 8 has the low nibbles of sub-blocks j and j + 8, byte 8 + j the top bit pairs of j, j + 4,
    j + 8 and j + 12.
    """
    scales, codes = _symmetric(x, weights, search, Q3_K_SEARCHES, 4)
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
    scales, codes = _affine(x, weights, search, Q4_K_SEARCHES, 8)
    return np.hstack([_affine_head(scales), fields(codes, 2, 4)])


def encode_q5_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """d, dmin, scales[12], high bits[32], low nibbles[128]."""
    scales, codes = _affine(x, weights, search, Q5_K_SEARCHES, 8)
    return np.hstack([_affine_head(scales), fields(codes >> 4, 8, 1), fields(codes & 15, 2, 4)])


def encode_q6_k(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """Low nibbles[128], high bit pairs[64], int8 L[16], d. In each half of 128, value i shares a byte with 64 + i."""
    scales, codes = _symmetric(x, weights, search, Q6_K_SEARCHES, 32)
    halves = (codes & 15).reshape(len(codes), 2, 2, 64)
    low = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(codes), -1)
    sub = scales.sub.astype(np.int8).view(np.uint8)
    return np.hstack([low, fields(codes >> 4, 4, 2), sub, column_bytes(scales.d.bits)])
