"""Rows of keys and values in each format of `kernels.kv`, exactly: float32 to bytes and back, and a cache of them.

Rows are [T, dim]. A block, group or row with a value that is not finite decodes to NaN, so that it is seen; a cache
has no better place to say so. Rows with groups are filled up to whole groups with their last value.
"""

from __future__ import annotations

from functools import cache
from math import erf, exp, pi, sqrt

import numpy as np

from kernels.kv import CACHE_FORMATS, CacheFormat
from kernels.reference.arithmetic import bf16_bits, bf16_values, f16_bits, half_values
from kernels.reference.blocks import ENCODERS, decode_blocks
from kernels.reference.floats import table, to_float8

_NAN = np.uint16(0x7E00)
# Shares of the scale that puts a group's largest value at the last code: the one that leaves least is taken.
NARROWER = (1.0, 0.95, 0.9, 0.85)
LARGEST = {"F8_E4M3": 448.0, "F8_E5M2": 57344.0}


@cache
def normal_levels(bits: int) -> np.ndarray:
    """The 2^bits levels with the least mean squared error for N(0, 1), ascending, float32 [2^bits].

    Lloyd's iteration with the exact centroids of a normal distribution (Max, 1960, has the same numbers), from evenly
    spaced levels within ±3.5; made symmetric.
    """
    levels = np.linspace(-3.5, 3.5, 1 << bits)
    for _ in range(5000):
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        density = np.array([exp(-e * e / 2) / sqrt(2 * pi) if np.isfinite(e) else 0.0 for e in edges])
        below = np.array([(1 + erf(e / sqrt(2))) / 2 for e in edges])
        new = (density[:-1] - density[1:]) / (below[1:] - below[:-1])
        done = np.abs(new - levels).max() < 1e-12
        levels = (new - new[::-1]) / 2
        if done:
            break
    return levels.astype(np.float32)


def hadamard(x: np.ndarray) -> np.ndarray:
    """x [..., D] turned by Sylvester's Hadamard matrix ÷ √size, along runs of the largest power of two that divides D.

    It is its own inverse, and dot products of two turned vectors are those of the plain ones. float32 in, float32 out.
    """
    dim = x.shape[-1]
    size = dim & -dim
    y = x.astype(np.float64).reshape(-1, size)
    step = 1
    while step < size:
        pairs = y.reshape(len(y), -1, 2, step)
        y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(y), size)
        step *= 2
    return (y / sqrt(size)).reshape(x.shape).astype(np.float32)


def encode_rows(name: str, x: np.ndarray, scale: float | np.ndarray = 1.0) -> np.ndarray:
    """float32 [T, dim] → uint8 [T, row_bytes]. scale: a given one, of the whole or [T, 1] of each row's head."""
    form = CACHE_FORMATS[name]
    x = np.ascontiguousarray(x, np.float32)
    with np.errstate(all="ignore"):
        return _bytes(_encode(form, x, scale), len(x), form.row_bytes(x.shape[1]))


def decode_rows(name: str, data: np.ndarray, dim: int, scale: float | np.ndarray = 1.0) -> np.ndarray:
    """uint8 [T, row_bytes] → float32 [T, dim]. Raises ValueError for rows of another length."""
    form = CACHE_FORMATS[name]
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != form.row_bytes(dim):
        raise ValueError(f"rows of {dim} values in {name} have {form.row_bytes(dim)} bytes, not {data.shape[-1]}")
    with np.errstate(all="ignore"):
        return _decode(form, np.ascontiguousarray(data), dim, scale)


def encode_group(name: str, x: np.ndarray) -> np.ndarray:
    """For formats with scales of channels: float32 [group, dim], one head's tokens → uint8 [unit_bytes].

    Channel after channel: scale and minimum in float16, then the codes of its tokens, the first in the lowest bits.
    """
    form = CACHE_FORMATS[name]
    if not form.channels or x.shape[0] != form.group:
        raise ValueError(f"{name} keeps groups of {form.waits} tokens, not of {x.shape[0]}")
    with np.errstate(all="ignore"):
        return _affine_bytes(np.ascontiguousarray(x.T, np.float32), form).reshape(-1)


def decode_group(name: str, data: np.ndarray, dim: int) -> np.ndarray:
    """uint8 [unit_bytes] → float32 [group, dim]."""
    form = CACHE_FORMATS[name]
    if data.shape != (form.unit_bytes(dim),):
        raise ValueError(f"{form.waits} tokens in {name} have {form.unit_bytes(dim)} bytes, not {len(data)}")
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(_affine_values(data.reshape(dim, -1), form, form.group).T)


def _encode(form: CacheFormat, x: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    name = form.name
    if name == "F32":
        return x.view(np.uint8)
    if form.is_float:
        return (f16_bits(x) if name == "F16" else bf16_bits(x)).view(np.uint8)
    if form.given:
        dtype = _float8(name)
        largest = np.float32(LARGEST[dtype])
        return to_float8(np.clip(x / np.asarray(scale, np.float32), -largest, largest), dtype)
    if name in ENCODERS:
        return _encode_blocks(name, x)
    if form.rotated:
        return _encode_levels(x, form.bits)
    if form.metadata == 16:
        groups = _groups(x, form.group) if form.group else x
        return _encode_searched(groups) if form.group and form.bits == 4 else _encode_symmetric(groups, form.bits)
    return _affine_bytes(_groups(x, form.group), form)


def _decode(form: CacheFormat, data: np.ndarray, dim: int, scale: float | np.ndarray) -> np.ndarray:
    name, rows = form.name, len(data)
    if name == "F32":
        return data.view(np.float32)
    if form.is_float:
        return half_values(data.view(np.uint16)) if name == "F16" else bf16_values(data.view(np.uint16))
    if form.given:
        return table(_float8(name))[data] * np.asarray(scale, np.float32)
    if name in ENCODERS:
        return np.asarray(decode_blocks(name, data, -(-dim // 32) * 32, 1.0, 1)[:, :dim])
    if form.metadata == 16 and form.group:
        data = data.reshape(-1, 2 + form.group * form.bits // 8)
    head = half_values(np.ascontiguousarray(data[:, :2]).view(np.uint16))
    if form.rotated:
        levels = normal_levels(form.bits)[_unpack(data[:, 2:], form.bits, dim)]
        return levels * (head * np.float32(1 / sqrt(dim)))
    if form.metadata == 16:
        codes = _unpack(data[:, 2:], form.bits, form.group or dim).astype(np.float32)
        half = np.float32(1 << form.bits - 1)
        values = np.where(codes >= half, codes - 2 * half, codes) * head  # two's complement
        return np.asarray(values.reshape(rows, -1)[:, :dim])
    values = _affine_values(data.reshape(-1, form.metadata // 8 + form.group * form.bits // 8), form, form.group)
    return np.asarray(values.reshape(rows, -1)[:, :dim])


def _float8(name: str) -> str:
    return "F8_E5M2" if "E5M2" in name else "F8_E4M3"


def _bytes(data: np.ndarray, rows: int, size: int) -> np.ndarray:
    return np.ascontiguousarray(data).reshape(rows, size)


def _groups(x: np.ndarray, group: int) -> np.ndarray:
    """[T, dim] → [T · groups, group], the last of a row filled up with its last value."""
    missing = -x.shape[1] % group
    return np.pad(x, ((0, 0), (0, missing)), mode="edge").reshape(-1, group)


def _encode_blocks(name: str, x: np.ndarray) -> np.ndarray:
    blocks = _groups(x, 32)
    finite = np.isfinite(blocks).all(axis=1)
    data = ENCODERS[name](np.where(finite[:, None], blocks, np.float32(0)), None, False)
    data[~finite, 0:2] = np.frombuffer(_NAN.tobytes(), np.uint8)
    return data


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [R, n] → [R, ⌈n · bits / 8⌉], the first code in the lowest bits."""
    spread = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(spread.reshape(len(codes), -1), axis=1, bitorder="little")


def _unpack(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    spread = np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little")[:, : count * bits]
    return (spread.reshape(len(data), count, bits) << np.arange(bits, dtype=np.uint8)).sum(axis=2).astype(np.uint8)


def _encode_symmetric(x: np.ndarray, bits: int) -> np.ndarray:
    """Scale in float16, the largest magnitude at the largest code; then codes, two's complement. All zeros: scale 1."""
    most = np.float32((1 << bits - 1) - 1)
    largest = np.abs(x).max(axis=1)
    scale = f16_bits(largest / most)
    scale = np.where(scale == 0, f16_bits(np.ones_like(largest)), scale)
    codes = np.clip(np.rint(x / half_values(scale)[:, None]), -most, most)
    finite = np.isfinite(x).all(axis=1)
    codes = np.where(finite[:, None], codes, np.float32(0)).astype(np.int8).view(np.uint8)
    head = np.where(finite, scale, _NAN).astype(np.uint16).reshape(-1, 1).view(np.uint8)
    return np.hstack([head, _pack(codes & np.uint8((1 << bits) - 1), bits)])


def _encode_searched(x: np.ndarray) -> np.ndarray:
    """Groups in four bits, codes −8 … 7: the value of largest magnitude lies at −8, or past it, of the scales of
    NARROWER the one with the least squared error. Squares are added one after the other in float64. All zeros: 0;
    too large for a scale in float16: NaN.
    """
    finite = np.isfinite(x).all(axis=1)
    x = np.where(finite[:, None], x, np.float32(0))
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0] + np.float32(0)  # no −0
    least = np.full(len(x), np.inf)
    best, codes = np.full(len(x), _NAN), np.zeros(x.shape, np.float32)
    for share in NARROWER:
        scale = f16_bits(extreme * np.float32(share / -8))
        unit = half_values(scale)[:, None]
        tried = np.clip(np.rint(np.divide(x, unit, out=np.zeros_like(x), where=unit != 0)), -8, 7)
        error = np.zeros(len(x))
        for column in (tried * unit - x).T.astype(np.float64):
            error += column * column
        better = error < least
        least = np.where(better, error, least)
        best = np.where(better, scale, best)
        codes = np.where(better[:, None], tried, codes)
    head = np.where(finite, best, _NAN).astype(np.uint16).reshape(-1, 1).view(np.uint8)
    return np.hstack([head, _pack(codes.astype(np.int8).view(np.uint8) & np.uint8(15), 4)])


def _affine_bytes(groups: np.ndarray, form: CacheFormat) -> np.ndarray:
    """[G, group] → [G, bytes]: scale and minimum in float16, codes 0 … 2^bits − 1. value = scale · code + minimum."""
    most = np.float32((1 << form.bits) - 1)
    finite = np.isfinite(groups).all(axis=1)
    x = np.where(finite[:, None], groups, np.float32(0))
    low = f16_bits(x.min(axis=1))
    scale = f16_bits((x.max(axis=1) - half_values(low)) / most)
    step = half_values(scale)[:, None]
    scaled = np.divide(x - half_values(low)[:, None], step, out=np.zeros_like(x), where=step > 0)
    codes = np.clip(np.rint(scaled), 0, most).astype(np.uint8)
    head = np.stack([np.where(finite, scale, _NAN), low], axis=1).astype(np.uint16).view(np.uint8)
    return np.hstack([head, _pack(codes, form.bits)])


def _affine_values(data: np.ndarray, form: CacheFormat, count: int) -> np.ndarray:
    head = half_values(np.ascontiguousarray(data[:, :4]).view(np.uint16))
    return _unpack(data[:, 4:], form.bits, count).astype(np.float32) * head[:, :1] + head[:, 1:]


def _encode_levels(x: np.ndarray, bits: int) -> np.ndarray:
    """The vector's length in float16, then of each value ÷ length · √dim the nearest level's index."""
    norm = np.sqrt((x.astype(np.float64) ** 2).sum(axis=1))
    levels = normal_levels(bits).astype(np.float64)
    unit = np.divide(x * sqrt(x.shape[1]), norm[:, None], out=np.zeros(x.shape), where=norm[:, None] > 0)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, unit).astype(np.uint8)
    return np.hstack([f16_bits(norm.astype(np.float32)).reshape(-1, 1).view(np.uint8), _pack(codes, bits)])
