"""What a program's steps are computed by, in words."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.kv import kinds
from kernels.matrix import Activations, Matrix
from kernels.program import Attention, Embed, Experts, Hadamard, Linear, Program
from kernels.rotation import Rotation

ROUNDED_QUERIES = ("Q8_0", "Q4_0")  # keys in these formats are multiplied as integers


@dataclass(frozen=True)
class KernelUse:
    """One kind of step. shape: 'rows × columns' of weights; reason: why this kernel, and not a better one."""

    op: str
    shape: str
    kernel: str
    isa: str
    reason: str


def kernel_uses(program: Program, backend: str, reason: str) -> tuple[KernelUse, ...]:
    """Every operation and shape of the program once, in order. reason: why this backend and no better one."""
    isa = backend.removeprefix("cpu:") if backend != "reference" else "numpy"
    tiles = "prompts in AMX's tiles, up to four tokens by AVX-512" if isa == "amx" else ""
    found: dict[KernelUse, None] = {}

    def use(op: str, shape: str, kernel: str, why: str = "") -> None:
        found.setdefault(KernelUse(op, shape, kernel, isa, "; ".join(part for part in (why, reason) if part)))

    def product(op: str, weight: Matrix, outliers: float = 0.0) -> None:
        kernel, why = _product(weight, program.activations)
        if not kernel.endswith("× float32"):
            why = "; ".join(part for part in (why, tiles) if part)
        apart = f", columns from {outliers:g} in float32" if outliers else ""
        use(op, f"{weight.rows} × {weight.columns}", kernel + apart, why)

    def rotation(own: Rotation, width: int) -> None:
        use("rotation", f"{width} values", f"{own.label}, sums in float32")

    for step in program.steps:
        if isinstance(step, Embed):
            use("embedding rows", f"{step.weight.rows} × {step.weight.columns}", f"{step.weight.format} decoded")
        elif isinstance(step, Linear):
            for weight in step.weights:
                product("linear", weight, step.outliers)
        elif isinstance(step, Experts):
            for weight in (step.gates[0], step.ups[0], step.downs[0]):
                product(f"experts, {step.used} of {len(step.gates)}", weight)
            if step.rotation is not None:
                rotation(step.rotation, step.downs[0].columns)
        elif isinstance(step, Hadamard):
            rotation(step.rotation, program.widths[step.x])
        elif isinstance(step, Attention):
            window = f", window {step.window}" if step.window else ""
            shape = f"{step.heads} heads on {step.kv_heads} × {step.head_dim}{window}"
            cache = program.cache.layer(step.layer)
            how = f"online softmax over a {cache.dtype} cache, float32 sums"
            if kinds(cache.dtype)[0] in ROUNDED_QUERIES and step.rope is None:
                how += ", keys meet 16-bit queries"
            use("attention", shape, how)
    return tuple(found)


def _product(weight: Matrix, activations: Activations) -> tuple[str, str]:
    """Kernel, and why its activations are what they are."""
    kind = weight.stored.kind
    if kind == "integer" and activations is not Activations.EXACT:
        return f"{weight.format} × {activations.value}", ""
    if kind == "BF16" and activations is Activations.FAST:
        return "BF16 × bfloat16", ""
    if kind == "integer":
        return f"{weight.format} × float32", "exact activations were asked for"
    if weight.format.startswith(("table4", "NF4", "FP4")):
        return f"{weight.format} × float32", "its levels are no whole multiples of a scale"
    return f"{weight.format} × float32", ""
