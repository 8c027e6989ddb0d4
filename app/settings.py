"""What the window remembers between two starts, in a file of its own."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QSettings, QStandardPaths

from app.theme import MODES
from core import preferences
from core.preferences import Preferences

log = logging.getLogger(__name__)
RECENT_LIMIT = 10
LARGEST = 2**31 - 1  # what Qt's fields for numbers hold
DAMAGED = ".damaged"  # is added to the name of a settings file that can not be read
_KEY = re.compile(r"[A-Za-z][\w.-]*(/[\w.-]+)*")  # what a damaged file shows of others is rubbish


class Settings:
    """Typed access to the settings file. `path` None: bitsmith.ini in the user's configuration folder.

    What commands heed as well is in another file beside it (core.preferences), which this puts in force.
    problem: a sentence and a next step when the file could not be read; a damaged one is then moved aside.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.GenericConfigLocation)
            path = Path(folder) / "bitsmith" / "bitsmith.ini"
            shared = preferences.path()
        else:
            shared = path.with_name(preferences.NAME)
        self._store = QSettings(str(path), QSettings.Format.IniFormat)
        self._store.allKeys()  # Qt reads the file only now
        self.problem: tuple[str, str] | None = None
        if self._store.status() is QSettings.Status.FormatError:
            self._start_anew(path)
        elif self._store.status() is QSettings.Status.AccessError:
            self.problem = "The settings can not be read.", f"Nothing is remembered; check the rights of {path.name}."
        self._use(shared)
        if self.problem is not None:
            log.warning("%s %s (%s)", *self.problem, path)

    def _start_anew(self, path: Path) -> None:
        """Move the damaged file aside and keep what can still be read of it."""
        kept = {key: self._store.value(key) for key in self._store.allKeys() if _KEY.fullmatch(key)}
        aside = path.with_name(path.name + DAMAGED)
        try:
            path.replace(aside)
        except OSError:
            self.problem = "The settings file is damaged.", f"It can not be moved; delete {path.name}."
            return
        self._store = QSettings(str(path), QSettings.Format.IniFormat)
        self._store.clear()  # Qt remembers what it read under this name
        for key, value in kept.items():
            if value is not None:
                self._store.setValue(key, value)
        self._store.sync()
        self.problem = (
            "The settings file was damaged.",
            f"What could be read is kept; the old file is now {aside.name}.",
        )

    def _use(self, path: Path) -> None:
        """Put what commands heed as well in force, at first from where older versions kept it."""
        is_new = not path.exists()
        aside = preferences.use(path)
        if aside and self.problem is None:
            self.problem = "A settings file was damaged.", f"It starts anew; the old file is now {aside}."
        old = Preferences(
            models=self.text("folders/models"), endpoint=self.text("hub/endpoint"), offline=self._flag("hub/offline")
        )
        if is_new and not aside and old != Preferences():
            preferences.change(old)

    @property
    def shared(self) -> Preferences:
        """What commands heed as well."""
        return preferences.current()

    def change(self, **values: Any) -> None:
        """Set some of `shared`, at once and for the next start."""
        changed = replace(preferences.current(), **values)
        if changed != preferences.current():
            preferences.change(changed)

    @property
    def theme(self) -> str:
        mode = str(self._store.value("theme", "system"))
        return mode if mode in MODES else "system"

    @theme.setter
    def theme(self, mode: str) -> None:
        self._store.setValue("theme", mode)

    @property
    def geometry(self) -> QByteArray | None:
        value = self._store.value("window/geometry")
        return value if isinstance(value, QByteArray) else None

    @geometry.setter
    def geometry(self, value: QByteArray) -> None:
        self._store.setValue("window/geometry", value)

    @property
    def recent(self) -> tuple[Path, ...]:
        """Opened models, newest first. Those that are gone stay out."""
        value = self._store.value("recent", [])
        names = value if isinstance(value, list) else [value]  # a list of one comes back as a string
        return tuple(Path(name) for name in names if isinstance(name, str) and _exists(name))

    def add_recent(self, path: Path) -> None:
        others = [str(other) for other in self.recent if other != path]
        self._store.setValue("recent", [str(path), *others][:RECENT_LIMIT])

    @property
    def models_folder(self) -> Path:
        """Where downloaded models go."""
        from core.hub.access import models_folder

        return models_folder()

    @models_folder.setter
    def models_folder(self, folder: Path) -> None:
        self.change(models=str(folder))

    @property
    def endpoint(self) -> str:
        """The address of a mirror, '' for the hub itself."""
        return self.shared.endpoint

    @endpoint.setter
    def endpoint(self, address: str) -> None:
        self.change(endpoint=address)

    @property
    def offline(self) -> bool:
        """Whether no server may be asked."""
        return self.shared.offline

    @offline.setter
    def offline(self, on: bool) -> None:
        self.change(offline=on)

    def _flag(self, key: str) -> bool:
        return str(self._store.value(key, "false")).lower() in ("true", "1")

    def text(self, key: str, default: str = "") -> str:
        """A remembered word: 'last/target', 'last/device', 'last/folder'."""
        value = self._store.value(key, default)
        if isinstance(value, list):  # Qt takes an unquoted comma for a list
            value = ", ".join(map(str, value))
        return value if isinstance(value, str) else default

    def set_text(self, key: str, value: str) -> None:
        self._store.setValue(key, value)

    def number(self, key: str, default: int) -> int:
        """A remembered whole number: 'last/context', 'last/batch'."""
        try:
            return min(max(int(str(self._store.value(key, default))), -LARGEST), LARGEST)
        except ValueError:
            return default

    def set_number(self, key: str, value: int) -> None:
        self._store.setValue(key, value)

    def write_through(self, key: str, value: str) -> None:
        """Remember a word and wait until it is on the disk, which may take long. Call from any thread but the GUI's.

        Other changes are written soon after they were made, on the GUI thread.
        """
        store = QSettings(self._store.fileName(), QSettings.Format.IniFormat)  # one object is for one thread
        store.setValue(key, value)
        store.sync()

    def sync(self) -> None:
        """Write what is pending."""
        self._store.sync()


def _exists(name: str) -> bool:
    """False also for what can not be looked at: too long a name, a folder without rights."""
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):
        return False
