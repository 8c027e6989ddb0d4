"""Registers the GPU's kernels beside weight-only products with `dispatch`, each beside a reference of its signature.

Arrays in and out are numpy's; inside a model, `kernels.gpu.operations` is called with what is on the device already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels import dispatch, gpu
from kernels.gpu import selftest
from kernels.gpu.configurations import VECTOR_BATCH
from kernels.gpu.products.scaled_ways import KINDS
from kernels.kv import CACHE_FORMATS, kinds
from kernels.reference import attention, elementwise, scaled
from kernels.reference.scheme_cache import SchemeCache

if TYPE_CHECKING:
    import torch

    from kernels.program import CacheLayout

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def on_device(array: np.ndarray) -> torch.Tensor:
    """A copy on the first GPU."""
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to("cuda")


def usable(kernels: tuple[str, ...], variant: str) -> str:
    """Why these kernels can not run on this machine, or are switched off for this variant. Runs nothing."""
    failed = (selftest.failing(kernel, variant.removeprefix("int") if "encode" in kernel else variant)
              for kernel in kernels)  # fmt: skip
    return gpu.state().reason or next(filter(None, failed), "")


def _norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    from kernels.gpu import operations  # here and below: only where the state is ready

    return operations.rms_norm(on_device(x), on_device(gain), eps).cpu().numpy()


def _activate_mul(kind: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    from kernels.gpu import operations

    return operations.activate_mul(kind, on_device(gate), on_device(up)).cpu().numpy()


def _reference_activate_mul(kind: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return (elementwise.activate(kind, gate.astype(np.float64)) * up).astype(np.float32)


def _rotate(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, scale: float, pairs: bool) -> np.ndarray:
    from kernels.gpu import operations

    angles = np.arange(int(positions.max(initial=0)) + 1)[:, None] * frequencies.astype(np.float64)
    cos, sin = (on_device((scale * f(angles)).astype(np.float32)) for f in (np.cos, np.sin))
    return operations.rotate(on_device(x), cos, sin, on_device(positions.astype(np.int32)), pairs).cpu().numpy()


def _scaled_product(
    kind: str, x: np.ndarray, codes: np.ndarray, scales: np.ndarray, tensor_scale: float = 1.0
) -> np.ndarray:
    from kernels.gpu import operations

    weights = operations.upload_scaled(kind, codes, scales, "cuda", tensor_scale)
    shape = KINDS[kind]
    tokens = operations.quantize(on_device(x), shape.tokens, shape.group if shape.tokens == "e4m3" else 0)
    return operations.scaled_product(tokens, weights).cpu().numpy()


def _attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    sequences: np.ndarray,
    positions: np.ndarray,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    import torch

    from kernels.gpu import operations

    at = [on_device(a.astype(np.int32)) for a in (sequences, positions)]
    capacity = int(positions.max()) + 1
    cache = operations.make_cache(int(sequences.max()) + 1, k.shape[1], capacity, k.shape[2], torch.float32, "cuda")
    operations.store_cache(on_device(k), on_device(v), cache, at[0], at[1])
    return operations.attend_tokens(on_device(q), cache, at[0], at[1], capacity, scale, window, softcap).cpu().numpy()


def _reference_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    sequences: np.ndarray,
    positions: np.ndarray,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> np.ndarray:
    """q float32 [M, heads, D], k and v [M, key heads, D] of tokens M, each at its position of its sequence."""
    _, heads, width = k.shape
    cache = attention.LayerCache(int(sequences.max()) + 1, int(positions.max()) + 1, heads, width, "F32")
    cache.store(sequences, positions, k.reshape(len(k), -1), v.reshape(len(v), -1))
    rows = zip(q, sequences, positions, strict=True)
    return np.stack([cache.attend(row, int(s), int(p), scale, window, softcap) for row, s, p in rows])


def _cache_attention(
    kind: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, sequences: np.ndarray, positions: np.ndarray, scale: float,
    window: int = 0, softcap: float = 0.0,
) -> np.ndarray:  # fmt: skip
    import torch

    from kernels.gpu import operations
    from kernels.gpu.runtime.held import Held

    order, layout = np.lexsort((positions, sequences)), _layout(kind, k, sequences, positions)
    starts = np.flatnonzero(np.diff(sequences[order], prepend=-1))
    ends = np.append(starts, len(order)).astype(np.int32)
    cache, own = operations.layer_cache(layout, 0, "cuda"), [on_device(x[order]) for x in (q, k, v)]
    places = [on_device(x[order].astype(np.int32)) for x in (sequences, positions)]
    first, origin = (x[on_device(starts)].contiguous() for x in places)
    waiting, longest = None, int(np.diff(ends).max())
    if cache.waits:
        begun = Held(layout).begin(sequences[order][starts], positions[order][starts], np.diff(ends))
        rows = (operations.waiting_rows(x, s) for x, s in zip(own[1:], (cache.keys, cache.values), strict=True))
        waiting = operations.Waiting(*rows, *(on_device(done) for done in begun.done))
        operations.close_tokens(cache, waiting, on_device(ends), first, origin, longest)
    operations.store_cache(own[1], own[2], cache, places[0], places[1])
    found = operations.attend_prompt(
        own[0], cache, on_device(ends), first, origin, longest, scale, window, softcap, waiting=waiting
    )
    result = np.empty(q.shape, np.float32)
    result[order] = found.to(torch.float32).cpu().numpy()
    return result


def _reference_cache_attention(
    kind: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, sequences: np.ndarray, positions: np.ndarray, scale: float,
    window: int = 0, softcap: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """As `_reference_attention`, over a cache in `kind` ('Q4_0', 'Q8_0/Q4_0'), all tokens of a sequence from 0 on."""
    cache, found = SchemeCache(_layout(kind, k, sequences, positions)), np.empty(q.shape, np.float32)
    for m in np.lexsort((positions, sequences)):
        at = int(sequences[m]), int(positions[m])
        cache.store(*at, k[m].reshape(-1), v[m].reshape(-1))
        found[m] = cache.attend(q[m], *at, scale, window, softcap)
    return found


def _layout(kind: str, k: np.ndarray, sequences: np.ndarray, positions: np.ndarray) -> CacheLayout:
    from kernels.program import CacheLayout  # which imports what imports this

    return CacheLayout((k.shape[1:],), int(positions.max()) + 1, int(sequences.max()) + 1, kind)


Class = Callable[..., tuple[Hashable, ...]]


def both(op: str, function: Any, reference: Any, tested: dict[str, Class], variants: tuple[str, ...] = ()) -> None:
    """Registers a kernel, and what it is compared with. tested: the kernels in it, and the class of given arguments.

    A kernel whose self-test fails, which is made on the first call, leaves the call to the reference, and is in the
    report from then on.
    """

    @wraps(function)
    def run(*arguments: Any) -> Any:
        off = any(selftest.usable(kernel, *of(*arguments)) for kernel, of in tested.items())
        return (reference if off else function)(*arguments)

    dispatch.register(op, "gpu:triton", run, partial(usable, tuple(tested)), priority=1, variants=variants)
    dispatch.register(op, "reference", reference)


def _scaled_class(kind: str, x: np.ndarray, *_rest: Any) -> tuple[Hashable, ...]:
    return kind, "vector" if len(x) <= VECTOR_BATCH else "tile", False


def _attention_class(q: np.ndarray, *rest: Any) -> tuple[Hashable, ...]:
    return q.shape[2], "float32", len(rest) > 6 and rest[6] > 0


def _cache_class(kind: str) -> str:
    return f"{kind}, waiting" if any(CACHE_FORMATS[name].channels for name in kinds(kind)) else kind


def _cache_attention_class(kind: str, q: np.ndarray, *rest: Any) -> tuple[Hashable, ...]:
    return q.shape[2], "float32", len(rest) > 6 and rest[6] > 0, _cache_class(kind)


# Formats of values beside each: scales of channels are for keys.
CODED = [
    f"{name}/U{form.bits}-g32" if form.channels else name for name, form in CACHE_FORMATS.items() if not form.is_float
]
both("gpu_norm", _norm, elementwise.rms_norm, {"norm": lambda *_: ("float32", False)})
both("gpu_activate_mul", _activate_mul, _reference_activate_mul, {"activate": lambda kind, *_: (kind, "float32")},
     ACTIVATIONS)  # fmt: skip
both("gpu_rotate", _rotate, attention.rotate, {"rotate": lambda *a: (a[4], "float32")})
both("gpu_scaled_product", _scaled_product, scaled.product, {"scaled product": _scaled_class}, tuple(KINDS))
both("gpu_attention", _attention, _reference_attention,
     {"store cache": lambda q, *_: (q.shape[2], "float32"), "attention token": _attention_class})  # fmt: skip
both("gpu_cache_attention", _cache_attention, _reference_cache_attention,
     {"store cache": lambda kind, q, *_: (q.shape[2], _cache_class(kind)), "attention prompt": _cache_attention_class},
     tuple(CODED))  # fmt: skip
