"""The log file: bitsmith.log in the user's folder for state, three files of 1 MB. It never stops the program."""

from __future__ import annotations

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from PySide6.QtCore import QStandardPaths

from core import privacy

BYTES, OLDER = 2**20, 2  # of one file, and how many older ones are kept
NAME = "bitsmith.log"


def state_folder() -> Path:
    """Where the platform wants what a program remembers and nobody edits."""
    places = QStandardPaths.StandardLocation
    found = QStandardPaths.writableLocation(places.GenericStateLocation)
    return Path(found or QStandardPaths.writableLocation(places.GenericDataLocation)) / "bitsmith"


def start_log(folder: Path) -> logging.Handler | None:
    """Write what is logged from now on to `folder`; None where nothing can be written. `stop_log` ends it."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handler = _Rotating(folder / NAME, maxBytes=BYTES, backupCount=OLDER, encoding="utf-8", errors="replace")
        handler.setFormatter(_Anonymous("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handler.setLevel(logging.INFO)
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(min(root.level, logging.INFO))
        return handler
    return None


def stop_log(handler: logging.Handler | None) -> None:
    if handler is not None:
        logging.getLogger().removeHandler(handler)
        handler.close()


class _Anonymous(logging.Formatter):
    """The home folder is ~ and the user's name goes; tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        return privacy.anonymous(super().format(record))


class _Rotating(RotatingFileHandler):
    def doRollover(self) -> None:
        try:
            super().doRollover()
        except OSError:  # another window has the file open, which Windows minds: it grows until the next start
            if self.stream is None:
                self.stream = self._open()

    def handleError(self, _record: logging.LogRecord) -> None:
        """A full disk costs the log and nothing else."""
