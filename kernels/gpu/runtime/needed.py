"""The kernels beside weight-only products that a program needs, and whether all of them may be used on this card."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from kernels.gpu import selftest
from kernels.gpu.attention.attend import WIDEST_HEAD
from kernels.gpu.runtime.failures import SwitchedOff
from kernels.kv import kinds
from kernels.matrix import Activations
from kernels.program import ActMul, Attention, CacheLayout, Experts, Linear, Norm, Program, Rope

_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def query_type(cache: CacheLayout) -> str:
    """The type of torch's that queries have in 16-bit products: that of the cache's floats, the widest; with codes
    alone float16, which holds whatever a cache's scales do.
    """
    floats = [name for name in ("F32", "BF16") if name in kinds(cache.dtype)]
    return _TYPES[floats[0]] if floats else "float16"


def cache_class(cache: CacheLayout, layer: int, before_rope: bool = False) -> str:
    """How a layer's cache is kept, as classes of self-tests have it: 'float16', 'Q8_0/Q4_0', 'U2-t32/U2-g32 waiting,
    keys turned'.
    """
    own = cache.layer(layer)
    keys, values = kinds(own.dtype)
    if keys == values and keys in _TYPES:
        return _TYPES[keys]
    words = [keys if keys == values else own.dtype]
    words += ["waiting"] if own.waits else []
    words += ["before the rotary step"] if before_rope else []
    return ", ".join(words)


def needed(program: Program) -> Iterator[tuple[str, tuple[Hashable, ...]]]:
    """Kernels and classes, as `kernels.gpu.selftest.usable` takes them; some more than once."""
    queries = "float32" if program.activations is Activations.EXACT else query_type(program.cache)
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
                cache = cache_class(program.cache, step.layer)
                yield "store cache", (step.head_dim, cache)
                kind = cache_class(program.cache, step.layer, step.rope is not None)
                more: tuple[str, ...] = () if kind in _TYPES.values() else (kind,)
                yield "attention token", (step.head_dim, queries, step.softcap > 0, *more)
                yield "attention prompt", (step.head_dim, queries, step.softcap > 0, *more)
                layer = program.cache.layer(step.layer)
                if layer.rotate_keys or layer.rotate_values:
                    yield "turn heads", (step.head_dim,)
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
