"""Orthogonal matrices that mix all channels of a width, kept as factors so that multiplying is quick at any width.

A Hadamard matrix has entries ±1 and orthogonal rows. Sylvester's have powers of two; Paley's (1933) have order q + 1
for a prime power q = 3 mod 4, and 2 (q + 1) for q = 1 mod 4. The Kronecker product of two is one again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from core.progress import CancelToken
from kernels.rotation import sylvester, times

_LARGEST = 64  # of a factor that is a power of two
_LARGEST_PALEY = 512  # of the other factor
_PIECE = 1 << 20  # values that are multiplied between two looks at the token


@dataclass(frozen=True, eq=False)
class Orthogonal:
    """A matrix R [D, D], orthogonal: the signs' diagonal times the Kronecker product of the factors.

    signs: float32 [D], ±1. factors: float32, square and orthogonal; their orders multiply to D.
    """

    signs: np.ndarray
    factors: tuple[np.ndarray, ...]

    @property
    def width(self) -> int:
        return len(self.signs)

    @property
    def products(self) -> int:
        """Multiply-adds for each value that is rotated."""
        return sum(len(f) for f in self.factors)

    def right(self, x: np.ndarray, token: CancelToken | None = None, gain: np.ndarray | None = None) -> np.ndarray:
        """x R, float32 [..., D]; gain: float32 [D], that the columns are multiplied with before. Raises Cancelled."""
        before = self.signs if gain is None else gain * self.signs
        rows = np.ascontiguousarray(x, np.float32).reshape(-1, self.width)
        out = np.empty_like(rows)
        step = max(1, _PIECE // self.width)
        for start in range(0, len(rows), step):
            if token is not None:
                token.check()
            out[start : start + step] = times(rows[start : start + step] * before, self.factors)
        return out.reshape(x.shape)

    def left(self, x: np.ndarray, token: CancelToken | None = None) -> np.ndarray:
        """Rᵀ x, float32 [D, ...]. Raises Cancelled."""
        columns = np.asarray(x, np.float32).reshape(self.width, -1)
        out = np.empty(columns.shape, np.float32)
        step = max(1, _PIECE // self.width)
        for start in range(0, columns.shape[1], step):  # copies of whole transposed matrices take long, too
            out[:, start : start + step] = self.right(columns[:, start : start + step].T, token).T
        return out.reshape(x.shape)

    def matrix(self) -> np.ndarray:
        """R, float32 [D, D]."""
        return self.right(np.eye(self.width, dtype=np.float32))


def random_hadamard(width: int, seed: int) -> Orthogonal:
    """Signs drawn by the seed times a Hadamard matrix over √width. Where no Hadamard matrix of the width is known here,
    its largest power of two is one, and the odd rest an orthogonal matrix drawn by the seed.

    Raises ValueError for no width.
    """
    if width < 1:
        raise ValueError(f"no matrix has a width of {width}")
    draw = np.random.PCG64([seed, width])
    signs = np.where(draw.random_raw(width) >> np.uint64(63), np.float32(1), np.float32(-1))
    order = hadamard_order(width)
    if order:
        rest, factors = width // order, [_unit(hadamard(order))] if order > 1 else []
    else:
        rest = width & -width
        factors = [_drawn(width // rest, draw)]
    while rest > 1:
        size = min(rest, _LARGEST)
        factors.append(_unit(hadamard(size)))
        rest //= size
    return Orthogonal(signs, tuple(factors))


def hadamard_order(width: int) -> int:
    """The smallest order m so that a Hadamard matrix of order m is known and width / m is a power of two; 0: none is.

    1 for powers of two.
    """
    odd = width // (width & -width)
    if odd == 1:
        return 1
    order = 4 * odd
    while order <= min(width, _LARGEST_PALEY) and width % order == 0:
        if _paley_field(order):
            return order
        order *= 2
    return 0


@cache
def hadamard(order: int) -> np.ndarray:
    """A Hadamard matrix, float32 ±1 [order, order], of a power of two or an order that Paley's constructions have.

    Raises ValueError for another.
    """
    if order & (order - 1) == 0 and order > 0:
        return sylvester(order)
    q = _paley_field(order)
    if not q:
        raise ValueError(f"no Hadamard matrix of order {order} is known here")
    jacobsthal = _jacobsthal(q)
    size = q + 1
    core = np.zeros((size, size), np.float32)
    core[0, 1:] = 1
    core[1:, 1:] = jacobsthal
    if q % 4 == 3:
        core[1:, 0] = -1
        return core + np.eye(size, dtype=np.float32)
    core[1:, 0] = 1
    at_zero = np.array([[1, -1], [-1, -1]], np.float32)
    return np.kron(core, np.array([[1, 1], [1, -1]], np.float32)) + np.kron(np.eye(size, dtype=np.float32), at_zero)


def _paley_field(order: int) -> int:
    """The order of a field that gives a Hadamard matrix of this order: a prime, or a prime's square; 0: none."""
    for q, rest in ((order - 1, 3), (order // 2 - 1, 1)):
        if q % 4 == rest and (_is_prime(q) or (rest == 1 and _is_prime(round(q**0.5)) and round(q**0.5) ** 2 == q)):
            return q
    return 0


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def _jacobsthal(q: int) -> np.ndarray:
    """float32 [q, q]: 1 where a − b is a square of the field, 0 where a = b, else −1."""
    p = q if _is_prime(q) else round(q**0.5)
    low, high = np.arange(q) % p, np.arange(q) // p  # low + high · √n, n no square of p's field
    n = next(n for n in range(2, p) if n not in set(np.arange(p) ** 2 % p)) if q > p else 0
    squares = (low * low + n * high * high) % p + p * (2 * low * high % p)
    character = np.full(q, -1, np.float32)
    character[squares] = 1
    character[0] = 0
    return character[(low[:, None] - low) % p + p * ((high[:, None] - high) % p)]


def _unit(matrix: np.ndarray) -> np.ndarray:
    return (matrix / np.sqrt(len(matrix))).astype(np.float32)


def _drawn(size: int, draw: np.random.PCG64) -> np.ndarray:
    """An orthogonal matrix. numpy promises the raw stream for ever, other draws not."""
    values = (draw.random_raw(size * size) >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
    q, r = np.linalg.qr(values.reshape(size, size))
    return (q * np.where(np.diag(r) < 0, -1, 1)).astype(np.float32)
