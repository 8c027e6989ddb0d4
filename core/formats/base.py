"""A number format: pure functions from values to stored parts and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from core.contract import ByteCount, ElementType, NumericContract, PerChannel, PerGroup, SuperBlock
from core.parts import Lanes, Part
from kernels import ops
from kernels.long_rows import ReadPieces, RowScales

if TYPE_CHECKING:
    from core.formats.numbers import Codes, Numbers


class Method(Enum):
    """How the numbers inside an artifact are chosen. It is no part of the artifact."""

    ROUND = "round-to-nearest"
    SEARCH = "clip-search"
    HALF_QUADRATIC = "half-quadratic"


METHODS = frozenset({Method.SEARCH, Method.ROUND})  # that every format with scales knows


@dataclass(frozen=True)
class EncodeOptions:
    """What encode needs besides the values. importance: float32 [K] weight of each column's squared error, or None.

    amax: largest |value| of the whole matrix (of the expert, in a stack), for formats whose `needs_amax` is set; of all
    matrices that a runtime fuses into one, where the format `fuses`. fitted: what else `fit` found in the matrix.
    rows: what `fit_rows` found for whole rows of which only a piece is encoded now; None for whole rows.
    input_amax: largest |activation| that the matrix is multiplied with, for formats that `need_input`.
    """

    method: Method = Method.SEARCH
    importance: np.ndarray | None = None
    amax: float = 0.0
    threads: int = 1
    rows: RowScales | None = None
    fitted: Any = None
    input_amax: float = 0.0


class Format(ABC):
    """One numeric format. Instances are immutable and stand in `core.formats.FORMATS`.

    A tensor is encoded in row blocks: `encode` of consecutive blocks, each put where `Part.run` says, equals `encode`
    of the whole, as long as each block but the last has a multiple of `unit_rows` rows. Rows that are too long to be
    held are encoded in pieces that end at multiples of 1024 columns.
    ecosystem: of `core.export.ecosystems`, for folders; '' where any can store it. numbers: what its codes stand for,
    where codes of another packing can be taken over as they are. fuses: one scale serves all matrices
    that runtimes fuse (query, key and value; gate and up). weighs_columns: a search takes `importance`;
    needs_importance: without it too little is left of a model. methods: that can choose its numbers. derived: what is
    stored does not come from the tensor's values.
    """

    name: str  # as the user writes it: 'Q4_K', 'w4a16-g128'
    container: str  # 'gguf' or 'safetensors'
    contract: NumericContract
    ecosystem: str = ""
    numbers: Numbers | None = None
    needs_amax: bool = False
    needs_input: bool = False
    fuses: bool = False
    derived: bool = False
    weighs_columns: bool = False
    needs_importance: bool = False
    methods: frozenset[Method] = METHODS
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

    def lanes(self, shape: Sequence[int]) -> Lanes | None:
        """For a format that stores distant values together: what a block is then cut along. A block is lanes, its
        values are the runs in them, [runs, length], in the order of `Lanes.pieces`, and `Part.lane_run` says where."""
        return None

    def unit_rows(self, shape: Sequence[int]) -> int:
        """Rows that share stored bytes: a block ends at a multiple of them, or with the matrix."""
        return 1

    def cuts_rows(self, shape: Sequence[int]) -> bool:
        """Whether rows that are too long may be encoded in pieces; else `unit_rows` of them are held at once."""
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

    def fit(self, read: ReadPieces, options: EncodeOptions) -> EncodeOptions:
        """For a format that `needs_amax`: options with what has to be known of the whole matrix, from its pieces."""
        return replace(
            options, amax=max((float(ops.scan(piece, options.threads).amax) for piece in read()), default=0.0)
        )

    def for_numbers(self, numbers: Numbers) -> Format | None:
        """This format, with the float type that scales of these numbers have, if it can store their codes as they are:
        `pack` then does so, and the conversion loses nothing."""
        return None

    def rounding(self, numbers: Numbers) -> float:
        """By how much of itself a value may change when codes of these numbers are packed in this, which `for_numbers`
        gave for them; 0: not at all.

        More than 0 only where a scale is stored as its reciprocal, of which float32 has the last bit wrong.
        """
        return 0.0

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        """Codes of some rows → one array a part, in the order of `parts`; empty for constant parts."""
        raise NotImplementedError(self.name)

    def with_input(self, codes: Codes, options: EncodeOptions) -> Codes:
        """For a format that `needs_input`: codes with the scale of the activations, unless their source has it."""
        return codes

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        """The bytes of the parts that are `constant`, by number; `encode` returns them empty."""
        return {}

    def bound_group(self, columns: int) -> int:
        """Neighbours along a row over whose largest |x| `error_bound` is meant."""
        g = self.contract.granularity
        return g.size if isinstance(g, PerGroup | SuperBlock) else columns

    def bound_view(self, values: np.ndarray) -> np.ndarray:
        """Rows [R, K] of values as rows whose neighbours in groups of `bound_group` are the groups that are meant."""
        return values

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
