"""Where calibration text comes from: the bundled domains, a file, or a folder. Records come in an order of the seed."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from core.calibration.files import JsonLines, Pieces, PlainFile, Stored, json_file, open_stored, unreadable
from core.calibration.parquet import MAGIC, ParquetFile
from core.calibration.records import Record
from core.calibration.settings import CalibrationText, Domain
from core.errors import UserError
from core.progress import CancelToken
from resources import read_text

SUFFIXES = (".txt", ".md", ".text", ".rst", ".jsonl", ".ndjson", ".json", ".parquet")  # also with .gz behind
MOST_FILES = 10_000  # of a folder
SMALLEST_PIECE = 4096  # bytes
LETTERS = 8  # bytes of a piece for each token of a sample: about two samples, so that many places are seen
LINES_PIECE = 16384  # bytes of JSON lines
MOST_PIECES = 1 << 20  # of which the order is held in memory
_FILES = {Domain.PROSE: "prose.txt", Domain.ENCYCLOPAEDIC: "encyclopaedic.txt", Domain.CODE: "code.txt"}
_FILES |= {Domain.CHAT: "chat.jsonl"}


class Source:
    """Files that are chosen from as one. notes: what to tell the user, complete after `finish`."""

    def __init__(self, name: str, files: Sequence[Pieces], notes: Sequence[str] = ()) -> None:
        self.name = name
        self._files = list(files)
        self._notes = list(notes)
        self._left = 1  # pieces that have not been read

    def records(self, generator: np.random.Generator, token: CancelToken) -> Iterator[Record]:
        """All records, each once, in an order of the generator. Raises UserError for what can not be read; Cancelled.

        Of several files, one that can not be read is left out with a note.
        """
        starts = np.cumsum([0, *(file.count for file in self._files)])
        order = generator.permutation(int(starts[-1]))
        self._left = len(order)
        broken: set[int] = set()
        for piece in order:
            token.check()
            number = int(np.searchsorted(starts, piece, side="right")) - 1
            file = self._files[number]
            self._left -= 1
            if number in broken:
                continue
            try:
                found = file.read(int(piece - starts[number]))
            except UserError as e:
                if len(self._files) == 1:
                    raise
                broken.add(number)
                self._notes.append(f"Left out: {e.message}")
                continue
            yield from found

    def finish(self) -> list[str]:
        """Notes on all that was read. Raises UserError when that was everything, and nothing was in it."""
        problems = []
        for file in self._files:
            try:
                file.finish(whole=not self._left)
            except UserError as e:
                problems.append(e)
            self._notes += file.notes
        if problems and len(problems) == len(self._files):
            raise problems[0]
        return [*self._notes, *(f"Left out: {e.message}" for e in problems)]


def open_sources(settings: CalibrationText, token: CancelToken) -> list[Source]:
    """One for each bundled domain, or the user's own. Raises UserError when there is nothing to read; Cancelled."""
    size = max(SMALLEST_PIECE, LETTERS * settings.length)
    if not settings.path:
        return [_bundled(domain, size) for domain in settings.domains or tuple(Domain)]
    path = Path(settings.path).expanduser()
    try:
        if path.is_dir():
            return [_folder(path, size, settings.seed, token)]
        if not path.is_file():
            raise UserError(f"There is no file {path}.", "Choose a text file, or a folder of them.")
        if not path.stat().st_size:
            raise UserError(f"{path.name} is empty.", "Choose another text.")
    except OSError as e:
        raise unreadable(path, e) from e
    return [Source(path.name, [open_pieces(path, path.name, size, settings.seed, token)])]


def open_pieces(path: Path, name: str, size: int, seed: int, token: CancelToken) -> Pieces:
    """One file. size: bytes of a piece of plain text. Raises UserError for what is no text; Cancelled."""
    size = max(size, path.stat().st_size // MOST_PIECES)
    suffixes = [s.lower() for s in path.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else (suffixes or [""])[-1]
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as e:
        raise unreadable(path, e) from e
    if start == MAGIC or kind == ".parquet":
        return ParquetFile(name, path, seed)
    stored = open_stored(path, token)
    if kind in (".jsonl", ".ndjson"):
        return JsonLines(name, stored, max(LINES_PIECE, size))
    if kind == ".json":
        return json_file(name, stored, max(LINES_PIECE, size))
    return PlainFile(name, stored, size)


def _bundled(domain: Domain, size: int) -> Source:
    name = _FILES[domain]
    stored = Stored(Path(name), io.BytesIO(read_text(f"text/{name}").encode()))
    file = JsonLines(domain.value, stored, 1024) if name.endswith(".jsonl") else PlainFile(domain.value, stored, size)
    return Source(domain.value, [file])


def _folder(folder: Path, size: int, seed: int, token: CancelToken) -> Source:
    found = sorted(p for p in itertools.islice(folder.rglob("*"), 100 * MOST_FILES) if _has_text(p))
    notes = []
    if len(found) > MOST_FILES:
        notes.append(f"The folder has {len(found)} files; every {-(-len(found) // MOST_FILES)}th was taken.")
        found = found[:: -(-len(found) // MOST_FILES)]
    total = sum(p.stat().st_size for p in found)
    size = max(size, total // MOST_PIECES)
    files: list[Pieces] = []
    problems: list[UserError] = []
    for path in found:
        token.check()
        name = path.relative_to(folder).as_posix()
        try:
            files.append(open_pieces(path, name, size, seed, token))
        except UserError as e:
            problems.append(e)
            notes.append(f"Left out: {e.message}")
    if not files and problems:
        raise problems[0]
    if not files:
        raise UserError(f"The folder {folder.name} has no text files.", f"Files that are read: {', '.join(SUFFIXES)}.")
    return Source(folder.name, files, notes)


def _has_text(path: Path) -> bool:
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(SUFFIXES) and not name.startswith(".") and path.is_file() and path.stat().st_size > 0
