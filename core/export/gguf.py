"""A GGUF file as a layout: header bytes, and where each tensor's data goes.

File: 'GGUF', u32 version 3, u64 tensors, u64 records | records | tensor entries | padding | data. A tensor entry is
name, u32 axes, u64 sizes with the row length first, u32 type, u64 offset from the start of the data. Every tensor
starts at a multiple of the alignment and is padded with zeros to the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from core.checkpoint.base import Checkpoint
from core.checkpoint.gguf import GgufCheckpoint
from core.errors import UserError
from core.export.gguf_values import (
    MAX_NAME,
    QUANTIZATION_VERSION,
    GGUFType,
    GGUFValue,
    encode_record,
    u32,
)
from core.export.layout import Layout, OutputFile, PlacedPart
from kernels.layouts import LAYOUTS

VERSION = 3
DEFAULT_ALIGNMENT = 32
MAX_AXES = 4

GGUFTensor = tuple[str, Sequence[int], str, int]


def gguf_layout(
    tensors: Sequence[GGUFTensor],
    metadata: Mapping[str, GGUFValue | bytes],
    alignment: int | None = None,
) -> Layout:
    """Place tensors, each (name, shape in numpy's order, GGML type name, bytes), in one file.

    metadata: a value, or the raw bytes of a whole record that are copied as they are. Keys of `general.*` go first,
    the architecture before all. alignment: `general.alignment` when None, else 32.
    Raises UserError for names that GGUF can not hold, twice the same name, and more than four axes.
    """
    alignment = alignment or _alignment(metadata)
    _check_names([name for name, _, _, _ in tensors])

    records = [_record(key, metadata[key]) for key in _key_order(metadata)]
    entries = []
    offsets = []
    position = 0
    for name, shape, ggml_type, nbytes in tensors:
        if not 1 <= len(shape) <= MAX_AXES:
            raise UserError(f"GGUF holds tensors of one to four axes; '{name}' has {len(shape)}.", _KEEP_HINT)
        text = name.encode("utf-8")
        axes = len(shape)
        entries.append(
            struct.pack(
                f"<Q{len(text)}sI{axes}QIQ", len(text), text, axes, *reversed(shape), LAYOUTS[ggml_type].id, position
            )
        )
        offsets.append(position)
        position += _padded(nbytes, alignment)

    pieces = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(records)), *records, *entries]
    size = sum(map(len, pieces))
    header = b"".join([*pieces, bytes(_padded(size, alignment) - size)])  # at once: metadata may be large
    parts = tuple(
        PlacedPart(tensor=i, part=0, file=0, offset=len(header) + offset, nbytes=tensor[3])
        for i, (tensor, offset) in enumerate(zip(tensors, offsets, strict=True))
    )
    return Layout(files=(OutputFile("", header, len(header) + position),), parts=parts)


def requantized_metadata(checkpoint: Checkpoint, file_type: int) -> dict[str, GGUFValue | bytes]:
    """Metadata of a GGUF made from a GGUF: every record byte for byte, but for what the new file is.

    `general.file_type` and `general.quantization_version` are set. `split.*` goes, since the result is one file, and
    `quantize.imatrix.*` and `bitsmith.*`, since what the source's numbers were chosen by had no part in it.
    """
    stored = checkpoint.stored  # a transform may have added a head to what is on the disk
    assert isinstance(stored, GgufCheckpoint)
    kept: dict[str, GGUFValue | bytes] = {
        key: stored.kv_bytes(key) for key in stored.metadata if not key.startswith(_STALE)
    }
    kept["general.file_type"] = u32(file_type)
    kept["general.quantization_version"] = u32(QUANTIZATION_VERSION)
    return kept


_STALE = ("split.", "quantize.imatrix.", "bitsmith.")
_KEEP_HINT = "Choose a safetensors target for this model."


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _key_order(metadata: Mapping[str, GGUFValue | bytes]) -> list[str]:
    """As given, but `general.architecture` first and the other general keys next; loaders' listings expect it."""

    def rank(key: str) -> int:
        return 0 if key == "general.architecture" else 1 if key.startswith("general.") else 2

    return sorted(metadata, key=rank)


def _record(key: str, value: GGUFValue | bytes) -> bytes:
    return value if isinstance(value, bytes) else encode_record(key, value)


def _alignment(metadata: Mapping[str, GGUFValue | bytes]) -> int:
    value = metadata.get("general.alignment")
    if value is None:
        return DEFAULT_ALIGNMENT
    if isinstance(value, bytes):  # a record of type u32 ends with its value
        if len(value) < 8 or struct.unpack("<I", value[-8:-4])[0] != GGUFType.U32:
            return DEFAULT_ALIGNMENT
        number = struct.unpack("<I", value[-4:])[0]
    else:
        number = int(value.value)
    if number < 8 or number % 8 or number > 1 << 20:
        raise UserError(f"The file's alignment of {number} bytes is not usable.", "Convert from the original model.")
    return int(number)


def _check_names(names: Sequence[str]) -> None:
    seen = set()
    for name in names:
        if len(name.encode("utf-8")) > MAX_NAME:
            raise UserError(f"GGUF holds names of up to {MAX_NAME} bytes; '{name}' is longer.", _KEEP_HINT)
        if name in seen:
            raise UserError(f"Two tensors would both be called '{name}'.", _KEEP_HINT)
        seen.add(name)
