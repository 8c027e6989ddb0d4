"""What each self-test of `kernels.gpu.selftest` runs: a kernel on odd shapes, against the reference in float64.

A check takes a device and a class of shapes, and returns '' or one clause. Classes, by kernel:

    product            (form, configuration, type of activations, type of scales, order)   `product_class`
    scaled product     (kind, vector or tile, outliers)             store cache   (width, type or kind of cache)
    attention prompt, attention token (width, type of queries, cap, and of codes the kind of cache)
    norm               (type, residual)                             turn heads    (width)
    norm to codes      (kind, group)                                rotate        (pairs, type)
    activate           (function, type)                             encode groups (bits, symmetric, scale type)
    activate to codes  (function, kind)                             encode blocks, encode float8, encode fp4 (kind)
    quantize           (kind, group)                                feedback      (even levels)
    outliers           ()

Types are 'float16', 'bfloat16' and 'float32'; `kernels.gpu.runtime.needed.cache_class` names kinds of caches.
`register` adds a kernel.
"""

from __future__ import annotations

from collections.abc import Hashable

from kernels.gpu.selftest import encoders as _encoders  # noqa: F401  (registers its own, as do those below)
from kernels.gpu.selftest import steps as _steps  # noqa: F401
from kernels.gpu.selftest.products import common_products
from kernels.gpu.selftest.tools import CHECKS as CHECKS
from kernels.gpu.selftest.tools import COMMON as COMMON
from kernels.gpu.selftest.tools import register as register
from kernels.gpu.selftest.tools import run as run


def common() -> list[tuple[str, tuple[Hashable, ...]]]:
    """Kernels and classes that `bitsmith check` tests; products of other formats are tested once a file has them."""
    return [*(("product", shape_class) for shape_class in common_products()), *COMMON]
