"""The Cache tab: what formats of the KV cache cost one file, by position, for keys and values, and in time."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QVBoxLayout, QWidget

from app.jobs.runner import JobState
from app.jobs.testing import SIDES
from app.jobs.testing_bench import CPU, Bench
from app.jobs.testing_cache import CacheFound, CacheMeasure, CacheOrder, CacheStep, cache_problem
from app.models.caches import (
    cost_columns,
    found_rows,
    kl_lines,
    needle_columns,
    rate_lines,
    sentence,
    speed_columns,
    window_columns,
)
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.plots.length_plot import LengthPlot
from app.plots.needle_grid import NeedleGrid
from app.theme import SPACE_2, SPACE_4
from app.widgets.basics import Card, label, set_available
from app.widgets.calm import CalmCombo
from app.widgets.inline_error import InlineError
from app.widgets.text import explain, term
from core.units import format_count

TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
DEFAULT_TOKENS = 1024
STEPS = 1000
EMPTY = "No data yet: run it to see what each format costs."
NO_FILE = "Choose a file above first."
COST_WIDTHS = ("", "16.000", "1.23·10⁻⁶", "99.999", "100.0 %")
WINDOW_WIDTHS = ("INT8", "INT8", "none", "16.000", "1.23·10⁻⁶", "99.999")
NEEDLE_WIDTHS = ("", "24 of 24", "24", "−99.9")
SPEED_WIDTHS = ("", "32 768", "9 999.9", "100 %")
NAME_WIDTH = 140  # px at least of a scheme's text


class CachePanel(QWidget):
    """`refreshed()` when `problem` may be another."""

    refreshed = Signal()

    def __init__(self, bench: Bench, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bench = bench
        self.found: CacheFound | None = None
        self._problems: dict[CacheMeasure, str] | None = None  # found out once somebody looks
        self._make_controls()
        self.plot = LengthPlot("Over the tokens", EMPTY)
        self.costs = TablePanel(RowsModel(cost_columns(), explain), "Quality of caches", COST_WIDTHS, totals=False)
        self.speeds = TablePanel(RowsModel(speed_columns(), explain), "Speed of caches", SPEED_WIDTHS, totals=False)
        self.exercise = TablePanel(
            RowsModel(window_columns(), explain), "Keys, values and a window", WINDOW_WIDTHS, totals=False
        )
        self.needles = TablePanel(
            RowsModel(needle_columns(lambda: self.found.needles if self.found else None), explain),
            "Numbers found with each cache", NEEDLE_WIDTHS, totals=False,
        )  # fmt: skip
        self.grid = NeedleGrid(EMPTY)
        self.grid.hide()
        self._tables = (self.costs, self.exercise, self.needles, self.speeds)
        for table in self._tables:
            table.name_width = 0 if table is self.exercise else NAME_WIDTH
            table.filter.hide()
            table.hide()
        self.bar = QProgressBar()
        self.bar.setRange(0, STEPS)
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName("Measurement of caches")
        self.bar.hide()
        self.sentence = label("", wrap=True, selectable=True)
        self.sentence.setAccessibleName("Result for the cache")
        self.error = InlineError()
        self._lay_out()
        bench.caches_asked.connect(self._start)
        bench.cache_step.connect(self._step)
        bench.caches_compared.connect(self.show_found)
        bench.caches_failed.connect(self._fail)
        bench.ended.connect(self._ended)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.measure = CalmCombo()
        for measure in CacheMeasure:
            self.measure.addItem(measure.value, measure)
        self.measure.setAccessibleName("What is measured of the cache")
        self.measure.setToolTip(explain(CacheMeasure.POSITION.value))
        self.measure.activated.connect(lambda _row: self.look())
        self.file = CalmCombo()
        for side in (1, 0):
            self.file.addItem(SIDES[side], side)
        self.file.setAccessibleName("File whose cache is measured")
        self.file.setToolTip("Which of the two files above reads the text")
        self.file.activated.connect(lambda _row: self.refreshed.emit())
        self.tokens = CalmCombo()
        for tokens in TOKENS:
            self.tokens.addItem(f"{format_count(tokens)} tokens", tokens)
        self.tokens.setCurrentIndex(TOKENS.index(DEFAULT_TOKENS))
        self.tokens.setAccessibleName("Tokens of the text, or the longest context")
        self.tokens.setToolTip("How much of the included text is read; for the speed, how far the cache is filled")
        self.why = label("", "muted", wrap=True)
        self.why.setAccessibleName("Why it can not be measured")

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        for word, control in (("Measure", self.measure), ("File", self.file), ("Up to", self.tokens)):
            name = term(word, role="muted")
            name.setBuddy(control)
            row.addWidget(name)
            row.addWidget(control)
            row.addSpacing(SPACE_2)
        row.addWidget(self.bar, 1)
        row.addStretch(0)
        drawn = Card()
        drawn.add(self.plot, 1)
        drawn.add(self.grid, 1)
        halves = QHBoxLayout()
        halves.setSpacing(SPACE_4)
        halves.addWidget(drawn, 9)
        for table in self._tables:
            halves.addWidget(table, 10)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_2, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(row)
        layout.addWidget(self.why)
        layout.addWidget(self.error)
        layout.addLayout(halves, 1)
        layout.addWidget(self.sentence)

    # ---- before a run ----------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why nothing can be measured now, with what to do; '' when it can."""
        slot = self._bench.slots[self.file.currentData()]
        if slot.path is None:
            return NO_FILE
        if slot.device != CPU:
            return "Caches are measured on the processor. Choose the CPU for this file."
        return (self._problems or {}).get(self.measure.currentData(), "")

    def look(self) -> None:
        """Somebody looks: what the engine can measure is found out, which loads it."""
        if not self.isVisible():
            return
        if self._problems is None:
            self._problems = {measure: cache_problem(measure) for measure in CacheMeasure}
        measure = self.measure.currentData()
        self.measure.setToolTip(explain(measure.value))
        self.why.setText(self._problems[measure])
        self.why.setVisible(bool(self._problems[measure]))
        self.refreshed.emit()

    def order(self) -> CacheOrder | None:
        """What the controls say now."""
        path = self._bench.slots[self.file.currentData()].path
        if path is None:
            return None
        measure = self.measure.currentData()
        fine = measure in (CacheMeasure.POSITION, CacheMeasure.WINDOW)
        arithmetic = "exact" if fine else self._bench.arithmetic  # int8 activations lose more than an 8-bit cache does
        return CacheOrder(measure, path, self.tokens.currentData(), arithmetic)

    # ---- while it runs, and afterwards -----------------------------------------------------------------------------

    def _start(self, _order: CacheOrder) -> None:
        self.error.hide()
        self.bar.setValue(0)
        self.bar.show()
        self.sentence.setText("Reading the file…")
        self._lock(True)

    def _step(self, step: CacheStep) -> None:
        self.bar.setValue(round(STEPS * step.share))
        self.sentence.setText(f"{step.text}…")

    def show_found(self, found: CacheFound) -> None:
        """Table, plot and sentence of a finished measurement."""
        self.found = found
        measure, name = found.order.measure, found.order.path.name
        shown = {
            CacheMeasure.SPEED: self.speeds,
            CacheMeasure.NEEDLES: self.needles,
            CacheMeasure.WINDOW: self.exercise,
        }.get(measure, self.costs)
        for table in self._tables:
            table.setVisible(table is shown)
        shown.model.set_rows(found_rows(found))
        self.plot.setVisible(found.needles is None)
        self.grid.setVisible(found.needles is not None)
        if found.needles is not None:
            self.grid.show_table(f"Numbers found: {name}", found.needles)
        elif found.sweep is not None:
            self.plot.show_lines(f"Rate by context: {name}", "tokens/s", rate_lines(found), log=False)
        else:
            self.plot.show_lines(f"KL by position: {name}", "KL, nats (log)", kl_lines(found.costs), log=True)
        self.sentence.setText(sentence(found))

    def _fail(self, error: BaseException) -> None:
        self.sentence.setText("")
        self.error.show_error(error)

    def _ended(self, state: JobState) -> None:
        if self.bar.isHidden():
            return
        self.bar.hide()
        self._lock(False)
        if state is JobState.CANCELLED:
            self.sentence.setText("Cancelled; nothing is shown of an unfinished measurement.")

    def _lock(self, on: bool) -> None:
        for control in (self.measure, self.file, self.tokens):
            set_available(control, "Wait until the running work has ended, or cancel it." if on else "")
