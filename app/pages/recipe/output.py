"""Where the result goes: a name that is free, beside the source, until somebody chooses another."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QWidget

from app.jobs.convert import free_output
from app.theme import SPACE_2
from app.widgets.basics import button, label
from app.widgets.text import ElidedLabel
from core.targets import Target


class OutputRow(QWidget):
    """`follow` keeps the path right for a source and target; `choose` asks, `set_path` says."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.path: Path | None = None
        self.overwrite = False  # the user chose a file that exists: replace it once the new one is whole
        self._folder: Path | None = None  # where the user wants results, if they said so
        self._followed: tuple[Path, Target] | None = None
        self.text = ElidedLabel(mono=True)
        change = button("Change…", self.choose, hint="Choose where the result is written")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        row.addWidget(label("Result goes to", "muted"))
        row.addWidget(self.text, 1)
        row.addWidget(change)

    def follow(self, source: Path, target: Target) -> None:
        """Another source or target gets a name of its own; a name that has been taken meanwhile gives way."""
        if self.path is None or self._followed != (source, target):
            self._take(free_output(source, target, self._folder), overwrite=False)
        elif self.path.exists() and not self.overwrite:
            self._take(free_output(source, target, self.path.parent), overwrite=False)
        self._followed = (source, target)

    def forget(self) -> None:
        """The usual place is another one now: unless somebody chose a place by hand, the next `follow` takes it."""
        if self._folder is None:
            self.path = None

    def set_path(self, path: Path) -> None:
        """Write to this file or folder; later results of other targets go to the same folder."""
        self._folder = path.parent
        self._take(path, overwrite=path.exists())

    def choose(self) -> None:
        """Ask for a file, or for a folder target the folder in which its own is made."""
        if self.path is None or self._followed is None:
            return
        source, target = self._followed
        if target.is_folder:
            start = str(self.path.parent)
            name = QFileDialog.getExistingDirectory(self, "Folder in which the result is made", start)
            if name:
                self.set_path(free_output(source, target, Path(name)))
            return
        name, _ = QFileDialog.getSaveFileName(self, "Where the result is written", str(self.path), "GGUF (*.gguf)")
        if name:
            self.set_path(Path(name) if name.endswith(".gguf") else Path(f"{name}.gguf"))

    def _take(self, path: Path, overwrite: bool) -> None:
        self.path, self.overwrite = path, overwrite
        self.text.setText(str(path))
