"""From the bytes around a value to its group: codes, scales, and where each bit of them lies."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from core.checkpoint.dtypes import ELEMENT_BITS, can_decode
from core.errors import UserError
from core.inspect.bit_layout import (
    BLOCK_TYPES,
    Bits,
    level_table,
    number_value,
    read_bits,
    scaled_levels,
)
from core.inspect.group_types import WINDOW, GroupMap, Metadata, Place, StoredBytes
from kernels import ops
from kernels.layouts import LAYOUTS


def read_blocks(place: Place, stored: StoredBytes, kind: str) -> GroupMap:
    """A group of a GGML block type, or a window of a plain one."""
    if kind in ELEMENT_BITS:
        return _plain(place, stored, kind)
    if kind not in BLOCK_TYPES:
        raise UserError(
            f"{kind} stores several values in one code, so its bits can not be shown one by one.",
            "Look at the Tensor view, or choose another tensor.",
        )
    t, layout = BLOCK_TYPES[kind], LAYOUTS[kind]
    group = place.column // t.group
    columns = (group * t.group, min((group + 1) * t.group, place.columns))
    window = t.group > WINDOW
    if window:  # two windows a block of 256
        left = place.column // WINDOW * WINDOW
        columns = (left, left + WINDOW)
    inside = columns[0] % layout.block
    base = place.row * layout.row_bytes(place.columns) + layout.row_bytes(columns[0] - inside)
    block = stored.read(0, base, layout.bytes)
    numbers = t.numbers(inside)
    metadata = []
    scale = 1.0
    if len(stored.arrays) > 1:
        matrix = place.row // place.shape[-2] if stored.arrays[1].nbytes > 4 else 0
        field = stored.field(1, 4 * matrix, Bits(0, 4, 0, 32))
        scale = float(np.frombuffer(field.data, "<f4")[0])
        metadata.append(Metadata("tensor scale", scale, None, (field,)))
    for n in numbers:
        code = read_bits(block, n.bits)
        fields = tuple(stored.field(0, base, b) for b in n.bits)
        metadata.append(Metadata(n.meaning, number_value(n, code), None if n.kind == "F16" else code, fields))
    own = range(inside, inside + columns[1] - columns[0])
    codes = np.array([read_bits(block, t.code(i)) for i in own], np.int64)
    values = ops.decode_blocks(kind, block[None], layout.block, tensor_scale=scale)[0]
    grid = scaled_levels(kind, {m.meaning: m.value for m in metadata}, scale)
    return without_original(
        GroupMap(
            tensor=place.name,
            format=kind,
            shape=place.shape,
            row=place.row,
            expert=place.expert,
            group=group,
            group_size=t.group,
            columns=columns,
            window=window,
            arrays=stored.arrays,
            source=None,
            formula=t.formula,
            metadata=tuple(metadata),
            original=None,
            codes=codes,
            levels=level_table(kind)[np.minimum(codes, len(grid) - 1)],
            grid=grid,
            fields=tuple(tuple(stored.field(0, base, b) for b in t.code(i)) for i in own),
            reconstruction=np.ascontiguousarray(values[own.start : own.stop]),
            half_step=np.zeros(len(own), np.float32),
        )
    )


def _plain(place: Place, stored: StoredBytes, kind: str) -> GroupMap:
    """A window of a type without scales: each value is its own number."""
    if not can_decode(kind):
        raise UserError(f"Values of type {kind} can not be decoded.", "Look at another tensor.")
    size = ELEMENT_BITS[kind] // 8
    left = place.column // WINDOW * WINDOW
    columns = (left, min(place.columns, left + WINDOW))
    base = (place.row * place.columns + left) * size
    raw = stored.read(0, base, (columns[1] - left) * size)
    values = ops.to_float32(raw[None], kind)[0]
    fields = tuple((stored.field(0, base, Bits(i * size, size, 0, 8 * size)),) for i in range(columns[1] - left))
    codes = np.array([int.from_bytes(f[0].data, "little") for f in fields], np.uint64)
    return GroupMap(
        tensor=place.name,
        format=kind,
        shape=place.shape,
        row=place.row,
        expert=place.expert,
        group=0,
        group_size=prod(place.shape),
        columns=columns,
        window=True,
        arrays=stored.arrays,
        source=None,
        formula=f"x̂ = the {kind} number itself",
        metadata=(),
        original=None,
        codes=codes,
        levels=values,
        grid=np.zeros(0, np.float32),
        fields=fields,
        reconstruction=values,
        half_step=_half_unit(kind, values),
    )


# Digits behind the point and the smallest normal exponent of floats.
_FLOATS = {"F64": (52, -1022), "F32": (23, -126), "F16": (10, -14), "BF16": (7, -126), "F8_E4M3": (3, -6),
           "F8_E5M2": (2, -14)}  # fmt: skip


def _half_unit(kind: str, values: np.ndarray) -> np.ndarray:
    """Half of the last digit's worth at each value; ½ for integers."""
    if kind not in _FLOATS:
        return np.full(len(values), 0.5, np.float32)
    digits, lowest = _FLOATS[kind]
    with np.errstate(all="ignore"):
        exponent = np.frexp(values.astype(np.float64))[1] - 1
        return np.ldexp(0.5, np.maximum(exponent, lowest) - digits).astype(np.float32)


def without_original(g: GroupMap) -> GroupMap:
    """Half steps to the wider neighbour of each value."""
    low, high = _gaps(g.grid, g.reconstruction)
    return replace(g, half_step=(np.fmax(low, high) / 2).astype(np.float32))


def with_original(g: GroupMap, original: np.ndarray) -> GroupMap:
    if not g.grid.size:
        return replace(g, original=original)
    low, high = _gaps(g.grid, g.reconstruction)
    side = np.where(original > g.reconstruction, high, low)
    half = np.where(np.isnan(side), np.where(np.isnan(low), high, low), side) / 2
    return replace(g, original=original, half_step=half.astype(np.float32))


def _gaps(grid: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance of each value to the next lower and higher level; NaN at the ends, 0 where the scale is 0."""
    levels = np.unique(grid.astype(np.float64))
    if len(levels) < 2:
        zero = np.zeros(len(values))
        return zero, zero
    own = np.abs(levels[None] - values[:, None]).argmin(axis=1)
    steps = np.concatenate([[np.nan], np.diff(levels), [np.nan]])
    return steps[own], steps[own + 1]
