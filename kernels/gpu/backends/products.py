"""Registers the GPU's products with `dispatch`: 'gpu_product', one line a format, never used where no GPU can."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import dispatch, gpu
from kernels.gpu import selftest
from kernels.gpu.weights.forms import CODE_BITS, GGML_FORMS
from kernels.layouts import BLOCK_KINDS, PLAIN_KINDS
from kernels.reference import matrix as reference

FORMATS = (
    *(kind for kind in BLOCK_KINDS if kind not in PLAIN_KINDS),
    *(f"int{bits}" for bits in range(1, 9)),
    *("table4", "F8_E4M3", "F8_E5M2"),
)
_SUPPORTED = {*GGML_FORMS, *(f"int{bits}" for bits in CODE_BITS), "table4", "F8_E4M3", "F8_E5M2"}


def _usable(variant: str) -> str:
    if variant and variant not in _SUPPORTED:
        return f"there is no GPU decoder for {variant}"
    return gpu.state().reason or selftest.failing("product", variant)


def _product(x: np.ndarray, weights: Any, *_reference_arguments: Any) -> np.ndarray:
    """float32 [M, K] · `weight_only.Weights`ᵀ → float32 [M, N]. Activations are float16 on the way.

    Rows and the order of columns, which the reference is given, are in the weights. Raises RuntimeError where the
    kernel's self-test fails on this card; the weights are on the GPU, and nothing else can multiply them.
    """
    import torch

    from kernels.gpu.products.weight_only import product  # only where the state is ready
    from kernels.gpu.selftest.products import usable_product

    if reason := usable_product(weights, len(x)):
        raise RuntimeError(f"the GPU's product of {weights.form.label} is switched off: {reason}")
    found = product(torch.from_numpy(x).to(weights.low.device, torch.float16), weights)
    return found.float().cpu().numpy()


dispatch.register("gpu_product", "gpu:triton", _product, _usable, priority=1, variants=FORMATS)
dispatch.register("gpu_product", "reference", reference.product)
