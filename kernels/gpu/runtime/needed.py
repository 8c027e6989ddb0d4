"""The kernels beside weight-only products that a program needs, and whether all of them may be used on this card."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from kernels.gpu import selftest
from kernels.gpu.attention.attend import WIDEST_HEAD
from kernels.gpu.runtime.failures import SwitchedOff
from kernels.matrix import Activations
from kernels.program import ActMul, Attention, Experts, Linear, Norm, Program, Rope

_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def needed(program: Program) -> Iterator[tuple[str, tuple[Hashable, ...]]]:
    """Kernels and classes, as `kernels.gpu.selftest.usable` takes them; some more than once."""
    cache = _TYPES[program.cache.dtype]
    queries = "float32" if program.activations is Activations.EXACT else cache
    token = program.activations is Activations.TOKEN
    for step in program.steps:
        match step:
            case Norm():
                yield "norm", ("float32", False)
                if step.heads == 1:
                    yield "norm", ("float32", True)
            case Rope():
                yield "rotate", (step.pairs, "float32")
            case ActMul() | Experts():
                yield "activate", (step.kind, "float32")
            case Attention():
                yield "store cache", (step.head_dim, cache)
                yield "attention token", (step.head_dim, queries, step.softcap > 0)
                yield "attention prompt", (step.head_dim, queries, step.softcap > 0)
            case Linear() if token:
                yield "quantize", ("int8", 0)
                if step.outliers > 0:
                    yield "outliers", ()


def check_steps(program: Program) -> None:
    """Raises SwitchedOff, naming the kernel, where one may not be used, and ValueError for heads that none takes."""
    for step in program.steps:
        if isinstance(step, Attention) and not 16 <= step.head_dim <= WIDEST_HEAD:
            raise ValueError(f"heads have 16 to {WIDEST_HEAD} values, not {step.head_dim}")
    for kernel, shape_class in dict.fromkeys(needed(program)):
        why = selftest.usable(kernel, *shape_class)
        if why:
            raise SwitchedOff(f"the kernel '{kernel}' is switched off: {why}")
