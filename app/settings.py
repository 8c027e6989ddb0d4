"""What the window remembers between two starts, in a file of its own."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, QSettings, QStandardPaths

from app.theme import MODES

RECENT_LIMIT = 10


class Settings:
    """Typed access to the settings file. `path` None: bitsmith.ini in the user's configuration folder."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.GenericConfigLocation)
            path = Path(folder) / "bitsmith" / "bitsmith.ini"
        self._store = QSettings(str(path), QSettings.Format.IniFormat)

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
        names = [value] if isinstance(value, str) else list(value or [])  # a list of one comes back as a string
        return tuple(path for path in map(Path, names) if path.exists())

    def add_recent(self, path: Path) -> None:
        others = [str(other) for other in self.recent if other != path]
        self._store.setValue("recent", [str(path), *others][:RECENT_LIMIT])

    @property
    def models_folder(self) -> Path:
        """Where downloaded models go."""
        from core.hub.access import models_folder

        chosen = str(self._store.value("folders/models", "") or "")
        return Path(chosen) if chosen else models_folder()

    @models_folder.setter
    def models_folder(self, folder: Path) -> None:
        self._store.setValue("folders/models", str(folder))

    @property
    def endpoint(self) -> str:
        """The address of a mirror, '' for the hub itself."""
        return str(self._store.value("hub/endpoint", "") or "")

    @endpoint.setter
    def endpoint(self, address: str) -> None:
        self._store.setValue("hub/endpoint", address)

    @property
    def offline(self) -> bool:
        """Whether no server may be asked."""
        return str(self._store.value("hub/offline", "false")).lower() in ("true", "1")

    @offline.setter
    def offline(self, on: bool) -> None:
        self._store.setValue("hub/offline", "true" if on else "false")

    def text(self, key: str, default: str = "") -> str:
        """A remembered word: 'last/target', 'last/device', 'last/folder'."""
        return str(self._store.value(key, default))

    def set_text(self, key: str, value: str) -> None:
        self._store.setValue(key, value)

    def number(self, key: str, default: int) -> int:
        """A remembered whole number: 'last/context', 'last/batch'."""
        try:
            return int(str(self._store.value(key, default)))
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
