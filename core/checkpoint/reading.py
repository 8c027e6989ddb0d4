"""What all readers share: rows by position from plain files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.dtypes import decode, row_bytes
from core.checkpoint.files import OpenedFile, digest_headers, read_exactly
from core.tensor_info import TensorInfo


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

    def read_raw(self, tensor: TensorInfo, start: int = 0, stop: int | None = None) -> np.ndarray:
        start, stop = row_range(tensor, start, stop)
        size = row_bytes(tensor.dtype, tensor.columns)
        out = np.empty((stop - start, size), np.uint8)
        if out.size:
            read_exactly(self.opened[tensor.file], tensor.offset + start * size, out)
        return out

    def read_rows(self, tensor: TensorInfo, start: int = 0, stop: int | None = None) -> np.ndarray:
        return decode(self.read_raw(tensor, start, stop), tensor.dtype, tensor.columns)

    def fingerprint(self) -> str:
        return digest_headers(self.opened)


def row_range(tensor: TensorInfo, start: int, stop: int | None) -> tuple[int, int]:
    """start…stop as rows of the tensor. Raises IndexError outside of it."""
    stop = tensor.rows if stop is None else stop
    if not 0 <= start <= stop <= tensor.rows:
        raise IndexError(f"rows {start}…{stop} of {tensor.name}, which has {tensor.rows}")
    return start, stop
