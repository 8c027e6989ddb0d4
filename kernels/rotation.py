"""A rotation of rows while a model runs: signs, a small Hadamard matrix and Sylvester's, over runs of each row.

A Hadamard matrix has entries ±1 and orthogonal rows. Sylvester's, H₁ = 1 and H₂ₙ = [[Hₙ, Hₙ], [Hₙ, −Hₙ]], takes
log2 n additions a value; the Kronecker product of two Hadamard matrices is one again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

LARGEST_ORDER = 256  # of the small factor: a product with it takes so many multiplications a value
_LARGEST = 64  # of Sylvester's matrices that are multiplied with as they are
_PIECE = 1 << 20  # values between two looks at the token


@dataclass(frozen=True, eq=False)
class Rotation:
    """R of rows that are whole runs: each x of `width` values becomes (x ∘ signs) · (factor ⊗ Sylvester) / √width.

    size: of Sylvester's matrix, a power of two. factor: float32 [order, order], ±1, rows orthogonal; [[1]]: none.
    signs: float32 [width], ±1; width = order · size.
    """

    size: int
    factor: np.ndarray
    signs: np.ndarray

    @staticmethod
    def plain(size: int) -> Rotation:
        """Sylvester's matrix alone, of a power of two."""
        if size < 1 or size & (size - 1):
            raise ValueError(f"Sylvester's matrices have powers of two, not {size}")
        return Rotation(size, np.ones((1, 1), np.float32), np.ones(size, np.float32))

    @property
    def order(self) -> int:
        """Of the small factor."""
        return len(self.factor)

    @property
    def width(self) -> int:
        """Values of a run."""
        return self.order * self.size

    @property
    def scale(self) -> float:
        return float(self.width**-0.5)

    @property
    def label(self) -> str:
        """'Hadamard 512', 'Hadamard 12 × 128 with signs'."""
        size = f"{self.order} × {self.size}" if self.order > 1 else str(self.size)
        return f"Hadamard {size}" + ("" if (self.signs == 1).all() else " with signs")

    @cached_property
    def key(self) -> tuple[int, bytes, bytes]:
        """Equal for equal rotations."""
        return self.size, self.factor.astype(np.int8).tobytes(), self.signs.astype(np.int8).tobytes()

    def factors(self) -> tuple[np.ndarray, ...]:
        """Orthogonal float32 matrices, none larger than the order or 64, whose Kronecker product R is after the
        signs."""
        found = [] if self.order == 1 else [(self.factor / np.sqrt(self.order)).astype(np.float32)]
        rest = self.size
        while rest > 1:
            size = min(rest, _LARGEST)
            found.append((sylvester(size) / np.sqrt(size)).astype(np.float32))
            rest //= size
        return tuple(found) or (np.ones((1, 1), np.float32),)

    def apply(self, x: np.ndarray, check: Callable[[], None] | None = None) -> np.ndarray:
        """x R, float32 [..., K], K whole runs. check: called every million values; what it raises ends it."""
        return self._go(x, lambda rows: times(rows * self.signs, self.factors()), check)

    def undo(self, x: np.ndarray, check: Callable[[], None] | None = None) -> np.ndarray:
        """x Rᵀ, which takes `apply` back, float32 [..., K]."""
        back = tuple(np.ascontiguousarray(f.T) for f in self.factors())
        return self._go(x, lambda rows: times(rows, back) * self.signs, check)

    def matrix(self) -> np.ndarray:
        """R of one run, float32 [width, width]."""
        return self.apply(np.eye(self.width, dtype=np.float32))

    def _go(
        self, x: np.ndarray, work: Callable[[np.ndarray], np.ndarray], check: Callable[[], None] | None
    ) -> np.ndarray:
        if x.shape[-1] % self.width:
            raise ValueError(f"rows of {x.shape[-1]} values are no whole runs of {self.width}")
        rows = np.ascontiguousarray(x, np.float32).reshape(-1, self.width)
        out = np.empty_like(rows)
        step = max(1, _PIECE // self.width)
        for start in range(0, len(rows), step):
            if check is not None:
                check()
            out[start : start + step] = work(rows[start : start + step])
        return out.reshape(x.shape)


@cache
def sylvester(size: int) -> np.ndarray:
    """Sylvester's Hadamard matrix of a power of two, float32 ±1 [size, size]. It is symmetric."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def of_matrix(matrix: np.ndarray) -> Rotation | None:
    """The rotation whose R · √width a matrix [D, D] of ±1 is; None where it is no signs times a small Hadamard matrix
    times Sylvester's."""
    order, given = len(matrix), matrix.astype(np.float32)
    if given.shape != (order, order) or not (np.abs(given) == 1).all():
        return None
    size = order & -order
    while size > 1 and order // size < 4 and order // size > 1:  # there is no Hadamard matrix of order 3
        size //= 2
    while order // size <= LARGEST_ORDER:
        signs = np.ascontiguousarray(given[:, 0])
        factor = np.ascontiguousarray((given * signs[:, None])[::size, ::size])
        found = Rotation(size, factor, signs)
        gram = factor @ factor.T
        same = np.array_equal(np.kron(factor, sylvester(size)) * signs[:, None], given)
        if same and np.array_equal(gram, len(factor) * np.eye(len(factor), dtype=np.float32)):
            return found
        if size == 1:
            break
        size //= 2
    return None


def times(rows: np.ndarray, factors: tuple[np.ndarray, ...]) -> np.ndarray:
    """Rows [N, D] times the Kronecker product of square factors."""
    width, before = rows.shape[1], 1
    for factor in factors:
        size = len(factor)
        parts = rows.reshape(len(rows) * before, size, -1)
        rows = (parts[:, :, 0] @ factor if parts.shape[2] == 1 else np.matmul(factor.T, parts)).reshape(-1, width)
        before *= size
    return rows
