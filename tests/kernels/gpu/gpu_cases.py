"""Every format's products under Triton's interpreter, which runs kernels in numpy: one JSON line a product.

A program of its own, as TRITON_INTERPRET decides what a kernel is before it is imported. Errors are shares of
Σ |x| · |w| by the float64 reference; traffic is what the kernel's loads and stores touch, address by address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch
from interpreted import Traffic, exact_dot

from kernels import dispatch, matrix, ops
from kernels.families import E2M1_TABLE
from kernels.gpu.configurations import Configuration, configuration
from kernels.gpu.products import weight_only
from kernels.gpu.weights import layout
from kernels.gpu.weights.forms import GGML_FORMS
from kernels.layouts import LAYOUTS
from kernels.matrix import Matrix
from kernels.reference import matrix as reference

BATCHES = (1, 3, 16, 33)
HEIGHTS = (37, 1, 53, 33, 23)  # rows of weights, which no program's 16, 32 or 64 divide
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


@dataclass(frozen=True)
class Case:
    """A weight in the GPU's layout, and the same in the reference's."""

    name: str
    packed: layout.Packed
    matrix: Matrix


def weights(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(rows * 10007 + columns)
    w = rng.standard_normal((rows, columns)).astype(np.float32)
    w[0] *= 300
    w[1:2] *= 1e-3
    w[rows // 2 : rows // 2 + (rows > 1)] = 0
    return w


def blocks(kind: str, rows: int, columns: int) -> Case:
    scale = 0.03 if kind == "NVFP4" else 1.0
    data = ops.encode_blocks(kind, weights(rows, columns), search=False, tensor_scale=scale)
    packed = layout.pack_blocks(kind, data, columns, scale)
    return Case(kind, packed, matrix.from_blocks(kind, rows, columns, lambda a, b: data[a:b], scale))


def groups(
    bits: int, group: int, third: str, scale_type: str, rows: int, columns: int,
    table: np.ndarray | None = None, ordered: bool = False,
) -> Case:  # fmt: skip
    """Codes of any value; scales of both signs; the last group may be shorter."""
    rng = np.random.default_rng(bits * 1000 + group + columns)
    size = group or columns
    shape = (rows, -(-columns // size))
    codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)

    def stored(values: np.ndarray) -> np.ndarray:
        return ops.to_float32(ops.from_float32(values.astype(np.float32), scale_type), scale_type)

    scales = stored(rng.standard_normal(shape) / (1 << bits))
    more = {
        "": None,
        "zeros": rng.integers(0, 1 << bits, shape).astype(np.uint8),
        "minimums": stored(rng.standard_normal(shape)),
    }[third]
    order = rng.permutation(columns) if ordered else None
    packed = layout.pack_groups(codes, scales, more, bits, size, scale_type, table, order)

    def read(a: int, b: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return codes[a:b], scales[a:b], None if more is None else more[a:b]

    made = matrix.from_groups(
        rows, columns, bits, size, read, scale_type, third == "", table, third == "minimums", order
    )
    name = f"{packed.form.label} {third or 'symmetric'} {scale_type}{' ordered' if ordered else ''}"
    return Case(f"{name} K{columns}", packed, made)


def elements(
    dtype: str, scales: np.ndarray | None, tiling: tuple[int, int], rows: int, columns: int, name: str
) -> Case:
    data = ops.from_float32(weights(rows, columns) / 8, dtype)
    packed = layout.pack_elements(dtype, data, scales, tiling)
    made = matrix.from_elements(dtype, rows, columns, lambda a, b: data[a:b], scales, tiling)
    return Case(f"{dtype} {name}", packed, made)


def cases() -> Iterator[Case]:
    """Each has the next number of rows."""
    heights = cycle(HEIGHTS)
    for kind in GGML_FORMS:
        block = LAYOUTS[kind].block
        yield blocks(kind, next(heights), {256: 512, 64: 320}.get(block, 288))
    yield blocks("Q4_0", 5, 4128)  # more than one part
    for bits, group, third, scale_type, columns in (
        *((2, 64, "zeros", "F16", 576), (2, 16, "", "BF16", 80), (3, 128, "zeros", "F16", 384)),
        *((3, 48, "", "F32", 150), (4, 128, "", "F16", 384), (4, 32, "zeros", "BF16", 96)),
        *((4, 64, "minimums", "F16", 150), (4, 0, "", "F32", 83), (4, 80, "zeros", "F16", 320)),
        *((4, 1024, "", "F16", 1100), (5, 32, "minimums", "F16", 160), (6, 16, "zeros", "F16", 272)),
        *((8, 0, "", "F32", 201), (8, 128, "zeros", "BF16", 256), (8, 32, "minimums", "F16", 96)),
    ):  # fmt: skip
        yield groups(bits, group, third, scale_type, next(heights), columns)
    yield groups(4, 128, "zeros", "F16", next(heights), 288, ordered=True)
    yield groups(8, 64, "", "F16", next(heights), 150, ordered=True)
    yield groups(4, 64, "", "F32", next(heights), 192, table=np.array(NF4, np.float32))
    yield groups(4, 16, "", "F32", next(heights), 48, table=E2M1_TABLE)
    rng = np.random.default_rng(4)
    yield elements("F8_E4M3", None, (1, 1), next(heights), 131, "alone")
    yield elements("F8_E4M3", np.full((1, 1), 0.02, np.float32), (1, 1), next(heights), 256, "per tensor")
    yield elements("F8_E5M2", rng.random((29, 1)).astype(np.float32), (1, 1), 29, 200, "per row")
    yield elements("F8_E4M3", rng.random((3, 3)).astype(np.float32), (16, 128), 37, 300, "blocks 16 × 128")
    powers = np.ldexp(np.float32(1), rng.integers(-9, 3, (41, 6))).astype(np.float32)
    yield elements("F8_E4M3", powers, (1, 32), 41, 192, "powers of two")


def run(
    case: Case, tokens: int, dtype: torch.dtype, how: Configuration, traffic: Traffic, tuned: bool = True
) -> dict[str, Any]:
    packed, device = case.packed, weight_only.upload(case.packed, "cpu")
    rng = np.random.default_rng(tokens)
    x = torch.from_numpy(rng.standard_normal((tokens, packed.columns)).astype(np.float32)).to(dtype)
    names = ("low", "high", "scales", "third", "table", "order")
    traffic.start({name: getattr(device, name) for name in names} | {"x": x})
    found = weight_only.product(x, device, how).to(torch.float64).numpy()
    exact = x.to(torch.float32).numpy()
    with np.errstate(all="ignore"):
        stored = case.matrix.stored
        expected = reference.product(exact, stored, packed.rows, "EXACT", case.matrix.order).astype(np.float64)
        size = np.abs(exact).astype(np.float64) @ np.abs(stored.take(np.arange(packed.rows))).astype(np.float64).T
        error = np.where(size > 0, np.abs(found - expected) / np.where(size > 0, size, 1), np.abs(found - expected))
    weight = sum(traffic.nbytes(name) for name in names[:4])
    return {
        "case": case.name,
        "tokens": tokens,
        "rows": packed.rows,
        "dtype": str(dtype).removeprefix("torch."),
        "regime": how.regime,
        "split": how.split,
        "tuned": tuned,
        "unrolled": how.unrolled,
        "programs_of_tokens": 1 if how.regime == "vector" else -(-tokens // how.batch),
        "finite": bool(np.isfinite(found).all()),
        "error": float(error.max()),
        "table": packed.table is not None and bool((packed.table.astype(np.int8) != packed.table).any()),
        "weight_bytes": weight,
        "packed_bytes": packed.low.nbytes
        + sum(plane.nbytes for plane in (packed.high, packed.scales, packed.third) if plane is not None),
        "x_bytes": traffic.nbytes("x"),
        "x_size": x.nbytes,
        "parts_bytes": 2 * how.split * tokens * packed.rows * 4 if how.split > 1 else 0,
        "out_size": tokens * packed.rows * 4,
    }


def decoded(case: Case) -> dict[str, Any]:
    """All weights, and each exactly: one product, and one sum where there is an offset, in float32."""
    packed = case.packed
    found = weight_only.dequantized(weight_only.upload(packed, "cpu"), torch.float32).numpy().astype(np.float64)
    expected = case.matrix.stored.take(np.arange(packed.rows)).astype(np.float64)
    expected = expected if packed.order is None else expected[:, packed.order]
    size = np.abs(expected).max()
    return {
        "decoded": case.name,
        "rows": packed.rows,
        "error": float(np.abs(found - expected).max() / max(size, 1e-30)),
    }


def main() -> None:
    traffic = Traffic()
    exact_dot()
    with dispatch.only("reference"):
        for number, case in enumerate(cases()):
            form, packed = case.packed.form, case.packed
            for tokens in (*BATCHES, 70):
                shape = (packed.rows, form.words, form.tiles(packed.columns), packed.nbytes)
                how = configuration("sm_80", tokens, *shape, form.codes)
                dtype = torch.bfloat16 if (number + tokens) % 4 == 0 else torch.float16
                print(json.dumps(run(case, tokens, dtype, how, traffic)), flush=True)
                if tokens in (3, 16):  # as other cards are set, with their slots in a loop or not
                    looped = replace(how, unrolled=not how.unrolled)
                    print(json.dumps(run(case, tokens, torch.float16, looped, traffic)), flush=True)
            print(json.dumps(decoded(case)), flush=True)
        for case in (groups(4, 128, "zeros", "F16", 37, 300), blocks("Q4_K", 23, 256)):
            form, packed = case.packed.form, case.packed
            for tokens in (2, 4, 5, 64):  # the other vector products, and both ends of the regime of tiles
                shape = (packed.rows, form.words, form.tiles(packed.columns), packed.nbytes)
                how = configuration("sm_80", tokens, *shape, form.codes)
                print(json.dumps(run(case, tokens, torch.float16, how, traffic)), flush=True)
        case = groups(4, 128, "zeros", "F16", 37, 1600, ordered=True)
        for how in (
            Configuration("vector", 16, 4, 2, 3),
            Configuration("tile", 32, 4, 16, 5),  # parts, and tokens of more than one program
            Configuration("tile", 16, 4, 32, 2, unrolled=False),
        ):
            tokens = 2 if how.regime == "vector" else 18
            print(json.dumps(run(case, tokens, torch.float16, how, traffic, tuned=False)), flush=True)
            x, device = torch.ones((tokens, 1600), dtype=torch.float16), weight_only.upload(case.packed, "cpu")
            _, shares = traffic.of_launches(weight_only, lambda x=x, w=device, how=how: weight_only.product(x, w, how))
            print(json.dumps({"sum of parts": how.split, "share": shares["add_parts"]}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
