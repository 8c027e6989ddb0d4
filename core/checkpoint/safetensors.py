"""The safetensors container: u64 header length, JSON header, then the bytes. Header only; no tensor is read here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from core.checkpoint.dtypes import ELEMENT_BITS, is_plausible
from core.checkpoint.files import OpenedFile, cannot_read, check_is_weights
from core.errors import UserError
from core.roles import parse_name
from core.tensor_info import TensorInfo
from core.units import format_count

MAX_HEADER = 100_000_000  # the limit of the safetensors library itself
MAX_MARKS = 4_000_000  # '[', '{' and ',' in a header: what its JSON may grow to in memory stays under some 250 MB
_AGAIN = "Download or copy the file again."


@dataclass(frozen=True)
class SafetensorsHeader:
    """One file's header. extra: bytes after the last tensor, which strict loaders refuse."""

    file: OpenedFile
    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    extra: int


def read_header(path: Path, index: int = 0) -> SafetensorsHeader:
    """Parse and check one file; `index` becomes TensorInfo.file. Raises UserError for anything that does not add up.

    Checked: header length against file and limit, JSON, dtypes, shapes, and that the byte ranges lie in the file and do
    not overlap. Tensors that name the very same range share storage: the later ones get `tied_to`.
    """
    opened = OpenedFile.of(path)
    try:
        with path.open("rb") as file:
            start = file.read(4096)
            check_is_weights(path, start, opened.size)
            length = int.from_bytes(start[:8], "little")
            if opened.size < 10 or length > opened.size - 8:
                raise _not_whole(path, opened.size, length, start)
            if not 2 <= length <= MAX_HEADER:
                raise UserError(f"{path.name} has a damaged header: it claims {format_count(length)} bytes.", _AGAIN)
            file.seek(8)
            raw = file.read(length)
    except OSError as error:
        raise cannot_read(path, error) from error
    entries = _parse_json(path, raw)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        metadata = {}
    texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
    data_start = 8 + length
    tensors = [_tensor(path, name, entry, index, data_start, opened.size) for name, entry in entries.items()]
    tensors, end = tie_and_check(path, tensors)
    opened = OpenedFile(path, opened.size, opened.mtime_ns, data_start)
    return SafetensorsHeader(
        opened,
        tuple(tensors),
        texts,
        opened.size - max(end, data_start),
    )


def tie_and_check(path: Path, tensors: list[TensorInfo]) -> tuple[list[TensorInfo], int]:
    """Mark tensors that share one byte range, refuse ranges that cross. Returns them as they lie, and their end."""
    ordered = sorted(tensors, key=lambda t: (t.offset, t.nbytes))
    out: list[TensorInfo] = []
    end, owner = 0, None
    for tensor in ordered:
        place = (tensor.offset, tensor.nbytes, tensor.dtype)
        if owner and tensor.nbytes and place == (owner.offset, owner.nbytes, owner.dtype):
            out.append(replace(tensor, tied_to=owner.name))
            continue
        if tensor.nbytes and tensor.offset < end:
            raise UserError(f"{path.name} is damaged: the bytes of {tensor.name} lie inside another tensor.", _AGAIN)
        if tensor.nbytes:
            end, owner = tensor.offset + tensor.nbytes, tensor
        out.append(tensor)
    return out, end


def _not_whole(path: Path, size: int, length: int, start: bytes) -> UserError:
    plausible = 2 <= length <= MAX_HEADER and (len(start) < 9 or start[8:9] == b"{")
    if plausible or size < 10:
        return UserError(
            f"{path.name} is cut off: its header alone is longer than the file's {format_count(size)} bytes.", _AGAIN
        )
    return UserError(f"{path.name} is not a safetensors file.", "Choose a .safetensors, .gguf or PyTorch .bin file.")


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    damaged = UserError(f"{path.name} has a damaged header.", _AGAIN)
    if not raw.lstrip().startswith(b"{"):
        if not any(raw):
            raise UserError(f"{path.name} has zeros where its header should be.", _AGAIN)
        raise UserError(f"{path.name} is not a safetensors file.", "Choose a .safetensors, .gguf or PyTorch .bin file.")
    if raw.count(b"[") + raw.count(b"{") + raw.count(b",") > MAX_MARKS:
        raise UserError(f"{path.name} has a header with more entries than any model has.", _AGAIN)
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            repeated.append(next(name for name in names if names.count(name) > 1))
        return found

    try:
        entries = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise damaged from error
    if repeated:
        raise UserError(f"{path.name} is damaged: it lists {_short(repeated[0])} twice.", _AGAIN)
    if not isinstance(entries, dict):
        raise damaged
    return entries


def _short(name: str) -> str:
    return name if len(name) <= 80 else name[:77] + "…"


def _tensor(path: Path, name: str, entry: Any, file: int, data_start: int, size: int) -> TensorInfo:
    def damaged(what: str) -> UserError:
        return UserError(f"{path.name} is damaged: {what} of {_short(name)} makes no sense.", _AGAIN)

    if not isinstance(entry, dict):
        raise damaged("the entry")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or len(shape) > 64 or not all(type(n) is int and n >= 0 for n in shape):
        raise damaged("the shape")
    if not is_plausible(shape):
        raise damaged("the size")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise damaged("the position")
    if not isinstance(dtype, str) or dtype not in ELEMENT_BITS:
        raise UserError(
            f"{path.name} stores {_short(name)} as {_short(str(dtype))}, a type that is not known.",
            "Convert it with the program that wrote it, to a type such as BF16.",
        )
    begin, end = offsets
    bits = prod(shape) * ELEMENT_BITS[dtype]
    if begin < 0 or end < begin or bits % 8 or end - begin != bits // 8:
        raise damaged("the size")
    if data_start + end > size:
        raise UserError(
            f"{path.name} is cut off: {_short(name)} ends at byte {format_count(data_start + end)}, the file at "
            f"{format_count(size)}.",
            _AGAIN,
        )
    named = parse_name(name, shape)
    return TensorInfo(
        name,
        tuple(shape),
        dtype,
        end - begin,
        file,
        data_start + begin,
        named.role,
        named.layer,
        named.expert,
        named.experts,
    )
