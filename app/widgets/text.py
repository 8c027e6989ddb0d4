"""Texts with a duty: names that may be too long, sizes, and terms that need explaining."""

from __future__ import annotations

import re
from collections.abc import Mapping

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QGuiApplication, QPainter, QPaintEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QSizePolicy, QStyle, QStyleOption, QWidget

from app.language import say
from app.theme import BASE, SPACE_1, SPACE_4, mono_font
from app.widgets.basics import label, set_role
from core.units import format_bytes
from resources import meaning


def explain(term: str) -> str:
    """What the glossary says about a term, in any case; '' when it has no entry."""
    return say(meaning(term))


def term(word: str, shown: str = "", role: str = "") -> QLabel:
    """A label with the word's glossary entry, if it has one, as tooltip. shown: the text, if it is not the word itself.

    An explained label has the property 'term'.
    """
    result = label(shown or word, role)
    if explain(word):
        result.setToolTip(explain(word))
        result.setProperty("term", word)
    return result


def breakable(text: str) -> str:
    """The text with places to break a line inside words that no column is wide enough for, such as code."""
    return " ".join(_JOINTS.sub("\\1\u200b", word) if len(word) > _LONG_WORD else word for word in text.split(" "))


_LONG_WORD = 24  # letters
_JOINTS = re.compile(r"([=(,_])(?=\w)")


def clipped(name: str, letters: int = 28) -> str:
    """A name for a button or a short label: its middle left out where it is long."""
    half = letters // 2
    return name if len(name) <= letters else f"{name[: half - 1]}…{name[-half:]}"


class ElidedLabel(QLabel):
    """One line, shortened in the middle when there is no room. The whole text is the tooltip, and can be copied."""

    def __init__(self, text: str = "", role: str = "", *, mono: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setMinimumWidth(48)
        if mono:
            self.setFont(mono_font(BASE))
        set_role(self, textRole=role)
        copy = QAction("Copy", self)
        copy.triggered.connect(lambda: QGuiApplication.clipboard().setText(self.text()))
        self.addAction(copy)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.setText(text)

    def setText(self, text: str) -> None:
        super().setText(text)
        self.setToolTip(text)
        self.setAccessibleName(text)

    def sizeHint(self) -> QSize:
        # All of the text if there is room; the policy lets the layout give less.
        return QSize(self.fontMetrics().horizontalAdvance(self.text()) + SPACE_1, super().sizeHint().height())

    def shown_text(self) -> str:
        """What is painted at the present width."""
        return self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideMiddle, self.contentsRect().width())

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            option = QStyleOption()
            option.initFrom(self)
            self.style().drawPrimitive(QStyle.PrimitiveElement.PE_Widget, option, painter, self)
            self.style().drawItemText(
                painter,
                self.contentsRect(),
                int(self.alignment() | Qt.AlignmentFlag.AlignVCenter),
                self.palette(),
                self.isEnabled(),
                self.shown_text(),
                self.foregroundRole(),
            )


class SizeLabel(QLabel):
    """A number of bytes as '98.36 MB (93.80 MiB)'."""

    def __init__(self, nbytes: int | None = None, role: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        set_role(self, textRole=role)
        self.set_bytes(nbytes)

    def set_bytes(self, nbytes: int | None) -> None:
        """None shows a dash."""
        self.setText("–" if nbytes is None else format_bytes(nbytes))


_LAST_ROW = 999  # takes the height that is left, so that rows stay together at the top


class KeyValue(QWidget):
    """Names at the left, values at the right of them. A name that is a glossary term gets its explanation."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_4)
        self._grid.setVerticalSpacing(SPACE_1)
        self._grid.setColumnStretch(1, 1)
        self._grid.setRowStretch(_LAST_ROW, 1)
        self._values: dict[str, QLabel] = {}

    def set(self, name: str, value: str, *, term_name: str = "", mono: bool = False, role: str = "") -> None:
        """Show `value` beside `name`; a new name becomes a new row at the end."""
        if name not in self._values:
            row = len(self._values)
            key = term(term_name or name, name, "muted")
            self._values[name] = ElidedLabel(mono=mono)
            self._grid.addWidget(key, row, 0)
            self._grid.addWidget(self._values[name], row, 1)
            key.setBuddy(self._values[name])
        self._values[name].setText(value)
        set_role(self._values[name], textRole=role)

    def set_all(self, values: Mapping[str, str]) -> None:
        """Exactly these rows, in this order."""
        if list(values) != list(self._values):
            self.clear()
        for name, value in values.items():
            self.set(name, value)

    def value(self, name: str) -> str:
        return self._values[name].text()

    def clear(self) -> None:
        self._values.clear()
        while (item := self._grid.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.setParent(None)
                widget.deleteLater()
