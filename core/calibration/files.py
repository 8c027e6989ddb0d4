"""Text files of any size as numbered pieces, each read when it is asked for: a choice can be made over the whole file.

A piece is a stretch of bytes of which both ends are moved forward to the next line's (or word's) start, so that pieces
follow each other without a gap and without cutting a character.
"""

from __future__ import annotations

import codecs
import gzip
import json
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from core.calibration.records import FIELDS, Record, known_columns, record_of
from core.errors import UserError
from core.progress import CancelToken
from core.units import format_bytes, format_count

HEAD = 8192  # bytes that tell what a file is
LONGEST_STEP = 1024  # bytes that an end of a piece moves to find a line's or a word's start
LONGEST_LINE = 4 << 20  # bytes of one record of JSON lines
LARGEST_JSON = 256 << 20  # of a file that must be parsed as a whole
LARGEST_UNPACKED = 1 << 30  # of a compressed file, or of one in UTF-16: written to a temporary file
_CHUNK = 1 << 20
_WIDE = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16"}
_WIDE |= {codecs.BOM_UTF16_BE: "utf-16"}
_NOT_TEXT = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a zip archive or an office document",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"BZh": "packed with bzip2",
    b"\xfd7zXZ": "packed with xz",
    b"GGUF": "a model",
}
_PARTS = ("train", "data", "texts", "examples", "rows", "samples", "validation", "test")  # of a set, in a JSON object
AS_TEXT = "Save it as plain text in UTF-8, or as JSON lines with a field 'text'."


class Pieces(ABC):
    """One source of text. notes: what the user should know about what was read so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []

    @property
    @abstractmethod
    def count(self) -> int:
        """How many pieces there are."""

    @abstractmethod
    def read(self, index: int) -> Sequence[Record]:
        """What a piece holds; an empty list when that is nothing. Raises UserError when it can not be read."""

    def finish(self, whole: bool) -> None:  # noqa: B027 - most have nothing to add
        """Adds what there is to say at the end. whole: every piece was read; raises UserError when all were empty."""


class Stored:
    """Bytes of a file, or of what it was unpacked to."""

    def __init__(self, path: Path, file: IO[bytes] | None = None, start: int = 0) -> None:
        """start: bytes in front that are no text."""
        self._path, self._file, self._start = path, file, start
        self.size = (file.seek(0, 2) if file is not None else path.stat().st_size) - start

    def read(self, offset: int, count: int) -> bytes:
        try:
            if self._file is not None:
                self._file.seek(self._start + offset)
                return self._file.read(count)
            with self._path.open("rb") as file:
                file.seek(self._start + offset)
                return file.read(count)
        except OSError as e:
            raise unreadable(self._path, e) from e


def unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path.name} can not be read: {(error.strerror or str(error)).lower()}.", "Check its rights, or copy it."
    )


def open_stored(path: Path, token: CancelToken) -> Stored:
    """A file's text as UTF-8, whatever it is packed or written in. Raises UserError for what is no text."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        if head.startswith(b"\x1f\x8b"):
            unpacked = _unpacked(path, token)
            head = unpacked.read(HEAD)
            stored = Stored(path, unpacked, _mark(head))
        elif any(head.startswith(mark) for mark in _WIDE):
            return Stored(path, _transcoded(path, head, token))
        else:
            stored = Stored(path, start=_mark(head))
    except OSError as e:
        raise unreadable(path, e) from e
    for mark, kind in _NOT_TEXT.items():
        if head.startswith(mark):
            raise UserError(f"{path.name} is {kind}, not text.", AS_TEXT)
    if b"\0" in head:
        raise UserError(f"{path.name} is not a text file.", AS_TEXT)
    return stored


def _mark(head: bytes) -> int:
    return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


def _unpacked(path: Path, token: CancelToken) -> IO[bytes]:
    out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as what is read from it
    try:
        with gzip.open(path, "rb") as packed:
            while out.tell() < LARGEST_UNPACKED and (chunk := packed.read(_CHUNK)):
                token.check()
                out.write(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise UserError(f"{path.name} is a damaged gzip file.", "Download it again.") from e
    out.seek(0)
    return out


def _transcoded(path: Path, head: bytes, token: CancelToken) -> IO[bytes]:
    encoding = next(name for mark, name in _WIDE.items() if head.startswith(mark))
    out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as what is read from it
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        while out.tell() < LARGEST_UNPACKED and (chunk := file.read(_CHUNK)):
            token.check()
            out.write(chunk.encode())
    return out


class PlainFile(Pieces):
    """A text file. size: bytes of a piece, more than `LONGEST_STEP`."""

    def __init__(self, name: str, stored: Stored, size: int) -> None:
        super().__init__(name)
        self._stored, self._size = stored, size

    @property
    def count(self) -> int:
        return -(-self._stored.size // self._size)

    def read(self, index: int) -> Sequence[Record]:
        first = self._end(index * self._size)
        raw = self._stored.read(first, self._end((index + 1) * self._size) - first)
        try:
            text = raw.decode()
        except UnicodeDecodeError as e:
            text = raw.decode("cp1252", errors="replace")
            if not self.notes:
                self.notes.append(
                    f"{self.name} is not UTF-8 at byte {format_count(first + e.start)}; such passages were read as "
                    "Windows-1252. Save it as UTF-8 if it is in another encoding."
                )
        text = text.replace("\r\n", "\n")
        return [Record(self.name, text)] if text.strip() else []

    def _end(self, at: int) -> int:
        """The first start of a line, else of a word, else of a character from `at` on."""
        if at <= 0 or at >= self._stored.size:
            return min(max(at, 0), self._stored.size)
        near = self._stored.read(at, LONGEST_STEP)
        for mark in (b"\n", b" "):
            if (found := near.find(mark)) >= 0:
                return at + found + 1
        return at + next((i for i, byte in enumerate(near[:4]) if byte & 0xC0 != 0x80), 0)


class JsonLines(Pieces):
    """A record a line. A piece holds the lines that start in it. size: bytes of a piece."""

    def __init__(self, name: str, stored: Stored, size: int) -> None:
        super().__init__(name)
        self._stored, self._size = stored, size
        self._good = self._bad = self._other = 0
        self._seen: list[str] = []
        self._foreign = False

    @property
    def count(self) -> int:
        return -(-self._stored.size // self._size)

    def read(self, index: int) -> Sequence[Record]:
        found = []
        for line in self._lines(index * self._size, min((index + 1) * self._size, self._stored.size)):
            try:
                value = json.loads(self._decoded(line))
            except (ValueError, RecursionError):
                self._bad += 1
                continue
            if record := record_of(value, self.name):
                self._good += 1
                found.append(record)
            else:
                self._other += 1
                self._seen = self._seen or (list(map(str, value)) if isinstance(value, dict) else [])
        return found

    def _decoded(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            if not self._foreign:
                self._foreign = True
                self.notes.append(
                    f"{self.name} is not UTF-8; such lines were read as Windows-1252. Save it as UTF-8 if it is in "
                    "another encoding."
                )
            return line.decode("cp1252", errors="replace")

    def finish(self, whole: bool) -> None:
        if whole and not self._good and self._other:
            raise no_fields(self.name, self._seen)
        if whole and not self._good:
            raise UserError(f"{self.name} has no line of JSON.", "Write one object a line, with a field 'text'.")
        if self._bad:
            self.notes.append(f"Lines of {self.name} that are not JSON and were left out: {format_count(self._bad)}.")
        if self._other:
            self.notes.append(f"Lines of {self.name} without text that were left out: {format_count(self._other)}.")

    def _lines(self, start: int, stop: int) -> Iterator[bytes]:
        """Lines whose first byte is in start … stop; what is longer than LONGEST_LINE is left out."""
        first = self._after_line(start - 1) if start else 0  # the line before may end right here
        if first >= stop:
            return
        after = self._after_line(stop - 1)  # where the last of them ends
        *lines, last = self._stored.read(first, min(after, stop + LONGEST_LINE) - first).rstrip(b"\n").split(b"\n")
        if after - stop > LONGEST_LINE:
            self._bad += 1
        else:
            lines.append(last)
        yield from (stripped for line in lines if (stripped := line.strip()))

    def _after_line(self, at: int) -> int:
        """Where the line that byte `at` is in ends, its end included."""
        while at < self._stored.size:
            chunk = self._stored.read(at, self._size)
            if not chunk:
                break
            if (found := chunk.find(b"\n")) >= 0:
                return at + found + 1
            at += len(chunk)
        return self._stored.size


class Records(Pieces):
    """Records that are in memory, one a piece."""

    def __init__(self, name: str, records: Sequence[Record]) -> None:
        super().__init__(name)
        self._records = records

    @property
    def count(self) -> int:
        return len(self._records)

    def read(self, index: int) -> Sequence[Record]:
        return self._records[index : index + 1]


def json_file(name: str, stored: Stored, size: int) -> Pieces:
    """A JSON file: a list of records, one record, or lines in spite of its name. Raises UserError."""
    if stored.size > LARGEST_JSON:
        if stored.read(0, HEAD).lstrip()[:1] != b"[":
            return JsonLines(name, stored, size)
        raise UserError(
            f"{name} is one JSON list of {format_bytes(stored.size)}, too large to be read as a whole.",
            "Write it as JSON lines, one object a line.",
        )
    try:
        value = json.loads(stored.read(0, stored.size))
    except (ValueError, RecursionError):
        return JsonLines(name, stored, size)
    values = value if isinstance(value, list) else [value]
    if isinstance(value, dict) and record_of(value, name) is None:
        lists = (v for v in value.values() if isinstance(v, list))
        values = next((v for v in lists if v and isinstance(v[0], dict)), [])  # {"data": [{"text": …}]}
        texts = next((v for k in _PARTS if isinstance(v := value.get(k), list)), [])  # {"train": ["…", "…"]}
        values = values or texts or [v for v in value.values() if isinstance(v, dict)]  # {"first": {"text": …}}
    found = [record for v in values if (record := record_of(v, name))]
    if not found:
        first = next((v for v in values if isinstance(v, dict)), {})
        raise no_fields(name, list(map(str, first)))
    return Records(name, found)


def no_fields(name: str, seen: Sequence[str]) -> UserError:
    """seen: fields that there are."""
    if known := known_columns(list(seen)):
        return UserError(
            f"{name} has a field '{known[0]}', but no text in it.",
            "It should hold a text, or a list of turns with 'role' and 'content', of a user and an assistant.",
        )
    shown = f"; it has {', '.join(seen[:6])}" if seen else ""
    return UserError(f"{name} has no field that holds text{shown[:200]}.", f"Known fields: {', '.join(FIELDS)}.")
