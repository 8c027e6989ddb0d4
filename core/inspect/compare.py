"""Two checkpoints tensor by tensor: source and result, or two results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from core.checkpoint.base import Checkpoint
from core.progress import CancelToken, ErrorStats


class Match(Enum):
    """What could be compared."""

    COMPARED = "compared"
    SHAPES = "shapes differ"
    ONLY_LEFT = "only in the first"
    ONLY_RIGHT = "only in the second"
    UNREADABLE = "can not be decoded"


@dataclass(frozen=True)
class WorstChannel:
    """axis: 'output' or 'input'. share: of the tensor's squared error. snr_db: of the channel alone."""

    axis: str
    index: int
    max_error: float
    rms_error: float
    share: float
    snr_db: float


@dataclass(frozen=True)
class CompareRow:
    """One tensor. name: as the first calls it ('' when only the second has it), other_name: as the second does.

    error: the second's deviation from the first, None unless compared. nrmse: √(Σ(x−y)² / Σx²), nan unless compared.
    note: what was undone or why it could not be compared. worst: channels with most of the squared error.
    """

    name: str
    other_name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    format: str
    other_format: str
    match: Match
    layer: int | None
    role: str
    error: ErrorStats | None
    nrmse: float
    worst: tuple[WorstChannel, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class CompareStep:
    """row: None between the pieces of a large tensor. share: of all bytes, 0 … 1."""

    index: int
    count: int
    share: float
    row: CompareRow | None


SORT_KEYS = ("order", "name", "snr", "max_error", "nrmse", "match")


def compare(first: Checkpoint, second: Checkpoint, token: CancelToken) -> Iterator[CompareStep]:
    """Every tensor of both; permuted rows, norm offsets and stacked experts of a GGUF are undone on the way.

    Raises UserError when the two have no tensor in common, Cancelled.
    """
    raise NotImplementedError


def sort_rows(rows: Iterable[CompareRow], key: str, descending: bool = False) -> list[CompareRow]:
    """By one of SORT_KEYS; rows without a figure go last either way."""
    raise NotImplementedError


def to_csv(rows: Iterable[CompareRow]) -> str:
    """One line a tensor, RFC 4180, with a header; empty cells where there is no figure, 'inf' for an exact copy."""
    raise NotImplementedError


def to_json(rows: Iterable[CompareRow]) -> str:
    """One object {"tensors": [...]}; null where there is no figure and for an infinite SNR with "exact": true."""
    raise NotImplementedError
