"""One group of one row, opened to its bits: values, scales, codes, the bytes that hold them, and what is read back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint
from core.plan import Plan
from core.recipe import Recipe
from core.tensor_info import TensorInfo

WINDOW = 128  # values shown at once where one scale holds for a whole row or tensor, or there is none


@dataclass(frozen=True)
class BitField:
    """Some bits of a stored number, and the bytes that hold them.

    array: index into GroupMap.arrays. offset: first byte, absolute in that array's file. data: the bytes, as they stand
    there. bit, width: which bits of these bytes, read as one little-endian number. shift: where they go in the number.
    digit: for base-3 packing (TQ1_0) which of a byte's ternary digits, first is 0, else −1; bit and width are then those
    of the whole byte.
    """

    array: int
    offset: int
    data: bytes
    bit: int
    width: int
    shift: int = 0
    digit: int = -1

    @property
    def hex(self) -> str:
        """The bytes in file order, '3f a0'."""
        return self.data.hex(" ")


@dataclass(frozen=True)
class Metadata:
    """A scale, minimum or zero point. meaning: 'scale', 'minimum', 'zero point', 'super-scale', 'super-minimum',
    'sub-scale', 'sub-minimum', 'tensor scale'. value: the number as arithmetic uses it, weight units for scales
    and minima, codes for zero points, a multiplier for sub-scales. code: the stored integer; None for floats.
    """

    meaning: str
    value: float
    code: int | None
    fields: tuple[BitField, ...]


@dataclass(frozen=True)
class StoredArray:
    """One array of the file. file: name inside the output folder; '' for a single file. name: of the tensor as stored.
    offset, nbytes: its place in the file."""

    file: str
    name: str
    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SourceRow:
    """Where the row's original values come from: row `row` of tensor `tensor`; add: what conversion adds to each."""

    tensor: str
    row: int
    add: float = 0.0


@dataclass(frozen=True)
class GroupMap:
    """One group. All arrays have one entry a value; `columns` are theirs.

    row counts the tensor's rows (all axes but the last multiplied); expert: of a stack, else None. window: the group is
    longer than what is shown. formula: how a value is read back, in the names of `metadata`.
    original: float32 values of the source, None when a stored file is looked at. codes: stored integers (unsigned as
    they stand in the bits). levels: what each code stands for before scaling (q − zero, a codebook's entry).
    reconstruction: float32. half_step: half the distance to the neighbouring level on the original's side, the largest
    error that rounding alone makes (s/2 for evenly spaced levels), weight units. error: reconstruction − original, None
    without an original.
    """

    tensor: str
    format: str
    shape: tuple[int, ...]
    row: int
    expert: int | None
    group: int
    group_size: int
    columns: tuple[int, int]
    window: bool
    arrays: tuple[StoredArray, ...]
    source: SourceRow | None
    formula: str
    metadata: tuple[Metadata, ...]
    original: np.ndarray | None
    codes: np.ndarray
    levels: np.ndarray
    fields: tuple[tuple[BitField, ...], ...]
    reconstruction: np.ndarray
    half_step: np.ndarray

    @property
    def error(self) -> np.ndarray | None:
        return None if self.original is None else self.reconstruction - self.original


@dataclass(frozen=True)
class Variant:
    """The same values under one granularity. name: 'per tensor', 'per channel', 'groups of 128' …; group: 0 for per
    channel, −1 for per tensor. scale, zero: of the values' (first) group; boundaries: columns where groups begin.
    reconstruction: float32, one a shown value. snr_db, max_error: of the shown values. effective_bits: a value, scales
    and zero points included."""

    name: str
    group: int
    bits: int
    symmetric: bool
    scale: float
    zero: int
    boundaries: tuple[int, ...]
    codes: np.ndarray
    reconstruction: np.ndarray
    snr_db: float
    max_error: float
    row_snr_db: float
    effective_bits: float


def planned_group(checkpoint: Checkpoint, plan: Plan, index: int, row: int, column: int) -> GroupMap:
    """The group of value (row, column) of planned tensor number `index`, as it will stand in the output of the plan.

    Raises UserError when its values can not be stored, IndexError for a place outside of the tensor.
    """
    raise NotImplementedError


def stored_group(checkpoint: Checkpoint, tensor: TensorInfo, row: int, column: int) -> GroupMap:
    """What is in the file already: the group of value (row, column) of a tensor of a checkpoint; original is None."""
    raise NotImplementedError


def recipe_with(recipe: Recipe, name: str, format_name: str) -> Recipe:
    """The recipe with that format for that tensor alone, before all other rules: to look at another format's group."""
    raise NotImplementedError


def side_by_side(
    rows: np.ndarray,
    row: int,
    columns: tuple[int, int],
    bits: int,
    symmetric: bool,
    tensor_range: tuple[float, float] | None = None,
) -> tuple[Variant, ...]:
    """Columns of one of the rows, float32 [R, K], under per tensor, per channel, groups of 128, 64 and 32.

    tensor_range: lowest and highest value of the whole tensor, where `rows` is a part of it. Round to nearest, float16
    scales. Groups that do not divide K are left out.
    """
    raise NotImplementedError
