"""A few figures side by side, each under its name."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.theme import SPACE_2
from app.widgets.basics import label
from app.widgets.text import explain, term

FEWEST = 2  # figures that are always shown


class Tiles(QWidget):
    """`set(name, value)`; names that are glossary terms have their explanation as tooltip.

    Where there is too little room, the last ones are left out rather than cut off.
    """

    def __init__(self, names: tuple[str, ...], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._values: dict[str, QLabel] = {}
        self._words: dict[str, QLabel] = {}
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        for name in names:
            word = term(name, role="caption") if explain(name) else label(name, "caption")
            value = label("–", selectable=True)
            value.setAccessibleName(name)
            value.setToolTip(word.toolTip())
            word.setBuddy(value)
            column = QVBoxLayout()
            column.setSpacing(0)
            column.addWidget(word)
            column.addWidget(value)
            row.addLayout(column, 1)
            self._values[name], self._words[name] = value, word

    def set(self, name: str, value: str, note: str = "") -> None:
        """note: the value's tooltip, in place of the name's explanation."""
        self._values[name].setText(value)
        if note:
            self._values[name].setToolTip(note)
        self._fit()

    def value(self, name: str) -> str:
        return self._values[name].text()

    def clear(self) -> None:
        """A dash for every figure: there is nothing to show now."""
        for value in self._values.values():
            value.setText("–")
        self._fit()

    def minimumSizeHint(self) -> QSize:
        widths = [self._width(name) for name in self._values]
        return QSize(sum(widths[:FEWEST]) + SPACE_2, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        # Columns are equally wide unless one needs more.
        room = self.width()
        for number, name in enumerate(self._values):
            room -= self._width(name) + (SPACE_2 if number else 0)
            for part in (self._words[name], self._values[name]):
                part.setVisible(room >= 0 or number < FEWEST)

    def _width(self, name: str) -> int:
        return max(self._words[name].sizeHint().width(), self._values[name].sizeHint().width())
