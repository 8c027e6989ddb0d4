"""A number format: pure functions from values to stored parts and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from core.contract import ByteCount, ElementType, NumericContract, PerChannel, PerGroup, SuperBlock
from kernels.long_rows import ReadPieces, RowScales


class Method(Enum):
    """How the numbers inside an artifact are chosen. It is no part of the artifact."""

    ROUND = "round-to-nearest"
    SEARCH = "clip-search"


@dataclass(frozen=True)
class Part:
    """One stored array of a tensor. suffix goes after the tensor's base name ('_packed'); '' for the tensor itself.

    dtype: a safetensors dtype, or a GGML type name for block types. shape: as the container lists it, in elements.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class EncodeOptions:
    """What encode needs besides the values. importance: float32 [K] weight of each column's squared error, or None.

    amax: largest |value| of the whole matrix (of the expert, in a stack), for formats whose `needs_amax` is set.
    rows: what `fit_rows` found for whole rows of which only a piece is encoded now; None for whole rows.
    """

    method: Method = Method.SEARCH
    importance: np.ndarray | None = None
    amax: float = 0.0
    threads: int = 1
    rows: RowScales | None = None


class Format(ABC):
    """One numeric format. Instances are immutable and stand in `core.formats.FORMATS`.

    A tensor is encoded in row blocks: `encode` of consecutive blocks, appended part by part, equals `encode` of the
    whole, as long as each block but the last has a multiple of `row_multiple` rows. Rows that are too long to be held
    are encoded in pieces that end at multiples of 1024 columns.
    """

    name: str  # as the user writes it: 'Q4_K', 'w4a16-g128'
    container: str  # 'gguf' or 'safetensors'
    contract: NumericContract
    row_multiple: int = 1
    needs_amax: bool = False
    error_bound: float = 0.0  # |x−x̂| ≤ error_bound × largest |x| of the scale's group, whatever the method

    @abstractmethod
    def accepts(self, shape: Sequence[int]) -> str:
        """'' when a tensor of this shape can be stored, else one plain clause that says why not."""

    @abstractmethod
    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        """The arrays that a tensor of this shape becomes, in the order `encode` returns them."""

    @abstractmethod
    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        """Exact bytes by kind; the total equals the sum of the parts' nbytes."""

    def part_offset(self, part: int, shape: Sequence[int], row: int, column: int = 0) -> int:
        """Where in part number `part` of a tensor of this shape the bytes of a block starting there go."""
        before = self.parts((row, shape[-1]))[part].nbytes if row else 0
        return before + (self.parts((1, column))[part].nbytes if column else 0)

    def has_rows(self, part: int) -> bool:
        """Whether each row of the tensor has one of its own in this part; else a block's rows share what they have."""
        return True

    @property
    def scales_rows(self) -> bool:
        """Whether one scale is meant for a whole row, however long."""
        return isinstance(self.contract.granularity, PerChannel)

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        """For a format that `scales_rows`: the scales of rows from their pieces, which `encode` then takes.

        Raises ValueError for NaN and Inf.
        """
        raise NotImplementedError(self.name)

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        """Parts that do not come from the values, by number; `encode` returns them empty."""
        return {}

    def bound_group(self, columns: int) -> int:
        """Neighbours along a row over whose largest |x| `error_bound` is meant."""
        g = self.contract.granularity
        return g.size if isinstance(g, PerGroup | SuperBlock) else columns

    def bound(self, method: Method) -> float:
        """`error_bound`, or less where a method promises more."""
        return self.error_bound

    def bound_floor(self, options: EncodeOptions) -> float:
        """Where the largest |x| of a group is less, `bound` is a share of this instead: the type ends there.

        float16 has its full digits down to 2^-14; no other type here ends before 2^-100.
        """
        return 2.0**-14 if self.contract.element is ElementType.F16 else 2.0**-100

    @abstractmethod
    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        """float32 [R, K] → one uint8 array a part (its bytes in file order).

        Inf and NaN raise ValueError; a format without scales keeps them.
        """

    @abstractmethod
    def decode(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> np.ndarray:
        """The parts of R whole rows (uint8 arrays) → float32 [R, K]."""
