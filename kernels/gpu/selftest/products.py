"""The self-test of weight-only products, of any format and configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kernels import ops
from kernels.families import NF4_LEVELS
from kernels.gpu import selftest
from kernels.gpu.configurations import LIBRARY, VECTOR, Configuration, configuration
from kernels.gpu.launcher import card_at
from kernels.gpu.products import weight_only
from kernels.gpu.products.experts import ExpertWeights, configuration_of, expert_product, gather_experts
from kernels.gpu.selftest.tools import SUM, register, sums_close
from kernels.gpu.weights import layout
from kernels.gpu.weights.forms import GGML_FORMS, Form, grouped_form
from kernels.layouts import LAYOUTS
from kernels.reference import blocks as block_reference
from kernels.reference import floats

_ROUNDED = {"float16": 2e-3, "bfloat16": 1.6e-2}  # of Σ |x| · |w|
_TABLE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # levels of a table are rounded to the activations' type
_COMMON = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4")
_SPLIT = 2  # parts, for all configurations that have several
ProductClass = tuple[Form, Configuration, str, str, bool]


def product_class(weights: weight_only.Weights, tokens: int, dtype: torch.dtype) -> ProductClass:
    """The class of shapes that a product of so many tokens is in."""
    how = weight_only.chosen(weights, tokens)
    how = replace(how, split=min(how.split, _SPLIT))
    return weights.form, how, _name(dtype), _name(weights.scales.dtype), weights.order is not None


def common_products() -> list[ProductClass]:
    """Some formats, one token and sixteen, as this card multiplies 4096 × 4096 weights."""
    card = card_at(0) if torch.cuda.is_available() else "cpu"
    forms = (grouped_form(4, 128), grouped_form(4, 128, "zeros"), grouped_form(8, 0), *map(GGML_FORMS.get, _COMMON))
    found: list[ProductClass] = []
    for form in (form.fitted(4096) for form in forms if form):
        for tokens in (1, 16):
            nbytes = 4096 * 512 * (form.bits + form.high)
            how = configuration(card, tokens, 4096, form.words, form.tiles(4096), nbytes, form.codes)
            scale = "float16" if form.scales in ("plain", "zeros", "minimums") else "uint8"
            found.append((form, replace(how, split=min(how.split, _SPLIT)), "float16", scale, False))
    return found


def usable_product(weights: weight_only.Weights, tokens: int, dtype: torch.dtype = torch.float16) -> str | None:
    """`selftest.usable` for a product: None, or why not."""
    return selftest.usable("product", *product_class(weights, tokens, dtype))


def usable_experts(experts: ExpertWeights, pairs: int, dtype: torch.dtype) -> str | None:
    """`selftest.usable` for products with experts that are read from memory: None, or why not."""
    first, how = experts.weights[0], configuration_of(experts, pairs)
    how = replace(how, split=min(how.split, _SPLIT))
    return selftest.usable("expert product", first.form, how, _name(dtype), _name(first.scales.dtype))


def check_experts(device: str, form: Form, how: Configuration, dtype: str, scale: str) -> str:
    """'' or one clause. Three experts of different weights, and two tokens that meet two of them each."""
    for columns in _columns(form, how):
        packed, w = _weights(form, how.rows + 5, columns, scale, False)
        made = [_another(weight_only.upload(packed, device), w, number) for number in range(3)]
        met = np.array([2, 0, 1, 2], np.int32)
        x = torch.from_numpy(np.random.default_rng(columns).standard_normal((2, columns)).astype(np.float32))
        x = x.to(device, getattr(torch, dtype))
        experts = gather_experts([weights for weights, _ in made])
        found = expert_product(x, experts, torch.from_numpy(met).to(device), how).to("cpu", torch.float64).numpy()
        exact = np.repeat(x.to("cpu", torch.float64).numpy(), 2, axis=0)
        each = np.stack([made[expert][1] for expert in met])
        expected, size = (np.einsum("pk,pnk->pn", a, b) for a, b in ((exact, each), (abs(exact), abs(each))))
        if wrong := sums_close(found, expected, size, SUM):
            return f"{columns} columns: {wrong}"
    return ""


def _another(weights: weight_only.Weights, w: np.ndarray, number: int) -> tuple[weight_only.Weights, np.ndarray]:
    """Weights and what they stand for, made different: rows change places, or scales of tiles of rows get larger."""
    if weights.form.scale_rows > 1:
        factor = 2.0**number
        return replace(weights, low=weights.low.clone(), scales=weights.scales * factor), w * factor
    order = np.roll(np.arange(weights.rows), number)
    at = torch.from_numpy(order).to(weights.low.device)

    def plane(values: torch.Tensor | None) -> torch.Tensor | None:
        if values is None or values.shape[1] != weights.rows:
            return values if values is None else values.clone()
        return values.index_select(1, at)

    low, scales = plane(weights.low), plane(weights.scales)
    assert low is not None
    assert scales is not None
    return replace(weights, low=low, scales=scales, high=plane(weights.high), third=plane(weights.third)), w[order]


def check_product(device: str, form: Form, how: Configuration, dtype: str, scale: str, ordered: bool) -> str:
    """'' or one clause. Rows that nothing divides, and columns with and without a tile that is cut."""
    for columns in _columns(form, how):
        packed, w = _weights(form, how.rows + 5, columns, scale, ordered)
        weights = weight_only.upload(packed, device)
        tokens = how.batch if how.regime == VECTOR else 19 if how.regime == LIBRARY else how.batch + 3
        rng = np.random.default_rng(columns)
        x = torch.from_numpy(rng.standard_normal((tokens, columns)).astype(np.float32))
        x = x.to(device, getattr(torch, dtype))
        found = weight_only.product(x, weights, how).to("cpu", torch.float64).numpy()
        exact = x.to("cpu", torch.float64).numpy()
        limit = _ROUNDED[dtype] if how.regime == LIBRARY else SUM
        if how.regime != VECTOR and form.levels == "codebook":
            limit = max(limit, _TABLE[dtype])
        if wrong := sums_close(found, exact @ w.T, np.abs(exact) @ np.abs(w).T, limit):
            return f"{columns} columns: {wrong}"
    return ""


def _columns(form: Form, how: Configuration) -> list[int]:
    """A width that tiles divide, and one that they do not, where the format has such; both with this form's tile."""
    unit = LAYOUTS[form.label].block if form.label in GGML_FORMS else 1
    least = max((2 * how.split + 1) * form.tile, form.group + form.tile) - 7
    found: dict[bool, int] = {}
    for columns in range(-(-least // unit) * unit, least + 4 * max(unit, form.tile), unit):
        if form.fitted(columns).words == form.words:
            found.setdefault(columns % form.tile == 0, columns)
    return list(found.values())


def _weights(form: Form, rows: int, columns: int, scale: str, ordered: bool) -> tuple[layout.Packed, np.ndarray]:
    """A weight in the GPU's layout, and what it stands for, float64 [N, K] by places of x."""
    rng = np.random.default_rng(rows * 10007 + columns)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    values[0] *= 300
    values[rows // 2] = 0
    kind = form.label
    if kind in GGML_FORMS:
        tensor_scale = 0.03 if kind == "NVFP4" else 1.0
        data = ops.encode_blocks(kind, values, search=False, tensor_scale=tensor_scale)
        w = block_reference.decode_blocks(kind, data, columns, tensor_scale, 1)
        return layout.pack_blocks(kind, data, columns, tensor_scale), w.astype(np.float64)
    if form.levels in ("e4m3", "e5m2"):
        return _elements(form, values / 8, rng)
    bits, group = form.bits + form.high, form.group or columns
    count = -(-columns // group)
    codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
    name = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}[scale]
    stored = [_stored(rng.standard_normal((rows, count)), name) for _ in range(2)]
    scales, third = stored[0] / np.float32(1 << bits), None
    each = np.repeat(scales, group, axis=1)[:, :columns].astype(np.float64)
    table = np.sort(NF4_LEVELS).astype(np.float32) if form.levels == "codebook" else None
    if table is not None:
        w = each * table[codes].astype(np.float64)
    elif form.scales == "minimums":
        third = stored[1]
        w = each * codes + np.repeat(third, group, axis=1)[:, :columns]
    else:
        zeros = np.full((rows, count), 1 << (bits - 1))
        if form.scales == "zeros":
            third = rng.integers(0, 1 << bits, (rows, count)).astype(np.uint8)
            zeros = third.astype(np.int64)
        w = each * (codes - np.repeat(zeros, group, axis=1)[:, :columns].astype(np.float64))
    order = rng.permutation(columns) if ordered else None
    packed = layout.pack_groups(codes, scales, third, bits, form.group or columns, name, table, order)
    if order is not None:
        placed = np.empty_like(w)
        placed[:, order] = w
        w = placed
    return packed, w


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _stored(values: np.ndarray, name: str) -> np.ndarray:
    return ops.to_float32(ops.from_float32(values.astype(np.float32), name), name)


def _elements(form: Form, values: np.ndarray, rng: np.random.Generator) -> tuple[layout.Packed, np.ndarray]:
    """8-bit floats with scales of tiles, rows, or one for all."""
    rows, columns = values.shape
    a, b = form.scale_rows or rows, form.group or columns
    count = -(-rows // a), -(-columns // b)
    if form.scales == "powers":
        scales = np.ldexp(np.float32(1), rng.integers(-9, 3, count)).astype(np.float32)
    else:
        scales = (rng.random(count) + 0.1).astype(np.float32)
    dtype = "F8_E4M3" if form.levels == "e4m3" else "F8_E5M2"
    data = ops.from_float32(values, dtype)
    packed = layout.pack_elements(dtype, data, scales, (a, b))
    each = np.repeat(np.repeat(scales, a, axis=0)[:rows], b, axis=1)[:, :columns].astype(np.float64)
    return packed, floats.table(dtype)[data].astype(np.float64) * each


register("product", check_product)
register("expert product", check_experts)
