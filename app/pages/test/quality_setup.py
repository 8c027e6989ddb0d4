"""What quality is measured on and judged by: the few controls always in view, and the rest under Options."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QFileDialog, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.models.quality import TERMS
from app.pages.test.controls import CONTRACTS
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import Card, button, label, quiet_button
from app.widgets.calm import CalmCombo, CalmNumber
from app.widgets.text import ElidedLabel, explain, term
from core.verdict.needle import LENGTHS
from core.verdict.settings import EvalSettings, EvalText
from core.verdict.texts import PROMPTS
from core.verdict.thresholds import PRESETS, REASONS, Thresholds, in_words

DEFAULT_PRESET = "balanced"
OWN = "own"
SHORT = {"kl_mean": "Mean KL", "kl_p99": "99th percentile", "flips": "flips", "perplexity_ratio": "perplexity"}
OFF = "not judged"
LAYER_TOKENS = 128
# key, title, factor from the threshold to what is shown, suffix, decimals, step, value that stands for "not judged"
LIMITS = (
    ("kl_mean", "Mean KL divergence", 1.0, " nats", 3, 0.01, 0.0),
    ("kl_p99", "p99 of KL", 1.0, " nats", 2, 0.1, 0.0),
    ("flips", "Flip rate", 100.0, " %", 1, 1.0, 0.0),
    ("perplexity_ratio", "Perplexity ratio", 1.0, " ×", 3, 0.01, 0.0),
    ("needles_lost", "Numbers lost", 1.0, "", 0, 1.0, -1.0),
    ("decode_ratio", "Speed ratio, least", 1.0, " ×", 2, 0.1, 0.0),
)


class QualitySetup(QWidget):
    """`limits_changed()` when what is judged by is another; `settings_changed()` when what is measured is."""

    limits_changed = Signal()
    settings_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._path = ""
        self._tasks = ""
        self._filling = False
        self._make_row()
        self._make_options()
        self._lay_out()
        self._fill(PRESETS[DEFAULT_PRESET])

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_row(self) -> None:
        self.preset = CalmCombo()
        for name in PRESETS:
            self.preset.addItem(name.capitalize(), name)
        self.preset.addItem("My own", OWN)
        self.preset.setCurrentIndex(self.preset.findData(DEFAULT_PRESET))
        self.preset.setAccessibleName("Limits")
        self.preset.setToolTip("\n".join(f"{name.capitalize()}: {REASONS[name]}." for name in PRESETS))
        self.preset.activated.connect(lambda _row: self._take_preset())
        self.text = CalmCombo()
        self.text.addItem("Included", "")
        self.text.addItem("Own file…", None)
        self.text.setAccessibleName("Text to measure on")
        self.text.setToolTip("What both files read. No calibration sees the included text; a file is UTF-8 text.")
        self.text.activated.connect(self._choose_text)
        self.windows = CalmNumber("Windows", 1, 4096, explain("evaluation window"))
        self.windows.setValue(EvalText().windows)
        self.length = CalmNumber("Tokens of a window", 16, 32768, explain("evaluation window"))
        self.length.setValue(EvalText().length)
        self.length.setSuffix(" tokens")
        for box in (self.windows, self.length):
            box.valueChanged.connect(lambda _value: self.settings_changed.emit())
        self.more = button("Options", self._toggle, icon="sliders-horizontal")
        self.more.setCheckable(True)
        self.more.setToolTip("Values of the limits, arithmetic, and what else is measured")
        self.explained = label("", "muted", wrap=True)
        self.explained.setAccessibleName("What these limits stand for")
        self.time = label("", "muted")
        self.time.setAccessibleName("Expected time")

    def _make_options(self) -> None:
        self.options = Card()
        self.options.setAccessibleName("Options of the measurement")
        self.options.layout().setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        self.values: dict[str, QDoubleSpinBox] = {}
        for key, title, _factor, suffix, decimals, step, off in LIMITS:
            box = QDoubleSpinBox()
            box.setRange(off, 1e6)
            box.setDecimals(decimals)
            box.setSingleStep(step)
            box.setSuffix(suffix)
            box.setSpecialValueText(OFF)
            box.setKeyboardTracking(False)
            box.setAccessibleName(f"Limit: {title}")
            box.setToolTip(explain(TERMS[key]))
            box.lineEdit().setTextMargins(SPACE_2, 0, 0, 0)
            box.valueChanged.connect(lambda _value: self._edited())
            self.values[key] = box
        self.arithmetic = CalmCombo()
        for text, name in CONTRACTS:
            self.arithmetic.addItem(text, name)
        self.arithmetic.setCurrentIndex(self.arithmetic.findData("exact"))
        self.arithmetic.setAccessibleName("Activations while measuring")
        self.arithmetic.setToolTip("exact judges the file alone; fast judges it as this program's engine runs it")
        self.arithmetic.activated.connect(lambda _row: self.settings_changed.emit())
        self.layers = self._switch("Error by layer", "Where in the depth of the model the error arises", True)
        self.texts = self._switch("Texts side by side", "How both files go on from three short prompts", True)
        self.needle = self._switch("Numbers hidden in long texts", explain("number lost"), False)
        self.speed = self._switch("Speed", "How fast both files write on this computer, in alternation", False)
        self.tasks_name = ElidedLabel("no task file", "muted")
        self.tasks = quiet_button("Task file…", self._choose_tasks, icon="folder-open", hint=explain("task file"))

    def _switch(self, text: str, hint: str, on: bool) -> QCheckBox:
        box = QCheckBox(text)
        box.setToolTip(hint)
        box.setChecked(on)
        box.toggled.connect(lambda _on: self.settings_changed.emit())
        return box

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        for word, control in (("Limits", self.preset), ("Text", self.text)):
            name = label(word, "muted")
            name.setBuddy(control)
            row.addWidget(name)
            row.addWidget(control)
            row.addSpacing(SPACE_1)
        windows = term("evaluation window", "Windows", "muted")
        windows.setBuddy(self.windows)
        row.addWidget(windows)
        row.addWidget(self.windows)
        row.addWidget(label("×", "muted"))
        row.addWidget(self.length)
        row.addStretch(1)
        row.addWidget(self.more)
        self._below = QWidget()
        below = QHBoxLayout(self._below)
        below.setContentsMargins(0, 0, 0, 0)
        below.setSpacing(SPACE_3)
        below.addWidget(self.explained, 1)
        below.addWidget(self.time)
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        columns = len(LIMITS)
        for column, (key, title, *_) in enumerate(LIMITS):
            name = term(TERMS[key], title, "caption")
            name.setBuddy(self.values[key])
            grid.addWidget(name, 0, column)
            grid.addWidget(self.values[key], 1, column)
            grid.setColumnStretch(column, 1)
        word = term("activations contract", "Activations", "caption")
        word.setBuddy(self.arithmetic)
        grid.addWidget(word, 2, 0)
        grid.addWidget(self.arithmetic, 3, 0)
        grid.addWidget(self.layers, 2, 1, 1, 2)
        grid.addWidget(self.texts, 3, 1, 1, 2)
        grid.addWidget(self.needle, 2, 3, 1, 2)
        grid.addWidget(self.speed, 3, 3, 1, 2)
        grid.addWidget(self.tasks, 2, columns - 1)
        grid.addWidget(self.tasks_name, 3, columns - 1)
        self.options.add(grid)
        self.options.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(row)
        layout.addWidget(self._below)
        layout.addWidget(self.options)

    def set_low(self, on: bool) -> None:
        """Leave out what the limits stand for; the chooser's tooltip says it, too."""
        self._below.setVisible(not on)

    # ---- what the controls say -------------------------------------------------------------------------------------

    def thresholds(self) -> Thresholds:
        """Limits to judge by; one of PRESETS as long as nobody has changed a value."""
        name = str(self.preset.currentData())
        if name in PRESETS:
            return PRESETS[name]
        values = {}
        for key, _title, factor, _suffix, _decimals, _step, off in LIMITS:
            value = self.values[key].value()
            values[key] = None if value == off else value / factor
        return Thresholds(name="my own", **values)

    def settings(self, method: str = "", calibration: str = "") -> EvalSettings:
        """What to measure. method, calibration: how the file was made, for the report."""
        return EvalSettings(
            text=EvalText(self._path, self.windows.value(), self.length.value()),
            arithmetic=str(self.arithmetic.currentData()),
            layers=LAYER_TOKENS if self.layers.isChecked() else 0,
            tasks=self._tasks,
            needle=LENGTHS if self.needle.isChecked() else (),
            prompts=PROMPTS if self.texts.isChecked() else (),
            speed=self.speed.isChecked(),
            method=method,
            calibration=calibration,
        )

    # ---- the user changes something --------------------------------------------------------------------------------

    def _take_preset(self) -> None:
        name = self.preset.currentData()
        if name in PRESETS:
            self._fill(PRESETS[name])
        else:
            self.more.setChecked(True)
            self._toggle()
        self._explain()
        self.limits_changed.emit()

    def _fill(self, limits: Thresholds) -> None:
        self._filling = True
        known = {f.name for f in fields(limits)}
        for key, _title, factor, _suffix, _decimals, _step, off in LIMITS:
            value = getattr(limits, key) if key in known else None
            self.values[key].setValue(off if value is None else value * factor)
        self._filling = False
        self._explain()

    def _edited(self) -> None:
        if self._filling:
            return
        self.preset.setCurrentIndex(self.preset.findData(OWN))
        self._explain()
        self.limits_changed.emit()

    def _explain(self) -> None:
        name = str(self.preset.currentData())
        reason = REASONS.get(name)
        if reason is None:
            self.explained.setText("Your own values, under Options.")
        else:
            limits = PRESETS[name]
            words = [f"{short} ≤ {in_words(key, getattr(limits, key))}" for key, short in SHORT.items()]
            self.explained.setText(f"{', '.join(words)}: {reason}.")

    def _choose_text(self, row: int) -> None:
        if self.text.itemData(row) is not None:
            self._set_path(str(self.text.itemData(row)))
            return
        chosen, _ = QFileDialog.getOpenFileName(
            self, "Text to measure on", "", "Text (*.txt *.md *.raw);;All files (*)"
        )
        if chosen:
            self.set_text(Path(chosen))
        else:
            self.text.setCurrentIndex(max(self.text.findData(self._path), 0))

    def set_text(self, path: Path) -> None:
        """Measure on this file."""
        if self.text.findData(str(path)) < 0:
            self.text.insertItem(1, path.name, str(path))
        self.text.setCurrentIndex(self.text.findData(str(path)))
        self._set_path(str(path))

    def _set_path(self, path: str) -> None:
        if path != self._path:
            self._path = path
            self.settings_changed.emit()

    def _choose_tasks(self) -> None:
        chosen, _ = QFileDialog.getOpenFileName(self, "Task file", "", "JSON lines (*.jsonl *.json);;All files (*)")
        self.set_tasks(chosen)

    def set_tasks(self, path: str) -> None:
        """Ask the questions of this file, too; '' for none."""
        self._tasks = path
        self.tasks_name.setText(Path(path).name if path else "no task file")
        self.settings_changed.emit()

    def _toggle(self) -> None:
        self.options.setVisible(self.more.isChecked())
