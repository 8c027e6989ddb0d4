"""GGUF files as a checkpoint, split ones included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Columns, Container
from core.checkpoint.dtypes import is_plausible, tensor_bytes
from core.checkpoint.findings import some
from core.checkpoint.gguf_header import GgufHeader, RawTensor, read_header
from core.checkpoint.reading import FileCheckpoint, row_range
from core.checkpoint.safetensors import tie_and_check
from core.errors import UserError
from core.roles import parse_name
from core.tensor_info import TensorInfo
from core.units import format_count
from kernels.layouts import BY_ID

_SPLIT = re.compile(r"^(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_AGAIN = "Download or copy the file again."


class GgufCheckpoint(FileCheckpoint):
    """A GGUF model. `metadata` is that of the first file of a split set, in file order, decoded when asked for."""

    def __init__(
        self, headers: Sequence[GgufHeader], tensors: Sequence[TensorInfo], notes: Sequence[tuple[str, str]]
    ) -> None:
        first = headers[0]
        architecture = first.metadata.get("general.architecture", "")
        super().__init__(
            first.file.path,
            Container.GGUF,
            [header.file for header in headers],
            tensors,
            architecture=architecture if isinstance(architecture, str) and len(architecture) <= 64 else "",
            notes=notes,
        )
        self.alignment = first.alignment
        self.version = first.version
        self._metadata = first.metadata

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    def kv_bytes(self, key: str) -> bytes:
        """A key's whole record (key, type, value) byte for byte. Raises KeyError."""
        return self._metadata.record_bytes(key)

    def kv_kind(self, key: str) -> tuple[int, int]:
        """GGUF's number for the value's type, and for the element type of an array (else −1). Raises KeyError."""
        record = self._metadata.records[key]
        return record.kind, record.element

    def read_rows(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        rows = super().read_rows(tensor, start, stop, columns)
        if tensor.dtype == "NVFP4":
            self._apply_tensor_scale(tensor, rows, *row_range(tensor, start, stop))
        return rows

    def _apply_tensor_scale(self, tensor: TensorInfo, rows: np.ndarray, start: int, stop: int) -> None:
        """NVFP4 keeps one more float32 scale beside the tensor, or one an expert; 1 when it is not there."""
        scale = self._by_name.get(tensor.name.removesuffix(".weight") + ".scale")
        if scale is None or scale.dtype != "F32":
            return
        values = super().read_rows(scale).reshape(-1)
        if values.size == 1:
            rows *= values[0]
        elif tensor.shape and values.size == tensor.shape[0]:
            expert = np.arange(start, stop) // (tensor.rows // values.size)
            rows *= values[expert][:, None]


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open a GGUF file, or the split set that it is part of. Raises UserError, naming the parts that are missing."""
    headers = tuple(read_header(part) for part in split_parts(path))
    notes: list[tuple[str, str]] = []
    tensors: list[TensorInfo] = []
    for index, header in enumerate(headers):
        infos = [_tensor(header, raw, index) for raw in header.tensors]
        tensors += tie_and_check(header.file.path, infos)[0]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise UserError(f"Two parts of {path.name} hold the same tensor.", "Download all parts of the model again.")
    declared = headers[0].metadata.get("split.count", 1)
    if isinstance(declared, int) and declared > 1 and declared != len(headers):
        raise UserError(
            f"{path.name} is part of a model in {declared} files, but its name does not say which part it is.",
            f"Give all parts their names back, such as model-00001-of-{declared:05d}.gguf.",
        )
    expected = headers[0].metadata.get("split.tensors.count", 0)
    if len(headers) > 1 and isinstance(expected, int) and expected not in (0, len(tensors)):
        notes.append(("split-count", f"{len(tensors)} of {expected}"))
    return GgufCheckpoint(headers, tensors, notes)


def is_importance_matrix(checkpoint: Checkpoint) -> bool:
    """Whether a GGUF is what llama-imatrix writes; older ones do not say their type."""
    return checkpoint.metadata.get("general.type") == "imatrix" or "imatrix.datasets" in checkpoint.metadata


def refuse_matrix(checkpoint: Checkpoint) -> None:
    """Raise UserError where it is."""
    if is_importance_matrix(checkpoint):
        raise UserError("This is an importance matrix, not a model.", "Open the model that it was made for.")


def split_parts(path: Path) -> list[Path]:
    """All files of the split set that `path` belongs to, in order; just `path` when it is no part."""
    found = _SPLIT.match(path.name)
    if not found or int(found["count"]) <= 1:
        return [path]
    count = int(found["count"])
    parts = [
        path.with_name(f"{found['base']}-{number:05d}-of-{count:05d}{path.suffix}") for number in range(1, count + 1)
    ]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise UserError(
            f"{len(missing)} of {count} parts of this model are missing: {some(missing)}.",
            "Download the missing parts into the same folder.",
        )
    return parts


def _tensor(header: GgufHeader, raw: RawTensor, index: int) -> TensorInfo:
    path = header.file.path
    if raw.kind not in BY_ID:
        raise UserError(
            f"{path.name} stores {raw.name[:80]} as GGML type {raw.kind}, which is not known.",
            "Look for a newer Bitsmith, or for the same model in another format.",
        )
    dtype = BY_ID[raw.kind].name
    shape = tuple(reversed(raw.dims))
    damaged = UserError(f"{path.name} is damaged: the place of {raw.name[:80]} makes no sense.", _AGAIN)
    if not is_plausible(shape) or raw.offset % header.alignment:
        raise damaged
    try:
        size = tensor_bytes(dtype, shape)
    except ValueError as error:
        raise damaged from error
    offset = header.data_start + raw.offset
    if offset + size > header.file.size:
        raise UserError(
            f"{path.name} is cut off: {raw.name[:80]} should end at byte {format_count(offset + size)}, the file "
            "ends at "
            f"{format_count(header.file.size)}.",
            "The download or copy did not finish: fetch the file again.",
        )
    named = parse_name(raw.name, shape)
    return TensorInfo(raw.name, shape, dtype, size, index, offset, named.role, named.layer, named.expert, named.experts)
