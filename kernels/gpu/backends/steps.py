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
from kernels.reference import attention, elementwise, scaled

if TYPE_CHECKING:
    import torch

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


both("gpu_norm", _norm, elementwise.rms_norm, {"norm": lambda *_: ("float32", False)})
both("gpu_activate_mul", _activate_mul, _reference_activate_mul, {"activate": lambda kind, *_: (kind, "float32")},
     ACTIVATIONS)  # fmt: skip
both("gpu_rotate", _rotate, attention.rotate, {"rotate": lambda *a: (a[4], "float32")})
both("gpu_scaled_product", _scaled_product, scaled.product, {"scaled product": _scaled_class}, tuple(KINDS))
both("gpu_attention", _attention, _reference_attention,
     {"store cache": lambda q, *_: (q.shape[2], "float32"), "attention token": _attention_class})  # fmt: skip
