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


def _both(op: str, function: Any, reference: Any, variants: tuple[str, ...] = ()) -> None:
    dispatch.register(op, "gpu:triton", function, usable, priority=1, variants=variants)
    dispatch.register(op, "reference", reference)


_both("gpu_norm", _norm, elementwise.rms_norm)
_both("gpu_activate_mul", _activate_mul, _reference_activate_mul, ACTIVATIONS)
_both("gpu_rotate", _rotate, attention.rotate)
_both("gpu_scaled_product", _scaled_product, scaled.product, tuple(KINDS))
