"""Download a model: a few files at a time, resumable, each under its name only when it is whole and checked.

NAME.CHECKSUM.incomplete is a file on its way; after kill −9 it is taken up where it ends. `.bitsmith-download.json`
says what the folder is of, so that a later start can offer to go on, and which files have been checked already.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.disk import give_name
from core.hub.access import Access
from core.hub.disk import FolderLock, check_room, disk_errors
from core.hub.files import Choice, HubFile
from core.hub.listing import Repository, is_plain
from core.hub.problems import HubError, Kind
from core.hub.transfer import HASH_CHUNK, Transfer, is_right, new_digest
from core.hub.web import file_address, make_client
from core.progress import CancelToken

RECORD = ".bitsmith-download.json"
VERSION = 1
WORKERS = 3
TURN = 0.1  # seconds between two looks at the files on their way
WINDOW = 5.0  # seconds over which the rate is measured
SETTLED = 3.0  # seconds before a time left is worth showing
ENDING = ".incomplete"


@dataclass(frozen=True)
class Order:
    """What is to be fetched, and where to. folder: of this one model."""

    repository: str
    revision: str  # a commit where the hub names one, so that all files are of one state
    choice: Choice
    folder: Path

    @property
    def result(self) -> Path:
        """What is opened in the end: the GGUF, or the folder with the weights."""
        place = self.folder.joinpath(*self.choice.weights[0].name.split("/"))
        return place if self.choice.kind == "gguf" else place.parent

    def path(self, file: HubFile) -> Path:
        return self.folder.joinpath(*file.name.split("/"))

    def partial(self, file: HubFile) -> Path:
        """Named by its content, so that a part of another version is never taken up."""
        path = self.path(file)
        return path.with_name(f"{path.name}.{(file.sha256 or file.git_sha1 or 'unknown')[:12]}{ENDING}")


@dataclass(frozen=True)
class DownloadProgress:
    """A snapshot. phase: 'checking' what is there, 'downloading' or 'paused'. file: one that is on its way.

    rate: bytes a second over the last few seconds, None before that is known; so seconds_left. note: what it waits for.
    """

    phase: str
    file: str
    files_done: int
    files: int
    bytes_done: int
    bytes_total: int
    seconds: float
    rate: float | None = None
    seconds_left: float | None = None
    note: str = ""

    @property
    def share(self) -> float:
        return min(self.bytes_done / self.bytes_total, 1.0) if self.bytes_total else 0.0


@dataclass(frozen=True)
class Unfinished:
    """A download that was begun into `folder`. file: the first of its weights, which names the choice."""

    repository: str
    revision: str
    title: str
    file: str
    endpoint: str
    folder: Path
    bytes_done: int
    bytes_total: int


def make_order(repository: Repository, choice: Choice, models: Path) -> Order:
    """Into MODELS/OWNER/NAME."""
    folder = models.joinpath(*repository.name.split("/"))
    return Order(repository.name, repository.commit or repository.revision, choice, folder)


def bytes_there(order: Order) -> int:
    """How much of it is on the disk already, whole or in part."""
    return sum(max(_size(order.path(f), f), _size(order.partial(f), f)) for f in order.choice.files)


def download(
    order: Order, access: Access, token: CancelToken, workers: int = WORKERS
) -> Generator[DownloadProgress, None, Path]:
    """Fetch what is missing; returns what can be opened. Raises HubError, or Cancelled: the next run goes on there."""
    access.check()
    for file in order.choice.files:
        if not is_plain(file.name):
            raise HubError(
                Kind.SERVER, f"The hub lists a file with an impossible name ({file.name!r}).", "Choose another model."
            )
    with disk_errors(order.folder / RECORD):
        order.folder.mkdir(parents=True, exist_ok=True)
    with FolderLock(order.folder):
        record = _Record(order, access)
        clock = _Clock(order)
        missing = yield from _missing(order, record, clock, token)
        if missing:
            check_room(order.folder, sum(max(f.bytes, 0) - _size(order.partial(f), f) for f in missing))
            record.write(done=False)
            # Folders are made once: a disk that goes later leaves none in its place.
            with disk_errors(order.folder / RECORD):
                for file in missing:
                    order.path(file).parent.mkdir(parents=True, exist_ok=True)
            yield from _fetch(order, access, token, workers, missing, record, clock)
        record.write(done=True)
        _sweep(order)
    return order.result


class _Clock:
    """Bytes, rate and time left. Pauses do not count."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._start = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()
        self._fresh = 0
        self.total = order.choice.bytes
        self.done_files: set[str] = set()
        self.done_bytes = 0
        self.begun: dict[str, int] = {}  # file → bytes of it that are there, while it is not on its way

    def finish(self, file: HubFile, size: int) -> None:
        self.done_files.add(file.name)
        self.begun.pop(file.name, None)
        self.done_bytes += size

    def skip(self, seconds: float) -> None:
        self._start += seconds
        self._recent.clear()

    def take(self, fresh: int) -> None:
        self._fresh += fresh

    def progress(
        self, phase: str, active: list[Transfer] | None = None, name: str = "", extra: int = 0
    ) -> DownloadProgress:
        active = active or []
        now = time.monotonic() - self._start
        fresh = self._fresh + sum(t.fresh for t in active)
        self._recent.append((now, fresh))
        while len(self._recent) > 2 and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()
        (t0, b0), (t1, b1) = self._recent[0], self._recent[-1]
        rate = (b1 - b0) / (t1 - t0) if t1 > t0 else None
        coming = {t.file.name: t.received for t in active if t.ready}
        done = self.done_bytes + sum((self.begun | coming).values()) + extra
        left = (self.total - done) / rate if rate and now >= SETTLED else None
        largest = max(active, key=lambda t: t.file.bytes, default=None)
        note = next((t.note for t in active if t.note), "") if active and all(t.note for t in active) else ""
        return DownloadProgress(
            phase, name or (largest.file.name if largest else ""), len(self.done_files), len(self._order.choice.files),
            min(done, self.total) if self.total else done, self.total, now, rate, left, note,
        )  # fmt: skip


def _missing(
    order: Order, record: _Record, clock: _Clock, token: CancelToken
) -> Generator[DownloadProgress, None, list[HubFile]]:
    """Files that are not there yet, small ones first. Those that are there are checked, unless they were before."""
    missing = []
    for file in sorted(order.choice.files, key=lambda f: (f.bytes, f.name)):
        token.check()
        path = order.path(file)
        with disk_errors(path):
            there = path.exists()
        if there and not record.knows(file, path):
            for seen in _checked(file, path):
                if isinstance(seen, bool):
                    there = seen
                    break
                token.check()
                yield clock.progress("checking", name=file.name, extra=seen)
            if not there and not record.ours:
                raise HubError(
                    Kind.DISK,
                    f"{path} is there already, and it is another file.",
                    "Move it away, or choose another folder.",
                )
            if there:
                record.note(file, path)
        if there:
            clock.finish(file, max(file.bytes, 0))
        else:
            missing.append(file)
            clock.begun[file.name] = _size(order.partial(file), file)
    return missing


def _checked(file: HubFile, path: Path) -> Iterator[int | bool]:
    """Bytes looked at so far, then whether the file is the right one."""
    digest, seen = new_digest(file), 0
    with disk_errors(path):
        if not path.is_file() or 0 <= file.bytes != path.stat().st_size:
            yield False
            return
        with path.open("rb") as content:
            while digest is not None and (chunk := content.read(HASH_CHUNK)):
                digest.update(chunk)
                seen += len(chunk)
                yield seen
    yield is_right(file, digest)


def _fetch(
    order: Order,
    access: Access,
    token: CancelToken,
    workers: int,
    missing: list[HubFile],
    record: _Record,
    clock: _Clock,
) -> Generator[DownloadProgress, None, None]:
    pending, active = deque(missing), list[Transfer]()
    ended = threading.Event()
    client = make_client(access)
    try:
        while pending or active:
            if token.paused and not token.cancelled:
                _stop(active, pending, clock)
                yield clock.progress("paused")
                before = time.monotonic()
                token.check()  # holds no connection meanwhile: servers would close it
                clock.skip(time.monotonic() - before)
            token.check()
            while pending and len(active) < workers:
                file = pending.popleft()
                address = file_address(access, order.repository, order.revision, file.name)
                transfer = Transfer(access, client, order.repository, address, file, order.partial(file), ended)
                active.append(transfer)
                transfer.start()
            ended.wait(TURN)
            ended.clear()
            for transfer in [t for t in active if t.finished]:
                if transfer.error is not None:
                    raise transfer.error
                active.remove(transfer)
                clock.take(transfer.fresh)
                _name(order, transfer, record, clock)
            yield clock.progress("downloading", active)
    finally:
        _stop(active, pending, clock)
        # Connections that a thread still waits on are closed with it; that may take a moment.
        threading.Thread(target=_close, args=(client,), daemon=True, name="bitsmith-close").start()


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.close()


def _stop(active: list[Transfer], pending: deque[HubFile], clock: _Clock) -> None:
    for transfer in reversed(active):
        transfer.stop()
        clock.take(transfer.fresh)
        if transfer.ready:
            clock.begun[transfer.file.name] = transfer.received
        pending.appendleft(transfer.file)
    active.clear()


def _name(order: Order, transfer: Transfer, record: _Record, clock: _Clock) -> None:
    path = order.path(transfer.file)
    with disk_errors(path):
        give_name(transfer.partial, path)
        clock.finish(transfer.file, transfer.received)
        record.note(transfer.file, path)
        record.write(done=False)


class _Record:
    """`.bitsmith-download.json`. ours: an earlier download of the same repository wrote it."""

    def __init__(self, order: Order, access: Access) -> None:
        self._order, self._access = order, access
        self._path = order.folder / RECORD
        found = read_record(self._path)
        self.ours = found.get("repository") == order.repository
        self._checked: dict[str, Any] = found.get("checked", {}) if self.ours else {}
        if not isinstance(self._checked, dict):
            self._checked = {}

    def knows(self, file: HubFile, path: Path) -> bool:
        """Whether this very file has been checked before and has not been touched since."""
        return bool(self._checked.get(file.name) == self._state(file, path))

    def note(self, file: HubFile, path: Path) -> None:
        self._checked[file.name] = self._state(file, path)

    @staticmethod
    def _state(file: HubFile, path: Path) -> list[Any]:
        with disk_errors(path):
            about = path.stat()
        return [about.st_size, about.st_mtime_ns, file.sha256 or file.git_sha1]

    def write(self, done: bool) -> None:
        order = self._order
        content = {
            "version": VERSION,
            "repository": order.repository,
            "endpoint": self._access.endpoint,
            "revision": order.revision,
            "title": order.choice.title,
            "file": order.choice.weights[0].name,
            "files": [[f.name, f.bytes, f.sha256 or f.git_sha1] for f in order.choice.files],
            "done": done,
            "checked": self._checked,
        }
        beside = self._path.with_name(f"{RECORD}.new")
        with disk_errors(self._path):
            beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
            beside.replace(self._path)


def read_record(path: Path) -> dict[str, Any]:
    """What a record says, {} when there is none that can be read."""
    try:
        found = json.loads(path.read_bytes()[: 16 << 20])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("version") == VERSION else {}


def unfinished(models: Path) -> tuple[Unfinished, ...]:
    """Downloads below a folder of models that can go on."""
    found = []
    try:
        records = [*models.glob(f"*/*/{RECORD}"), *models.glob(f"*/{RECORD}")]
    except OSError:
        return ()
    for path in sorted(records):
        about = read_record(path)
        if about.get("done") is not False:
            continue
        try:
            files = [HubFile(str(n), int(b), str(c)) for n, b, c in about["files"] if is_plain(str(n))]
            repository, revision, title = (str(about[key]) for key in ("repository", "revision", "title"))
            first, endpoint = str(about["file"]), str(about["endpoint"])
        except (KeyError, TypeError, ValueError):
            continue
        order = Order(repository, revision, Choice("", "", tuple(files), ()), path.parent)
        total = sum(max(f.bytes, 0) for f in files)
        there = bytes_there(order)
        found.append(Unfinished(repository, revision, title, first, endpoint, path.parent, there, total))
    return tuple(found)


def discard(folder: Path) -> None:
    """Delete what an unfinished download has of files that are not whole. Whole files stay."""
    with FolderLock(folder), disk_errors(folder / RECORD):
        for name, _, checksum in read_record(folder / RECORD).get("files", []):
            if is_plain(str(name)):
                order = Order("", "", Choice("", "", (), ()), folder)
                order.partial(HubFile(str(name), 0, str(checksum))).unlink(missing_ok=True)
        (folder / RECORD).unlink(missing_ok=True)


def _sweep(order: Order) -> None:
    """Parts of other versions of the files that are whole now."""
    for file in order.choice.files:
        path = order.path(file)
        ours = re.compile(re.escape(path.name) + r"\.(?:[0-9a-f]{12}|unknown)" + re.escape(ENDING))
        with contextlib.suppress(OSError):
            for other in path.parent.iterdir():
                if ours.fullmatch(other.name):
                    other.unlink()


def _size(path: Path, file: HubFile) -> int:
    """Bytes there, never more than the file has."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return min(size, file.bytes) if file.bytes >= 0 else size


__all__ = ["DownloadProgress", "Order", "Unfinished", "bytes_there", "discard", "download", "make_order", "unfinished"]
