"""A layer's cache on the device: what keys and values take, plane by plane, and the reference's rows of them.

What differs between formats is a reader, a writer and a few numbers, one line of `KINDS` each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernels.gpu.attention import caches, writers
from kernels.kv import CACHE_FORMATS, CacheFormat, quantized
from kernels.layouts import IQ4_LEVELS
from kernels.reference.kv import normal_levels

if TYPE_CHECKING:
    from kernels.program import CacheLayout

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in FLOATS.items()}
_LINES = (  # formats, their reader, their writer
    (("F16", "BF16", "F32"), caches.read_floats, writers.write_floats),
    (("INT8", "INT4"), caches.read_signed, writers.write_signed),
    (("INT8-g64",), caches.read_signed, writers.write_signed_groups),
    (("INT4-g64", "INT4-g32"), caches.read_signed, writers.write_searched),
    (("Q8_0",), caches.read_signed, writers.write_q8_0),
    (("Q4_0", "Q5_0"), caches.read_centred, writers.write_centred),
    (("Q4_1", "Q5_1"), caches.read_affine, writers.write_ggml_affine),
    (("U8-g64", "U4-g64", "U4-g32", "U2-g32"), caches.read_affine, writers.write_affine),
    (("IQ4_NL",), caches.read_levels, writers.write_iq4_nl),
    (("LM4", "LM3", "LM2"), caches.read_levels, writers.write_normal),
    (("FP8", "FP8-head"), caches.read_e4m3, writers.write_e4m3),
    (("FP8-E5M2", "FP8-E5M2-head"), caches.read_e5m2, writers.write_e5m2),
    (("U4-t32", "U2-t32"), caches.read_channels, writers.write_channels),
)
KINDS: dict[str, tuple[Any, Any]] = {name: (read, write) for names, read, write in _LINES for name in names}
_SPLIT = (3, 5)  # bits of which the last lies in a plane of its own
_HALVES = ("Q4_0", "Q5_0", "Q4_1", "Q5_1", "IQ4_NL")  # ggml's: a byte has code j and code j + 16
_EMPTY_SCALES: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True)
class Side:
    """Keys, or values, of one layer.

    codes: floats [slots, heads, rows, width], or bytes of codes; high: of codes' third or fifth bits; scales: float16
    [slots, heads, rows, scales and minimums], of channels [slots, heads, units, 2, width], of FP8 float32 [slots,
    heads]; table: levels, float32. What a format has not is `codes` again. near: float16 [slots, heads, sinks + ring,
    width], of tokens that wait; None: none do. first: the token of the first row, before which all are sinks. ring:
    places for tokens that wait, by their position. turned: rows are turned by `hadamard` before they come.
    """

    form: CacheFormat
    width: int
    codes: torch.Tensor
    high: torch.Tensor
    scales: torch.Tensor
    table: torch.Tensor
    near: torch.Tensor | None = None
    first: int = 0
    ring: int = 0
    turned: bool = False

    @property
    def planes(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.codes, self.high, self.scales, self.table

    @property
    def reader(self) -> Any:
        return KINDS[self.form.name][0]

    @property
    def writer(self) -> Any:
        return KINDS[self.form.name][1]

    @property
    def rows(self) -> int:
        """Tokens of a head that are kept as codes, or floats, at most."""
        return int(self.codes.shape[2])

    @property
    def waits(self) -> bool:
        return self.near is not None

    @property
    def group(self) -> int:
        """Neighbours in a row that share a scale, as readers and writers take it."""
        return 0 if self.form.channels or self.form.is_float else self.form.group

    @property
    def padded(self) -> int:
        """Values of a row with its last group filled up."""
        return -(-self.width // self.group) * self.group if self.group else self.width

    @property
    def nbytes(self) -> int:
        """Without the table, which layers share."""
        found = {id(t): t.nbytes for t in (self.codes, self.high, self.scales, self.near) if t is not None}
        return sum(found.values())


@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer: `sequences` slots of `heads` key heads, `capacity` positions, heads of `width`.

    window: the latest tokens, which stay in float16 where a side waits.
    """

    keys: Side
    values: Side
    capacity: int
    window: int = 0

    @property
    def sequences(self) -> int:
        return int(self.keys.codes.shape[0])

    @property
    def heads(self) -> int:
        return int(self.keys.codes.shape[1])

    @property
    def width(self) -> int:
        return self.keys.width

    @property
    def waits(self) -> bool:
        return self.keys.waits or self.values.waits

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    @property
    def kind(self) -> str:
        """'F16', 'Q8_0/Q4_0'."""
        keys, values = self.keys.form.name, self.values.form.name
        return keys if keys == values else f"{keys}/{values}"


def make_cache(
    sequences: int, heads: int, capacity: int, width: int, kind: str | torch.dtype, device: str, *, window: int = 0,
    sinks: int = 0, turned: tuple[bool, bool] = (False, False),
    scales: tuple[tuple[float, ...], tuple[float, ...]] = _EMPTY_SCALES,
) -> Cache:  # fmt: skip
    """An empty cache for one layer. kind: 'F16', 'Q8_0/Q4_0' …, or a type of floats. window, sinks: the last and the
    first tokens, which stay in float16 where a side is no float; turned: of keys, of values, by hadamard, where they
    are none. scales: of FP8, of keys and of values, one for all heads or one a head; none: 1. Raises ValueError.
    """
    if isinstance(kind, torch.dtype):
        if kind not in _NAMES:
            raise ValueError(f"a cache is of 16-bit floats or float32, not {kind}")
        kind = _NAMES[kind]
    keys, _, values = kind.partition("/")
    sides, shape = [], (sequences, heads, capacity)
    for name, turn, given in zip((keys, values or keys), turned, scales, strict=True):
        if name not in KINDS:
            raise ValueError(f"caches are of {', '.join(KINDS)}, not {name}")
        sides.append(_side(CACHE_FORMATS[name], shape, width, device, window, sinks, given, turn))
    return Cache(sides[0], sides[1], capacity, window)


def layer_cache(layout: CacheLayout, layer: int, device: str) -> Cache:
    """Of one layer of a program's cache."""
    own = layout.layer(layer)
    heads, width = own.layers[0]
    return make_cache(
        own.sequences, heads, own.capacity, width, own.dtype, device, window=own.window, sinks=own.sinks,
        turned=(own.rotate_keys, own.rotate_values), scales=own.scales[0] if own.scales else _EMPTY_SCALES,
    )  # fmt: skip


def _side(
    form: CacheFormat, shape: tuple[int, int, int], width: int, device: str, window: int, sinks: int,
    given: tuple[float, ...], turned: bool,
) -> Side:  # fmt: skip
    slots, heads, capacity = shape

    def plane(dtype: torch.dtype, *rest: int) -> torch.Tensor:
        return torch.zeros((slots, heads, *rest), dtype=dtype, device=device)

    if form.is_float:
        codes = plane(FLOATS[form.name], capacity, width)
        return Side(form, width, codes, codes, codes, codes)
    waits = form.waits > 1 or bool(window or sinks)
    first, last = quantized(capacity, form.waits, window, sinks) if waits else (0, capacity)
    near, ring = None, 0
    if waits:
        first = min(first, capacity)
        ring = min(window + form.waits - 1, capacity - first)
        near = plane(torch.float16, first + ring, width)
    rows = max(last - first, 0)
    group = 0 if form.channels else form.group
    stored = -(-width // group) * group if group else width
    low = form.bits - 1 if form.bits in _SPLIT else form.bits
    codes = high = plane(torch.uint8, rows, -(-stored * low // 8))
    if low < form.bits:
        high = plane(torch.uint8, rows, -(-stored // 8))
    scales, planes = codes, form.metadata // 16
    if form.given:
        each = given if len(given) > 1 else (given or (1.0,)) * heads
        if len(each) != heads:
            raise ValueError(f"{len(each)} scales are not one for each of {heads} heads")
        scales = torch.tensor(each, dtype=torch.float32).expand(slots, heads).contiguous().to(device)
    elif form.channels:
        scales = plane(torch.float16, rows // form.group, planes, width)
    else:
        scales = plane(torch.float16, rows, planes * (stored // group if group else 1))
    return Side(form, width, codes, high, scales, _table(form, width, device, codes), near, first, ring, turned)


def _table(form: CacheFormat, width: int, device: str, none: torch.Tensor) -> torch.Tensor:
    """Levels as they are multiplied by what is stored of a row; then as they are, for writers; then √width."""
    if form.name == "IQ4_NL":
        plain = np.array(IQ4_LEVELS, np.float32)
        read = plain
    elif form.rotated:
        plain = normal_levels(form.bits)
        read = plain * np.float32(1 / sqrt(width))
    else:
        return none
    return torch.from_numpy(np.concatenate([read, plain, np.array([sqrt(width)], np.float32)])).to(device)


def taken(side: Side) -> Side:
    """Its planes on the processor."""
    near = None if side.near is None else side.near.cpu()
    return replace(side, codes=side.codes.cpu(), high=side.high.cpu(), scales=side.scales.cpu(), near=near)


def stored_rows(side: Side, slot: int, head: int, count: int) -> np.ndarray:
    """The first `count` rows of codes of one head, with the bytes of `kernels.reference.kv.encode_rows`: uint8 [count,
    bytes]; of channels those of `encode_group`, [count / group, bytes]. Raises ValueError for floats.
    """
    form = side.form
    if form.is_float:
        raise ValueError(f"{form.name} has no codes")
    part = (slot, head, slice(count))
    codes = _unpacked(side.codes[part], form.bits - 1 if form.bits in _SPLIT else form.bits, side.padded)
    if form.bits in _SPLIT:
        codes |= _unpacked(side.high[part], 1, side.padded) << (form.bits - 1)
    if form.given:
        return codes
    bits = side.scales[slot, head].contiguous().view(torch.int16).cpu().numpy().view(np.uint16)
    if form.channels:
        units = count // form.group
        channels = codes.reshape(units, form.group, side.width).transpose(0, 2, 1)
        made = np.concatenate([_bytes(bits[:units].transpose(0, 2, 1)), _packed(channels, form.bits)], axis=2)
        return made.reshape(units, -1)
    groups = side.padded // (side.group or side.padded)
    planes = bits[:count].reshape(count, -1, groups).transpose(0, 2, 1)  # [rows, groups, scale and minimum]
    parts = [_bytes(planes)]
    codes = codes.reshape(count, groups, -1)
    if form.name in _HALVES:
        if form.bits == 5:
            parts.append(_packed(codes >> 4, 1))
        codes = (codes & 15).reshape(count, groups, 2, 16).swapaxes(2, 3).reshape(count, groups, 32)
        parts.append(_packed(codes, 4))
    else:
        parts.append(_packed(codes, form.bits))
    return np.concatenate(parts, axis=2).reshape(count, -1)


def _unpacked(plane: torch.Tensor, bits: int, count: int) -> np.ndarray:
    data = plane.cpu().numpy()
    spread = np.unpackbits(data, axis=1, bitorder="little")[:, : count * bits].reshape(len(data), count, bits)
    return (spread << np.arange(bits, dtype=np.uint8)).sum(axis=2).astype(np.uint8)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """[…, n] → bytes, the first code in the lowest bits."""
    spread = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(spread.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def _bytes(halves: np.ndarray) -> np.ndarray:
    """uint16 […, n] → uint8 […, 2n]."""
    return np.ascontiguousarray(halves).view(np.uint8)
