"""A checkpoint: header first, values in row blocks when asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from core.errors import UserError
from core.parts import Run
from core.tensor_info import TensorInfo
from kernels.rotation import Rotation

Columns = tuple[int, int]  # columns first … last of each row, the last not included


class Container(Enum):
    """How the tensors are stored."""

    SAFETENSORS = "safetensors"
    GGUF = "GGUF"
    PYTORCH = "PyTorch"


class Checkpoint(ABC):
    """An open checkpoint. Opening reads headers only; nothing here ever holds the whole model.

    A tensor of shape (…, K) is seen as `rows` × K, rows being all other axes multiplied. Reading is thread-safe.
    """

    path: Path
    container: Container
    files: tuple[Path, ...]
    tensors: tuple[TensorInfo, ...]
    config: Mapping[str, Any]  # config.json of a folder, {} when there is none
    side_files: tuple[Path, ...]  # tokenizer, generation config, template, licence, README … of a folder
    architecture: str  # 'llama', 'qwen3moe' …; '' when it can not be told
    packed_problem: UserError | None = None  # why weights that are packed in it can not be read
    rotations: Mapping[str, Rotation] = MappingProxyType({})  # of weights that it gives as W R, by name

    @property
    def stored(self) -> Checkpoint:
        """The checkpoint as it lies on the disk; another one where this is a view of its packed weights."""
        return self

    @property
    def changed(self) -> bool:
        """Whether it shows other values than those of the files: then only the view itself has them."""
        return False

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF keys and values (arrays are read when asked for); {} for other containers."""
        return {}

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name. Raises KeyError."""
        return self._by_name[name]

    @property
    def _by_name(self) -> dict[str, TensorInfo]:
        cached = self.__dict__.get("_by_name_cache")
        if cached is None:
            cached = self.__dict__["_by_name_cache"] = {t.name: t for t in self.tensors}
        return cached

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all tensors, each shared storage counted once."""
        return sum(t.nbytes for t in self.tensors if not t.tied_to)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files with weights, headers included, as they were when they were opened."""
        return sum(f.stat().st_size for f in self.files)

    @abstractmethod
    def read_raw(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        """Stored bytes of rows start…stop as uint8 [rows, bytes of a row]. Raises UserError when the file is short.

        columns: only these of each row, for rows too long to be held; both ends where a block of the type ends.
        """

    @abstractmethod
    def read_rows(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        """Values as float32 [rows, K], decoded; arguments and errors as `read_raw`."""

    def read_run(self, tensor: TensorInfo, run: Run) -> np.ndarray:
        """Some of a tensor's stored bytes, uint8 [run.total]; errors as `read_raw`."""
        raw = self.read_raw(tensor).reshape(-1)
        starts = range(run.offset, run.offset + run.count * run.stride, run.stride) if run.count > 1 else (run.offset,)
        return np.concatenate([raw[at : at + run.nbytes] for at in starts])

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest over header bytes, file sizes and modification times: cheap, changes when the source does."""

    def close(self) -> None:  # noqa: B027 - a reader that holds nothing has nothing to release
        """Release file handles and maps."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
