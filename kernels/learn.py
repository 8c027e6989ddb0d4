"""Public operations of learned rounding, in the style of `kernels.ops`.

A code is the nearest integer to a latent value, within 0 … top, and stands for (code − zero) · scale. first: uint8
[R, K], the codes that were begun with. latent: float16 [R, K], less those, or None where codes stay as they are.
zeros, scales: float32 [R, G], G divides K. All sums are float32 in one order, so that no result depends on `threads`
or on what computes it. Wrong shapes raise ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from kernels import checks, cpu, dispatch
from kernels import ops as _ops  # noqa: F401  (tells `dispatch` what else this machine has)
from kernels.reference import learn as reference

_NONE = np.empty((0, 0), np.float16)


def step(
    grad: np.ndarray,
    first: np.ndarray,
    latent: np.ndarray | None,
    zeros: np.ndarray,
    rate: float,
    top: int,
    threads: int = 1,
) -> np.ndarray:
    """Moves latent values against the signs of a gradient; returns Σ grad · (code − zero) of the codes before, [R, G].

    grad: bfloat16 [R, K] as uint16. rate: how far; they stay within about 0.49 of the first and last code. In place.
    """
    first, latent, zeros = _checked(first, latent, zeros)
    grad = checks.matrix(grad, np.uint16)
    if grad.shape != first.shape:
        raise ValueError(f"the gradient is {list(first.shape)}, not {list(grad.shape)}")
    slopes = np.empty_like(zeros)
    dispatch.find("learn_step").function(grad, first, latent, zeros, slopes, rate, top, threads)
    return slopes


def weight(
    first: np.ndarray,
    latent: np.ndarray | None,
    zeros: np.ndarray,
    scales: np.ndarray,
    out: np.ndarray,
    top: int,
    threads: int = 1,
) -> None:
    """What the codes stand for → out, bfloat16 [R, K] as uint16, in place."""
    first, latent, zeros = _checked(first, latent, zeros)
    scales = checks.matrix(scales)
    if scales.shape != zeros.shape:
        raise ValueError(f"scales are {list(zeros.shape)}, not {list(scales.shape)}")
    if out.shape != first.shape or out.dtype != np.uint16 or not out.flags.c_contiguous:
        raise ValueError("the result is C-contiguous uint16, as large as the codes")
    dispatch.find("learned_weight").function(first, latent, zeros, scales, out, top, threads)


def _checked(
    first: np.ndarray, latent: np.ndarray | None, zeros: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first, zeros = checks.matrix(first, np.uint8), checks.matrix(zeros)
    if len(zeros) != len(first) or not zeros.shape[1] or not first.shape[1] or first.shape[1] % zeros.shape[1]:
        raise ValueError(f"zeros {list(zeros.shape)} are not for groups of codes {list(first.shape)}")
    if latent is None:
        return first, _NONE, zeros
    if latent.shape != first.shape or latent.dtype != np.float16 or not latent.flags.c_contiguous:
        raise ValueError("latent values are C-contiguous float16, as many as the codes")
    return first, latent, zeros


class _Compiled:
    """The operations of one instruction set, with the signatures of their references."""

    def __init__(self, extension: ModuleType, isa: str) -> None:
        self._extension, self._isa = extension, isa

    def step(self, grad: np.ndarray, first: np.ndarray, latent: np.ndarray, *rest: Any) -> None:
        self._extension.solve_learn_step(self._isa, grad, first, latent.view(np.uint16), *rest)

    def weight(self, first: np.ndarray, latent: np.ndarray, *rest: Any) -> None:
        self._extension.solve_learned_weight(self._isa, first, latent.view(np.uint16), *rest)


def _usable(op: str) -> Callable[[str], str]:
    missing = "" if hasattr(cpu.extension, op) else "this build is older than the operation"
    return lambda _variant: missing


dispatch.register("learn_step", "reference", reference.step)
dispatch.register("learned_weight", "reference", reference.weight)
if cpu.extension is not None:
    for _rank, _isa in enumerate(reversed(cpu.instruction_sets), start=1):
        _compiled = _Compiled(cpu.extension, _isa)
        dispatch.register("learn_step", f"cpu:{_isa}", _compiled.step, _usable("solve_learn_step"), _rank)
        dispatch.register("learned_weight", f"cpu:{_isa}", _compiled.weight, _usable("solve_learned_weight"), _rank)
