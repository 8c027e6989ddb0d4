"""Which group is looked at, and under which granularity."""

from __future__ import annotations

import math

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent, QStandardItemModel
from PySide6.QtWidgets import QBoxLayout, QCheckBox, QHBoxLayout, QSpinBox, QWidget

from app.jobs.inspect_more import AS_IN_FILE
from app.theme import SPACE_2, SPACE_4
from app.widgets.basics import number_box
from app.widgets.calm import CalmCombo
from app.widgets.text import explain, term

STORED = ""  # the granularity that the format has
GRANULARITIES = (
    ("as the format stores it", STORED),
    ("as the open file has it", AS_IN_FILE),
    ("per tensor", "per tensor"),
    ("per channel", "per channel"),
    ("groups of 128", "groups of 128"),
    ("groups of 64", "groups of 64"),
    ("groups of 32", "groups of 32"),
)


class GroupControls(QWidget):
    """`row_changed`, `group_changed(number)`, `scheme_changed`: granularity, bits or symmetry.

    Only what has an effect is shown: bits belong to the granularities, not to a format.
    """

    row_changed = Signal()
    group_changed = Signal(int)
    scheme_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.row = number_box("Row", 0, 0, 0, hint="Row of the tensor: one output channel")
        self.group = number_box("Group", 0, 0, 0, hint="Which group of the row; neighbours in it share a scale")
        self.granularity = CalmCombo()
        self.granularity.setAccessibleName("Granularity")
        self.granularity.setToolTip(explain("granularity"))
        for words, value in GRANULARITIES:
            self.granularity.addItem(words, value)
        self.bits = number_box("Bits", 2, 8, 4, hint="Bits of each code")
        self.symmetric = QCheckBox("Symmetric")
        self.symmetric.setToolTip(explain("symmetric"))
        self.symmetric.setChecked(True)
        self._place = _group(("Row", self.row))
        self._which = _group(("Group", self.group))
        self._scheme = _group(("Granularity", self.granularity))
        self._numbers = _group(("Bits", self.bits), ("", self.symmetric))
        self._lines = QBoxLayout(QBoxLayout.Direction.LeftToRight, self)
        self._lines.setContentsMargins(0, 0, 0, 0)
        self._lines.setSpacing(SPACE_2)
        second = QHBoxLayout()
        second.setSpacing(SPACE_4)
        second.addWidget(self._scheme)
        second.addWidget(self._numbers)
        second.addStretch(1)
        first = QHBoxLayout()
        first.setSpacing(SPACE_4)
        first.addWidget(self._place)
        first.addWidget(self._which)
        first.addStretch(1)
        self._lines.addLayout(first)
        self._lines.addSpacing(SPACE_2)
        self._lines.addLayout(second, 1)
        self.row.valueChanged.connect(lambda _value: self.row_changed.emit())
        self.group.valueChanged.connect(self.group_changed)
        self.granularity.activated.connect(lambda _row: self._on_scheme())
        self.bits.valueChanged.connect(lambda _value: self.scheme_changed.emit())
        self.symmetric.toggled.connect(lambda _on: self.scheme_changed.emit())
        self.bits.valueChanged.connect(lambda _value: self._set_own())
        self.symmetric.toggled.connect(lambda _on: self._set_own())
        self._own = False  # whether the user has chosen bits or symmetry for this format
        self._followed = ""
        self._side_by_side = False
        self._show_what_counts()

    @property
    def opened(self) -> str:
        """Name of the granularity whose group is looked at; '' for the format's own."""
        return str(self.granularity.currentData())

    def set_granularity(self, name: str) -> None:
        """By name; nothing is emitted."""
        self.granularity.setCurrentIndex(max(0, self.granularity.findData(name)))
        self._show_what_counts()

    def follow(self, name: str, bits: float, symmetric: bool) -> None:
        """Start from what a format has; what the user then chooses stays until another one. Nothing is emitted."""
        if name != self._followed:
            self._followed, self._own = name, False
        if self._own:
            return
        for box in (self.bits, self.symmetric):
            box.blockSignals(True)
        self.bits.setValue(math.ceil(bits))  # within what the field allows
        self.symmetric.setChecked(symmetric)
        for box in (self.bits, self.symmetric):
            box.blockSignals(False)

    def _set_own(self) -> None:
        self._own = True

    def set_teaching(self, on: bool) -> None:
        """Made-up data is in no file: there is no format to store it."""
        self._place.setVisible(not on)  # its rows are alike
        model = self.granularity.model()
        assert isinstance(model, QStandardItemModel)
        for row in range(2):
            model.item(row).setEnabled(not on)
        if on and self.opened in (STORED, AS_IN_FILE):
            self.set_granularity("groups of 32")
        elif not on:
            self.set_granularity(STORED)
        self._fit()

    def set_side_by_side(self, on: bool) -> None:
        """All granularities are looked at, not one group."""
        self._side_by_side = on
        self._show_what_counts()

    def set_rows(self, count: int, value: int) -> None:
        """How many rows the tensor has, and which is looked at; nothing is emitted."""
        self._set(self.row, count, value)

    def set_groups(self, count: int, value: int) -> None:
        self._set(self.group, count, value)

    @staticmethod
    def _set(box: QSpinBox, count: int, value: int) -> None:
        box.blockSignals(True)
        box.setRange(0, max(0, count - 1))
        if box.value() != value:
            box.setValue(value)
        box.blockSignals(False)

    def _on_scheme(self) -> None:
        self._show_what_counts()
        self.scheme_changed.emit()

    def _show_what_counts(self) -> None:
        self._numbers.setVisible(self._side_by_side or self.opened not in (STORED, AS_IN_FILE))
        self._scheme.setVisible(not self._side_by_side)
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """One line where there is room, else two."""
        shown = [part for part in (self._place, self._which, self._scheme, self._numbers) if not part.isHidden()]
        needed = sum(part.sizeHint().width() + SPACE_4 for part in shown)
        across = needed <= self.width()
        self._lines.setDirection(QBoxLayout.Direction.LeftToRight if across else QBoxLayout.Direction.TopToBottom)


def _group(*parts: tuple[str, QWidget]) -> QWidget:
    outer = QWidget()
    layout = QHBoxLayout(outer)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(SPACE_2)
    for number, (words, widget) in enumerate(parts):
        if number:
            layout.addSpacing(SPACE_2)
        if words:
            word = term(words.casefold(), words, "muted")
            word.setBuddy(widget)
            layout.addWidget(word)
        layout.addWidget(widget)
    return outer
