"""Registers the GPU's kernels beside weight-only products with `dispatch`, each beside a reference of its signature.

Arrays in and out are numpy's; inside a model, `kernels.gpu.launch` is called with what is on the device already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels import dispatch, gpu
from kernels.gpu.scaled_ways import KINDS
from kernels.reference import attention, elementwise, scaled

if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def on_device(array: np.ndarray) -> torch.Tensor:
    """A copy on the first GPU."""
    import torch

    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to("cuda")


def usable(_variant: str) -> str:
    """Why no kernel can run on this machine."""
    return gpu.state().reason


def _norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    from kernels.gpu import launch  # here and below: only where the state is ready

    return launch.rms_norm(on_device(x), on_device(gain), eps).cpu().numpy()


def _activate_mul(kind: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    from kernels.gpu import launch

    return launch.activate_mul(kind, on_device(gate), on_device(up)).cpu().numpy()


def _reference_activate_mul(kind: str, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return (elementwise.activate(kind, gate.astype(np.float64)) * up).astype(np.float32)


def _rotate(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, scale: float, pairs: bool) -> np.ndarray:
    from kernels.gpu import launch

    angles = np.arange(int(positions.max(initial=0)) + 1)[:, None] * frequencies.astype(np.float64)
    cos, sin = (on_device((scale * f(angles)).astype(np.float32)) for f in (np.cos, np.sin))
    return launch.rotate(on_device(x), cos, sin, on_device(positions.astype(np.int32)), pairs).cpu().numpy()


def _scaled_product(
    kind: str, x: np.ndarray, codes: np.ndarray, scales: np.ndarray, tensor_scale: float = 1.0
) -> np.ndarray:
    from kernels.gpu import launch

    weights = launch.upload_scaled(kind, codes, scales, "cuda", tensor_scale)
    shape = KINDS[kind]
    tokens = launch.quantize(on_device(x), shape.tokens, shape.group if shape.tokens == "e4m3" else 0)
    return launch.scaled_product(tokens, weights).cpu().numpy()


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

    from kernels.gpu import launch

    at = [on_device(a.astype(np.int32)) for a in (sequences, positions)]
    capacity = int(positions.max()) + 1
    cache = launch.make_cache(int(sequences.max()) + 1, k.shape[1], capacity, k.shape[2], torch.float32, "cuda")
    launch.store_cache(on_device(k), on_device(v), cache, at[0], at[1])
    return launch.attend_tokens(on_device(q), cache, at[0], at[1], capacity, scale, window, softcap).cpu().numpy()


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


def both(op: str, function: Any, reference: Any, variants: tuple[str, ...] = ()) -> None:
    """Registers a kernel, and what it is compared with."""
    dispatch.register(op, "gpu:triton", function, usable, priority=1, variants=variants)
    dispatch.register(op, "reference", reference)


both("gpu_norm", _norm, elementwise.rms_norm)
both("gpu_activate_mul", _activate_mul, _reference_activate_mul, ACTIVATIONS)
both("gpu_rotate", _rotate, attention.rotate)
both("gpu_scaled_product", _scaled_product, scaled.product, tuple(KINDS))
both("gpu_attention", _attention, _reference_attention)
