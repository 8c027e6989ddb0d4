"""Weights as the GPU's products read them, packed at load time and unpacked again bit for bit.

Codes lie in tiles: [tiles, N, words], so that whatever rows a program takes are one contiguous run in each tile, read
16 bytes a thread. Within a tile, code j of word w is that of column j · words + w: shifting all words by one amount
gives neighbouring columns, and no value changes its thread. Further bits of a code lie alike in a plane of their own,
one element a word. Scales are [groups, N]: one row of them is one contiguous run. Padding is zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from kernels import ops
from kernels.gpu.weights.blocks import Fields, join, split
from kernels.gpu.weights.forms import GGML_FORMS, Form, float8_form, grouped_form
from kernels.layouts import IQ4_LEVELS, LAYOUTS

_HIGH_TYPES = {8: np.uint8, 16: np.uint16}
_SUPER_BLOCK = 256
_LOWEST_POWER = 0x00400000  # 2^-127 as float32, the least that E8M0 has


@dataclass(frozen=True)
class Packed:
    """One weight matrix [rows, columns]. source: a GGML type, 'groups' or 'elements', which says how it is unpacked.

    low: uint32 [tiles, N, words]; high: uint8 or uint16, same shape, or None. scales: [groups, N]; third: zeros or
    minimums [groups, N], super-blocks' d (and dmin) [K / 256, N], or None. scale_type: what scales are ('F16', 'BF16',
    'F32', or '' for integers). table: float32 [16]. order: int32 [K], the column that each place has.
    """

    source: str
    form: Form
    rows: int
    columns: int
    low: np.ndarray
    high: np.ndarray | None
    scales: np.ndarray
    third: np.ndarray | None
    scale_type: str
    table: np.ndarray | None = None
    order: np.ndarray | None = None
    tensor_scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """What one product reads of it."""
        planes = (self.low, self.high, self.scales, self.third, self.order)
        return sum(plane.nbytes for plane in planes if plane is not None)


@cache
def packed_row(kind: str, columns: int) -> float:
    """Bytes that a row of a GGML type takes packed, its rows padded to whole tiles; 0 where no decoder reads it."""
    if kind not in GGML_FORMS:
        return 0.0
    packed = pack_blocks(kind, np.zeros((16, LAYOUTS[kind].row_bytes(columns)), np.uint8), columns)
    return packed.nbytes / 16


def pack_blocks(kind: str, data: np.ndarray, columns: int, tensor_scale: float = 1.0) -> Packed:
    """Blocks uint8 [N, row bytes] of a type of `GGML_FORMS`. Raises ValueError for another one, or a wrong shape."""
    if kind not in GGML_FORMS:
        raise ValueError(f"the GPU has no decoder for {kind}")
    if data.shape[1] != LAYOUTS[kind].row_bytes(columns):
        raise ValueError(f"{columns} values of {kind} are not rows of {data.shape[1]} bytes")
    fields = split(kind, data)
    form = GGML_FORMS[kind].fitted(columns)
    low, high = _pack_codes(fields.codes, form)
    scales = _pack_scales(fields.scales, form.groups(columns))
    third = None
    if fields.third is not None:
        third = _pack_scales(fields.third, form.groups(columns) if form.scales == "minimums" else fields.third.shape[1])
    table = np.array(IQ4_LEVELS, np.float32) if form.levels == "codebook" else None
    scale_type = "F16" if form.scales in ("plain", "minimums") else ""
    return Packed(
        kind, form, len(data), columns, low, high, scales, third, scale_type, table, tensor_scale=tensor_scale
    )


def pack_groups(
    codes: np.ndarray,
    scales: np.ndarray,
    third: np.ndarray | None,
    bits: int,
    group: int,
    scale_type: str = "F16",
    table: np.ndarray | None = None,
    order: np.ndarray | None = None,
) -> Packed:
    """Codes uint8 [N, K], scales float32 [N, ⌈K / group⌉], and zeros (uint8), offsets (float32) or None, as for
    `kernels.matrix.from_groups`. Raises ValueError for bits and groups that no decoder reads.
    """
    rows, columns = codes.shape
    kind = "" if third is None else "zeros" if third.dtype == np.uint8 else "minimums"
    form = replace(grouped_form(bits, 0 if group >= columns else group, kind, table is not None))
    form = form.fitted(columns)
    low, high = _pack_codes(codes, form)
    groups = form.groups(columns)
    if third is not None:
        third = _pack_scales(third if kind == "zeros" else _stored(third, scale_type), groups)
    stored = _pack_scales(_stored(scales, scale_type), groups)
    levels = None if table is None else np.ascontiguousarray(table, np.float32)
    places = None if order is None else np.ascontiguousarray(order, np.int32)
    return Packed("groups", form, rows, columns, low, high, stored, third, scale_type, levels, places)


def pack_elements(
    dtype: str,
    data: np.ndarray,
    scales: np.ndarray | None = None,
    tiling: tuple[int, int] = (128, 128),
    powers: bool | None = None,
) -> Packed:
    """8-bit floats uint8 [N, K], scales as `kernels.matrix.from_elements` takes them. Powers of two take a byte.

    powers: whether they are stored so, where these rows are a part of a matrix; None: what these scales allow.
    """
    rows, columns = data.shape
    values = np.ones((1, 1), np.float32) if scales is None else np.ascontiguousarray(scales, np.float32)
    a, b = (-(-rows // len(values)), columns) if values.shape in ((1, 1), (rows, 1)) else tiling
    if values.shape != (-(-rows // a), -(-columns // b)):
        raise ValueError(f"scales of {a} × {b} values of {rows} × {columns} are not {list(values.shape)}")
    powers = are_powers(scales) if powers is None else powers
    form = float8_form(dtype, 0 if b >= columns else b, 0 if a >= rows else a, powers).fitted(columns)
    low, _ = _pack_codes(data, form)
    stored = _exponents(values) if powers else values
    scale_type = "" if powers else "F32"
    planes = _pack_scales(stored, form.groups(columns))
    return Packed("elements", form, rows, columns, low, None, planes, None, scale_type)


def unpack_blocks(packed: Packed) -> np.ndarray:
    """The blocks that `pack_blocks` was given."""
    columns, form = packed.columns, packed.form
    third = packed.third
    if third is not None:
        used = columns // form.group if form.scales == "minimums" else columns // _SUPER_BLOCK
        third = np.ascontiguousarray(third[:used].T)
    scales = np.ascontiguousarray(packed.scales[: columns // form.group].T)
    return join(packed.source, Fields(unpack_codes(packed), scales, third))


def unpack_groups(packed: Packed) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The codes, scales, and zeros or offsets that `pack_groups` was given."""
    used = -(-packed.columns // packed.form.group) if packed.form.group else 1
    scales = _values(np.ascontiguousarray(packed.scales[:used].T), packed.scale_type)
    third = packed.third
    if third is not None:
        third = np.ascontiguousarray(third[:used].T)
        third = third if packed.form.scales == "zeros" else _values(third, packed.scale_type)
    return unpack_codes(packed), scales, third


def unpack_elements(packed: Packed) -> tuple[np.ndarray, np.ndarray]:
    """The elements that `pack_elements` was given, and the scales, one a tile."""
    used = -(-packed.columns // packed.form.group) if packed.form.group else 1
    stored = np.ascontiguousarray(packed.scales[:used].T)
    if packed.scale_type:
        return unpack_codes(packed), stored
    words = stored.astype(np.uint32) << np.uint32(23)
    return unpack_codes(packed), np.where(stored == 0, np.uint32(_LOWEST_POWER), words).view(np.float32)


def unpack_codes(packed: Packed) -> np.ndarray:
    """uint8 [N, K]: the codes in stored order."""
    form = packed.form
    shape = (packed.rows, packed.low.shape[0], form.slots, form.words)
    codes, low = np.empty(shape, np.uint8), packed.low.transpose(1, 0, 2)
    high = None if packed.high is None else packed.high.transpose(1, 0, 2)
    for slot in range(form.slots):
        codes[:, :, slot] = low >> np.uint32(slot * form.bits) & np.uint32((1 << form.bits) - 1)
        if high is not None:
            further = (high >> high.dtype.type(slot * form.high)).astype(np.uint8) & np.uint8((1 << form.high) - 1)
            codes[:, :, slot] |= further << np.uint8(form.bits)
    return np.ascontiguousarray(codes.reshape(packed.rows, -1)[:, : packed.columns])


def _pack_codes(codes: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray | None]:
    rows, columns = codes.shape
    tiles = form.tiles(columns)
    padded = np.zeros((rows, tiles * form.tile), np.uint8)
    padded[:, :columns] = codes
    parts = padded.reshape(rows, tiles, form.slots, form.words).transpose(2, 1, 0, 3)
    low = np.zeros(parts.shape[1:], np.uint32)
    high = np.zeros(parts.shape[1:], _HIGH_TYPES[form.slots * form.high]) if form.high else None
    for slot, part in enumerate(parts):
        low |= (part & np.uint8((1 << form.bits) - 1)).astype(np.uint32) << np.uint32(slot * form.bits)
        if high is not None:
            high |= (part >> np.uint8(form.bits)).astype(high.dtype) << high.dtype.type(slot * form.high)
    return low, high


def _pack_scales(scales: np.ndarray, groups: int) -> np.ndarray:
    """[N, used groups] → [groups, N]."""
    out = np.zeros((groups, len(scales)), scales.dtype)
    out[: scales.shape[1]] = scales.T
    return out


def _stored(values: np.ndarray, scale_type: str) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float32)
    if scale_type == "F32":
        return values
    return ops.from_float32(values, scale_type).view("<u2").reshape(values.shape)


def _values(stored: np.ndarray, scale_type: str) -> np.ndarray:
    return stored if scale_type == "F32" else ops.to_float32(stored.view(np.uint8), scale_type)


def are_powers(scales: np.ndarray | None) -> bool:
    """Whether several scales are all powers of two that E8M0 has."""
    if scales is None or scales.size < 2:
        return False
    values = np.ascontiguousarray(scales, np.float32)
    words = values.view(np.uint32)
    normal = (words & 0x007FFFFF == 0) & (words >= 0x00800000) & (words < 0x7F800000)
    return bool((normal | (words == _LOWEST_POWER)).all())


def _exponents(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 23).astype(np.uint8)
