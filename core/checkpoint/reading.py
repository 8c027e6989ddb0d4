"""What all readers share: rows by position from plain files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Columns, Container
from core.checkpoint.dtypes import decode, row_bytes
from core.checkpoint.files import OpenedFile, digest_headers, read_exactly, read_stretches
from core.parts import Run
from core.tensor_info import TensorInfo

PIECE = 1024  # where a row may be cut: every block, every packed word and every piece of a sum ends there


class FileCheckpoint(Checkpoint):
    """Tensors that lie contiguous and row-major in files. A reader of a container fills the fields."""

    def __init__(
        self,
        path: Path,
        container: Container,
        opened: Sequence[OpenedFile],
        tensors: Sequence[TensorInfo],
        *,
        config: Mapping[str, Any] | None = None,
        side_files: Sequence[Path] = (),
        architecture: str = "",
        notes: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.path = path
        self.container = container
        self.opened = tuple(opened)
        self.files = tuple(file.path for file in opened)
        self.tensors = tuple(tensors)
        self.config = config or {}
        self.side_files = tuple(side_files)
        self.architecture = architecture
        self.notes = tuple(notes)  # (code, detail) of what the reader met and the doctor puts in words

    @property
    def file_bytes(self) -> int:
        return sum(f.size for f in self.opened)

    def read_raw(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        start, stop = row_range(tensor, start, stop)
        size = row_bytes(tensor.dtype, tensor.columns)
        file = self.opened[tensor.file]
        if columns in (None, (0, tensor.columns)):
            out = np.empty((stop - start, size), np.uint8)
            if out.size:
                read_exactly(file, tensor.offset + start * size, out)
            return out
        left, right = column_range(tensor, columns)
        first, width = row_bytes(tensor.dtype, left), row_bytes(tensor.dtype, right - left)
        out = np.empty((stop - start, width), np.uint8)
        for row in range(start, stop):
            read_exactly(file, tensor.offset + row * size + first, out[row - start])
        return out

    def read_run(self, tensor: TensorInfo, run: Run) -> np.ndarray:
        out = np.empty((run.count, run.nbytes), np.uint8)
        read_stretches(self.opened[tensor.file], tensor.offset + run.offset, run.stride, out)
        return out.reshape(-1)

    def read_rows(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        left, right = column_range(tensor, columns)
        return decode(self.read_raw(tensor, start, stop, columns), tensor.dtype, right - left)

    def fingerprint(self) -> str:
        return digest_headers(self.opened)


def row_range(tensor: TensorInfo, start: int, stop: int | None) -> tuple[int, int]:
    """start…stop as rows of the tensor. Raises IndexError outside of it."""
    stop = tensor.rows if stop is None else stop
    if not 0 <= start <= stop <= tensor.rows:
        raise IndexError(f"rows {start}…{stop} of {tensor.name}, which has {tensor.rows}")
    return start, stop


def column_range(tensor: TensorInfo, columns: Columns | None) -> Columns:
    """The columns, all for None. Raises IndexError outside of the tensor."""
    left, right = columns or (0, tensor.columns)
    if not 0 <= left <= right <= tensor.columns:
        raise IndexError(f"columns {left}…{right} of {tensor.name}, which has {tensor.columns}")
    return left, right


def windows(rows: int, columns: int, values: int, unit: int = 1) -> Iterator[tuple[int, int, Columns]]:
    """(first row, last row, columns) of pieces of a matrix of some `values` values each, row by row.

    Whole rows as long as `unit` of them are no more than that; else `unit` rows go together, cut at multiples of PIECE.
    """
    if unit * columns <= values:
        height = max(unit, min(values // max(1, columns), 1 << 16) // unit * unit)
        yield from ((start, min(rows, start + height), (0, columns)) for start in range(0, rows, height))
        return
    width = max(PIECE, values // unit // PIECE * PIECE)
    for start in range(0, rows, unit):
        for left in range(0, columns, width):
            yield start, min(rows, start + unit), (left, min(columns, left + width))
