"""The self-tests of the steps between products, of products of codes, and of attention."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from kernels.gpu import operations
from kernels.gpu.launcher import card_at
from kernels.gpu.products.scaled_ways import KINDS, way_of
from kernels.gpu.selftest import caches
from kernels.gpu.selftest.tools import SUM, SUM_FP8, close, exact, floats, numbers, register, sums_close
from kernels.reference import attention, elementwise, scaled
from kernels.reference.attention import LayerCache


def stands_for(x: operations.Tokens) -> np.ndarray:
    """float64 [M, columns]: what codes of activations stand for."""
    codes = x.codes.cpu().numpy()
    if x.kind in ("mxfp4", "nvfp4"):
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    scales = scaled.decode_scales(x.kind, x.scales.cpu().numpy())
    each = np.repeat(scales, x.group or codes.shape[1], axis=1)[:, : codes.shape[1]]
    return (scaled.decode(x.kind, codes) * each * float(np.float32(x.tensor_scale)))[:, : x.columns]


def _codes_close(found: operations.Tokens, expected: np.ndarray) -> str:
    """Codes of a value that was rounded on the way may be the neighbour of the right one."""
    values, group = stands_for(found), found.group or found.columns
    rows, columns = expected.shape
    padded = np.zeros((rows, -(-columns // group) * group))
    padded[:, :columns] = np.abs(expected)
    largest = np.repeat(padded.reshape(rows, -1, group).max(axis=2), group, axis=1)[:, :columns]
    step = {"int8": 1.01 / 127, "e4m3": 1.01 / 14}.get(found.kind, 0.26)  # of the largest value, between two codes
    wrong = np.abs(values - expected) > step * largest + 1e-30
    return f"{int(wrong.sum())} of {wrong.size} codes stand for another value" if wrong.any() else ""


# ---- steps between products ------------------------------------------------------------------------------------------


def _norm(device: str, name: str, residual: bool) -> str:
    for rows, columns in ((3, 131), (1, 1024)):
        x, gain = floats(rows, columns, name, device), floats(1, columns, "float32", device)[0]
        more = floats(rows, columns, "float32", device, 1) if residual else None
        total = exact(x) + (exact(more) if more is not None else 0)
        found = operations.rms_norm(x, gain, 1e-5, more)
        if wrong := close(found, elementwise.rms_norm(total, exact(gain), 1e-5), name, 2):
            return wrong
        if more is not None and (wrong := close(more, total, "float32")):
            return f"of the sum, {wrong}"
    return ""


def _norm_codes(device: str, kind: str, group: int) -> str:
    for rows, columns in ((3, 131), (1, 1024)):
        x, gain = floats(rows, columns, "float16", device), floats(1, columns, "float32", device)[0]
        found = operations.rms_norm_quantized(x, gain, 1e-5, kind, group)
        if wrong := _codes_close(found, elementwise.rms_norm(exact(x), exact(gain), 1e-5)):
            return wrong
    return ""


def _activate(device: str, function: str, name: str) -> str:
    both = floats(3, 2 * 131, name, device)
    gate, up = both[:, :131], both[:, 131:]
    expected = elementwise.activate(function, exact(gate)) * exact(up)
    return close(operations.activate_mul(function, gate, up), expected, name, 2)


def _activate_codes(device: str, function: str, kind: str) -> str:
    both = floats(3, 2 * 131, "float16", device)
    gate, up = both[:, :131], both[:, 131:]
    expected = elementwise.activate(function, exact(gate)) * exact(up)
    return _codes_close(operations.activate_mul_quantized(function, gate, up, kind), expected)


def _quantize(device: str, kind: str, group: int) -> str:
    x = floats(5, 150, "float32", device)
    found = operations.quantize(x, kind, group, 0.02 if kind == "nvfp4" else 1.0)
    name = "e4m3 128 × 128" if (kind, group) == ("e4m3", 128) else kind
    if kind == "e4m3" and group not in (0, 128):
        return _codes_close(found, exact(x))
    expected = scaled.round_codes(x.cpu().numpy(), name, found.tensor_scale)
    wrong = stands_for(found) != expected
    return f"{int(wrong.sum())} of {wrong.size} codes are not the reference's" if wrong.any() else ""


def _outliers(device: str) -> str:
    x = floats(5, 300, "float16", device)
    x[4, 299] = 80.0
    found = operations.find_outliers(x, 60.0)
    flags = (np.abs(exact(x)) >= 60).any(axis=0)
    blocks = np.array([flags[at : at + 128].any() for at in range(0, 300, 128)])
    right = np.array_equal(found.flags.cpu().numpy() != 0, flags)
    right = right and np.array_equal(found.blocks.cpu().numpy() != 0, blocks)
    return "" if right else "columns of outliers are not those that have some"


def _rotate(device: str, pairs: bool, name: str) -> str:
    for heads, width, turned in ((3, 64, 32), (5, 80, 20)):
        x = floats(3, heads * width, name, device).view(3, heads, width)
        frequencies = (1.0 / 10000.0 ** (np.arange(turned) / turned)).astype(np.float32)
        at = np.array([0, 7, 499])
        angles = np.arange(500)[:, None] * frequencies.astype(np.float64)
        cos, sin = (torch.from_numpy(f(angles).astype(np.float32)).to(device) for f in (np.cos, np.sin))
        expected = attention.rotate(x.to("cpu", torch.float32).numpy(), at, frequencies, 1.0, pairs)
        found = operations.rotate(x, cos, sin, numbers(at, device), pairs)
        if wrong := close(found.reshape(3, -1), expected.reshape(3, -1).astype(np.float64), name, 2):
            return wrong
    return ""


# ---- products of codes, attention ------------------------------------------------------------------------------------


def _scaled(device: str, kind: str, regime: str, outliers: bool = False) -> str:
    shape, tokens = KINDS[kind], 3 if regime == "vector" else 19
    for rows, columns in ((37, 150), (70, 288)):
        rng = np.random.default_rng(rows)
        groups = -(-columns // shape.group) if shape.group else 1
        count, tensor_scale = (-(-rows // shape.scale_rows), groups), 1.0
        if kind == "int8":
            codes = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
        else:
            codes = rng.integers(0, 16 if shape.bits == 4 else 256, (rows, columns)).astype(np.uint8)
            codes[(codes & 0x7F == 0x7F) & (shape.bits == 8)] = 0
        if shape.scale == "single":
            scales: np.ndarray = (rng.random(count) + 0.1).astype(np.float32) / 100
        elif shape.scale == "power":
            scales = rng.integers(118, 131, count).astype(np.uint8)
        else:
            scales, tensor_scale = rng.integers(0, 0x7F, count).astype(np.uint8), 0.03
        weights = operations.upload_scaled(kind, codes, scales, device, tensor_scale)
        x = floats(tokens, columns, "float16", device)
        apart = operations.find_outliers(x, 60.0) if outliers else None
        group = shape.group if shape.tokens == "e4m3" else 0
        made = operations.quantize(x, shape.tokens, group, 0.01 if kind == "nvfp4" else 1.0, apart)
        values = stands_for(made)
        if apart is not None:
            values = np.where(apart.flags.cpu().numpy() != 0, exact(x), values)
        w = scaled.weights(kind, codes, scales, tensor_scale)
        found = exact(operations.scaled_product(made, weights, outliers=apart))
        size = np.abs(values) @ np.abs(w).T
        limit = SUM_FP8 if _adds_briefly(kind, device) else SUM
        if wrong := sums_close(found, values @ w.T, size, limit):
            return wrong
    return ""


def _adds_briefly(kind: str, device: str) -> bool:
    return device == "cuda" and way_of(kind, card_at(0)) in ("fp8", "scaled")


_STORED = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}


def _filled(device: str, width: int, name: str, capacity: int) -> tuple[operations.Cache, LayerCache]:
    """Two slots of two key heads, filled by `store_cache`, and the reference's."""
    known = LayerCache(2, capacity, 2, width, _STORED[name])
    cache = operations.make_cache(2, 2, capacity, width, getattr(torch, name), device)
    rng = np.random.default_rng(width)
    k, v = rng.standard_normal((2, 2 * capacity, 2, width)).astype(np.float32)
    sequences, positions = np.repeat([0, 1], capacity), np.tile(np.arange(capacity), 2)
    known.store(sequences, positions, k.reshape(len(k), -1), v.reshape(len(v), -1))
    keys, values = (torch.from_numpy(one).to(device, getattr(torch, name)) for one in (k, v))
    operations.store_cache(keys, values, cache, numbers(sequences, device), numbers(positions, device))
    return cache, known


def _store(device: str, width: int, name: str) -> str:
    if name not in _STORED:
        return caches.written(device, width, name)
    cache, known = _filled(device, width, name, 5)
    for side, stored in ((cache.keys, known.keys), (cache.values, known.values)):
        expected = stored.transpose(0, 2, 1, 3).reshape(4, -1).astype(np.float64)
        if wrong := close(side.codes.reshape(4, -1), expected, name):
            return wrong
    return ""


def _attention(prompt: bool, device: str, width: int, name: str, capped: bool = False, kind: str = "") -> str:
    if kind:
        return caches.attended(prompt, device, width, name, capped, kind)
    capacity, scale, softcap = 77, width**-0.5, 30.0 if capped else 0.0
    cache, known = _filled(device, width, name, capacity)
    for window in (0, 33):
        at = np.array([*range(50, 57), 0, 1]) if prompt else np.array([0, 31, 32, capacity - 1])
        slots = np.array([0] * 7 + [1] * 2) if prompt else np.array([0, 1, 1, 0])
        q = floats(len(at), 8 * width, name, device, 2).view(len(at), 8, width) * 0.25
        if prompt:
            runs = numbers([0, 7, 9], device), numbers([0, 1], device), numbers([50, 0], device)
            found = operations.attend_prompt(q, cache, *runs, 7, scale, window, softcap)
        else:
            places = numbers(slots, device), numbers(at, device)
            found = operations.attend_tokens(q, cache, *places, capacity, scale, window, softcap)
        rows = zip(q.to("cpu", torch.float32).numpy(), slots, at, strict=True)
        wanted = np.stack([known.attend(row, int(s), int(p), scale, window, softcap) for row, s, p in rows])
        # Shares are rounded to the type before they meet the values.
        if wrong := close(found.reshape(len(at), -1), wanted.astype(np.float64), name, 6, each=False):
            return wrong
    return ""


_KINDS_OF_CODES = (("int8", 0), ("e4m3", 0), ("e4m3", 128), ("mxfp8", 0), ("mxfp4", 0), ("nvfp4", 0))
register("norm", _norm, ("float16", False), ("bfloat16", True))
register("norm to codes", _norm_codes, ("int8", 0), ("e4m3", 0))
register("activate", _activate, ("silu", "float16"), ("gelu_tanh", "bfloat16"))
register("activate to codes", _activate_codes, ("silu", "int8"))
register("quantize", _quantize, *_KINDS_OF_CODES)
register("outliers", _outliers, ())
register("rotate", _rotate, (False, "float16"), (True, "bfloat16"))
register("scaled product", _scaled, *((kind, way, False) for kind in KINDS for way in ("vector", "tile")),
         ("int8", "vector", True), ("int8", "tile", True))  # fmt: skip
_COMMON = ((128, "float16", False), (256, "float16", True), *((128, "float16", False, kind) for kind in caches.COMMON))
register("store cache", _store, (128, "float16"), *((128, kind) for kind in caches.COMMON))
register("attention prompt", partial(_attention, True), *_COMMON)
register("attention token", partial(_attention, False), *_COMMON)
