"""The stored arrays that a tensor becomes, and where the bytes of some of its rows and columns lie in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Axis:
    """How positions along an axis of the tensor map to a stored array: `units` of it for every `per` positions.

    per 0: the array has one unit for all of them.
    """

    units: int = 1
    per: int = 1

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """First unit, and the one after the last, that positions start…stop touch."""
        if not self.per:
            return 0, self.units
        return start * self.units // self.per, -(-stop * self.units // self.per)


ONE = Axis(1, 0)


@dataclass(frozen=True)
class Run:
    """Bytes of a stored array: `count` stretches of `nbytes` each, `stride` apart, the first at `offset`."""

    offset: int
    nbytes: int
    count: int = 1
    stride: int = 0

    @property
    def total(self) -> int:
        return self.nbytes * self.count


@dataclass(frozen=True)
class Lanes:
    """A matrix as runs of `length` values, row after row; runs i, i + count, i + 2·count … are stored together: lane i.

    count: of lanes. runs: of all. most: runs of a lane; the last lanes may have fewer.
    """

    length: int
    count: int
    runs: int
    most: int

    def pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The runs of lanes start…stop, as stretches of runs: one for each place in a lane, in order."""
        firsts = range(start, self.runs, self.count)
        return [(first, min(first + stop - start, self.runs)) for first in firsts]

    def cut(self, lanes: int) -> list[tuple[int, int]]:
        """All lanes, so many at once; those that have fewer runs than the others one by one."""
        full = max(0, min(self.count, self.runs - (self.most - 1) * self.count))
        starts = [*range(0, full, lanes), *range(full, self.count)]
        return [(a, min(b, full) if a < full else b) for a, b in zip(starts, [*starts[1:], self.count], strict=True)]


@dataclass(frozen=True)
class Part:
    """One stored array of a tensor. suffix goes after the tensor's base name ('_packed'); '' for the tensor itself,
    and one that begins with '.' replaces '.weight'.

    dtype: a safetensors dtype, or a GGML type name for block types. shape: as the container lists it, in elements.
    rows, columns: where the bytes of a window of the tensor lie; the array is seen as rows × columns, or, `across`, as
    columns × rows. constant: it comes from the shape alone.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    rows: Axis = Axis()
    columns: Axis = Axis()
    across: bool = False
    constant: bool = False

    def run(self, shape: Sequence[int], rows: tuple[int, int], columns: tuple[int, int]) -> Run:
        """The bytes that rows and columns of a tensor of that shape touch; rows: all axes but the last, multiplied."""
        height, width = self.rows.window(0, prod(shape[:-1]))[1], self.columns.window(0, shape[-1])[1]
        item = self.nbytes // max(1, height * width)
        (top, bottom), (left, right) = self.rows.window(*rows), self.columns.window(*columns)
        if self.across:
            (top, bottom), (left, right), width = (left, right), (top, bottom), height
        if (left, right) == (0, width):
            return Run(top * width * item, (bottom - top) * width * item)
        return Run((top * width + left) * item, (right - left) * item, bottom - top, width * item)

    def lane_run(self, lanes: Lanes, start: int, stop: int) -> Run:
        """The same for lanes start…stop: the array has a row a lane, or a row a run."""
        if self.shape[0] == lanes.count:
            item = self.nbytes // max(1, lanes.count)
            return Run(start * item, (stop - start) * item)
        item = self.nbytes // max(1, lanes.runs)
        return Run(start * item, (stop - start) * item, len(lanes.pieces(start, stop)), lanes.count * item)
