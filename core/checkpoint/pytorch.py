"""PyTorch's zip files (.bin, .pt, .pth), read with `weights_only=True` and nothing else, so no code in them runs.

PyTorch only tells where the tensors lie: it loads them under its fake-tensor mode, which reads no values. The values
are read by position like everywhere else. torch is imported here, on first use, and nowhere else in core.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from core.checkpoint.architecture import architecture_of
from core.checkpoint.base import Checkpoint, Columns, Container
from core.checkpoint.dtypes import ELEMENT_BITS, is_plausible
from core.checkpoint.files import OpenedFile, cannot_read, check_is_weights, read_exactly, read_start
from core.checkpoint.folder import WeightFiles, read_json, side_files
from core.checkpoint.hf import index_notes, tie_head
from core.checkpoint.reading import FileCheckpoint, column_range, row_range
from core.checkpoint.wrapped_names import own_names, renamed
from core.errors import UserError
from core.parts import Run
from core.roles import natural_key, parse_name
from core.tensor_info import TensorInfo

if TYPE_CHECKING:
    import torch

MAX_PICKLE = 64 << 20
MAX_NESTING = 8
MAX_SPAN = 1 << 25  # bytes read at once of a tensor that is not stored row after row
MAX_GAPS = 1 << 16  # bytes that are quicker read than the file is opened again
_AGAIN = "Download or copy the file again."
# Keys under which training programs put the weights beside other things.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "params", "weights")
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


@dataclass(frozen=True)
class _View:
    """A tensor that is not stored row after row: strides in elements, from byte `offset` of its file."""

    offset: int
    strides: tuple[int, ...]


class PytorchCheckpoint(FileCheckpoint):
    """A checkpoint of PyTorch files. Transposed tensors are read in strips: no more is held than asked for."""

    views: Mapping[str, _View] = {}
    plain: Mapping[str, Any] = {}  # numbers, words, shapes and types that a module keeps beside its tensors, by name

    def read_run(self, tensor: TensorInfo, run: Run) -> np.ndarray:
        return Checkpoint.read_run(self, tensor, run) if tensor.name in self.views else super().read_run(tensor, run)

    def read_raw(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        view = self.views.get(tensor.name)
        if view is None:
            return super().read_raw(tensor, start, stop, columns)
        start, stop = row_range(tensor, start, stop)
        left, right = column_range(tensor, columns)
        size = ELEMENT_BITS[tensor.dtype] // 8
        out = np.empty((stop - start, right - left, size), np.uint8)
        *outer, row_stride, column_stride = (0, *view.strides) if len(view.strides) < 2 else view.strides
        height = tensor.shape[-2] if outer else max(1, tensor.rows)
        while start < stop:  # rows whose outer indices are the same lie one stride apart
            end = min(stop, start // height * height + height)
            index = np.unravel_index(start // height, tensor.shape[:-2]) if outer else ()
            at = sum(int(i) * stride for i, stride in zip(index, outer, strict=True))
            at += start % height * row_stride + left * column_stride
            part = out[len(out) - (stop - start) :][: end - start]
            _read_strided(self.opened[tensor.file], view.offset, at, (row_stride, column_stride), part)
            start = end
        return out.reshape(len(out), (right - left) * size)


def _read_strided(file: OpenedFile, offset: int, at: int, strides: tuple[int, int], out: np.ndarray) -> None:
    """Fill out, uint8 [rows, columns, bytes of an element], from the elements at `at` + row and column times strides.

    What lies close together is read at once, with all that is between; else in halves.
    """
    rows, columns, size = out.shape
    if not out.size:
        return
    extents = ((rows - 1) * strides[0], (columns - 1) * strides[1])
    span = (sum(extents) + 1) * size
    if span <= MAX_GAPS or span <= min(8 * out.size, MAX_SPAN) or rows * columns == 1:
        raw = np.empty(span, np.uint8)
        read_exactly(file, offset + at * size, raw)
        steps = (strides[0] * size, strides[1] * size, 1)
        out[...] = np.lib.stride_tricks.as_strided(raw, out.shape, steps, writeable=False)
    elif extents[0] > extents[1]:
        _read_strided(file, offset, at, strides, out[: rows // 2])
        _read_strided(file, offset, at + rows // 2 * strides[0], strides, out[rows // 2 :])
    else:
        _read_strided(file, offset, at, strides, out[:, : columns // 2])
        _read_strided(file, offset, at + columns // 2 * strides[1], strides, out[:, columns // 2 :])


def open_pytorch(path: Path, weights: WeightFiles, folder: Path | None) -> FileCheckpoint:
    """Open PyTorch weight files; `folder` gives config and side files, None for a file alone. Raises UserError."""
    opened, tensors, views = [], [], {}
    plain: dict[str, Any] = {}
    seen: set[str] = set()
    for index, file in enumerate(weights.files):
        file_info = _check_archive(file)
        opened.append(file_info)
        loaded = _load(file_info.path)
        plain |= _plain_values(loaded)
        for tensor, view in _read_tensors(file_info, index, loaded):
            if tensor.name in seen:
                raise UserError(
                    f"Two of the model's files hold {tensor.name[:80]}.", "Remove the one that is not part of it."
                )
            seen.add(tensor.name)
            tensors.append(tensor)
            if view:
                views[tensor.name] = view
    tensors.sort(key=lambda t: natural_key(t.name))
    config = read_json(folder / "config.json", required=False) if folder else {}
    notes = index_notes(weights.index, tensors, weights.files) + [("unfinished", name) for name in weights.unfinished]
    if names := own_names([t.name for t in tensors]):
        notes.append(("wrapped-names", tensors[0].name))
        tensors = renamed(tensors, names)
        views = {names[name]: view for name, view in views.items()}
    checkpoint = PytorchCheckpoint(
        path,
        Container.PYTORCH,
        opened,
        tensors,
        config=config,
        side_files=side_files(folder) if folder else (),
        architecture=architecture_of(config),
        notes=notes,
    )
    checkpoint.views, checkpoint.plain = views, plain
    tie_head(checkpoint)
    return checkpoint


def _check_archive(path: Path) -> OpenedFile:
    """Refuse what is no plain PyTorch archive before PyTorch sees it; compressed entries could grow without bound."""
    opened = OpenedFile.of(path)
    start = read_start(path, 4096)
    check_is_weights(path, start, opened.size)
    if start[:2] != b"PK":
        if start[:1] == b"\x80":
            raise UserError(
                f"{path.name} is in PyTorch's format from before 2020.",
                "Load it with PyTorch and save it again with torch.save, or use the model's .safetensors files.",
            )
        raise UserError(f"{path.name} is not a PyTorch file.", "Choose a .safetensors, .gguf or PyTorch .bin file.")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            order = [archive.read(e) for e in entries if e.filename.endswith("/byteorder") and e.file_size <= 16]
    except OSError as error:
        raise cannot_read(path, error) from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError, EOFError) as error:
        raise UserError(f"{path.name} is cut off or damaged: its table of contents can not be read.", _AGAIN) from error
    names = [entry.filename.partition("/")[2] or entry.filename for entry in entries]
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        raise UserError(
            f"{path.name} is a TorchScript program, not a checkpoint.", "Choose the model's weights instead."
        )
    if "data.pkl" not in names:
        raise UserError(
            f"{path.name} is a zip archive, but not one of PyTorch's.", "Unpack it, and open what is inside."
        )
    if order and order[0].strip() not in (b"little", b""):
        raise UserError(f"{path.name} was saved on a big-endian computer.", "Save it again on a usual one.")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size > opened.size for entry in entries):
        raise UserError(f"{path.name} is compressed, which PyTorch's files are not.", "Save it again with torch.save.")
    if any(e.file_size > MAX_PICKLE for e, name in zip(entries, names, strict=True) if name == "data.pkl"):
        raise UserError(f"{path.name} lists more than any model has.", _AGAIN)
    return OpenedFile(path, opened.size, opened.mtime_ns, min(opened.size, 1 << 16))


def _plain_values(found: object) -> dict[str, Any]:
    """What modules keep beside their tensors, where a file is a mapping of a mapping for each module (hqq's)."""
    import torch

    if not isinstance(found, Mapping):
        return {}
    return {
        f"{module}.{key}": str(value) if isinstance(value, torch.dtype) else value
        for module, own in found.items()
        if isinstance(own, Mapping)
        for key, value in own.items()
        if isinstance(value, bool | int | float | str | tuple | list | torch.dtype)
    }


def _read_tensors(file: OpenedFile, index: int, loaded: object) -> Iterator[tuple[TensorInfo, _View | None]]:
    owners: dict[tuple[object, ...], str] = {}
    for name, tensor in _flatten(loaded):
        label = str(tensor.dtype).removeprefix("torch.")
        if label not in _DTYPES or str(tensor.layout) != "torch.strided":
            raise UserError(
                f"{file.path.name} stores {name[:80]} as {label}, which can not be read.",
                "Save it as float16 or bfloat16.",
            )
        dtype, shape, strides = _DTYPES[label], tuple(tensor.shape), tuple(tensor.stride())
        size = ELEMENT_BITS[dtype] // 8
        storage = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
        if storage is None and tensor.numel():
            raise UserError("This PyTorch is too old to read files piece by piece.", "Install PyTorch 2.8 or newer.")
        offset = (storage or 0) + tensor.storage_offset() * size
        span = (
            1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True)) if tensor.numel() else 0
        )
        if offset < 0 or any(s < 0 for s in strides) or offset + span * size > file.size:
            raise UserError(f"{file.path.name} is damaged: {name[:80]} lies outside of the file.", _AGAIN)
        if prod(shape) > max(file.size, 1) or not is_plausible(
            shape
        ):  # an expanded view: one stored value that stands for very many
            raise UserError(
                f"{file.path.name} repeats stored values in {name[:80]}.", "Save it with contiguous tensors."
            )
        named = parse_name(name, shape)
        info = TensorInfo(
            name, shape, dtype, prod(shape) * size, index, offset, named.role, named.layer, named.expert, named.experts
        )
        place = (offset, shape, strides, dtype)
        owner = owners.setdefault(place, name) if info.nbytes else name
        info = replace(info, tied_to=owner) if owner != name else info
        yield info, None if tensor.is_contiguous() else _View(offset, strides)


def _load(path: Path) -> object:
    import torch
    from torch._subclasses import FakeTensorMode

    try:
        with FakeTensorMode():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path.name} holds Python objects besides tensors, which could run code: it is not opened.",
            "Use the model's .safetensors files, or save only the state dict from a source you trust.",
        ) from error
    except OSError as error:
        raise cannot_read(path, error) from error
    # PyTorch raises nearly anything for a damaged pickle: RuntimeError, EOFError, KeyError, AttributeError …
    except Exception as error:
        raise UserError(f"{path.name} is damaged: PyTorch can not read its list of tensors.", _AGAIN) from error


def _flatten(found: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a state dict by name; looks inside the wrappers that training programs use."""
    import torch

    for _ in range(MAX_NESTING):
        if not isinstance(found, Mapping):
            break
        inner: Any = next((found[key] for key in _WRAPPERS if isinstance(found.get(key), Mapping) and found[key]), None)
        if inner is None:
            yield from ((str(key), value) for key, value in found.items() if isinstance(value, torch.Tensor))
            for module, own in found.items():
                if isinstance(own, Mapping):
                    yield from ((f"{module}.{k}", v) for k, v in own.items() if isinstance(v, torch.Tensor))
            return
        found = inner
    if isinstance(found, torch.Tensor):
        yield "tensor", found
