"""The column of pages at the window's left."""

from __future__ import annotations

from PySide6.QtCore import QSize, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QButtonGroup, QFrame, QPushButton, QVBoxLayout, QWidget

from app.icons import set_icon
from app.language import say
from app.theme import SPACE_1, SPACE_3, themes

WIDTH = 148


class Navigation(QFrame):
    """One button a page. `chosen(key)` when the user picks one; `set_current` marks it."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("frameRole", "nav")
        self.setAccessibleName("Pages")
        self.setFixedWidth(WIDTH)
        self._group = QButtonGroup(self)
        self._buttons: dict[str, QPushButton] = {}
        self._icons: dict[str, str] = {}
        self._titles: dict[str, str] = {}
        self._below: list[tuple[QPushButton, str]] = []
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(SPACE_3, SPACE_3, SPACE_3, SPACE_3)
        self._layout.setSpacing(SPACE_1)
        self._layout.addStretch(1)
        themes().changed.connect(self._recolor)

    def add(self, key: str, title: str, icon: str, action: QAction) -> None:
        """A button that does what `action` does, under the same shortcut."""
        title = say(title)
        button = QPushButton(title)
        button.setProperty("buttonRole", "nav")
        button.setCheckable(True)
        button.setAutoDefault(False)
        button.setIconSize(QSize(22, 16))
        button.setAccessibleName(title)
        button.setToolTip(f"{action.toolTip()} ({action.shortcut().toString()})")
        button.clicked.connect(lambda _checked=False: self.chosen.emit(key))
        self._group.addButton(button)
        self._buttons[key], self._icons[key], self._titles[key] = button, icon, title
        self._layout.insertWidget(len(self._buttons) - 1, button)  # the space below stays behind the last page
        self._recolor()

    def add_below(self, action: QAction, title: str, icon: str) -> None:
        """A button at the bottom that is no page: it does what `action` does."""
        title = say(title)
        button = QPushButton(title)
        button.setProperty("buttonRole", "nav")
        button.setAutoDefault(False)
        button.setIconSize(QSize(22, 16))
        button.setAccessibleName(title)
        button.setToolTip(f"{action.toolTip()} ({action.shortcut().toString()})")
        button.clicked.connect(lambda _checked=False: action.trigger())
        self._below.append((button, icon))
        self._layout.addWidget(button)
        self._recolor()

    def set_current(self, key: str) -> None:
        self._buttons[key].setChecked(True)
        self._recolor()

    def set_count(self, key: str, count: int) -> None:
        """Show a number behind a page's title, such as the jobs that wait or run; 0 shows none."""
        button, title = self._buttons[key], self._titles[key]
        button.setText(f"{title} ({count})" if count else title)
        button.setAccessibleName(f"{title}, {count} in progress" if count else title)

    def _recolor(self, *_theme: object) -> None:
        for key, button in self._buttons.items():
            set_icon(button, self._icons[key], "accent" if button.isChecked() else "muted", gap=6)
        for button, icon in self._below:
            set_icon(button, icon, "muted", gap=6)
