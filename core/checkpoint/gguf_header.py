"""The header of a GGUF file: one pass that notes where each value lies and decodes none that is not asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from core.checkpoint.files import OpenedFile, cannot_read, check_is_weights, read_bytes
from core.errors import UserError
from core.export.gguf_values import CODES, GGUFType
from core.units import format_count

# Numbers and truth values as numpy reads them; a truth value is a byte.
SCALARS = {int(kind): "<u1" if kind is GGUFType.BOOL else f"<{code}" for kind, code in CODES.items()}
_WIDTH = {kind: np.dtype(dtype).itemsize for kind, dtype in SCALARS.items()}

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_KEY_BYTES = 1 << 16  # the specification's limit
MAX_METADATA = 1 << 28  # bytes of all keys and values; a header is held twice while it is rewritten
MAX_STRINGS = 1 << 22
_AGAIN = "Download or copy the file again."
_WINDOW = 1 << 20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class KeyRecord:
    """Where a key's record (key, type, value) and its value lie in the file. element and count: of an array."""

    start: int
    value: int
    stop: int
    kind: int
    element: int = -1
    count: int = 0


@dataclass(frozen=True)
class RawTensor:
    """A tensor as the header lists it. dims: ne[0] (row length) first; offset: from the start of the data."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int


class Cursor:
    """Reads a header forward in windows of 1 MiB, and never past the end of the file."""

    def __init__(self, path: Path, file: RawIOBase, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.pos = 0
        self._start = 0
        self._window = b""

    def truncated(self) -> UserError:
        return UserError(f"{self.path.name} is cut off inside its header.", _AGAIN)

    def damaged(self, what: str) -> UserError:
        return UserError(f"{self.path.name} has a damaged header: {what}.", _AGAIN)

    def _load(self, count: int) -> int:
        """Have `count` bytes from `pos` on in the window; returns where in the window they begin."""
        if self.pos + count > self.size:
            raise self.truncated()
        at = self.pos - self._start
        if at < 0 or at + count > len(self._window):
            self.file.seek(self.pos)
            self._window = self.file.read(max(count, _WINDOW))
            self._start, at = self.pos, 0
            if len(self._window) < count:
                raise self.truncated()
        return at

    def u32(self) -> int:
        at = self._load(4)
        self.pos += 4
        return int(_U32.unpack_from(self._window, at)[0])

    def u64(self) -> int:
        at = self._load(8)
        self.pos += 8
        return int(_U64.unpack_from(self._window, at)[0])

    def u64s(self, count: int) -> tuple[int, ...]:
        at = self._load(8 * count)
        self.pos += 8 * count
        return struct.unpack_from(f"<{count}Q", self._window, at)

    def skip(self, count: int) -> None:
        if count > self.size - self.pos:
            raise self.truncated()
        self.pos += count

    def string(self, limit: int) -> str:
        length = self.u64()
        if length > limit:
            raise self.damaged(f"a name of {format_count(length)} bytes")
        at = self._load(length)
        self.pos += length
        try:
            return self._window[at : at + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged("a name that is no text") from error

    def skip_strings(self, count: int) -> None:
        """Walk over `count` strings: only their lengths are looked at, some 0.1 µs each."""
        if count > MAX_STRINGS or count * 8 > self.size - self.pos:
            raise self.damaged(f"a list of {format_count(count)} texts")
        unpack, left = _U64.unpack_from, count
        while left:
            at = self._load(8)
            window, done = self._window, 0
            try:
                for done in range(1, left + 1):  # noqa: B007 - how far it came counts when the window ends
                    at += 8 + unpack(window, at)[0]
            except (struct.error, OverflowError):  # the next length lies past the window
                done -= 1
            left -= done
            self.pos = self._start + at
            if self.pos > self.size:
                raise self.truncated()


def read_records(cursor: Cursor, count: int) -> dict[str, KeyRecord]:
    """Position of every key. Raises UserError for unknown types, nested lists, repeated keys, lengths past the end."""
    if count > MAX_KEYS or count * 13 > cursor.size:
        raise cursor.damaged(f"{format_count(count)} keys")
    records: dict[str, KeyRecord] = {}
    for _ in range(count):
        start = cursor.pos
        key = cursor.string(MAX_KEY_BYTES)
        kind, element, items = cursor.u32(), -1, 0
        value = cursor.pos
        if kind == GGUFType.STRING:
            cursor.skip(cursor.u64())
        elif kind == GGUFType.ARRAY:
            element, items = cursor.u32(), cursor.u64()
            if element == GGUFType.STRING:
                cursor.skip_strings(items)
            elif element in _WIDTH:
                cursor.skip(items * _WIDTH[element])
            else:
                raise cursor.damaged(f"a list of type {element} under {key[:80]!r}")
        elif kind in _WIDTH:
            cursor.skip(_WIDTH[kind])
        else:
            raise cursor.damaged(f"type {kind} under {key[:80]!r}")
        if cursor.pos > MAX_METADATA:
            raise cursor.damaged(f"over {format_count(MAX_METADATA)} bytes of metadata, up to {key[:80]!r}")
        if key in records:
            raise cursor.damaged(f"the key {key[:80]!r} twice")
        records[key] = KeyRecord(start, value, cursor.pos, kind, element, items)
    return records


def read_tensors(cursor: Cursor, count: int) -> list[RawTensor]:
    """The tensor list. Raises UserError for more than four axes or a repeated name."""
    if count > MAX_TENSORS or count * 24 > cursor.size:
        raise cursor.damaged(f"{format_count(count)} tensors")
    tensors: list[RawTensor] = []
    names: set[str] = set()
    for _ in range(count):
        name = cursor.string(MAX_KEY_BYTES)
        axes = cursor.u32()
        if axes > 4:
            raise cursor.damaged(f"{format_count(axes)} axes for {name[:80]!r}")
        if name in names:
            raise cursor.damaged(f"the tensor {name[:80]!r} twice")
        names.add(name)
        dims = cursor.u64s(axes)
        tensors.append(RawTensor(name, dims, cursor.u32(), cursor.u64()))
    return tensors


class LazyMetadata(Mapping[str, Any]):
    """Keys and values of a header in file order. A value is read and decoded when it is asked for, then remembered.

    Scalars are int, float, bool or str; lists of numbers are numpy arrays; lists of strings are lists of str. Text that
    is no UTF-8 has U+FFFD in place of the bad bytes; `record_bytes` has it as it was.
    """

    def __init__(self, file: OpenedFile, records: Mapping[str, KeyRecord]) -> None:
        self._file = file
        self.records = dict(records)
        self._values: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def __contains__(self, key: object) -> bool:
        return key in self.records

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            record = self.records[key]
            self._values[key] = self._decode(record, self._read(record.value, record.stop))
        return self._values[key]

    def record_bytes(self, key: str) -> bytes:
        """The whole record (key, type and value) as it stands in the file: a writer can copy it undecoded."""
        record = self.records[key]
        return self._read(record.start, record.stop)

    def _read(self, start: int, stop: int) -> bytes:
        return read_bytes(self._file, start, stop - start)

    @staticmethod
    def _decode(record: KeyRecord, raw: bytes) -> Any:
        if record.kind == GGUFType.STRING:
            return raw[8:].decode("utf-8", "replace")
        if record.kind != GGUFType.ARRAY:
            value = np.frombuffer(raw, SCALARS[record.kind])[0].item()
            return bool(value) if record.kind == GGUFType.BOOL else value
        if record.element != GGUFType.STRING:
            array = np.frombuffer(raw, SCALARS[record.element], offset=12)
            return array != 0 if record.element == GGUFType.BOOL else array
        texts, at, unpack = [], 12, _U64.unpack_from
        for _ in range(record.count):
            end = at + 8 + unpack(raw, at)[0]
            texts.append(raw[at + 8 : end].decode("utf-8", "replace"))
            at = end
        return texts


@dataclass(frozen=True)
class GgufHeader:
    """One file's header. data_start: where tensor bytes begin, aligned."""

    file: OpenedFile
    version: int
    alignment: int
    data_start: int
    metadata: LazyMetadata
    tensors: tuple[RawTensor, ...]


def read_header(path: Path) -> GgufHeader:
    """Read one file's header. Raises UserError for anything that is no GGUF of version 2 or 3, or does not add up."""
    opened = OpenedFile.of(path)
    try:
        with path.open("rb", buffering=0) as file:
            cursor = Cursor(path, file, opened.size)
            start = file.read(4096)
            check_is_weights(path, start, opened.size)
            version = _version(path, start)
            cursor.pos = 8
            tensor_count, key_count = cursor.u64(), cursor.u64()
            records = read_records(cursor, key_count)
            tensors = read_tensors(cursor, tensor_count)
    except OSError as error:
        raise cannot_read(path, error) from error
    opened = OpenedFile(path, opened.size, opened.mtime_ns, cursor.pos)
    metadata = LazyMetadata(opened, records)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.damaged(f"an alignment of {alignment}")
    data_start = -(-cursor.pos // alignment) * alignment
    return GgufHeader(opened, version, alignment, data_start, metadata, tuple(tensors))


def _version(path: Path, start: bytes) -> int:
    magic = start[:4]
    if magic in (b"ggml", b"lmgg", b"ggmf", b"fmgg", b"ggjt", b"tjgg", b"ggla", b"algg"):
        raise UserError(
            f"{path.name} is a GGML file from before August 2023, which nothing current reads.",
            "Download the model as GGUF.",
        )
    if magic != b"GGUF":
        raise UserError(f"{path.name} is not a GGUF file.", "Choose a .gguf, a .safetensors or a model folder.")
    if len(start) < 24:
        raise UserError(f"{path.name} is cut off inside its header.", _AGAIN)
    version = int(_U32.unpack_from(start, 4)[0])
    if version & 0xFFFF == 0 and version:
        raise UserError(f"{path.name} is a big-endian GGUF file.", "Download the usual little-endian file.")
    if version not in (2, 3):
        raise UserError(
            f"{path.name} is GGUF version {version}; versions 2 and 3 are known.",
            "Download a current file of the model." if version < 2 else "Look for a newer Bitsmith.",
        )
    return version
