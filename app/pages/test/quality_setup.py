"""What quality is measured on and judged by: the few controls always in view, and the rest under Advanced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QCheckBox, QFileDialog, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.language import say
from app.pages.test.cache_combo import CacheCombo
from app.pages.test.controls import CONTRACTS
from app.pages.test.quality_limits import QualityLimits
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import Card, button, label, quiet_button
from app.widgets.calm import CalmCombo, CalmNumber
from app.widgets.flow import FlowRow
from app.widgets.scrolled import scrolled
from app.widgets.text import clipped, explain, term
from core.units import format_count
from core.verdict.needle import LENGTHS
from core.verdict.settings import EvalSettings, EvalText, Score
from core.verdict.texts import PROMPTS
from core.verdict.thresholds import Thresholds

WORDS_WIDTH = 680  # px from which 'Advanced' has its word
LAYER_TOKENS = 128
LONGEST = (1024, 4096, 16_384, 65_536)  # tokens of the longest text in which numbers are hidden


class QualitySetup(QWidget):
    """`limits_changed()` when what is judged by is another; `settings_changed()` when what is measured is;
    `failed(error)` when a file of limits can not be used; `toggled()` when Advanced opens or closes."""

    limits_changed = Signal()
    toggled = Signal()
    settings_changed = Signal()
    failed = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._path = ""
        self._tasks = ""
        self._cache = "F16"
        self.limits = QualityLimits()
        self.preset, self.values = self.limits.preset, self.limits.values
        self._make_row()
        self._make_options()
        self._lay_out()
        self.preset.activated.connect(self._on_preset)
        self.limits.changed.connect(self._on_limits)
        self.limits.wanted.connect(self._measure_also)
        self.limits.failed.connect(self.failed)
        self._on_limits()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_row(self) -> None:
        self.text = CalmCombo()
        self.text.addItem("Included", "")
        self.text.addItem("Own file…", None)
        self.text.setAccessibleName("Text to measure on")
        self.text.setSizeAdjustPolicy(CalmCombo.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.text.setMinimumContentsLength(8)
        self.text.setToolTip("What both files read. No calibration sees the included text; a file is UTF-8 text.")
        self.text.activated.connect(self._choose_text)
        self.windows = CalmNumber("Windows", 1, 4096, explain("evaluation window"))
        self.windows.setValue(EvalText().windows)
        self.length = CalmNumber("Tokens of a window", 16, 32768, explain("evaluation window"))
        self.length.setValue(EvalText().length)
        self.length.setSuffix(" tokens")
        for box in (self.windows, self.length):
            box.valueChanged.connect(lambda _value: self.settings_changed.emit())
        self.more = button("Advanced", self._toggle, icon="sliders-horizontal")
        self.more.setCheckable(True)
        self.more.setAccessibleName("Advanced")
        self.more.setToolTip("Values of the limits, arithmetic, and what else is measured")
        self.explained = label("", "muted", wrap=True)
        self.explained.setAccessibleName("What these limits stand for")
        self.time = label("", "muted")
        self.time.setAccessibleName("Expected time")

    def _make_options(self) -> None:
        self.options = Card()
        self.options.setAccessibleName("Advanced settings of the measurement")
        self.options.layout().setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        hint = "exact judges the file alone; fast judges it as this program's engine runs it"
        self.arithmetic = self._choice("Activations while measuring", hint, CONTRACTS)
        self.arithmetic.setCurrentIndex(self.arithmetic.findData("exact"))
        scores = (("all", Score.ALL.value), ("second half", Score.SECOND_HALF.value))
        self.score = self._choice("Tokens that count", explain("scored tokens"), scores)
        places = (("spread", True), ("from the start", False))
        self.spread = self._choice("Where the windows lie", explain("window placement"), places)
        lengths = [("off", 0), *((f"up to {format_count(n)} tokens", n) for n in LONGEST)]
        self.needle = self._choice("Numbers hidden in long texts", explain("number lost"), lengths)
        self.cache = CacheCombo("KV cache of the quantized file while measuring")
        self.cache.chosen.connect(self._choose_cache)
        self.layers = self._switch("Error by layer", "Where in the depth of the model the error arises", True)
        self.texts = self._switch("Texts side by side", "How both files go on from three short prompts", True)
        self.speed = self._switch("Speed", "How fast both files write on this computer, in alternation", False)
        self.tasks = quiet_button("Task file…", self._choose_tasks, icon="folder-open", hint=explain("task file"))

    def _choice(self, name: str, hint: str, offered: object) -> CalmCombo:
        box = CalmCombo()
        for text, data in offered:  # type: ignore[attr-defined]
            box.addItem(text, data)
        box.setAccessibleName(name)
        box.setToolTip(hint)
        box.activated.connect(lambda _row: self.settings_changed.emit())
        return box

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
        self.options.add(self.limits)
        self.options.add(self._measured())
        self._more = FlowRow()
        switches = (self.layers, self.texts, self.speed)
        self._more.set_parts((*switches, self.tasks, self.limits.open, self.limits.save, self.limits.file))
        self.options.add(self._more)
        self._area = scrolled(self.options, whole=True)
        self._area.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(row)
        layout.addWidget(self._below)
        layout.addWidget(self._area)

    def _measured(self) -> QGridLayout:
        """What is measured, and how."""
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        choices = (
            ("activations contract", "Activations", self.arithmetic),
            ("scored tokens", "Tokens that count", self.score),
            ("window placement", "Windows", self.spread),
            ("number lost", "Long texts", self.needle),
            ("cache format", "Cache", self.cache),
        )
        for column, (word, title, box) in enumerate(choices):
            name = term(word, title, "caption")
            name.setBuddy(box)
            grid.addWidget(name, 0, column)
            grid.addWidget(box, 1, column)
            grid.setColumnStretch(column, 1)
        return grid

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        text = say("Advanced") if self.width() >= WORDS_WIDTH else ""
        if self.more.text() != text:
            self.more.setText(text)

    def set_low(self, on: bool) -> None:
        """Leave out what the limits stand for; the chooser's tooltip says it, too."""
        self._below.setVisible(not on)

    # ---- what the controls say -------------------------------------------------------------------------------------

    def thresholds(self) -> Thresholds:
        """Limits to judge by."""
        return self.limits.thresholds()

    def settings(self, method: str = "", calibration: str = "") -> EvalSettings:
        """What to measure. method, calibration: how the file was made, for the report."""
        longest = int(self.needle.currentData())
        score, spread = Score(self.score.currentData()), bool(self.spread.currentData())
        return EvalSettings(
            text=EvalText(self._path, self.windows.value(), self.length.value(), score, spread),
            arithmetic=str(self.arithmetic.currentData()),
            cache=self._cache,
            layers=LAYER_TOKENS if self.layers.isChecked() else 0,
            tasks=self._tasks,
            needle=tuple(n for n in sorted({*LENGTHS, *LONGEST}) if n <= longest),
            prompts=PROMPTS if self.texts.isChecked() else (),
            speed=self.speed.isChecked(),
            method=method,
            calibration=calibration,
        )

    # ---- the user changes something --------------------------------------------------------------------------------

    def show_caches(self, refusal: Callable[[str], str]) -> None:
        """What the quantized file's cache can be kept in; the source's stays in 16 bits. refusal: why not, or ''."""
        if refusal(self._cache):
            self._cache = "F16"  # another device
        self.cache.show_cache(self._cache, refusal)

    def _choose_cache(self, cache: str) -> None:
        if cache != self._cache:
            self._cache = cache
            self.settings_changed.emit()

    def _on_preset(self) -> None:
        if self.limits.own:
            self.more.setChecked(True)
            self._toggle()

    def _on_limits(self) -> None:
        self.explained.setText(self.limits.in_words())
        self._more.place()
        self.limits_changed.emit()

    def _measure_also(self, key: str) -> None:
        """A limit on what is not measured is never met, so that it is measured."""
        if key == "needles_lost" and not self.needle.currentData():
            self.needle.setCurrentIndex(self.needle.findData(max(LENGTHS)))
            self.settings_changed.emit()
        elif key in ("decode_ratio", "decode_rate"):
            self.speed.setChecked(True)
        elif key == "layer_error":
            self.layers.setChecked(True)

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
        chosen = ""
        if not self._tasks:  # else the button takes the file away
            chosen, _ = QFileDialog.getOpenFileName(self, "Task file", "", "JSON lines (*.jsonl *.json);;All files (*)")
        self.set_tasks(chosen)

    def set_tasks(self, path: str) -> None:
        """Ask the questions of this file, too; '' for none."""
        self._tasks = path
        self.tasks.setText(f"Without {clipped(Path(path).name)}" if path else "Task file…")
        self.tasks.setToolTip(f"Do not ask the questions of {path}" if path else explain("task file"))
        self._more.place()
        self.settings_changed.emit()

    def _toggle(self) -> None:
        self._area.setVisible(self.more.isChecked())
        self.toggled.emit()
