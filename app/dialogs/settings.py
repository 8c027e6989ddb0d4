"""What can be set, for the window and the commands alike. Every change holds at once; stands beside the window."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QVBoxLayout,
    QWidget,
)

from app.help import help_desk
from app.services import Services
from app.theme import MODES, SPACE_2, SPACE_3, SPACE_4, themes
from app.widgets.basics import Card, button, label, number_box, quiet_button
from core.errors import UserError
from core.preferences import MOST_THREADS, Preferences, Sizes
from core.units import format_decimal

WIDTH = 640
LABELS_WIDTH = 96
MEMORY = (0, *(n * 10**9 for n in (2, 4, 8, 16, 32, 64, 128)))  # bytes; the least is enough for any plain conversion
COLOURS = {"system": "As the system", "light": "Light", "dark": "Dark"}
UNITS = {
    Sizes.BOTH: "Both: 4.29 GB (4.00 GiB)",
    Sizes.DECIMAL: "GB alone, powers of 1000",
    Sizes.BINARY: "GiB alone, powers of 1024",
}
FOLDERS = {  # field → name, what it is for, what an empty field means
    "models": ("Models", "Where downloaded models go", "~/Models"),
    "results": ("Results", "Where converted files go", "beside the original"),
    "scratch": (
        "Scratch",
        "For unfinished blocks of methods from data; a fast disk with room",
        "beside the result",
    ),
}
PLACE = "Kept on this computer, in a file that commands read, too. Variables and options come first."


class FolderField(QWidget):
    """A folder that can be typed or chosen; `taken(text)` is called with '' or an absolute path."""

    def __init__(self, name: str, hint: str, usual: str, taken: Callable[[str], object]) -> None:
        super().__init__()
        self._taken = taken
        self.field = QLineEdit()
        self.field.setAccessibleName(f"Folder for {name.casefold()}")
        self.field.setPlaceholderText(usual)
        self.field.setToolTip(f"{hint}; empty: {usual}")
        self.field.editingFinished.connect(self._take)
        self.choose = button("Choose…", self._choose, hint=f"Choose the folder. {hint}")
        self.choose.setAccessibleName(f"Choose the folder for {name.casefold()}")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        row.addWidget(self.field, 1)
        row.addWidget(self.choose)

    def _choose(self) -> None:
        name = QFileDialog.getExistingDirectory(self, "Choose a folder", self.field.text())
        if name:
            self.field.setText(name)
            self._take()

    def _take(self) -> None:
        text = self.field.text().strip()
        self._taken(str(Path(os.path.expanduser(text)).absolute()) if text else "")  # noqa: PTH111 - never raises


class SettingsDialog(QDialog):
    """`refresh` shows what is set. Esc closes it."""

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._services = services
        self.setWindowTitle("Settings")
        self.setProperty("frameRole", "page")
        self.setModal(False)
        self.folders = {
            key: FolderField(name, hint, usual, lambda text, key=key: self._set_folder(key, text))
            for key, (name, hint, usual) in FOLDERS.items()
        }
        self.threads = number_box("Threads", 0, MOST_THREADS, 0, hint="Cores that work; 0: all of them")
        self.threads.setSpecialValueText("all cores")
        self.threads.setKeyboardTracking(False)
        self.threads.valueChanged.connect(lambda value: self._set(threads=value))
        self.memory = QComboBox()
        self.memory.setAccessibleName("Memory")
        self.memory.setToolTip("A conversion that would take more is refused before it starts")
        for size in MEMORY:
            self.memory.addItem(f"at most {format_decimal(size)}" if size else "no limit", size)
        self.memory.activated.connect(lambda _row: self._set(memory=int(self.memory.currentData())))
        self.sizes = QComboBox()
        self.sizes.setAccessibleName("Sizes")
        self.sizes.setToolTip("In which units sizes are written; columns with a unit in their title keep it")
        for kind, text in UNITS.items():
            self.sizes.addItem(text, kind.value)
        self.sizes.activated.connect(lambda _row: self._set(sizes=str(self.sizes.currentData())))
        self.colours = QComboBox()
        self.colours.setAccessibleName("Colours")
        self.colours.setToolTip("Light or dark")
        for mode in MODES:
            self.colours.addItem(COLOURS[mode], mode)
        self.colours.activated.connect(lambda _row: self._set_colours(str(self.colours.currentData())))
        self.endpoint = QLineEdit()
        self.endpoint.setAccessibleName("Address of a mirror")
        self.endpoint.setPlaceholderText("https://huggingface.co")
        self.endpoint.setToolTip("Another server that has the hub's models; empty for huggingface.co")
        self.endpoint.editingFinished.connect(self._set_endpoint)
        self.offline = QCheckBox("Offline: ask no server")
        self.offline.setToolTip("Nothing is searched or fetched; models on this computer can be opened")
        self.offline.clicked.connect(lambda on: self._set(offline=on))
        self.told = label("", "warning", wrap=True, selectable=True)
        self._lay_out()
        self.setFixedWidth(WIDTH)
        self.threads.setFocus()
        themes().dress(self)

    def _lay_out(self) -> None:
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        layout.setSpacing(SPACE_3)
        head = QHBoxLayout()
        head.addWidget(label("Settings", "title"), 1)
        ask = help_desk().asked.emit
        more = quiet_button("Guide", lambda: ask("settings"), icon="book-open", hint="What the guide says about these")
        head.addWidget(more)
        layout.addLayout(head)
        folders = {FOLDERS[key][0]: field for key, field in self.folders.items()}
        work = {"Threads": self.threads, "Memory": self.memory}
        looks = {"Sizes": self.sizes, "Colours": self.colours}
        hub = {"Mirror": self.endpoint, "": self.offline}
        for title, rows in (("Folders", folders), ("Work", work), ("Looks", looks), ("Models from a hub", hub)):
            layout.addWidget(_card(title, rows))
        layout.addWidget(self.told)
        layout.addWidget(label(PLACE, "muted", wrap=True))

    def refresh(self) -> None:
        """Show what is set now; a page may have changed it."""
        shared: Preferences = self._services.settings.shared
        for key, field in self.folders.items():
            field.field.setText(str(getattr(shared, key)))
        self.threads.blockSignals(True)
        self.threads.setValue(shared.threads)
        self.threads.blockSignals(False)
        if self.memory.findData(shared.memory) < 0:  # written by hand
            self.memory.addItem(f"at most {format_decimal(shared.memory)}", shared.memory)
        for box, value in (
            (self.memory, shared.memory),
            (self.sizes, shared.sizes),
            (self.colours, self._services.themes.mode),
        ):
            box.setCurrentIndex(box.findData(value))
        self.endpoint.setText(shared.endpoint)
        self.offline.setChecked(shared.offline)
        self._tell("")

    def keyPressEvent(self, event: object) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):  # type: ignore[attr-defined]
            return  # ends the typing in a field, and presses nothing
        super().keyPressEvent(event)  # type: ignore[arg-type]

    def _set(self, **values: object) -> None:
        self._services.settings.change(**values)
        self._services.shell.settings_changed.emit()

    def _set_folder(self, key: str, text: str) -> None:
        self.folders[key].field.setText(text)
        existing = next((p for p in (Path(text), *Path(text).parents) if p.is_dir()), None) if text else None
        if text and (existing is None or not os.access(existing, os.W_OK)):
            self._tell(f"{text} can not be written to. Choose a folder of your own.")
            return
        self._tell("")
        self._set(**{key: text})

    def _set_endpoint(self) -> None:
        from core.hub.access import DEFAULT_ENDPOINT, checked_endpoint

        try:
            address = checked_endpoint(self.endpoint.text())
        except UserError as error:
            self._tell(str(error))
            return
        self._tell("")
        address = "" if address == DEFAULT_ENDPOINT else address
        self.endpoint.setText(address)
        self._set(endpoint=address)

    def _set_colours(self, mode: str) -> None:
        self._services.themes.set_mode(mode)
        self._services.settings.theme = mode
        self._services.shell.settings_changed.emit()

    def _tell(self, sentence: str) -> None:
        self.told.setText(sentence)
        self.told.setVisible(bool(sentence))


def _card(title: str, rows: dict[str, QWidget]) -> Card:
    card = Card(title)
    grid = QGridLayout()
    grid.setHorizontalSpacing(SPACE_3)
    grid.setVerticalSpacing(SPACE_2)
    grid.setColumnMinimumWidth(0, LABELS_WIDTH)
    grid.setColumnStretch(1, 1)
    for row, (name, widget) in enumerate(rows.items()):
        words = label(name, "muted")
        words.setBuddy(widget)
        grid.addWidget(words, row, 0)
        grid.addWidget(widget, row, 1)
    card.add(grid)
    return card
