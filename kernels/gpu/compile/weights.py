"""Weight-only products that are compiled for each card: every decoder in every regime, called as a model would; and
products with experts that are read from memory, of the formats that mixtures are in.

Weights are of 4096 × 4096 values, on torch's 'meta' device; so many tokens run each kernel in its tuned configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from kernels.families import NF4_LEVELS
from kernels.gpu.compile.cases import Case
from kernels.gpu.products import experts, weight_only
from kernels.gpu.products.weight_only import Weights
from kernels.gpu.weights.forms import GGML_FORMS
from kernels.gpu.weights.layout import Packed, pack_blocks, pack_elements, pack_groups
from kernels.layouts import LAYOUTS

ROWS, COLUMNS = 4096, 4096
UNEVEN = 2880  # columns that tiles do not divide
# The vector product with the fewest and the most tokens, both ends of the matrix instructions' regime, the library's.
TOKENS = (1, 4, 16, 64, 65)
_FEW = (1, 16)
_KERNELS = {"vector_product": "vector", "tile_product": "matrix", "dequantize": "dequantize"}
_PIECE = 128  # rows that are packed; the others are laid out alike


@dataclass(frozen=True)
class ProductCase:
    """A format, and how many tokens. kernel: for people."""

    format: str
    tokens: int
    case: Case

    @property
    def kernel(self) -> str:
        name = _KERNELS[self.case.launches("sm_80")[0].kernel.fn.__name__]
        return f"{name}, {'over 64' if self.tokens > 64 else self.tokens}"


def _grouped(bits: int, group: int, third: str = "", columns: int = COLUMNS, ordered: bool = False) -> Packed:
    shape = (_PIECE, -(-columns // (group or columns)))
    more = {"": None, "zeros": np.zeros(shape, np.uint8), "minimums": np.zeros(shape, np.float32)}[third]
    codes, scales = np.zeros((_PIECE, columns), np.uint8), np.ones(shape, np.float32)
    order = np.arange(columns) if ordered else None
    return pack_groups(codes, scales, more, bits, group or columns, order=order)


def _table() -> Packed:
    codes, scales = np.zeros((_PIECE, COLUMNS), np.uint8), np.ones((_PIECE, COLUMNS // 64), np.float32)
    return pack_groups(codes, scales, None, 4, 64, "F32", np.sort(NF4_LEVELS).astype(np.float32))


def _blocks(kind: str) -> Packed:
    return pack_blocks(kind, np.zeros((_PIECE, LAYOUTS[kind].row_bytes(COLUMNS)), np.uint8), COLUMNS)


def _floats(dtype: str, rows: int, columns: int, powers: bool = False) -> Packed:
    """Scales of so many rows and columns."""
    scales = np.ones((_PIECE // rows, COLUMNS // columns), np.float32)
    return pack_elements(dtype, np.zeros((_PIECE, COLUMNS), np.uint8), scales, (rows, columns), powers)


_FORMATS: dict[str, Callable[[], Packed]] = {
    "int4 g128": lambda: _grouped(4, 128),
    "int4 g128, zeros": lambda: _grouped(4, 128, "zeros"),
    "int4 g64, offsets": lambda: _grouped(4, 64, "minimums"),
    "int2 g64, zeros": lambda: _grouped(2, 64, "zeros"),
    "int3 g128, zeros": lambda: _grouped(3, 128, "zeros"),
    "int5 g64": lambda: _grouped(5, 64),
    "int6 g64": lambda: _grouped(6, 64),
    "int8 per row": lambda: _grouped(8, 0),
    "int8 g128, zeros": lambda: _grouped(8, 128, "zeros"),
    "NF4 g64": _table,
    **{kind: lambda kind=kind: _blocks(kind) for kind in GGML_FORMS},  # type: ignore[misc]
    "F8_E4M3 128 × 128": lambda: _floats("F8_E4M3", 128, 128),
    "F8_E4M3 per row": lambda: _floats("F8_E4M3", 1, COLUMNS),
    "F8_E5M2 per row": lambda: _floats("F8_E5M2", 1, COLUMNS),
    "MXFP8": lambda: _floats("F8_E4M3", 1, 32, True),
}
# What a decoder has no part in: columns in an order of their own, tiles that are cut, the other type of activations.
_VARIANTS: dict[str, tuple[Callable[[], Packed], torch.dtype]] = {
    "int4 g128, zeros, act-order": (lambda: _grouped(4, 128, "zeros", ordered=True), torch.float16),
    f"int4 g32, {UNEVEN} columns": (lambda: _grouped(4, 32, columns=UNEVEN), torch.float16),
    "int4 g128 × bfloat16": (lambda: _grouped(4, 128), torch.bfloat16),
}


_MIXTURES = ("int4 g128", "int4 g128, zeros", "int8 per row", "Q8_0", "Q4_0", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS",
             "MXFP4", "NVFP4", "F8_E4M3 128 × 128")  # fmt: skip


def product_cases() -> list[ProductCase]:
    """All of them, by tokens and format."""
    found = [_case(name, tokens, make) for tokens in TOKENS for name, make in _FORMATS.items()]
    variants = [_case(name, n, make, dtype) for n in _FEW for name, (make, dtype) in _VARIANTS.items()]
    return sorted((*found, *variants), key=lambda one: one.tokens)


def expert_cases() -> dict[str, Case]:
    """One token that meets 8 experts of 16, by name."""

    def case(name: str) -> Case:
        packed = cache(_FORMATS[name])

        def start() -> object:
            mixture = experts.gather_experts([_weights(packed())] * 16)
            met = torch.empty(8, dtype=torch.int32, device="meta")
            return experts.expert_product(torch.empty((1, COLUMNS), dtype=torch.float16, device="meta"), mixture, met)

        return Case(f"experts, {name}, 1", start, ("expert_product",))

    return {one.name: one for one in map(case, _MIXTURES)}


def _case(name: str, tokens: int, make: Callable[[], Packed], dtype: torch.dtype = torch.float16) -> ProductCase:
    packed = cache(make)

    def start() -> object:
        weights = _weights(packed())
        return weight_only.product(torch.empty((tokens, weights.columns), dtype=dtype, device="meta"), weights)

    return ProductCase(name, tokens, Case(f"{name}, {tokens}", start, tuple(_KERNELS)))


def _weights(piece: Packed) -> Weights:
    """Of `ROWS` rows, of which `piece` has some."""
    made = weight_only.upload(piece, "meta")
    every = piece.form.scale_rows

    def whole(plane: torch.Tensor | None, count: int) -> torch.Tensor | None:
        if plane is None:
            return None
        return torch.empty((plane.shape[0], count, *plane.shape[2:]), dtype=plane.dtype, device="meta")

    scaled = -(-ROWS // every) if every else 1
    low, scales = whole(made.low, ROWS), whole(made.scales, scaled)
    assert low is not None
    assert scales is not None
    high, third = whole(made.high, ROWS), whole(made.third, scaled)
    nbytes = sum(plane.nbytes for plane in (low, high, scales, third) if plane is not None)
    return replace(made, rows=ROWS, low=low, high=high, scales=scales, third=third, nbytes=nbytes)
