"""Encoders of IQ4_NL and IQ4_XS in numpy: four-bit codes into sixteen unevenly spaced levels."""

from __future__ import annotations

import numpy as np

from kernels.layouts import IQ4_LEVELS
from kernels.reference.arithmetic import ZERO, column_bytes, inverse
from kernels.reference.kquants import nearest_scale
from kernels.reference.legacy import pack_nibbles
from kernels.reference.search import GAIN, Normalised, StoredScale, mean_square, normalise, store_scale
from kernels.reference.search_block import CodeSet, ScaleSearch, search_scale
from kernels.reference.search_symmetric import (
    Codes,
    GgmlScales,
    SymmetricSearch,
    ggml_weights,
    measured_error,
    scale_sums,
    scaled_values,
    search_symmetric,
    widest_value,
)

_LEVELS = np.array(IQ4_LEVELS, np.float32)
_HALFWAY = (_LEVELS[:-1] + _LEVELS[1:]) / np.float32(2)  # exact
# The first reach is used alone when there is no search; kernels/cpu/encode/iq4.h has the same numbers.
_GGML = GgmlScales(127.0, -134.0, 1.0, 15, True, False)
_SEARCH = SymmetricSearch(
    (
        *(-127.0, -140.0, -131.43, -122.86, -114.29, -105.71, -97.14, -88.57, -80.0),
        *(132.0, 124.5, 117.0, 109.5, 102.0, 94.5, 87.0, 79.5, 72.0),
    ),
    *(1, -32.0, 31.0, 16, 1, 0.499, True, 4 * GAIN, _GGML, 1.0),
)


def _codes(scaled: np.ndarray) -> np.ndarray:
    """The nearest level's index; halfway, the lower."""
    return np.searchsorted(_HALFWAY, scaled, side="left")


_VALUES = Codes(lambda scaled: _LEVELS[_codes(scaled)], float(_LEVELS[-1]), 12.0, has_zero=False)


_NL_CODES = CodeSet(_VALUES.nearest, 127.0, 113.0, 12.0)
_NL_SEARCH = ScaleSearch(
    (
        *(-127.0, -134.0, -133.0, -132.0, -131.0, -130.0, -129.0, -128.0, -126.0, -125.0, -124.0, -123.0),
        *(-122.0, -121.0, -120.0, -190.0, -172.0, -160.0, -150.0, -143.0, -138.0, -116.0, -111.0, -106.0),
        *(-100.0, -94.0, -88.0, -80.0, 160.0, 148.0, 138.0, 131.0, 124.5, 119.0, 113.0, 108.0, 102.0, 96.0),
        *(90.0, 82.0, 74.0),
    ),
    *(1, 0.349),
)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Every 32 codes in 16 bytes."""
    return pack_nibbles(codes.astype(np.uint8).reshape(-1, 32)).reshape(len(codes), -1)


def _or_better_of_ggml(block: Normalised, best: StoredScale) -> StoredScale:
    """Tries every scale that ggml fits, with its weights.

    It keeps the one that explains most, which is a matter of rounding where a single column counts.
    """
    x, w = block.x, block.w
    allowed, inverse_widest = block.largest * np.float32(_NL_SEARCH.error_bound), inverse(widest_value(x))
    v = ggml_weights(x, w, mean_square(x) * np.float32(2))
    least = measured_error(_VALUES, x, w, best.value, allowed)
    for k in range(-1, _GGML.count):
        xq, qq = scale_sums(_VALUES, x, v, inverse_widest * _GGML.reach(k))
        now = store_scale(xq * inverse(qq), block)
        error = measured_error(_VALUES, x, w, now.value, allowed)
        better = error < least
        least, best = np.where(better, error, least), best.where(better, now)
    return best


def encode_iq4_nl(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """x float32 [B, 32], weights [B, 32] or None → uint8 [B, 18]: d, nibbles[16]."""
    how = _NL_SEARCH if search else ScaleSearch(_NL_SEARCH.reaches[:1], 0, _NL_SEARCH.error_bound)
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        best = search_scale(_NL_CODES, block, how)
        if search:
            best = _or_better_of_ggml(block, best)
        # No level is zero: below four steps of float16 all values would become the lowest positive one.
        vanishes = block.largest * block.unit < np.float32(2.0**-22)
        codes = _codes(block.x * np.where(vanishes, ZERO, inverse(best.value))[:, None])
        stored = np.where(vanishes, np.uint16(0), best.bits)
    return np.hstack([column_bytes(stored), _nibbles(codes)])


def encode_iq4_xs(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """x float32 [B, 256], weights [B, 256] or None → uint8 [B, 136].

    d, top two bits of eight L + 32 (u16), their low nibbles[4], nibbles[128].
    """
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        scales = search_symmetric(_VALUES, block, 8, _SEARCH if search else nearest_scale(_SEARCH, -127.0))
        codes = _codes(scaled_values(block, scales))
    sub = (scales.sub + 32).astype(np.uint16)
    top = np.zeros(len(x), np.uint16)
    for j in range(8):
        top |= (sub[:, j] >> 4) << (2 * j)
    low = (sub[:, 0::2] & 15 | (sub[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.hstack([column_bytes(scales.d.bits), column_bytes(top), low, _nibbles(codes)])
