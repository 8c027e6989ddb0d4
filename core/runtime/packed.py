"""Packed weights as matrices of the engine, by the kind of their numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from core.formats.affine import Affine, RealZeros
from core.formats.bitsandbytes import AbsmaxRows
from core.formats.codebook import Codebook
from core.formats.float4 import NVFP4, Float4
from core.formats.float8 import Float8, float_scales
from core.formats.numbers import Codes, Integers, Numbers
from core.formats.scaled8 import Scaled8
from core.packed.weight import PackedWeight
from core.runtime.reading import PROCESSOR, Matrices, NoLayout, Reading
from core.units import format_count
from kernels import families, ops
from kernels.layouts import LAYOUTS
from kernels.matrix import Matrix

Build = Callable[[PackedWeight, int, int, Reading], Matrix]


def packed_matrix(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    """Rows start…stop of a weight. Raises NoLayout, before anything is read, where the engine has no layout for it."""
    if weight.transposed:
        raise NoLayout("the engine has no layout for rows and columns exchanged")
    build = _BUILD.get(type(weight.format.numbers))
    if build is None:
        raise NoLayout(f"the engine has no layout for {weight.format.numbers.label}")
    if weight.order is not None and not isinstance(weight.format.numbers, Integers):
        raise NoLayout(f"the engine has no layout for {weight.format.numbers.label} in an order of its own")
    return build(weight, start, stop, reading)


def grouped_matrix(
    numbers: Numbers,
    rows: int,
    columns: int,
    read: Callable[[int, int], Codes],
    matrices: Matrices = PROCESSOR,
    order: np.ndarray | None = None,
) -> Matrix:
    """Integers, or places in a table, with scales for neighbours of a row. read(start, stop) → codes of these rows,
    called in order; what it raises passes through. Raises ValueError before it is called, NoLayout or that of
    `from_groups`, where the engine has no layout for them."""
    size = numbers.group or columns
    if not isinstance(numbers, _GROUPED):
        raise NoLayout(f"the engine has no layout for {numbers.label}")
    if isinstance(numbers, Codebook) and columns % size:
        raise NoLayout(f"blocks of {size} run on from one row of {format_count(columns)} to the next")

    def groups(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        some = read(start, stop).rows_of_their_own()
        if isinstance(numbers, AbsmaxRows):
            return some.codes, numbers.steps(some), None
        if isinstance(numbers, Affine):
            return some.codes, some.scales, numbers.offsets(some)
        if isinstance(numbers, RealZeros):  # in float32: a value is what it was but for one rounding
            assert some.zeros is not None
            return some.codes, some.scales, -some.zeros * some.scales
        return some.codes, some.scales, some.zeros

    if isinstance(numbers, Integers):
        bits, label, symmetric = numbers.bits, numbers.scale.label, numbers.symmetric
        return matrices.from_groups(rows, columns, bits, size, groups, label, symmetric, order=order)
    if isinstance(numbers, Affine | RealZeros):
        label = numbers.scale.label if isinstance(numbers, Affine) else "F32"
        return matrices.from_groups(rows, columns, numbers.bits, size, groups, label, offsets=True)
    if isinstance(numbers, Codebook):
        return matrices.from_groups(rows, columns, 4, size, groups, "F32", table=numbers.levels)
    return matrices.from_groups(rows, columns, 8, columns, groups, "F32")


def _groups(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    row = weight.nbytes // max(prod(weight.shape[:-1]), 1)

    def read(first: int, last: int) -> Codes:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        return codes

    numbers = weight.format.numbers
    return grouped_matrix(numbers, stop - start, weight.shape[-1], read, reading.matrices, weight.order)


def _float4(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    numbers = weight.format.numbers
    assert isinstance(numbers, Float4)
    rows, columns = stop - start, weight.shape[-1]
    row = weight.nbytes // max(prod(weight.shape[:-1]), 1)
    kind = "NVFP4" if numbers.scale is NVFP4.scale else "MXFP4"
    factor = weight.codes(start, start + 1).tensor_scale

    def blocks(first: int, last: int) -> np.ndarray:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        try:
            return families.blocks_from_fp4(codes.codes, codes.scales, kind)
        except ValueError as error:
            raise NoLayout(str(error)) from error

    def groups(first: int, last: int) -> tuple[np.ndarray, np.ndarray, None]:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        return codes.codes, ops.to_float32(codes.scales, numbers.scale.label) * np.float32(factor), None

    if columns % LAYOUTS[kind].block:  # a row that GGML's blocks of 64 do not fill
        return reading.matrices.from_groups(rows, columns, 4, numbers.group, groups, "F32", table=families.E2M1_TABLE)
    return reading.matrices.from_blocks(kind, rows, columns, blocks, factor)


def _float8(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    form, numbers, columns = weight.format, weight.format.numbers, weight.shape[1]
    assert isinstance(numbers, Float8)
    if numbers.fnuz or not isinstance(form, Scaled8):
        raise NoLayout(f"the engine has no layout for {numbers.label}")
    rows, tile = stop - start, numbers.tile
    scales = float_scales(form.unpack_scales(weight.raw(1, start, stop), rows + (start % tile if tile > 1 else 0)))
    if tile > 1 and start % tile:  # the first tile is cut
        scales, tile = np.repeat(scales, tile, axis=0)[start % tile :][:rows], 1

    def read(first: int, last: int) -> np.ndarray:
        raw = weight.raw(0, start + first, start + last)
        reading.took(raw.nbytes)
        return raw.reshape(last - first, columns)

    tiling = (tile or rows, numbers.group or columns)
    return reading.matrices.from_elements(numbers.element.label, rows, columns, read, scales, tiling)


_GROUPED = (Integers, Affine, RealZeros, Codebook, AbsmaxRows)
_BUILD: dict[type[Numbers], Build] = {Float4: _float4, Float8: _float8, **dict.fromkeys(_GROUPED, _groups)}
