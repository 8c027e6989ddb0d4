"""Teaching data: made-up weights with one outlier whose place and size can be dragged."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QSlider, QSpinBox, QWidget

from app.theme import SPACE_2
from app.widgets.basics import label, number_box
from core.inspect.synthetic import Synthetic

LARGEST = 100  # standard deviations
COLUMNS = 256  # so that groups of 128 are more than one


class TeachingControls(QWidget):
    """`moved` follows each change; `data` is what the controls say."""

    moved = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        plain = Synthetic(columns=COLUMNS)
        self.place = _Pair("Column of the outlier", plain.columns - 1, plain.column, "")
        self.magnitude = _Pair("Size of the outlier", LARGEST, round(plain.size), " σ")
        self.magnitude.box.setToolTip("In standard deviations of the other weights; 0 takes the outlier away")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE_2)
        for pair, words in ((self.place, "Outlier in column"), (self.magnitude, "Size")):
            word = label(words, "muted")
            word.setBuddy(pair.slider)
            row.addWidget(word)
            row.addWidget(pair.slider, 1)
            row.addWidget(pair.box)
            pair.slider.valueChanged.connect(lambda _value: self.moved.emit())

    @property
    def data(self) -> Synthetic:
        return Synthetic(columns=COLUMNS, column=self.place.slider.value(), size=float(self.magnitude.slider.value()))


class _Pair:
    """A slider and a number field that say the same."""

    def __init__(self, name: str, largest: int, value: int, suffix: str) -> None:
        self.name = name
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, largest)
        self.slider.setValue(value)
        self.slider.setAccessibleName(f"{name}, slider")
        self.slider.setToolTip(name)
        self.slider.setMinimumWidth(48)
        self.box: QSpinBox = number_box(name, 0, largest, value, suffix=suffix)
        self.slider.valueChanged.connect(self.box.setValue)
        self.box.valueChanged.connect(self.slider.setValue)
