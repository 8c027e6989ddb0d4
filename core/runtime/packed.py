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
from core.formats.numbers import Integers, Numbers
from core.formats.scaled8 import Scaled8
from core.packed.weight import PackedWeight
from core.runtime.reading import NoLayout, Reading
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
    if weight.order is not None and build is not _integers:
        raise NoLayout(f"the engine has no layout for {weight.format.numbers.label} in an order of its own")
    return build(weight, start, stop, reading)


def _integers(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    numbers = weight.format.numbers
    assert isinstance(numbers, Integers)
    row = weight.nbytes // max(weight.shape[0], 1)

    def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        codes = weight.codes(start + first, start + last).rows_of_their_own()
        reading.took((last - first) * row)
        return codes.codes, codes.scales, codes.zeros

    columns = weight.shape[1]
    size = numbers.size or columns
    label, symmetric = numbers.scale.label, numbers.symmetric
    return reading.matrices.from_groups(
        stop - start, columns, numbers.bits, size, read, label, symmetric, order=weight.order
    )


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


def _affine(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    numbers = weight.format.numbers
    assert isinstance(numbers, Affine)
    row = weight.nbytes // max(prod(weight.shape[:-1]), 1)

    def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        return codes.codes, codes.scales, numbers.offsets(codes)

    rows, columns, label = stop - start, weight.shape[-1], numbers.scale.label
    return reading.matrices.from_groups(rows, columns, numbers.bits, numbers.size, read, label, offsets=True)


def _real_zeros(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    """With −zero · scale as offsets, in float32: a value is what it was but for one rounding."""
    numbers = weight.format.numbers
    assert isinstance(numbers, RealZeros)
    row = weight.nbytes // max(prod(weight.shape[:-1]), 1)

    def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        assert codes.zeros is not None
        return codes.codes, codes.scales, -codes.zeros * codes.scales

    return reading.matrices.from_groups(
        stop - start, weight.shape[-1], numbers.bits, numbers.size, read, "F32", offsets=True
    )


def _codebook(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    numbers = weight.format.numbers
    assert isinstance(numbers, Codebook)
    columns = weight.shape[1]
    if columns % numbers.size:
        raise NoLayout(f"blocks of {numbers.size} run on from one row of {format_count(columns)} to the next")
    row = weight.nbytes // max(weight.shape[0], 1)

    def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray, None]:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        return codes.codes, codes.scales, None

    return reading.matrices.from_groups(stop - start, columns, 4, numbers.size, read, "F32", table=numbers.levels)


def _absmax_rows(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    numbers = weight.format.numbers
    assert isinstance(numbers, AbsmaxRows)
    row, columns = weight.nbytes // max(weight.shape[0], 1), weight.shape[1]

    def read(first: int, last: int) -> tuple[np.ndarray, np.ndarray, None]:
        codes = weight.codes(start + first, start + last)
        reading.took((last - first) * row)
        return codes.codes, numbers.steps(codes), None

    return reading.matrices.from_groups(stop - start, columns, 8, columns, read, "F32")


_BUILD: dict[type[Numbers], Build] = {
    Integers: _integers,
    Float4: _float4,
    Float8: _float8,
    Affine: _affine,
    RealZeros: _real_zeros,
    Codebook: _codebook,
    AbsmaxRows: _absmax_rows,
}
