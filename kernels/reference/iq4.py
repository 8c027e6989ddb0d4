"""Encoders of IQ4_NL and IQ4_XS in numpy: four-bit codes into sixteen unevenly spaced levels."""

from __future__ import annotations

import numpy as np

from kernels.layouts import IQ4_LEVELS
from kernels.reference.arithmetic import column_bytes, inverse
from kernels.reference.kquants import nearest_scale
from kernels.reference.legacy import pack_nibbles
from kernels.reference.search import LARGEST_SUM, StoredScale, normalise, store_scale
from kernels.reference.search_symmetric import (
    Codes,
    SymmetricSearch,
    limit_scale,
    scale_sums,
    scaled_values,
    search_symmetric,
    squared_error,
    widest_value,
)

_LEVELS = np.array(IQ4_LEVELS, np.float32)
_HALFWAY = (_LEVELS[:-1] + _LEVELS[1:]) / np.float32(2)  # exact
# The first reach is used alone when there is no search; kernels/cpu/encode/iq4.h has the same numbers.
_SEARCH = SymmetricSearch(
    (
        *(-127.0, -140.0, -131.43, -122.86, -114.29, -105.71, -97.14, -88.57, -80.0),
        *(132.0, 124.5, 117.0, 109.5, 102.0, 94.5, 87.0, 79.5, 72.0),
    ),
    *(1, -32.0, 31.0, 16, 1, 0.49, True),
)


def _codes(scaled: np.ndarray) -> np.ndarray:
    """The nearest level's index; halfway, the lower."""
    return np.searchsorted(_HALFWAY, scaled, side="left")


_VALUES = Codes(lambda scaled: _LEVELS[_codes(scaled)], float(_LEVELS[-1]), 12.0)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Every 32 codes in 16 bytes."""
    return pack_nibbles(codes.astype(np.uint8).reshape(-1, 32)).reshape(len(codes), -1)


def encode_iq4_nl(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """x float32 [B, 32], weights [B, 32] or None → uint8 [B, 18]: d, nibbles[16]."""
    how = _SEARCH if search else nearest_scale(_SEARCH)
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        widest = widest_value(block.x)
        inverse_widest, allowed = inverse(widest), block.largest * np.float32(0.34)
        none = StoredScale(np.zeros(len(x), np.uint16), np.zeros(len(x), np.float32))
        best = none
        least = np.full(len(x), LARGEST_SUM)
        # Each candidate is judged as a reader will see it, with its scale rounded to float16.
        for k in range(len(how.reaches) + how.refits):
            if k < len(how.reaches):
                inverse_scale = inverse_widest * np.float32(how.reaches[k])
            else:
                inverse_scale = inverse(best.value)
            xq, qq = scale_sums(_VALUES, block.x, block.w, inverse_scale)
            now = store_scale(limit_scale(_VALUES, xq, qq, np.abs(widest), allowed).scale, block)
            error = squared_error(_VALUES, block.x, block.w, now.value)
            better = error < least
            least, best = np.where(better, error, least), best.where(better, now)
        # No level is zero: what is nearer to zero than to float16's smallest needs a scale of 0.
        best = best.where(block.largest * block.unit < np.float32(2.0**-25), none)
        codes = _codes(block.x * inverse(best.value)[:, None])
    return np.hstack([column_bytes(best.bits), _nibbles(codes)])


def encode_iq4_xs(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """x float32 [B, 256], weights [B, 256] or None → uint8 [B, 136].

    d, top two bits of eight L + 32 (u16), their low nibbles[4], nibbles[128].
    """
    with np.errstate(all="ignore"):
        block = normalise(x, weights)
        scales = search_symmetric(_VALUES, block, 8, _SEARCH if search else nearest_scale(_SEARCH))
        codes = _codes(scaled_values(block, scales))
    sub = (scales.sub + 32).astype(np.uint16)
    top = np.zeros(len(x), np.uint16)
    for j in range(8):
        top |= (sub[:, j] >> 4) << (2 * j)
    low = (sub[:, 0::2] & 15 | (sub[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.hstack([column_bytes(scales.d.bits), column_bytes(top), low, _nibbles(codes)])
