"""A few figures side by side, each under its name."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.theme import SPACE_2
from app.widgets.basics import label
from app.widgets.text import explain, term


class Tiles(QWidget):
    """`set(name, value)`; names that are glossary terms have their explanation as tooltip."""

    def __init__(self, names: tuple[str, ...], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._values: dict[str, QLabel] = {}
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
            self._values[name] = value

    def set(self, name: str, value: str, note: str = "") -> None:
        """note: the value's tooltip, in place of the name's explanation."""
        self._values[name].setText(value)
        if note:
            self._values[name].setToolTip(note)

    def value(self, name: str) -> str:
        return self._values[name].text()

    def clear(self) -> None:
        """A dash for every figure: there is nothing to show now."""
        for value in self._values.values():
            value.setText("–")
