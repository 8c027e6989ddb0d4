"""Packed weights as matrices of the engine, by the kind of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core.formats.numbers import Integers, Numbers
from core.packed.weight import PackedWeight
from core.runtime.reading import NoLayout, Reading
from kernels import matrix
from kernels.matrix import Matrix

Build = Callable[[PackedWeight, int, int, Reading], Matrix]


def packed_matrix(weight: PackedWeight, start: int, stop: int, reading: Reading) -> Matrix:
    """Rows start…stop of a weight. Raises NoLayout, before anything is read, where the engine has no layout for it."""
    if weight.order is not None:
        raise NoLayout("the engine has no layout for columns in an order of their own")
    build = _BUILD.get(type(weight.format.numbers))
    if build is None:
        raise NoLayout(f"the engine has no layout for {weight.format.numbers.label}")
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
    return matrix.from_groups(stop - start, columns, numbers.bits, size, read, numbers.scale.label, numbers.symmetric)


_BUILD: dict[type[Numbers], Build] = {Integers: _integers}
