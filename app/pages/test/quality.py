"""The Quality tab: limits set beforehand, a measurement on a text, and the verdict that follows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QProgressBar, QStackedWidget, QVBoxLayout, QWidget

from app.jobs.runner import JobState
from app.jobs.testing_bench import CPU, Bench
from app.jobs.testing_quality import ESTIMATE_KEY, QualityOrder, QualityStep, estimate_work, report_text, report_work
from app.models.quality import so_far
from app.pages.test.quality_result import QualityResult
from app.pages.test.quality_setup import QualitySetup
from app.services import Services
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import label
from app.widgets.inline_error import InlineError
from app.widgets.tiles import Tiles
from app.widgets.verdict import Verdict
from core import units
from core.errors import UserError
from core.verdict.thresholds import judge

if TYPE_CHECKING:
    from core.verdict.evaluation import Evaluation
    from core.verdict.quality import Quality

FIGURES = ("KL divergence", "99th percentile of KL", "Flip rate", "Perplexity ratio", "Evaluation window")
EMPTY = (
    "Nothing is measured yet: both files read the same text, and every token's probabilities are compared. "
    "The verdict is passed or failed by the limits above, which are best chosen before."
)
BOTH = "Choose both files above: the source, and what was made from it."
PACE_KEY = "quality/pace"  # percent of the estimate that the last run took
PACES = 10, 2000  # what is believed of it
STEPS = 1000
SURE = 3.0  # seconds after which the time left is told
LOW = 430  # px below which open options leave no room for results
ESTIMATE_MS = 250


class QualityPanel(QWidget):
    """Made without a bench, so that it can be made ahead; `attach` connects it. `estimated()` when `expected` is
    another."""

    estimated = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bench: Bench | None = None
        self._services: Services | None = None
        self._order: QualityOrder | None = None  # of the last run
        self._estimate: float | None = None  # seconds, without the pace
        self._begin = 0.0  # of the last run, time.monotonic()
        self._asked_estimate: float | None = None  # of the last run
        self._told = ""  # of `expected`, so that it stands in one place only
        self.evaluation: Evaluation | None = None
        self.setup = QualitySetup()
        self.error = InlineError()
        self.empty = label(EMPTY, "muted", wrap=True)
        self.stage = label("", wrap=True)
        self.stage.setAccessibleName("What is going on")
        self.bar = QProgressBar()
        self.bar.setRange(0, STEPS)
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName("Measurement")
        self.tiles = Tiles(FIGURES)
        self.so_far = Verdict()
        self.so_far_why = label("", wrap=True)
        self.so_far_why.setAccessibleName("Verdict so far")
        self.result = QualityResult()
        self._wait = QTimer(self, singleShot=True, interval=ESTIMATE_MS)
        self._wait.timeout.connect(self._ask_estimate)
        self._lay_out()
        self.setup.limits_changed.connect(self._judge)
        self.setup.settings_changed.connect(self.look_at_files)
        self.setup.toggled.connect(self._fit)
        self.setup.failed.connect(self._not_saved)
        self.result.save_asked.connect(self._ask_save)
        self.result.copy_asked.connect(self._copy)

    def _lay_out(self) -> None:
        running = QWidget()
        column = QVBoxLayout(running)
        column.setContentsMargins(0, SPACE_2, 0, 0)
        column.setSpacing(SPACE_3)
        column.addWidget(self.stage)
        column.addWidget(self.bar)
        column.addWidget(self.tiles)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(self.so_far)
        row.addWidget(self.so_far_why, 1)
        column.addLayout(row)
        column.addStretch(1)
        first = QWidget()
        column = QVBoxLayout(first)
        column.setContentsMargins(0, SPACE_2, 0, 0)
        column.addWidget(self.empty)
        column.addStretch(1)
        self._running = running
        self.stack = QStackedWidget()
        self.stack.currentChanged.connect(lambda _number: self._fit())
        for part in (first, running, self.result):
            self.stack.addWidget(part)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self.setup)
        layout.addWidget(self.error)
        layout.addWidget(self.stack, 1)
        layout.addStretch(0)

    def attach(self, bench: Bench, services: Services) -> None:
        self._bench, self._services = bench, services
        bench.quality_asked.connect(self._start)
        bench.quality_step.connect(self._step)
        bench.judged.connect(self._show)
        bench.judge_failed.connect(self._fail)
        bench.ended.connect(self._ended)
        bench.asked.connect(self.look_at_files)
        bench.slot_changed.connect(lambda _side: self._show_caches())
        self._show_caches()

    def _show_caches(self) -> None:
        bench = self._bench
        if bench is not None:
            device = bench.slots[1].device
            self.setup.show_caches(lambda cache: bench.backend.refuses(cache, device))

    def parts(self) -> tuple[QWidget, ...]:
        """What is styled one after the other when the theme changes."""
        return self.setup, self.error, self.empty, self._running, *self.result.parts()

    def minimumSizeHint(self) -> QSize:
        return QSize(400, self.setup.minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """Where there is little room open options have it to themselves, and results all but the controls' row."""
        low, opened = self.height() < LOW, self.setup.more.isChecked()
        self.stack.setVisible(not (opened and low))
        self.setup.set_low(low and not opened and self.stack.currentWidget() is self.result)
        self.result.set_low(low)
        if self.expected != self._told:
            self._told = self.expected
            self.estimated.emit()

    # ---- before a run ----------------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why nothing can be measured now, with what to do; '' when it can."""
        return "" if self._bench is not None and all(self._bench.paths) else BOTH

    @property
    def expected(self) -> str:
        """What a run will take, where the controls have no room to say it."""
        return "" if self.setup.time.isVisibleTo(self) else self.setup.time.text()

    def order(self) -> QualityOrder | None:
        """What the controls say now."""
        bench = self._bench
        if bench is None or bench.paths[0] is None or bench.paths[1] is None:
            return None
        settings = self.setup.settings(*bench.made_by(bench.paths[1]))
        settings = replace(settings, device=bench.slots[1].device, fallback=bench.fallback)
        return QualityOrder((bench.paths[0], bench.paths[1]), settings, self.setup.thresholds())

    def look_at_files(self) -> None:
        """Files or settings are others: what a run will take is worked out anew, once somebody looks."""
        self._estimate = None
        self.setup.time.setText("")
        if self.isVisible():
            self._wait.start()
        if self.evaluation is not None and not (self._bench is not None and self._bench.busy):
            self._judge()

    def _ask_estimate(self) -> None:
        order = self.order()
        if order is not None and order.settings.device != CPU:  # how fast that is, nobody knows beforehand
            self.setup.time.setText("")
            return
        if order is not None and self._services is not None and not (self._bench and self._bench.busy):
            self._services.jobs.run(
                "Estimate", estimate_work(order.paths, order.settings), self._show_estimate,
                lambda _error: self.setup.time.setText(""), latest_key=ESTIMATE_KEY, owner=self,
            )  # fmt: skip

    def _show_estimate(self, seconds: float) -> None:
        assert self._services is not None
        self._estimate = seconds
        expected = seconds * self._services.settings.number(PACE_KEY, 100) / 100
        self.setup.time.setText(f"Takes about {about(expected)} here")
        self._told = self.expected
        self.estimated.emit()

    # ---- while it runs ---------------------------------------------------------------------------------------------

    def _start(self, order: QualityOrder) -> None:
        self._order, self.evaluation = order, None
        self._asked_estimate = self._estimate
        self._begin = time.monotonic()
        self.error.hide()
        self.tiles.clear()
        self._show_so_far("", "")
        self.bar.setValue(0)
        self.bar.show()
        self.stage.setText("Starting…")
        self.stack.setCurrentWidget(self._running)

    def _step(self, step: QualityStep) -> None:
        stage = step.stage.replace("the artifact", "the quantized file")
        elapsed = time.monotonic() - self._begin
        words = [f"{stage[:1].upper()}{stage[1:]}", f"{units.format_percent(step.share, 0)} of everything"]
        words.append(f"{round(elapsed)} s so far")
        if elapsed > SURE and step.share > 0:
            words.append(f"about {about(elapsed * (1 / step.share - 1))} left")
        self.stage.setText(" · ".join(words))
        self.bar.setValue(round(STEPS * step.share))
        if step.quality is not None:
            self._show_figures(step.quality)

    def _show_figures(self, q: Quality) -> None:
        values = (
            f"{units.format_number(q.kl_mean.value)} nats",
            f"{units.format_number(q.kl_p99.value)} nats",
            units.format_percent(q.flips.value, 2),
            f"{units.format_number(q.perplexity_ratio.value)} ×",
            f"{units.format_count(q.windows)} done",
        )
        for name, value in zip(FIGURES, values, strict=True):
            self.tiles.set(name, value)
        if self._order is not None:
            self._show_so_far(*so_far(q, self._order.thresholds))

    def _show_so_far(self, state: str, why: str) -> None:
        self.so_far.setVisible(bool(state))
        if state:
            self.so_far.set(state, {"ok": "pass", "failed": "fail"}[state])
        self.so_far_why.setText(why)

    # ---- afterwards ------------------------------------------------------------------------------------------------

    def _show(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        if self._asked_estimate and self._services is not None and not evaluation.reused:
            settings = self._services.settings
            found = 100 * evaluation.seconds / self._asked_estimate
            pace = round((found * settings.number(PACE_KEY, round(found))) ** 0.5)  # halfway: machines are also busy
            settings.set_number(PACE_KEY, min(max(pace, PACES[0]), PACES[1]))
        self.result.show_evaluation(evaluation)
        self._judge()
        self.stack.setCurrentWidget(self.result)

    def _judge(self) -> None:
        """By the limits as they are now: no new run is needed for others."""
        if self.evaluation is None or self._order is None:
            return
        limits = self.setup.thresholds()
        notes = []
        if limits != self._order.thresholds:
            notes.append("These limits were chosen after the measurement.")
        if self._bench is not None and self._bench.paths != self._order.paths:
            notes.append(f"Measured before other files were chosen: this is {self._order.paths[1].name}.")
        self.result.show_verdict(judge(self.evaluation, limits), notes)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, UserError):
            self.error.show_text(error.message, error.hint, topic=error.topic)
        else:
            self.error.show_error(error)
        self.stack.setCurrentIndex(0)

    def _ended(self, state: JobState) -> None:
        if self.stack.currentWidget() is not self._running:
            return
        self.bar.hide()
        if state is JobState.CANCELLED:
            some = self.tiles.value(FIGURES[0]) != "–"
            kept = "The figures are of the windows until then." if some else "Nothing had been compared yet."
            self.stage.setText(f"Cancelled, so nothing is judged. {kept}")
            self._show_so_far("", "")

    # ---- taking it along -------------------------------------------------------------------------------------------

    def _ask_save(self, suffix: str) -> None:
        if self._order is None:
            return
        name = f"{self._order.paths[1].stem}-quality{suffix}"
        chosen, _ = QFileDialog.getSaveFileName(self, "Save the report", name, f"*{suffix}")
        if chosen:
            path = Path(chosen)
            self.save(path if path.suffix else path.with_suffix(suffix))

    def save(self, path: Path) -> None:
        """Write the report as .html, .md or .json, by the name's ending."""
        if self.evaluation is None or self._services is None:
            return
        verdict = judge(self.evaluation, self.setup.thresholds())
        self.error.hide()
        self._services.jobs.run(
            f"Save {path.name}", report_work(path, self.evaluation, verdict), self._saved, self._not_saved, owner=self
        )

    def _saved(self, path: Path) -> None:
        self.result.saved.setText(f"Report saved as {path}")
        self.result.saved.show()

    def _not_saved(self, error: BaseException) -> None:
        if isinstance(error, UserError):
            self.error.show_text(error.message, error.hint, topic=error.topic)
        else:
            self.error.show_error(error)

    def _copy(self) -> None:
        if self.evaluation is not None:
            text = report_text(".md", self.evaluation, judge(self.evaluation, self.setup.thresholds()))
            QGuiApplication.clipboard().setText(text)


def about(seconds: float) -> str:
    """A time of which only the size is known."""
    if seconds < 90:
        return f"{max(5 * round(seconds / 5), 5)} s"
    minutes = seconds / 60
    return f"{round(minutes)} min" if minutes < 90 else f"{minutes / 60:.1f} h"
