"""Codes of 1 … 8 bits with a scale and an offset of any sign for a group along a row: x ≈ scale · code + offset.

Without search: MLX's rule. The end of the range that is further from 0 is the offset and so is exact; the scale, whose
sign leads from there to the other end, divides it, so that 0 is exact, too. Codes are chosen before scale and offset
are rounded to the type that is stored. The compiled kernel is kernels/cpu/encode/affine.h.
"""

from __future__ import annotations

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import LARGEST, ONE, ZERO, clamp, inverse, maximum, minimum, rint
from kernels.reference.codebooks import add_pieces, pieces_of, round_signed
from kernels.reference.groups import SUM_PIECE

_LEAST_SCALE = np.float32(1e-7)  # MLX's
# Of what the search may clip of the range at either end, so many parts are tried.
_STEPS, _REFITS = 4, 3
# Below this share of the product of its diagonal, a determinant is nothing but rounding.
_SINGULAR = np.float32(1e-5)


def clipped_share(bits: int) -> np.float32:
    """How much of the range a search may clip at either end: half of what groups.py lets an integer code lose."""
    least = np.float32(0.99)
    if bits < 8:
        least = max(ONE - np.float32(1.75) / np.float32(1 << (bits - 1)), np.float32(0.25))
    return np.float32(0.5) * (ONE - least)


def _plain(low: np.ndarray, high: np.ndarray, top: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """MLX's scale and offset before they are rounded. Ranges beyond float32's largest value stay finite."""
    span = high - low
    scale = np.where(span > LARGEST, minimum(high / top - low / top, LARGEST), span / top)
    scale = maximum(scale, _LEAST_SCALE)
    from_low = np.abs(low) > np.abs(high)
    scale, edge = np.where(from_low, scale, -scale), np.where(from_low, low, high)
    code = rint(clamp(edge / scale, -LARGEST, LARGEST))
    exact = code != ZERO
    return np.where(exact, edge / code, scale), np.where(exact, edge, ZERO)


def _codes(x: np.ndarray, scale: np.ndarray, offset: np.ndarray, top: np.float32) -> np.ndarray:
    return rint(clamp((x - offset[:, None]) / scale[:, None], 0, top))


def _sums(x: np.ndarray, w: np.ndarray | None, scale: np.ndarray, offset: np.ndarray, top: np.float32) -> np.ndarray:
    """float32 [6, G]: Σ w·e², Σ w·e, Σ w·e·q, Σ w·q, Σ w·q², Σ w, where e = (x − offset) / scale − q."""
    reciprocal, found = inverse(scale), []
    for at, piece in enumerate(pieces_of(x)):
        total = np.zeros((6, len(x)), np.float32)
        for i in range(piece.shape[1]):
            column = at * SUM_PIECE + i
            scaled = (piece[:, i] - offset) * reciprocal
            q = rint(clamp(scaled, 0, top))
            e = scaled - q
            we, wq = fit.weigh(w, column, e), fit.weigh(w, column, q)
            one = fit.weigh(w, column, np.ones(len(x), np.float32))
            total += np.stack([we * e, we, we * q, wq, wq * q, one])
        found.append(total)
    return add_pieces(found)


class _Search:
    """Keeps the best scale and offset of those tried, as they are stored."""

    def __init__(self, x: np.ndarray, w: np.ndarray | None, bits: int, scale_type: str) -> None:
        self._x, self._w, self._type = x, w, scale_type
        self._top = np.float32((1 << bits) - 1)
        self.low, self.high = x.min(axis=1) + ZERO, x.max(axis=1) + ZERO  # no −0
        self._room = (self.high - self.low) * clipped_share(bits)

    def start(self, scale: np.ndarray, offset: np.ndarray) -> None:
        self._unit = inverse(np.abs(scale))
        self.scale, self.offset, self._least = scale, offset, np.full(len(scale), np.inf, np.float32)
        self._sums = np.zeros((6, len(scale)), np.float32)
        self._consider(scale, offset, first=True)

    def _consider(self, scale: np.ndarray, offset: np.ndarray, first: bool = False) -> None:
        sums = _sums(self._x, self._w, scale, offset, self._top)
        steps = scale * self._unit
        error = sums[0] * (steps * steps)
        better = np.ones(len(scale), bool) if first else error < self._least
        self.scale, self.offset = np.where(better, scale, self.scale), np.where(better, offset, self.offset)
        self._least, self._sums = np.where(better, error, self._least), np.where(better, sums, self._sums)

    def try_range(self, near: int, far: int) -> None:
        """The line through both ends of the range, each moved in by some parts of what may be clipped."""
        part = self._room * (ONE / np.float32(_STEPS - 1))
        low, high = self.low + part * np.float32(near), self.high - part * np.float32(far)
        up = self._up
        offset = round_signed(np.where(up, low, high), self._type)
        end = np.where(up, high, low)
        self._consider(round_signed((end - offset) / self._top, self._type), offset)

    def try_fit(self) -> None:
        """The line of least squares for the best codes so far; the offset is rounded first, the scale fitted to it."""
        _, e, eq, q, qq, w = self._sums
        determinant = w * qq - q * q
        solvable = _SINGULAR * w * qq < determinant
        moved = np.where(solvable, (qq * e - q * eq) * inverse(determinant), ZERO)
        up = self._up
        offset = self.offset + self.scale * moved
        low_end, high_end = self.low + self._room, self.high - self._room
        offset = round_signed(np.where(up, minimum(offset, low_end), maximum(offset, high_end)), self._type)
        shift = (offset - self.offset) * inverse(self.scale)
        scale = self.scale + self.scale * ((eq - shift * q) * inverse(qq))
        least = (np.where(up, high_end, low_end) - offset) / self._top
        scale = np.where(up, maximum(scale, least), minimum(scale, least))
        self._consider(round_signed(scale, self._type), offset)

    @property
    def _up(self) -> np.ndarray:
        return self.scale > ZERO


@np.errstate(all="ignore")  # huge values overflow on the way to their clipped codes
def encode_affine(
    x: np.ndarray,
    bits: int,
    group: int,
    scale_type: str,
    search: bool,
    importance: np.ndarray | None,
    _threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    values, top = x.reshape(-1, group), np.float32((1 << bits) - 1)
    exact_scale, exact_offset = _plain(values.min(axis=1), values.max(axis=1), top)
    scale, offset = round_signed(exact_scale, scale_type), round_signed(exact_offset, scale_type)
    if search:
        w = None
        if importance is not None:
            w = fit.normalise_weights(np.broadcast_to(importance, x.shape).reshape(-1, group))
        tries = _Search(values, w, bits, scale_type)
        tries.start(scale, offset)
        for k in range(_STEPS * _STEPS):
            tries.try_range(k // _STEPS, k % _STEPS)
        for _ in range(_REFITS):
            tries.try_fit()
        scale, offset = exact_scale, exact_offset = tries.scale, tries.offset
    codes = _codes(values, exact_scale, exact_offset, top).astype(np.uint8)
    shape = (len(x), x.shape[1] // group)
    return codes.reshape(x.shape), scale.reshape(shape), offset.reshape(shape)


@np.errstate(all="ignore")
def decode_affine(codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray, group: int, _threads: int) -> np.ndarray:
    scale, offset = (np.repeat(a, group, axis=1) for a in (scales, offsets))
    return codes.astype(np.float32) * scale + offset
