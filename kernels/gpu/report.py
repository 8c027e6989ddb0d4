"""What a product on the GPU is computed by, in words: a line of the kernel report."""

from __future__ import annotations

from kernels.engine_report import KernelUse
from kernels.gpu.configurations import LIBRARY, VECTOR, Configuration, library_from, measured
from kernels.gpu.layout import Packed


def kernel_use(packed: Packed, card: str, tokens: int, how: Configuration) -> KernelUse:
    """how: of `kernels.gpu.configurations.configuration`, for so many tokens on this card."""
    label = packed.form.label
    reasons = []
    if how.regime == LIBRARY:
        kernel = f"{label} dequantized, then the library's 16-bit product"
        reasons.append(f"{tokens} tokens, and from {library_from()} on the weight is decoded once for all")
    else:
        unit = "vector units" if how.regime == VECTOR else "tensor cores"
        unit = "vector units" if card == "sm_75" else unit  # Triton has no tensor-core path for it
        kernel = f"{label} × 16-bit floats, decoded in the product, {unit}"
        if how.split > 1:
            reasons.append(f"rows in {how.split} parts")
    if not measured(card):
        reasons.append(f"its configuration was not measured on {card}")
    return KernelUse("linear", f"{packed.rows} × {packed.columns}", kernel, card, "; ".join(reasons))
