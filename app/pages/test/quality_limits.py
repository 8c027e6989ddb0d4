"""The limits that a file is judged by: presets, a value for each, and a file of them that a team can keep."""

from __future__ import annotations

import json
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QGridLayout, QSizePolicy, QWidget

from app.models.quality import TERMS
from app.theme import SPACE_1, SPACE_2
from app.widgets.basics import label, quiet_button
from app.widgets.calm import CalmCombo, CalmDecimal
from app.widgets.text import clipped, explain, term
from core.errors import UserError
from core.verdict.thresholds import PRESETS, REASONS, Thresholds, find_thresholds, in_words

DEFAULT_PRESET = "balanced"
OWN = "own"
OWN_NAME = "my own"
SHORT = {"kl_mean": "Mean KL", "kl_p99": "99th percentile", "flips": "flips", "perplexity_ratio": "perplexity"}
OFF = "not judged"
FILTER = "Limits (*.json);;All files (*)"
COLUMNS = 6
LEAST_WIDTH = 100  # px: "not judged" and the arrows
# key, title, factor from the limit to what is shown, suffix, decimals, step, value that stands for "not judged"
LIMITS = (
    ("kl_mean", "Mean KL divergence", 1.0, " nats", 3, 0.01, 0.0),
    ("kl_p99", "p99 of KL", 1.0, " nats", 2, 0.1, 0.0),
    ("flips", "Flip rate", 100.0, " %", 1, 1.0, 0.0),
    ("perplexity_ratio", "Perplexity ratio", 1.0, " ×", 3, 0.01, 0.0),
    ("delta_rms", "RMS Δp", 100.0, " %", 1, 1.0, 0.0),
    ("layer_error", "Layer error", 100.0, " %", 1, 1.0, 0.0),
    ("accuracy_drop", "Fall of accuracy", 100.0, " %", 1, 1.0, -1.0),
    ("needles_lost", "Numbers lost", 1.0, "", 0, 1.0, -1.0),
    ("size_ratio", "Size ratio", 100.0, " %", 1, 5.0, 0.0),
    ("size_bytes", "File size", 1e-6, " MB", 2, 100.0, 0.0),
    ("decode_ratio", "Speed ratio, least", 1.0, " ×", 2, 0.1, 0.0),
    ("decode_rate", "Speed, least", 1.0, " tokens/s", 1, 1.0, 0.0),
)


class QualityLimits(QWidget):
    """The grid of values. `preset`, `open`, `save` and `file` are made here and put where there
    is room. `changed()` when other files may pass; `wanted(key)` when somebody sets a limit, which may take a
    measurement that is off; `failed(error)` when a file can not be used."""

    changed = Signal()
    wanted = Signal(str)
    failed = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._filling = False
        self._name = OWN_NAME  # of own limits; a file's where they are from one
        self._from_file: Thresholds | None = None  # as it was read: boxes round
        self.preset = CalmCombo()
        for name in PRESETS:
            self.preset.addItem(name.capitalize(), name)
        self.preset.addItem("My own", OWN)
        self.preset.setAccessibleName("Limits")
        self.preset.setToolTip("\n".join(f"{name.capitalize()}: {REASONS[name]}." for name in PRESETS))
        self.preset.activated.connect(lambda _row: self._take_preset())
        self.values: dict[str, CalmDecimal] = {}
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        for number, (key, title, _factor, suffix, decimals, step, off) in enumerate(LIMITS):
            box = CalmDecimal(f"Limit: {title}", explain(TERMS[key]))
            box.setRange(off, 1e9)
            box.setDecimals(decimals)
            box.setSingleStep(step)
            box.setSuffix(suffix)
            box.setSpecialValueText(OFF)
            box.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)  # else as wide as 1e9 is
            box.setMinimumWidth(LEAST_WIDTH)
            box.valueChanged.connect(lambda value, key=key, off=off: self._edited(key, value != off))
            self.values[key] = box
            name = term(TERMS[key], title, "caption")
            name.setBuddy(box)
            row, column = divmod(number, COLUMNS)
            grid.addWidget(name, 2 * row, column)
            grid.addWidget(box, 2 * row + 1, column)
            grid.setColumnStretch(column, 1)
        self.open = quiet_button(
            "Open limits…", self._open, icon="folder-open", hint="Take limits from a JSON file, as bitsmith eval does"
        )
        self.save = quiet_button("Save limits…", self._save, icon="save", hint="Keep these limits in a JSON file")
        self.file = label("", "muted")
        grid.setContentsMargins(0, 0, 0, 0)
        self.setLayout(grid)
        self.preset.setCurrentIndex(self.preset.findData(DEFAULT_PRESET))
        self._fill(PRESETS[DEFAULT_PRESET])

    # ---- what the controls say -------------------------------------------------------------------------------------

    @property
    def own(self) -> bool:
        """Whether they are no preset's."""
        return str(self.preset.currentData()) not in PRESETS

    def thresholds(self) -> Thresholds:
        """Limits to judge by; one of PRESETS, or a file's, as long as nobody has changed a value."""
        name = str(self.preset.currentData())
        if name in PRESETS:
            return PRESETS[name]
        if self._from_file is not None:
            return self._from_file
        values = {}
        for key, _title, factor, _suffix, _decimals, _step, off in LIMITS:
            value = self.values[key].value()
            values[key] = None if value == off else value / factor
        return Thresholds(name=self._name, **values)

    def in_words(self) -> str:
        """What they stand for."""
        name = str(self.preset.currentData())
        if name not in REASONS:
            set_ones = [title for key, title, *_ in LIMITS if getattr(self.thresholds(), key) is not None]
            count = f"{len(set_ones)} limits" if len(set_ones) != 1 else "one limit"
            return f"Your own: {count}, under Advanced." if set_ones else "No limit is set, so nothing will be judged."
        limits = PRESETS[name]
        words = [f"{short} ≤ {in_words(key, getattr(limits, key))}" for key, short in SHORT.items()]
        return f"{', '.join(words)}: {REASONS[name]}."

    # ---- the user changes something --------------------------------------------------------------------------------

    def _take_preset(self) -> None:
        name = self.preset.currentData()
        if name in PRESETS:
            self._fill(PRESETS[name])
        self.changed.emit()

    def _fill(self, limits: Thresholds) -> None:
        self._filling = True
        self._from_file, self._name = None, OWN_NAME
        for key, _title, factor, _suffix, _decimals, _step, off in LIMITS:
            value = getattr(limits, key)
            self.values[key].setValue(off if value is None else value * factor)
        self.file.setText("")
        self._filling = False

    def _edited(self, key: str, on: bool) -> None:
        if self._filling:
            return
        self._from_file, self._name = None, OWN_NAME
        self.file.setText("")
        self.preset.setCurrentIndex(self.preset.findData(OWN))
        if on:
            self.wanted.emit(key)
        self.changed.emit()

    # ---- files -----------------------------------------------------------------------------------------------------

    def read(self, path: Path) -> None:
        """Judge by the limits of this file; what is wrong with it goes to `failed`."""
        try:
            found = find_thresholds(str(path))
        except UserError as error:
            self.failed.emit(error)
            return
        self._fill(found)
        self._from_file, self._name = found, found.name
        self.file.setText(f"from {clipped(path.name)}")
        self.preset.setCurrentIndex(self.preset.findData(OWN))
        for key, *_ in LIMITS:
            if getattr(found, key) is not None:
                self.wanted.emit(key)
        self.changed.emit()

    def write(self, path: Path) -> None:
        """Write the limits in force, as `bitsmith eval --thresholds` reads them."""
        try:
            path.write_text(json.dumps(self.thresholds().to_dict(), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            self.failed.emit(
                UserError(f"{path.name} could not be written: {error.strerror or error}.", "Choose another folder.")
            )
        else:
            self.file.setText(f"saved as {clipped(path.name)}")
            self.changed.emit()

    def _open(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open limits", "", FILTER)
        if name:
            self.read(Path(name))

    def _save(self) -> None:
        name, _ = QFileDialog.getSaveFileName(self, "Save the limits", "limits.json", FILTER)
        if name:
            path = Path(name)
            self.write(path if path.suffix else path.with_suffix(".json"))
