"""GPTQ (Frantar et al. 2022): codes column by column, each column's error made up for by those that come later.

Scales are chosen beforehand, by the squared error of each column weighted with what later columns can not make up for.
Then the codes; then coordinate descent over them on the output error itself, which no step makes larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.errors import UserError
from core.formats.numbers import Codes, Numbers
from core.methods.factor import LastFactor, all_finite, product, watched
from core.methods.grid import Grid, grid_of, quantized, search_options, why_no_grid
from core.methods.problem import Problem
from core.progress import CancelToken
from core.threads import worker_count
from kernels import solve

# Seconds of one core for a weight's value, a value times a column, and a column³: of SmolLM2-135M's layers on the
# machine of docs/quality.md, where solving took some 18 s of GPTQ's processor time.
_SEARCH, _PRODUCT, _FACTOR = 6e-8, 7e-11, 5e-11
_PIECE_VALUES, _PIECE_ROWS = 1 << 22, 256  # of a weight, that are worked on at a time


@dataclass(frozen=True)
class Gptq:
    """damping: what is added to H's diagonal, as a share of its mean; more where H has no Cholesky factor.

    act_order: solve columns in falling order of H's diagonal; groups stay neighbours, so that every packing holds the
    result. weighted: choose scales by weighted errors. sweeps: of coordinate descent at most. follows_full: aim at the
    unchanged model's output, with weights that come nearest to it before they are rounded.
    """

    damping: float = 0.01
    act_order: bool = True
    weighted: bool = True
    sweeps: int = 4
    follows_full: bool = False
    factors: LastFactor = field(default_factory=LastFactor, init=False, repr=False, compare=False)

    def why_not(self, numbers: Numbers) -> str:
        return why_no_grid(numbers)

    def seconds_for(self, rows: int, columns: int) -> float:
        """CPU seconds of one core for one weight, about: the scales' search, products with H, and its factor."""
        factors = 2 if self.follows_full else 1  # of half of the samples, too: `core.methods.aim`
        return rows * columns * (_SEARCH + columns * _PRODUCT) + factors * columns**3 * _FACTOR

    def change(self, problem: Problem, token: CancelToken) -> np.ndarray:
        """What is added to the weight so that it comes nearest to the unchanged model's output, float32 [N, K]."""
        weight = np.ascontiguousarray(problem.weight, np.float32)
        diagonal = _checked_diagonal(problem, token)
        if not weight.size or not (diagonal > 0).any():
            return np.zeros_like(weight)
        order = self._order(diagonal)
        return _change(weight, problem, *self.factors.of(problem.gram, order, self.damping, token), order, token)

    def _order(self, diagonal: np.ndarray) -> np.ndarray:
        """Of the columns, int64 [K]."""
        return np.argsort(-diagonal, kind="stable") if self.act_order else np.arange(len(diagonal))

    def solve(self, problem: Problem, token: CancelToken) -> Codes:
        """Codes whose output error is never above that of rounding to the nearest under the same scales.

        Takes K² float32 values beside the problem (three times as many for a moment where K ≤ 8192), which stay while
        the gram does, and less than 500 MB more.
        """
        weight = np.ascontiguousarray(problem.weight, np.float32)
        threads = worker_count()
        diagonal = _checked_diagonal(problem, token)
        if not weight.size or not (diagonal > 0).any():  # nothing comes in
            options = search_options(problem.numbers, weight, None, problem.amax, threads)
            return quantized(problem.numbers, weight, options, token)
        order = self._order(diagonal)
        matrix, left = self.factors.of(problem.gram, order, self.damping, token)
        if self.follows_full and problem.aim:
            change = _change(weight, problem, matrix, left, order, token)
            change *= np.float32(problem.aim)
            weight = weight + change
        importance = None
        if self.weighted:
            importance = np.empty_like(left)
            importance[order] = left / left.max()
        options = search_options(problem.numbers, weight, importance, problem.amax, threads)
        grid = grid_of(problem.numbers, quantized(problem.numbers, weight, options, token))
        index = np.empty(weight.shape, np.uint8)
        step = max(_PIECE_ROWS, _PIECE_VALUES // len(order))
        for start in range(0, len(weight), step):
            piece, some = weight[start : start + step], grid.rows(start, start + step)
            first = _fed_back(piece, matrix, order, some, token)
            index[start : start + step] = _descended(piece, problem.gram, some, first, self.sweeps, token)
        return grid.with_index(index)


def _checked_diagonal(problem: Problem, token: CancelToken) -> np.ndarray:
    """Of the gram, float32 [K]."""
    diagonal = np.diag(problem.gram).astype(np.float32)
    if not all_finite(problem.gram, token) or (diagonal < 0).any():
        raise UserError(
            f"What comes into '{problem.name}' in the calibration holds NaN or infinite values.",
            "Test the model as it is first: it may be damaged, or its activations may be too large for bfloat16.",
        )
    return diagonal


def _change(
    weight: np.ndarray, problem: Problem, matrix: np.ndarray, left: np.ndarray, order: np.ndarray, token: CancelToken
) -> np.ndarray:
    """(W · drift + missing) · (H + λ)⁻¹, which leads to the weights that come nearest to the unchanged model's output.

    H + λ = Mᵀ D M in the order of the columns, M below the diagonal: two triangular systems, in blocks.
    """
    out = np.zeros_like(weight)
    if problem.drift is None and problem.missing is None:
        return out
    step = max(_PIECE_ROWS, _PIECE_VALUES // len(order))
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        wanted = np.zeros_like(weight[rows])
        if problem.drift is not None:
            wanted += product(weight[rows], problem.drift.T, token)
        if problem.missing is not None:
            wanted += problem.missing[rows]
        wanted = wanted[:, order]
        _solve_columns(wanted, matrix, left, token)
        out[rows, order] = wanted
    return out


def _solve_columns(wanted: np.ndarray, matrix: np.ndarray, left: np.ndarray, token: CancelToken) -> None:
    """x Mᵀ D M = wanted, float32 [R, K]; x is written over it."""
    blocks = range(0, len(left), 256)
    for start in reversed(blocks):  # y M = wanted, from the last column
        token.check()
        stop = start + 256
        wanted[:, start:stop] -= wanted[:, stop:] @ matrix[stop:, start:stop]
        wanted[:, start:stop] = np.linalg.solve(matrix[start:stop, start:stop].T, wanted[:, start:stop].T).T
    wanted /= left
    for start in blocks:  # x Mᵀ = y
        token.check()
        stop = start + 256
        wanted[:, start:stop] -= wanted[:, :start] @ matrix[start:stop, :start].T
        wanted[:, start:stop] = np.linalg.solve(matrix[start:stop, start:stop], wanted[:, start:stop].T).T


def _fed_back(weight: np.ndarray, matrix: np.ndarray, order: np.ndarray, grid: Grid, token: CancelToken) -> np.ndarray:
    """Indices uint8 [N, K] by `kernels.solve.feedback`, in the columns' own order."""
    ordered, group = weight[:, order], grid.group[order]
    index = np.empty(weight.shape, np.uint8)
    index[:, order] = watched(
        lambda stop: solve.feedback(
            ordered, matrix, grid.steps, grid.offsets, group, grid.levels, worker_count(), stop
        ),
        token,
    )
    return index


def _descended(
    weight: np.ndarray, gram: np.ndarray, grid: Grid, index: np.ndarray, sweeps: int, token: CancelToken
) -> np.ndarray:
    """Indices with less output error; where plain rounding is better for a row, the descent begins there."""
    plain = grid.index()
    gradient, errors = _gradient(weight, gram, grid, index, token)
    plain_gradient, plain_errors = _gradient(weight, gram, grid, plain, token)
    worse = plain_errors < errors
    gradient[worse], index[worse] = plain_gradient[worse], plain[worse]
    for _ in range(sweeps):
        changed = watched(
            lambda stop: solve.descend(
                gradient, gram, grid.steps, grid.offsets, grid.group, grid.levels, index, worker_count(), stop
            ),
            token,
        )
        if not changed:
            break
    return index


def _gradient(
    weight: np.ndarray, gram: np.ndarray, grid: Grid, index: np.ndarray, token: CancelToken
) -> tuple[np.ndarray, np.ndarray]:
    """(W − Q) H, and each row's (W − Q) H (W − Q)ᵀ."""
    change = weight - grid.values(index)
    gradient = product(change, gram, token)
    return gradient, np.einsum("nk,nk->n", gradient, change, dtype=np.float64)
