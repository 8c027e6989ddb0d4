"""One chooser for a model, whether it is a file or a folder."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QDialog, QFileDialog, QHeaderView, QSplitter, QToolButton, QWidget

from app.icons import set_icon
from app.theme import themes

SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
FILTER = "Models (*.gguf *.safetensors *.bin *.pt *.pth *.json);;All files (*)"


# Names that Qt gives the dialog's buttons. Its own icons are black on any ground.
_BUTTONS = {
    "backButton": "arrow-left",
    "forwardButton": "arrow-right",
    "toParentButton": "arrow-up",
    "listModeButton": "layout-grid",
    "detailModeButton": "list",
}


class ModelDialog(QFileDialog):
    """Qt's own dialog, because the system's folder choosers hide the files and so make a model's folder look empty.

    'Open' on a folder that holds a model takes the folder; on any other folder it goes into it.
    """

    def __init__(self, parent: QWidget | None, start: str, *, folder: bool) -> None:
        super().__init__(parent, "Open a model folder" if folder else "Open a model file or folder", start)
        self.setOption(QFileDialog.Option.DontUseNativeDialog)
        themes().dress(self)
        self.setOption(QFileDialog.Option.ShowDirsOnly, False)
        self.setFileMode(QFileDialog.FileMode.Directory if folder else QFileDialog.FileMode.ExistingFile)
        self.setNameFilter(FILTER)
        self.setViewMode(QFileDialog.ViewMode.Detail)
        self.resize(860, 540)
        for name, icon in _BUTTONS.items():
            for found in self.findChildren(QToolButton, name):
                set_icon(found, icon)
                found.setAccessibleName(found.accessibleName() or found.toolTip())
        for found in self.findChildren(QToolButton, "newFolderButton"):
            found.hide()
        for splitter in self.findChildren(QSplitter):
            splitter.setSizes([150, 710])
        for header in self.findChildren(QHeaderView):
            for section, width in enumerate((380, 110, 0, 190)):  # name, size, kind (of no use here), time
                header.setSectionHidden(section, not width)
                header.resizeSection(section, width)
        self.chosen: Path | None = None

    def accept(self) -> None:
        names = self.selectedFiles()
        path = Path(names[0]) if names else None
        if path is not None and (path.is_file() or holds_model(path)):
            self.chosen = path
            QDialog.accept(self)
        else:
            super().accept()
            if self.result() == QDialog.DialogCode.Accepted and path is not None:
                self.chosen = path


def holds_model(folder: Path) -> bool:
    """Whether a folder directly contains a file that a model can be read from."""
    try:
        return folder.is_dir() and any(entry.suffix.lower() in SUFFIXES for entry in folder.iterdir())
    except OSError:
        return False


def choose_model(parent: QWidget | None, start: str, *, folder: bool = False) -> Path | None:
    """Ask for a model, starting in folder `start`. None when the user changed their mind."""
    dialog = ModelDialog(parent, start, folder=folder)
    return dialog.chosen if dialog.exec() == QDialog.DialogCode.Accepted else None
