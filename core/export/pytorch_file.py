"""A PyTorch file (zip of a pickle and one entry a storage) as a layout: what `torch.load(weights_only=True)` reads.

The pickle is written opcode by opcode, so that neither PyTorch nor a class of it is needed. Entries are stored, each
array at a multiple of 64 bytes. PyTorch does not look at the checksums of arrays, which are not known before they are
written: they are 0 here, as `torch.serialization.set_crc32_options(False)` has it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from core.export.layout import OutputFile, PlacedPart

_ALIGNMENT = 64
_LIMIT = 0xFFFFFFFF  # from here on sizes and offsets are written in 64 bits
# safetensors' name of a type → PyTorch's class of its storage, and bytes of an element.
_STORAGES = {
    "F64": ("DoubleStorage", 8), "F32": ("FloatStorage", 4), "F16": ("HalfStorage", 2), "BF16": ("BFloat16Storage", 2),
    "I64": ("LongStorage", 8), "I32": ("IntStorage", 4), "I16": ("ShortStorage", 2), "I8": ("CharStorage", 1),
    "U8": ("ByteStorage", 1), "BOOL": ("BoolStorage", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Array:
    """Array number `number` of those that are placed; another of the same number shares its bytes."""

    number: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Name:
    """Something of the module torch: 'float16', or, with `values`, 'Size' of them."""

    name: str
    values: tuple[int, ...] | None = None


Value = Array | Name | bool | int | str | Mapping[str, "Value"]


def known(dtype: str) -> bool:
    return dtype in _STORAGES


def pytorch_file(
    name: str, content: Mapping[str, Value], sizes: Sequence[int]
) -> tuple[OutputFile, tuple[PlacedPart, ...]]:
    """content: nested mappings, in which each `Array` stands for bytes that are written later. sizes: bytes of each."""
    writer, folder = _Zip(), name.partition(".")[0]
    writer.entry(f"{folder}/data.pkl", b"\x80\x02" + _pickled(content) + b".")
    writer.entry(f"{folder}/byteorder", b"little")
    parts = []
    for number, nbytes in enumerate(sizes):
        offset = writer.room(f"{folder}/data/{number}", nbytes)
        parts.append(PlacedPart(tensor=number, part=0, file=0, offset=offset, nbytes=nbytes))
    writer.entry(f"{folder}/version", b"3\n")
    return writer.file(name), tuple(parts)


class _Zip:
    """Local headers and small entries as they come, with room for arrays between them, and the directory at the end."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, bytes]] = []
        self._at = 0
        self._directory = b""
        self._count = 0

    def entry(self, name: str, content: bytes) -> None:
        self._local(name, len(content), zlib.crc32(content), content)
        self._at += len(content)

    def room(self, name: str, nbytes: int) -> int:
        """The offset at which so many bytes are to be written."""
        self._local(name, nbytes, 0, b"")
        self._at += nbytes
        return self._at - nbytes

    def _local(self, name: str, size: int, crc: int, content: bytes) -> None:
        raw, start, large = name.encode(), self._at, size >= _LIMIT
        extra = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        spare = -(start + 30 + len(raw) + len(extra) + 4) % _ALIGNMENT
        extra += struct.pack("<HH", 0x4246, spare) + b"Z" * spare
        short = _LIMIT if large else size
        head = struct.pack("<HHHHHIIIHH", 45, 0x0800, 0, 0, 33, crc, short, short, len(raw), len(extra))
        local = b"PK\x03\x04" + head + raw + extra + content
        self._pieces.append((start, local))
        self._at += len(local) - len(content)
        wide = [value for value in (size, size, start) if value >= _LIMIT]
        more = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        head = struct.pack("<HHHHHHIIIHH", 45, 45, 0x0800, 0, 0, 33, crc, short, short, len(raw), len(more))
        self._directory += b"PK\x01\x02" + head + struct.pack("<HHHII", 0, 0, 0, 0, min(start, _LIMIT)) + raw + more
        self._count += 1

    def file(self, name: str) -> OutputFile:
        at, size, count = self._at, len(self._directory), self._count
        end = self._directory
        end += b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, at)
        end += b"PK\x06\x07" + struct.pack("<IQI", 0, at + size, 1)
        short = min(count, 0xFFFF)
        end += b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, short, short, min(size, _LIMIT), min(at, _LIMIT), 0)
        (_, header), *rest = [*self._pieces, (at, end)]
        return OutputFile(name, header, at + len(end), tuple(rest))


def _pickled(value: Value) -> bytes:
    if isinstance(value, Mapping):
        items = b"".join(_text(key) + _pickled(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, Array):
        return _array(value)
    if isinstance(value, Name):
        found = _global("torch", value.name)
        return found if value.values is None else found + _tuple(value.values) + b"\x85R"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    return _text(value) if isinstance(value, str) else _integer(value)


def _array(a: Array) -> bytes:
    """torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())."""
    storage, _ = _STORAGES[a.dtype]
    what = b"(" + _text("storage") + _global("torch", storage) + _text(str(a.number)) + _text("cpu")
    strides = tuple(prod(a.shape[i + 1 :]) for i in range(len(a.shape)))
    arguments = what + _integer(prod(a.shape)) + b"tQ" + _integer(0) + _tuple(a.shape) + _tuple(strides) + b"\x89"
    return (
        _global("torch._utils", "_rebuild_tensor_v2")
        + b"("
        + arguments
        + _global("collections", "OrderedDict")
        + b")Rt"
        + b"R"
    )


def _tuple(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_integer, values)) + b"t"


def _integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()
