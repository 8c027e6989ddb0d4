"""The tab Size: measure once what each weight costs in quality, then choose a size and get the best mix for it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QSlider, QVBoxLayout, QWidget

from app.jobs.budget import Outlook, Room, SizeCurve
from app.jobs.calibration import about
from app.plots.size_curve import SizeCurvePlot, SizePoint
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import button, label, quiet_button, set_available
from app.widgets.inline_error import InlineError
from app.widgets.text import explain
from core import units
from core.recipe import KEEP, Recipe

if TYPE_CHECKING:
    from core.budget.sensitivity import SensitivityProgress

REST = 150  # ms without a move until the point is made the recipe
DRAWING = 20  # ms: moves that come faster share a picture
PLOT_HEIGHT = 212  # px; what the slider gives stays in sight above
PURPOSE = (
    "Measures what each weight costs in quality in each format, and gives the bytes to those that need them most. "
    "Then you choose the size."
)
CAVEAT = (
    "KL is predicted from {tokens} tokens: it ranks mixes, but comes out too low in absolute terms. The verdict on the "
    "Test page measures it."
)
SURE = 3.0  # seconds after which the time left is told
STEPS = {"importance": "Step 1 of 2, importance", "sensitivity": "Step 2 of 2, sensitivity"}


class BySizePanel(QWidget):
    """`measure_asked` and `cancel_asked` by the buttons; `edited(recipe)` when a point is chosen; `came_up` whenever
    the tab comes into sight."""

    edited = Signal(object)
    measure_asked = Signal()
    cancel_asked = Signal()
    came_up = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._phase, self._first, self._since = "", 0, 0.0  # of the running step: its name, blocks at its start, time
        self._curve: SizeCurve | None = None
        self._recipe: Recipe | None = None
        self._before: Recipe | None = None  # in force before a point was chosen
        self._rest = QTimer(self, singleShot=True, interval=REST)
        self._rest.timeout.connect(self._take_point)
        self._turn = QTimer(self, singleShot=True, interval=DRAWING)
        self._turn.timeout.connect(self._mark)
        self._make_parts()
        self._lay_out()
        self.show_nothing()

    def _make_parts(self) -> None:
        self.purpose = label(PURPOSE, "muted", wrap=True)
        self.measure = button("Measure sensitivities", self.measure_asked.emit, icon="play")
        self.measure.setToolTip("Runs the model on bundled text, in the background; kept for the next time")
        self.cost = label("", "muted", wrap=True)  # the cost, or why it can not be
        self.bar = QProgressBar()
        self.bar.setAccessibleName("Progress of the measurement")
        self.bar.setTextVisible(False)
        self.step = label("", "muted", wrap=True)
        self.cancel = button("Cancel", self.cancel_asked.emit, icon="x", hint="Stop measuring")
        self.error = InlineError()
        self.plot = SizeCurvePlot()
        self.plot.setFixedHeight(PLOT_HEIGHT)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setPageStep(8)
        self.slider.setAccessibleName("Size of the output")
        self.slider.setToolTip("Each step is another mix; the recipe follows")
        self.slider.valueChanged.connect(self._moved)
        self.words = label("", "", wrap=True)
        self.words.setToolTip(explain("KL divergence"))
        self.mix = label("", "muted", wrap=True)
        self.fits = button("Best that fits", self._take_fit)
        self.room = label("", "muted", wrap=True)
        self.back = quiet_button("", self._go_back, hint="Take the recipe from before this tab changed it")
        self.caveat = label("", "muted", wrap=True)

    def _lay_out(self) -> None:
        self._before_part, self._running, self._result = QWidget(), QWidget(), QWidget()
        first = QVBoxLayout(self._before_part)
        first.addWidget(self.purpose)
        first.addWidget(self.measure, 0, Qt.AlignmentFlag.AlignLeft)
        first.addWidget(self.cost)
        running = QHBoxLayout()
        running.setSpacing(SPACE_2)
        running.addWidget(self.bar, 1)
        running.addWidget(self.cancel)
        second = QVBoxLayout(self._running)
        second.addLayout(running)
        second.addWidget(self.step)
        fit = QHBoxLayout()
        fit.setSpacing(SPACE_2)
        fit.addWidget(self.fits, 0, Qt.AlignmentFlag.AlignTop)
        fit.addWidget(self.room, 1)
        third = QVBoxLayout(self._result)
        third.addWidget(self.slider)
        third.addWidget(self.words)
        third.addLayout(fit)
        third.addWidget(self.caveat)
        third.addWidget(self.plot)
        third.addWidget(self.mix)
        third.addWidget(self.back, 0, Qt.AlignmentFlag.AlignLeft)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_2)
        for part, inner in ((self._before_part, first), (self._running, second), (self._result, third)):
            inner.setContentsMargins(0, 0, 0, 0)
            inner.setSpacing(SPACE_2)
            layout.addWidget(part)
        layout.insertWidget(2, self.error)
        layout.addStretch(1)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.came_up.emit()

    # ---- before and while measuring --------------------------------------------------------------------------------

    def show_nothing(self) -> None:
        """Neither a curve nor what it takes is known."""
        self._rest.stop()
        self._curve = self._before = None
        self.plot.clear()
        self.error.hide()
        self._show_part(self._before_part)
        self._show_cost("", "What this takes is still being worked out.")

    def show_outlook(self, outlook: Outlook) -> None:
        """What measuring takes here, or why it is not possible."""
        self._show_part(self._before_part)
        if outlook.problem:
            self._show_cost("", f"{outlook.problem} {outlook.hint}".strip())
            return
        memory = units.format_decimal(outlook.memory)
        self._show_cost(about(outlook.seconds), "", f"Takes {memory} of memory. You can go on working meanwhile.")

    def _show_cost(self, cost: str, reason: str, sentence: str = "") -> None:
        self.measure.setText("Measure sensitivities" + (f" ({cost})" if cost else ""))
        self.measure.setAccessibleDescription(reason or sentence)
        self.cost.setText(reason or sentence)
        set_available(self.measure, reason)

    def show_running(self, step: SensitivityProgress | None = None) -> None:
        """None: nothing is done yet."""
        self._show_part(self._running)
        if step is None:
            self.error.hide()
            self._phase = ""
            self.bar.setRange(0, 0)
            self.step.setText("Loading the model…")
            return
        self.bar.setRange(0, max(1, step.total))
        self.bar.setValue(step.done)
        done, total = units.format_count(step.done), units.format_count(step.total)
        now = time.monotonic()
        if step.phase != self._phase:
            self._phase, self._first, self._since = step.phase, step.done, now
        words = [f"{STEPS.get(step.phase, step.phase)}: {done} of {total} blocks"]
        elapsed, advanced = now - self._since, step.done - self._first
        if elapsed > SURE and advanced:
            words.append(f"{about(elapsed / advanced * (step.total - step.done))} left of this step")
        self.step.setText(" · ".join(words))

    def show_cancelling(self) -> None:
        self.step.setText("Cancelling…")
        set_available(self.cancel, "It stops within a moment.")

    def show_error(self, error: BaseException) -> None:
        self._show_part(self._before_part)
        self.error.show_error(error)

    def show_drawing(self) -> None:
        """Measured; the curve is being worked out."""
        self._show_part(self._running)
        self.bar.setRange(0, 0)
        self.step.setText("Working out the best mix for each size…")

    def _show_part(self, shown: QWidget) -> None:
        for part in (self._before_part, self._running, self._result):
            part.setVisible(part is shown)
        set_available(self.cancel, "" if shown is self._running else "Nothing is being measured.")

    # ---- the curve -------------------------------------------------------------------------------------------------

    def show_curve(self, curve: SizeCurve, room: Room | None) -> None:
        """Another curve, or the same with what fits another device."""
        self._rest.stop()
        self._curve = curve
        self.slider.blockSignals(True)
        self.slider.setRange(0, len(curve.points) - 1)
        self.slider.blockSignals(False)
        self.plot.show_points([SizePoint(p.bytes, p.kl) for p in curve.points], curve.limit)
        self.caveat.setText(" ".join((*curve.notes, CAVEAT.format(tokens=units.format_count(curve.tokens)))))
        where = ""
        if room is not None:
            where = f"{room.device} with {units.format_count(room.context)} tokens of context"
            where += f" in each of {room.batch} sequences" if room.batch > 1 else ""
        if curve.fit is not None and curve.limit is not None:
            self.room.setText(f"{where}: room for {units.format_bytes(curve.limit)}.")
            set_available(self.fits)
        else:
            self.room.setText(curve.problem)
            set_available(self.fits, curve.problem)
        self.fits.setAccessibleName(f"Best that fits {where}".strip())
        self.fits.setAccessibleDescription(self.room.text())
        self._show_part(self._result)
        self._follow()

    def show_recipe(self, recipe: Recipe | None, size: int | None) -> None:
        """What is in force, and the bytes of its output where they are known. Nothing is emitted."""
        if recipe is not self._recipe:
            self._recipe = recipe
            self._rest.stop()
            self._follow()
        if self._curve is None or self._rest.isActive():
            return
        if size is not None and not self.is_point(recipe):
            sizes = [abs(p.bytes - size) for p in self._curve.points]
            self._set_slider(sizes.index(min(sizes)))
            self._describe(in_force=False)
        self.plot.mark(self.slider.value(), size)

    def is_point(self, recipe: Recipe | None) -> bool:
        """Whether the recipe is one of the curve's."""
        return self._number(recipe) is not None

    def _number(self, recipe: Recipe | None) -> int | None:
        if self._curve is None or recipe is None:
            return None
        return next((i for i, p in enumerate(self._curve.points) if p.recipe == recipe), None)

    def _follow(self) -> None:
        """Put the slider where the recipe in force is."""
        if self._curve is None:
            return
        number = self._number(self._recipe)
        if number is not None:
            self._set_slider(number)
        else:
            self._before = self._recipe
        self.back.setVisible(number is not None and self._before is not None)
        if self._before is not None:
            self.back.setText(f"Back to {self._before.target} as before")
        self._describe(in_force=number is not None)

    def _set_slider(self, number: int) -> None:
        self.slider.blockSignals(True)
        self.slider.setValue(number)
        self.slider.blockSignals(False)

    def _describe(self, *, in_force: bool) -> None:
        assert self._curve is not None
        point = self._curve.points[self.slider.value()]
        words = (
            f"{units.format_bytes(point.bytes)}, predicted KL {units.format_number(point.kl, 3)} nats a token, "
            f"{units.format_bits(self._curve.bits(point))} a weight (norms aside)"
        )
        self.words.setText(words + ("." if in_force else ". Move the slider to use it."))
        counts = Counter(point.formats).most_common()
        self.mix.setText(" · ".join(f"{n} × {'16 bits' if form == KEEP else form}" for form, n in counts))
        self.slider.setAccessibleDescription(f"{words}. {self.mix.text()}")

    def _moved(self, _number: int) -> None:
        if self._curve is None:
            return
        self._describe(in_force=True)
        if not self._turn.isActive():
            self._turn.start()
        self._rest.start()

    def _mark(self) -> None:
        if self._curve is not None:
            self.plot.mark(self.slider.value(), self.plot.in_force)

    def _take_point(self) -> None:
        """What the slider is at becomes the recipe."""
        if self._curve is None:
            return
        recipe = self._curve.points[self.slider.value()].recipe
        if recipe != self._recipe:
            self.edited.emit(recipe)

    def _take_fit(self) -> None:
        if self._curve is None or self._curve.fit is None:
            return
        self.slider.setValue(self._curve.points.index(self._curve.fit))
        self._rest.stop()
        self._take_point()

    def _go_back(self) -> None:
        if self._before is not None:
            self.edited.emit(self._before)
