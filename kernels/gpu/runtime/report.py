"""What products and attention on the GPU are computed by, in words: lines of the kernel report."""

from __future__ import annotations

from kernels.engine_report import KernelUse
from kernels.gpu.configurations import (
    LIBRARY,
    VECTOR,
    Configuration,
    library_from,
    measured,
    scaled_configuration,
)
from kernels.gpu.products.scaled_ways import KINDS, way_of, why_not_native, work_of
from kernels.gpu.weights.layout import Packed
from kernels.kv import CACHE_FORMATS, kinds
from kernels.program import Attention, Program


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


def scaled_use(kind: str, rows: int, columns: int, card: str, tokens: int) -> KernelUse:
    """A product of codes with codes: of `kernels.gpu.products.scaled_ways.KINDS`, for so many tokens on this card."""
    way, bits = way_of(kind, card), KINDS[kind].bits
    how = scaled_configuration(card, work_of(kind, way), tokens, rows, columns * bits // 8, bits)
    reasons = []
    if how.regime == VECTOR:
        unit = "vector units, sums in int32" if kind == "int8" else "vector units"
        reasons.append(f"{tokens} tokens" if card != "sm_75" else "Triton has no tensor-core path for sm_75")
    else:
        unit = {"int8": "tensor cores, sums in int32", "upcast": "tensor cores in 16-bit floats"}.get(
            way, "tensor cores"
        )
        reasons.append(why_not_native(kind, card))
    if not measured(card):
        reasons.append(f"its configuration was not measured on {card}")
    label = f"{kind} × {KINDS[kind].tokens}, {unit}"
    return KernelUse("linear", f"{rows} × {columns}", label, card, "; ".join(filter(None, reasons)))


def attention_words(program: Program, step: Attention, card: str) -> tuple[str, str, str]:
    """Of one layer: the kernel, the card, and why."""
    own = program.cache.layer(step.layer)
    kernel, reasons = f"online softmax over a {own.dtype} cache", ["prompts in tiles, tokens in parts"]
    if all(CACHE_FORMATS[name].is_float for name in kinds(own.dtype)):
        return f"{kernel}, float32 sums", card, reasons[0]
    kernel += ", codes read in registers, float32 sums"
    kept = [f"the last {own.window}"] if own.window else []
    kept += [f"the first {own.sinks}"] if own.sinks else []
    if kept:
        kernel += f"; {' and '.join(kept)} tokens in float16"
    turned = [side for side, on in (("keys", own.rotate_keys), ("values", own.rotate_values)) if on]
    if turned:
        kernel += f"; {' and '.join(turned)} rotated"
    if step.rope is not None:
        kernel += "; keys take their rotary step when they are read"
    if not measured(card):
        reasons.append(f"its configuration was not measured on {card}")
    return kernel, card, "; ".join(reasons)
