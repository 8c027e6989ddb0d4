"""Self-tests under Triton's interpreter: all pass, a kernel with a fault does not. One JSON line a case."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interpreted import exact_dot, tell

from kernels.gpu import operations, selftest, user_files
from kernels.gpu.configurations import Configuration
from kernels.gpu.products import weight_only
from kernels.gpu.selftest import checks
from kernels.gpu.weights.forms import GGML_FORMS, float8_form, grouped_form

# `bitsmith check` runs more of them; these are one of each kernel, and small ones.
CLASSES: list[tuple[str, tuple[Any, ...]]] = [
    ("norm", ("float16", False)), ("norm", ("float32", True)), ("norm to codes", ("int8", 0)),
    ("activate", ("silu", "float16")), ("activate to codes", ("gelu", "int8")), ("quantize", ("mxfp4", 0)),
    ("quantize", ("e4m3", 64)), ("outliers", ()), ("rotate", (False, "float16")), ("rotate", (True, "bfloat16")),
    ("scaled product", ("int8", "tile", True)), ("scaled product", ("nvfp4", "vector", False)),
    ("store cache", (80, "bfloat16")), ("attention prompt", (64, "float16", False)),
    ("attention token", (64, "float16", True)), ("encode groups", (3, False, "BF16")), ("encode blocks", ("Q4_0",)),
    ("encode float8", ("F8_E5M2",)), ("encode fp4", ("MXFP4",)), ("encode fp4", ("NVFP4",)), ("turn heads", (80,)),
    ("store cache", (64, "Q4_0")), ("store cache", (64, "U2-t32/U2-g32, waiting")),
    ("attention prompt", (64, "float16", False, "Q8_0, before the rotary step")),
    ("attention token", (80, "float16", True, "INT4, waiting")),
]  # fmt: skip
VECTOR, TILE = Configuration("vector", 16, 4, 1, 2), Configuration("tile", 32, 4, 16, 1, 2)
FORMS = (
    (grouped_form(4, 128, "zeros"), "float16", True, TILE), (grouped_form(3, 64, "minimums"), "float32", False, VECTOR),
    (GGML_FORMS["Q4_K"], "uint8", False, VECTOR), (grouped_form(4, 64, table=True), "bfloat16", False, TILE),
    (float8_form("F8_E4M3", 128, 16, False), "float32", False, Configuration("dequantize", 32, 4)),
    (float8_form("F8_E4M3", 32, 1, True), "uint8", False, VECTOR),
)  # fmt: skip


def broken(module: Any, name: str, change: Callable[[Any], Any]) -> Callable[[], None]:
    """The launcher's result changes by a little, as that of a miscompiled kernel would."""
    whole = getattr(module, name)
    setattr(module, name, lambda *a, **k: change(whole(*a, **k)))
    return lambda: setattr(module, name, whole)


def last(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The last value is off: that of the row and the column that are cut."""
    tensor.view(-1)[-1] *= factor
    return tensor


def faults() -> None:
    def first(found: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        found[0].view(-1)[-1] ^= 1
        return found

    product = ("product", (FORMS[0][0], TILE, "float16", "float16", False))
    for fault, module, name, change, (kernel, shape_class) in (
        ("product", weight_only, "product", lambda t: last(t, 1.01), product),
        ("NaN", weight_only, "product", lambda t: last(t, float("nan")), product),
        ("norm", operations, "rms_norm", lambda t: last(t, 0.9), ("norm", ("float16", False))),
        ("rotate", operations, "rotate", lambda t: t.neg(), ("rotate", (True, "float16"))),
        ("activate", operations, "activate_mul", lambda t: last(t, 2), ("activate", ("silu", "float16"))),
        ("scaled", operations, "scaled_product", lambda t: last(t, 1.1), ("scaled product", ("mxfp8", "tile", False))),
        ("token", operations, "attend_tokens", lambda t: t * 1.05, ("attention token", (64, "float16", False))),
        ("codes", operations, "attend_tokens", lambda t: t * 1.05, ("attention token", (64, "float16", False, "Q8_0"))),
        ("turned", operations, "turn", lambda t: last(t, 1.01), ("turn heads", (64,))),
        ("encode groups", operations, "encode_groups", first, ("encode groups", (4, True, "F16"))),
        ("encode fp4", operations, "encode_fp4", first, ("encode fp4", ("MXFP4",))),
    ):
        mend = broken(module, name, change)
        tell(fault=fault, reason=checks.run(kernel, shape_class, "cpu"))
        mend()


def main() -> None:
    exact_dot()
    with tempfile.TemporaryDirectory() as folder, selftest.on("cpu"):
        user_files.folder = lambda: Path(folder)
        for kernel, shape_class in CLASSES:
            tell(kernel=kernel, reason=selftest.usable(kernel, *shape_class))
        for form, scale, ordered, how in FORMS:
            tell(kernel="product", reason=selftest.usable("product", form, how, "float16", scale, ordered))
        tell(kernel="feedback", reason=checks.run("feedback", (True,), "cpu"))
        faults()


if __name__ == "__main__":
    sys.exit(main())
