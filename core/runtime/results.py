"""Measurements that are kept: one JSON line each, with the machine, the versions and the contract they are of.

The file is only ever appended to, in one write, so two programs can keep results at once; lines that can not be read
(cut off by a full disk, written by a later version) are passed over.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import UserError
from core.hardware.cpu import detect_cpu
from core.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_tokens_per_second,
)
from core.version import version

FILE_NAME = "results.jsonl"
MAX_LINE = 1 << 20  # bytes; a sweep of many shapes has some 20,000
VERSION = 1


@dataclass(frozen=True)
class Number:
    """unit: 's', 'B', 'B/s', 'tokens/s', 'J', 'tokens', or '' for a ratio. value: None when it was not measured."""

    name: str
    unit: str
    value: float | None


@dataclass(frozen=True)
class StoredResult:
    """kind: 'generate', 'bench', 'sweep' or 'eval'. when: ISO 8601, UTC. contract: what was computed with what.

    details: the whole result, as `--json` prints it.
    """

    id: str
    when: str
    kind: str
    title: str
    machine: str
    versions: str
    contract: str
    numbers: tuple[Number, ...]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """One number of two results. ratio: second ÷ first, None where one is missing or 0."""

    name: str
    unit: str
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        if not self.first or self.second is None:
            return None
        return self.second / self.first


def machine_name() -> str:
    """Processor, cores, memory and system; no name of the computer or of its user."""
    cpu = detect_cpu(measure=False)
    memory = f", {format_bytes(cpu.memory_bytes)}" if cpu.memory_bytes else ""
    return f"{cpu.name}, {cpu.cores} cores{memory}, {platform.system()} {platform.machine()}"


def version_names() -> str:
    return f"Bitsmith {version()}, Python {platform.python_version()}, numpy {np.__version__}"


def new_result(
    kind: str, title: str, contract: str, numbers: Sequence[Number], details: Mapping[str, Any]
) -> StoredResult:
    """A result of now, on this machine."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return StoredResult(
        uuid.uuid4().hex, when, kind, title, machine_name(), version_names(), contract, tuple(numbers), dict(details)
    )


def data_folder() -> Path:
    """Where the user's data of this program is kept."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "bitsmith"


class ResultStore:
    """The history. path: the file; `results.jsonl` in the user's data folder when None."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or data_folder() / FILE_NAME

    def add(self, result: StoredResult) -> None:
        """Keep a result. Raises UserError when the file can not be written."""
        line = json.dumps({"version": VERSION, **_plain(asdict(result))}, ensure_ascii=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    line = line if file.read(1) == b"\n" else f"\n{line}"  # after one that was cut off
                file.write(line.encode())
        except OSError as e:
            raise self._unwritable(e) from e

    def all(self) -> tuple[StoredResult, ...]:
        """Every result that can be read, newest first."""
        found = (_read(line) for line in self._lines())
        return tuple(reversed([result for result in found if result is not None]))

    def find(self, start: str) -> StoredResult:
        """The result whose id starts so. Raises UserError when none or several do."""
        found = [result for result in self.all() if result.id.startswith(start)]
        if len(found) != 1 or not start:
            raise UserError(f"{len(found)} stored results have an id that starts with {start!r}.", "Give a longer one.")
        return found[0]

    def remove(self, number: str) -> None:
        """Forget the result with this id; lines that can not be read stay."""
        lines = self._lines()
        kept = [line for line in lines if (result := _read(line)) is None or result.id != number]
        if len(kept) == len(lines):
            return
        try:
            write_whole(self.path, b"".join(line + b"\n" for line in kept))
        except OSError as e:
            raise self._unwritable(e) from e

    def _lines(self) -> list[bytes]:
        try:
            return [line for line in self.path.read_bytes().split(b"\n") if line.strip()]
        except OSError:
            return []

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"The result can not be kept in {self.path.name} ({error.strerror}).",
            "Check the rights and the free space of its folder.",
        )


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name first: an old one stays as it is when this fails. Raises OSError."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe or a terminal
        path.write_bytes(data)
        return
    partial = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def _read(line: bytes) -> StoredResult | None:
    if len(line) > MAX_LINE:
        return None
    try:
        data = _plain(json.loads(line.decode("utf-8", "replace")))
        texts = {key: data[key] for key in ("id", "when", "kind", "title", "machine", "versions", "contract")}
        numbers = tuple(Number(str(n["name"]), str(n["unit"]), _value(n["value"])) for n in data["numbers"])
        details = data.get("details")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    return StoredResult(**texts, numbers=numbers, details=details if isinstance(details, dict) else {})


def _value(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(value: Any) -> Any:
    """Strict JSON in UTF-8: what is not finite is not known, and half a surrogate pair (of a file name) is escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def compare(first: StoredResult, second: StoredResult) -> tuple[Compared, ...]:
    """Every number that either has, in the order of the first."""
    values = [{(n.name, n.unit): n.value for n in result.numbers} for result in (first, second)]
    return tuple(Compared(*key, values[0].get(key), values[1].get(key)) for key in {**values[0], **values[1]})


def number_text(value: float | None, unit: str) -> str:
    """A number as people read it."""
    if value is None:
        return "not measured"
    match unit:
        case "s":
            return format_duration(value)
        case "B":
            return format_bytes(value)
        case "B/s":
            return format_rate(value)
        case "tokens/s":
            return format_tokens_per_second(value)
        case "tokens":
            return format_count(round(value))
        case "":  # a ratio
            return f"{value:.2f} ×"
        case "share":
            return format_percent(value)
        case _:
            return f"{value:.3g} {unit}".rstrip()


def markdown(results: Sequence[StoredResult]) -> str:
    """One or two results as a table in Markdown, with what they are of above it."""
    shown = results[:2]
    lines = []
    for letter, result in zip("AB", shown, strict=False):
        lines.append(f"**{letter}**: {result.title} · {result.when}")
        lines.append(f"{result.contract} · {result.machine} · {result.versions}\n")
    if len(shown) == 2:
        lines += ["| | A | B | B ÷ A |", "| --- | ---: | ---: | ---: |"]
        for row in compare(shown[0], shown[1]):
            ratio = "–" if row.ratio is None else f"{row.ratio:.2f} ×"
            cells = [row.name, number_text(row.first, row.unit), number_text(row.second, row.unit), ratio]
            lines.append(_row(cells))
    elif shown:
        lines += ["| | A |", "| --- | ---: |"]
        lines += [_row([n.name, number_text(n.value, n.unit)]) for n in shown[0].numbers]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
