"""Products and factors of large matrices, in pieces so that a run can be cancelled, and calls that can be left."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

import numpy as np

from core.progress import CancelToken
from core.threads import in_parallel, worker_count

Result = TypeVar("Result")

_WIDTH = 256  # columns of the matrix that are factored at once
_OPERATIONS = 1e9  # multiplications between two looks at the token, in double precision perhaps
_SHORT = 2e7  # of a product that is not worth a second thread
_DOUBLE = 8192  # largest matrix that is factored in double precision: 512 MB
_GROWTH, _TRIES = 10.0, 6  # how the damping is raised, and how often
_PIECE = 1 << 20  # values that are copied between two looks
_POLL = 0.05  # seconds


def watched(call: Callable[[np.ndarray], Result], token: CancelToken) -> Result:
    """call(stop) on another thread; stop, int32 [1], becomes 1 when the token is cancelled. Raises Cancelled."""
    stop = np.zeros(1, np.int32)
    with ThreadPoolExecutor(1, thread_name_prefix="bitsmith-solve") as pool:
        future = pool.submit(call, stop)
        while not future.done():
            wait([future], timeout=_POLL)
            if token.cancelled:
                stop[0] = 1
        result = future.result()
    token.check()
    return result


def product(a: np.ndarray, b: np.ndarray, token: CancelToken) -> np.ndarray:
    """a [R, K] · bᵀ, b [N, K], in pieces of b's rows, side by side."""
    out = np.empty((len(a), len(b)), np.float32)

    def compute(start: int, step: int) -> None:
        np.matmul(a, b[start : start + step].T, out=out[:, start : start + step])

    side_by_side(compute, 0, len(b), a.size, token)
    return out


def side_by_side(
    work: Callable[[int, int], None], start: int, stop: int, operations: float, token: CancelToken
) -> None:
    """work(from, count) over start…stop, on all cores where it pays; operations: multiplications of each unit."""
    most = max(16, int(_OPERATIONS / max(1, operations)))
    step = min(most, max(64, -(-(stop - start) // worker_count())))
    places = range(start, stop, step)
    if len(places) * step * operations < _SHORT or len(places) == 1:
        for place in places:
            token.check()
            work(place, step)
        return
    for _ in in_parallel(lambda place: work(place, step), places, token):
        pass


def all_finite(matrix: np.ndarray, token: CancelToken) -> bool:
    """Whether no value is NaN or infinite."""
    step = max(1, _PIECE // matrix.shape[1])
    for start in range(0, len(matrix), step):
        token.check()
        # A sum is enough to find them, and needs no matrix of truth values.
        if not np.isfinite(matrix[start : start + step].sum(dtype=np.float64)):
            return False
    return True


def reordered(matrix: np.ndarray, order: np.ndarray, dtype: np.dtype, token: CancelToken) -> np.ndarray:
    """matrix[order][:, order] in that type."""
    out = np.empty(matrix.shape, dtype)
    step = max(1, _PIECE // len(order))
    for start in range(0, len(order), step):
        token.check()
        out[start : start + step] = matrix[order[start : start + step]].take(order, axis=1)
    return out


def cholesky(matrix: np.ndarray, token: CancelToken) -> np.ndarray | None:
    """Lower L with L Lᵀ = matrix, written over it, zeros above the diagonal; None where that does not exist."""
    size = len(matrix)
    for start in range(0, size, _WIDTH):
        token.check()
        stop = min(start + _WIDTH, size)
        try:
            corner = np.linalg.cholesky(matrix[start:stop, start:stop].astype(np.float64))
        except np.linalg.LinAlgError:
            return None
        if not np.isfinite(corner).all():
            return None
        matrix[start:stop, start:stop] = corner
        matrix[start:stop, stop:] = 0
        if stop == size:
            break
        inverse = np.linalg.solve(corner, np.eye(stop - start)).astype(matrix.dtype).T
        panel = matrix[stop:, start:stop]
        width = stop - start

        def below(row: int, count: int, panel: np.ndarray = panel, inverse: np.ndarray = inverse) -> None:
            panel[row : row + count] = panel[row : row + count] @ inverse

        def left(row: int, count: int, panel: np.ndarray = panel, stop: int = stop) -> None:
            last = min(row + count, len(panel))
            matrix[stop + row : stop + last, stop : stop + last] -= panel[row:last] @ panel[:last].T

        side_by_side(below, 0, size - stop, width * width, token)
        side_by_side(left, 0, size - stop, width * (size - stop), token)
    return matrix


def feedback_factor(
    gram: np.ndarray, order: np.ndarray, damping: float, token: CancelToken
) -> tuple[np.ndarray, np.ndarray, float]:
    """How the errors of columns move the best values of those that are solved later.

    gram: float32 [K, K], symmetric. order: of the columns. damping: what is added to the diagonal, as a share of its
    mean; ten times more, up to six times, where the sum is not positive definite. Returns the matrix of
    `kernels.solve.feedback`, float32 [K, K], what is left of each column's square once those after it have made up for
    it, float32 [K], both in that order, and what was added. With H + λ = (I + U) D (I + U)ᵀ, U above the diagonal, they
    are Uᵀ and D. That gives the codes of GPTQ, which takes the Cholesky factor of the inverse, with one factorization.
    """
    size = len(order)
    back = order[::-1]
    mean = float(np.mean(np.diag(gram), dtype=np.float64))
    dtype = np.dtype(np.float64 if size <= _DOUBLE else np.float32)
    corner = np.arange(size)
    for attempt in range(_TRIES + 1):
        added = max(damping, 1e-6 if attempt else 0.0) * mean * _GROWTH**attempt
        matrix = reordered(gram, back, dtype, token)
        matrix[corner, corner] = np.diag(matrix) + added
        if cholesky(matrix, token) is not None:
            break
    else:
        raise ValueError("no damping makes this matrix positive definite")
    root = np.diag(matrix)[::-1].astype(np.float32)
    step = max(1, _PIECE // size)
    matrix = _narrowed(matrix, step, token)
    _turn(matrix, token)
    for start in range(0, size, step):
        token.check()
        matrix[start : start + step] /= root[start : start + step, None]
    return matrix, root**2, added


def _narrowed(matrix: np.ndarray, step: int, token: CancelToken) -> np.ndarray:
    """float32, so many rows at a time."""
    if matrix.dtype == np.float32:
        return matrix
    out = np.empty(matrix.shape, np.float32)
    for start in range(0, len(matrix), step):
        token.check()
        out[start : start + step] = matrix[start : start + step]
    return out


def _turn(matrix: np.ndarray, token: CancelToken) -> None:
    """[i, j] becomes [K−1−j, K−1−i], in place."""
    size = len(matrix)
    edges = [*range(0, size, _WIDTH), size]
    for a, (top, bottom) in enumerate(pairwise(edges)):
        for left, right in list(pairwise(edges))[a:]:
            token.check()
            here = matrix[top:bottom, size - right : size - left]
            there = matrix[left:right, size - bottom : size - top]
            turned = there[::-1, ::-1].T.copy()
            there[:] = here[::-1, ::-1].T.copy()
            here[:] = turned


class LastFactor:
    """Keeps the last factor while its gram lives: weights that meet one input are solved one after the other."""

    def __init__(self) -> None:
        self._gram: weakref.ref[np.ndarray] | None = None
        self._damping = 0.0
        self._found: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def of(
        self, gram: np.ndarray, order: np.ndarray, damping: float, token: CancelToken
    ) -> tuple[np.ndarray, np.ndarray]:
        """Matrix and what is left, of `feedback_factor`."""
        if self._found is not None and self._gram is not None and self._gram() is gram:
            matrix, left, known = self._found
            if damping == self._damping and np.array_equal(known, order):
                return matrix, left
        self._forget()
        matrix, left, _ = feedback_factor(gram, order, damping, token)
        self._damping, self._found = damping, (matrix, left, order)
        self._gram = weakref.ref(gram, self._forget)
        return matrix, left

    def _forget(self, _gram: object = None) -> None:
        self._gram = self._found = None
