"""Public operations of methods that choose codes by what they do to a layer's output, in the style of `kernels.ops`.

A value is step · level + offset. steps, offsets: float32 [R, G]; group: int32 [K], of each column, into G; levels:
float32 [n], strictly ascending, n ≤ 256; an index uint8 stands for one of them. All sums are float32. Rows never depend
on each other, so that no result depends on `threads`; all implementations give the same bits. stop: int32 [1] or None;
work is left soon after it becomes other than 0, and the result then means nothing. Wrong shapes raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from kernels import checks, cpu, dispatch
from kernels import ops as _ops  # noqa: F401  (tells `dispatch` what else this machine has)
from kernels.gpu.backends import conversion
from kernels.reference import solve as reference


def feedback(
    w: np.ndarray,
    matrix: np.ndarray,
    steps: np.ndarray,
    offsets: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
    threads: int = 1,
    stop: np.ndarray | None = None,
) -> np.ndarray:
    """Values float32 [R, K] → indices uint8 [R, K], column by column, each the nearest to its target.

    matrix: float32 [K, K]; the target of column k is w_k + Σ_{j<k} (w_j − value_j) · matrix[k, j]; what is on and above
    its diagonal is not read. Where w is finite, so are targets unless they leave float32's range.
    """
    w, matrix = checks.matrix(w), checks.matrix(matrix)
    grid = _grid(w.shape, matrix, steps, offsets, group, levels)
    return dispatch.run("solve_feedback", "", w.size, w, matrix, *grid, _flag(stop), threads)


def descend(
    gradient: np.ndarray,
    h: np.ndarray,
    steps: np.ndarray,
    offsets: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
    index: np.ndarray,
    threads: int = 1,
    stop: np.ndarray | None = None,
) -> int:
    """One sweep of coordinate descent on e H eᵀ, e = w − value; returns how many codes changed. Works in place.

    gradient: float32 [R, K], e H; h: float32 [K, K], symmetric; index: uint8 [R, K]. Each column in turn takes the
    level that is best while the others stay; columns whose h is 0 on the diagonal keep theirs.
    """
    h = checks.matrix(h)
    grid = _grid(gradient.shape, h, steps, offsets, group, levels)
    for array, dtype in ((gradient, np.float32), (index, np.uint8)):
        if array.dtype != dtype or array.shape != gradient.shape or not array.flags.c_contiguous:
            raise ValueError("gradient and index are C-contiguous float32 and uint8 [R, K]")
    if index.size and index.max() >= len(levels):
        raise ValueError("an index is past the levels")
    return dispatch.find("solve_descend").function(gradient, h, *grid, index, _flag(stop), threads)


def _flag(stop: np.ndarray | None) -> np.ndarray:
    return np.zeros(1, np.int32) if stop is None else stop


def _grid(
    shape: tuple[int, ...],
    matrix: np.ndarray,
    steps: np.ndarray,
    offsets: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
    """What the implementations take: steps, offsets, group, levels, middles, and whether the levels are i, i + 1 …"""
    rows, columns = shape
    steps, offsets = checks.matrix(steps), checks.matrix(offsets)
    group, levels = np.ascontiguousarray(group, np.int32), np.ascontiguousarray(levels, np.float32)
    if matrix.shape != (columns, columns):
        raise ValueError(f"the matrix is [{columns}, {columns}], not {list(matrix.shape)}")
    if steps.shape != offsets.shape or len(steps) != rows:
        raise ValueError(f"steps and offsets have a row for each of {rows}")
    if group.shape != (columns,) or (columns and not (group.min() >= 0 and group.max() < steps.shape[1])):
        raise ValueError(f"each of {columns} columns has one of {steps.shape[1]} groups")
    if levels.ndim != 1 or not 1 <= len(levels) <= 256 or not (np.diff(levels) > 0).all():
        raise ValueError("levels are 1 to 256 ascending numbers")
    even = bool(levels[0] == np.rint(levels[0]) and (np.diff(levels) == 1).all())
    middles = (levels[1:] + levels[:-1]) * np.float32(0.5)
    return steps, offsets, group, levels, middles, even


class _Compiled:
    """The operations of one instruction set, with the signatures of their references."""

    def __init__(self, extension: ModuleType, isa: str) -> None:
        self._extension, self._isa = extension, isa

    def feedback(self, w: np.ndarray, *rest: Any) -> np.ndarray:
        *grid, stop, threads = rest
        index = np.empty(w.shape, np.uint8)
        self._extension.solve_feedback(self._isa, w, *grid, index, stop, threads)
        return index

    def descend(self, *arguments: Any) -> int:
        return self._extension.solve_descend(self._isa, *arguments)


def _usable(op: str) -> Callable[[str], str]:
    missing = "" if hasattr(cpu.extension, op) else "this build is older than the operation"
    return lambda _variant: missing


dispatch.register("solve_feedback", "reference", reference.feedback)
dispatch.register("solve_descend", "reference", reference.descend)
conversion.register("solve_feedback", conversion.feedback, ("feedback",))
if cpu.extension is not None:
    for _rank, _isa in enumerate(reversed(cpu.instruction_sets), start=1):
        _compiled = _Compiled(cpu.extension, _isa)
        dispatch.register("solve_feedback", f"cpu:{_isa}", _compiled.feedback, _usable("solve_feedback"), _rank)
        dispatch.register("solve_descend", f"cpu:{_isa}", _compiled.descend, _usable("solve_descend"), _rank)
