"""Reports of errors that nobody caught, as files on this computer, and how it is known that the last run died.

A file 'running-PID.json' stands in the folder while the program runs. Whoever finds one whose process is gone knows
that it ended without saying so: by an error, killed, or with the power. Nothing is sent anywhere.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from PySide6.QtCore import QMessageLogContext, QtMsgType, qInstallMessageHandler, qVersion

from core import privacy

log = logging.getLogger(__name__)
MOST_REPORTS = 10  # older ones are deleted
MOST_A_RUN = 20  # an error that comes with every picture shall not fill the disk
_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
}
_GRAVE = {
    QtMsgType.QtCriticalMsg: "an error inside Qt",
    QtMsgType.QtFatalMsg: "an error inside Qt that ends the program",
}
ABOUT = (
    "Bitsmith has written this file about an error. It stays on this computer, nothing is sent anywhere.\n"
    "It names no user and no home folder; look at it before you pass it on."
)


@dataclass(frozen=True)
class Ended:
    """A run that did not end by itself. outputs: conversions that were under way or waited."""

    report: Path | None
    outputs: tuple[str, ...]


class CrashReporter:
    """folder: where reports and the marks of running programs lie. tell: called with each error, on its own thread."""

    def __init__(self, folder: Path, version: str, tell: Callable[[BaseException], object] | None = None) -> None:
        self.folder = folder
        self.tell = tell
        self._version = version
        self._outputs: tuple[str, ...] = ()
        self._places: tuple[str, ...] = ()
        self._report: Path | None = None
        self._seen: set[str] = set()
        self._mark = folder / f"running-{os.getpid()}.json"
        self._faults: IO[str] | None = None
        self._lock = threading.RLock()
        self._before: tuple[Any, Any, Any] | None = None

    def begin(self) -> Ended | None:
        """Leave the mark, catch errors from now on. Returns the last run that died, if one did."""
        ended = None
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            ended = self._look_back()
            self._write_mark()
            if not faulthandler.is_enabled():
                self._faults = _faults_of(self._mark).open("w", encoding="utf-8")
                faulthandler.enable(self._faults)  # a fault in compiled code ends the program without an exception
        self._before = (sys.excepthook, threading.excepthook, qInstallMessageHandler(self._on_qt))
        sys.excepthook = self._on_error
        threading.excepthook = self._on_thread
        return ended

    def end(self) -> None:
        """The program ends as it should."""
        if self._before is not None:
            sys.excepthook, threading.excepthook, qt = self._before
            qInstallMessageHandler(qt)
            self._before = None
        if self._faults is not None:
            faulthandler.disable()
            self._faults.close()
            self._faults = None
        for file in (_faults_of(self._mark), self._mark):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def set_conversions(self, outputs: Iterable[str], places: Iterable[str]) -> None:
        """outputs: files that are being made or wait. places: a sentence each, with the place of its journal."""
        self._outputs, self._places = tuple(outputs), tuple(places)
        with suppress(OSError):
            self._write_mark()

    def write(self, what: str, details: str, places: Iterable[str] | None = None) -> Path | None:
        """A report; None when the same one or too many have been written, or when the disk refuses."""
        with self._lock:
            if details in self._seen or len(self._seen) >= MOST_A_RUN:
                return None
            self._seen.add(details)
            places = self._places if places is None else tuple(places)
            system = f"{platform.system()} {platform.release()}, {platform.machine()}"
            lines = [
                ABOUT, "",
                f"What: {what}",
                f"When: {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
                f"Version: Bitsmith {self._version}, Python {platform.python_version()}, Qt {qVersion()}, {system}",
                "", "Conversions:", *(places or ["none was under way"]),
                *(["Each can go on: Resume on the page Convert, or 'bitsmith convert … --resume'."] if places else []),
                "", details,
            ]  # fmt: skip
            path = self.folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{len(self._seen)}.txt"
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                path.write_text(privacy.anonymous("\n".join(lines)) + "\n", encoding="utf-8", errors="replace")
                self._report = path
                self._write_mark()
            except OSError:
                return None
            for old in sorted(self.folder.glob("crash-*.txt"))[:-MOST_REPORTS]:
                old.unlink(missing_ok=True)
            return path

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(kind, error, trace)
        if not issubclass(kind, KeyboardInterrupt):
            self._take("an error in the window", kind, error, trace)

    def _on_thread(self, found: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(found)
        if found.exc_value is not None and not issubclass(found.exc_type, SystemExit):
            name = found.thread.name if found.thread is not None else "?"
            self._take(f"an error in the thread {name}", found.exc_type, found.exc_value, found.exc_traceback)

    def _take(self, what: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.error("%s", what, exc_info=(kind, error, trace))
        self.write(what, "".join(traceback.format_exception(kind, error, trace)))
        if self.tell is not None:
            self.tell(error)

    def _on_qt(self, kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
        if sys.stderr is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write(message + "\n")
        log.log(_LEVELS.get(kind, logging.ERROR), "Qt: %s", message)
        if kind in _GRAVE:
            stack = "".join(traceback.format_stack())
            self.write(_GRAVE[kind], f"{message}\n({context.category} {context.file}:{context.line})\n\n{stack}")

    def _write_mark(self) -> None:
        data = {
            "pid": os.getpid(), "time": time.time(), "outputs": self._outputs, "places": self._places,
            "report": str(self._report or ""),
        }  # fmt: skip
        new = self._mark.with_suffix(".new")
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(self._mark)

    def _look_back(self) -> Ended | None:
        found = None
        for mark in sorted(self.folder.glob("running-*.json"), key=lambda m: m.stat().st_mtime):
            data = _read_mark(mark)
            if mark == self._mark or not _is_alive(data):  # a number that is ours now was another's before
                found = self._ended(mark, data)
                for file in (mark, _faults_of(mark)):
                    file.unlink(missing_ok=True)
        return found

    def _ended(self, mark: Path, data: Mapping[str, Any]) -> Ended:
        try:
            faults = _faults_of(mark).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            faults = ""
        known = data.get("report") or ""
        outputs, places = (tuple(map(str, data.get(key) or ())) for key in ("outputs", "places"))
        if known and Path(known).is_file() and not faults:
            return Ended(Path(known), outputs)
        what = "the program ended by a fault in compiled code" if faults else "the program ended without a word"
        details = faults or "It was killed, ran out of memory, or the computer stopped; there is no traceback."
        return Ended(self.write(f"{what} ({mark.stem})", f"{details}\n{mark.stem}", places), outputs)


def _faults_of(mark: Path) -> Path:
    return mark.with_suffix(".faults")


def _read_mark(mark: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(mark.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _is_alive(data: Mapping[str, Any]) -> bool:
    """Whether the process that left the mark still runs, and is not a later one with the same number."""
    import psutil

    try:
        return psutil.Process(int(data["pid"])).create_time() < float(data["time"]) + 2
    except psutil.AccessDenied:
        return True
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
