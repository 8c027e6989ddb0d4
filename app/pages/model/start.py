"""What the Model page shows while no model is open: ways to open one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QListWidget, QListWidgetItem, QProgressBar, QVBoxLayout, QWidget

from app.pages.model.welcome import ThisComputer, Way, drop_area
from app.theme import (
    PAGE_MARGIN,
    ROW_HEIGHT,
    SPACE_1,
    SPACE_3,
    SPACE_4,
)
from app.widgets.basics import Card, PrimaryButton, button, label, set_available
from app.widgets.inline_error import InlineError
from app.widgets.scrolled import scrolled
from core import units

SAMPLE = "SmolLM2, a small model: six clicks from here to a smaller file that answers."
OPEN = "A published model's folder, or a file: GGUF, safetensors, PyTorch."
GET = "Search Hugging Face or a mirror, and download it."
PATH_ROLE = Qt.ItemDataRole.UserRole


class PathList(QListWidget):
    """Models by name; the path is the tooltip. `chosen(path)` on a click or Enter."""

    chosen = Signal(object)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setUniformItemSizes(True)
        self.itemClicked.connect(self._choose)
        self.itemActivated.connect(self._choose)

    def fill(self, entries: Sequence[tuple[str, Path]]) -> None:
        """Show (text, path) pairs."""
        self.clear()
        for text, path in entries:
            item = QListWidgetItem(text)
            item.setToolTip(f"{path}\nOpen this model")
            item.setData(PATH_ROLE, str(path))
            item.setData(Qt.ItemDataRole.AccessibleTextRole, f"Open {text}")
            item.setSizeHint(QSize(0, ROW_HEIGHT))
            self.addItem(item)

    def _choose(self, item: QListWidgetItem) -> None:
        self.chosen.emit(Path(item.data(PATH_ROLE)))


class StartView(QWidget):
    """Drop area, buttons, recent models, models on this computer, the sample.

    get_model: search and download. go_on(begun): an unfinished download, or the name of a model that lacks parts.
    """

    open_file = Signal()
    open_folder = Signal()
    open_path = Signal(object)
    get_sample = Signal()
    get_model = Signal()
    go_on = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.error = InlineError()
        self.primary = PrimaryButton(
            "Open a model…", self.open_file.emit, icon="folder-open", hint="Choose a model file or folder (Ctrl+O)"
        )
        self.sample = button(
            "Try the sample model",
            self.get_sample.emit,
            icon="play",
            hint="SmolLM2 135M (93 MB), a small model to try everything with; downloaded once where it is not there",
        )
        self.get = button(
            "Get a model…",
            self.get_model.emit,
            icon="download",
            hint="Search Hugging Face and download a model (Ctrl+G)",
        )
        folder = button("Open a folder…", self.open_folder.emit, hint="Choose a model's folder (Ctrl+Shift+O)")
        self.sample_state = label("", "muted")
        self.sample_state.hide()
        self.computer = ThisComputer()
        ways = (
            Way("flask-conical", "Try it first", SAMPLE, (self.sample,)),
            Way("folder-open", "Open one that you have", OPEN, (self.primary, folder)),
            Way("download", "Get one", GET, (self.get,)),
        )
        self.recent = PathList("Recent models")
        self.local = PathList("Models on this computer")
        self.no_recent = label("Models that you open are listed here.", "muted", wrap=True)
        self.no_local = label(
            "Looking in the folders of Hugging Face, LM Studio, Ollama and llama.cpp…", "muted", wrap=True
        )
        inside = QWidget()
        layout = QVBoxLayout(inside)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_4, PAGE_MARGIN, SPACE_4)
        layout.setSpacing(SPACE_3)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scrolled(inside))
        layout.addWidget(self.error)
        layout.addWidget(drop_area(ways, self.sample_state, self.computer), 3)
        lists = QHBoxLayout()
        lists.setSpacing(SPACE_4)
        lists.addWidget(_list_card("Recent", self.recent, self.no_recent), 1)
        lists.addWidget(_list_card("On this computer", self.local, self.no_local), 1)
        layout.addLayout(lists, 2)
        self.recent.chosen.connect(self.open_path)
        self.local.chosen.connect(self._choose_local)
        self._begun: dict[Path, Any] = {}  # path → an unfinished download, or the name of a model that is not whole

    def show_recent(self, paths: Sequence[Path]) -> None:
        self.recent.fill([(p.name, p) for p in paths])
        self.recent.setVisible(bool(paths))
        self.no_recent.setVisible(not paths)

    def show_local(self, models: Sequence[Any], unfinished: Sequence[Any] = ()) -> None:
        """Entries of `core.checkpoint.library`, after those of `core.hub.download.unfinished`."""
        rows = [(f"{u.repository} · {u.title} · {_share(u)} downloaded, go on", u.folder) for u in unfinished]
        self._begun = {u.folder: u for u in unfinished}
        for m in models:
            if m.path in self._begun or m.path.parent in self._begun:
                continue  # what is there of a download that has not ended
            whole = f"{units.format_decimal(m.bytes)} · {m.origin}"
            rows.append((f"{m.name} · {f'{m.missing} files missing · ' if m.missing else ''}{whole}", m.path))
            if m.missing and m.origin == "Hugging Face":
                self._begun[m.path] = m.name
        self.local.fill(rows)
        self.local.setVisible(bool(rows))
        self.no_local.setVisible(not rows)
        self.no_local.setText("None found in the folders of Hugging Face, LM Studio, Ollama and llama.cpp.")

    def _choose_local(self, path: Path) -> None:
        if path in self._begun:
            self.go_on.emit(self._begun[path])
        else:
            self.open_path.emit(path)

    def show_sample_state(self, text: str) -> None:
        """'' when no download runs."""
        self.sample_state.setText(text)
        self.sample_state.setVisible(bool(text))
        set_available(self.sample, "The sample is being downloaded; it opens by itself." if text else "")


class OpeningView(QWidget):
    """While a model's headers are read."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.title = label("", "title")
        bar = QProgressBar()
        bar.setRange(0, 0)
        bar.setTextVisible(False)
        bar.setFixedWidth(260)
        bar.setAccessibleName("Reading the model")
        layout = QVBoxLayout(self)
        layout.setSpacing(SPACE_3)
        centre = Qt.AlignmentFlag.AlignHCenter
        layout.addStretch(2)
        layout.addWidget(self.title, 0, centre)
        layout.addWidget(label("Reading names and sizes; the weights themselves stay on disk.", "muted"), 0, centre)
        layout.addWidget(bar, 0, centre)
        layout.addStretch(3)


def _share(unfinished: Any) -> str:
    return units.format_percent(unfinished.bytes_done / unfinished.bytes_total if unfinished.bytes_total else 0, 0)


def _list_card(title: str, entries: QListWidget, empty: QWidget) -> Card:
    card = Card(title)
    card.body.setSpacing(SPACE_1)
    card.add(entries, 1)
    card.add(empty)
    card.body.addStretch(0)
    entries.setFrameShape(QFrame.Shape.NoFrame)
    entries.hide()
    return card


__all__ = ["OpeningView", "PathList", "StartView"]
