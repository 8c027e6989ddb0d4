"""Live: the error of one tensor and of a sample of the whole model under the present recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QSize, QStringListModel, QTimer, Signal
from PySide6.QtWidgets import QComboBox, QListView, QVBoxLayout, QWidget

from app.jobs.preview import PREVIEW_KEY, SAMPLE_KEY, SampleSoFar, preview_work, sample_work
from app.plots import ErrorHistogram, HistogramSeries
from app.services import Services
from app.widgets.basics import Card, label
from app.widgets.calm import CalmCombo
from app.widgets.inline_error import InlineError
from app.widgets.tiles import Tiles
from core import units
from core.plan import Action, Plan
from core.tensor_info import Role

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint

PREVIEW_DELAY = 40  # ms of rest before a preview starts: a slider that moves asks for one, not for fifty
SAMPLE_DELAY = 600
WITHOUT = "Preview without calibration."
PLOT_HEIGHT = 200  # px, the least at which a histogram can be read
_FIRST_ROLES = (Role.FFN_DOWN, Role.ATTN_V, Role.ATTN_QKV)  # the tensors whose error matters most, to start with


class _Modest(QWidget):
    """Holds a plot and asks for little height: it takes what the other parts leave, so the page need not scroll."""

    def __init__(self, plot: QWidget) -> None:
        super().__init__()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(plot)
        self.setMinimumHeight(PLOT_HEIGHT)

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), PLOT_HEIGHT)


class PreviewCard(Card):
    """`set_plan` starts everything anew; results of older plans never arrive. `settled` follows each shown result."""

    settled = Signal()

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self._jobs = services.jobs
        self._checkpoint: Checkpoint | None = None
        self._plan: Plan | None = None
        self._names: list[str] = []
        self._wanted = ""  # the tensor the user looks at, also across plans
        self.setAccessibleName("Preview of the error")
        self.tensor = CalmCombo()
        self.tensor.setAccessibleName("Tensor to preview")
        self.tensor.setToolTip("The tensor whose error is shown")
        self.tensor.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.tensor.setMinimumContentsLength(8)
        names = self.tensor.view()
        assert isinstance(names, QListView)
        names.setUniformItemSizes(True)  # measured one by one, ten thousand names take a tenth of a second
        self.tensor.activated.connect(self._on_tensor)
        self.histogram = ErrorHistogram("Error of a tensor", "No data yet: the error is shown once there is a plan.")
        self.facts = Tiles(("SNR", "Max error", "Effective bits", "Rows seen"))
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.note = label(WITHOUT, "muted")
        self.note.setToolTip("The same format, its numbers chosen without data; the result's are chosen from the text")
        self.note.hide()
        self.sample = label("", "muted", wrap=True)
        self.sample.setAccessibleName("Sample of the whole model")
        self.histogram.set_chooser("Error of", self.tensor)
        self.add(_Modest(self.histogram), 1)
        self.add(self.facts)
        self.add(self.error)
        self.add(self.note)
        self.add(self.sample)
        self._preview_timer = QTimer(self, singleShot=True, interval=PREVIEW_DELAY)
        self._preview_timer.timeout.connect(self._start_preview)
        self._sample_timer = QTimer(self, singleShot=True, interval=SAMPLE_DELAY)
        self._sample_timer.timeout.connect(self._start_sample)
        self._active = False

    def set_active(self, active: bool) -> None:
        """Work only while the page is looked at."""
        self._active = active
        if active and self._plan is not None and not self.facts_shown():
            self._restart()
        if not active:
            self._stop()

    def facts_shown(self) -> bool:
        return self.histogram.has_data or bool(self.sample.text())

    def set_plan(self, checkpoint: Checkpoint | None, plan: Plan | None) -> None:
        """None: there is nothing to preview now; what was shown of the old plan goes."""
        self._stop()
        self._checkpoint, self._plan = checkpoint, plan
        self.sample.setText("")
        self.note.setVisible(plan is not None and plan.recipe.calibrated is not None)
        if plan is None:
            self._blank("Working out the plan…" if checkpoint is not None else "")
            return
        self._fill(plan)
        if self._active:
            self._restart()

    def choose(self, name: str) -> None:
        """Preview the tensor of that name in the plan."""
        row = self.tensor.findText(name)
        if row >= 0:
            self.tensor.setCurrentIndex(row)
            self._on_tensor(row)

    def _stop(self) -> None:
        self._preview_timer.stop()
        self._sample_timer.stop()
        self._jobs.discard(PREVIEW_KEY)
        self._jobs.discard(SAMPLE_KEY)

    def _restart(self) -> None:
        self._preview_timer.start()
        self._sample_timer.start()

    def _blank(self, text: str = "") -> None:
        self.histogram.clear(text)
        self.facts.clear()
        self.error.hide()

    def _fill(self, plan: Plan) -> None:
        names = [t.name for t in plan.tensors if t.action is Action.QUANTIZE] or [t.name for t in plan.tensors]
        if names != self._names:
            self._names = names
            self.tensor.setModel(QStringListModel(names, self.tensor))
        wanted = self._wanted if self._wanted in names else _first(plan, names)
        self.tensor.setCurrentIndex(names.index(wanted) if wanted in names else 0)

    def _on_tensor(self, row: int) -> None:
        self._wanted = self.tensor.itemText(row)
        self._preview_timer.start()

    def _start_preview(self) -> None:
        plan, name = self._plan, self.tensor.currentText()
        tensor = next((t for t in plan.tensors if t.name == name), None) if plan is not None else None
        if plan is None or tensor is None or self._checkpoint is None:
            return
        self._jobs.run(
            f"Preview {name}", preview_work(self._checkpoint, tensor, plan), self._show_preview, self._show_error,
            latest_key=PREVIEW_KEY, owner=self,
        )  # fmt: skip

    def _show_error(self, error: BaseException) -> None:
        self._blank("There is no error to show for this tensor.")
        self.error.show_error(error)
        self.settled.emit()

    def _show_preview(self, result: Any) -> None:
        error = result.error
        self.error.hide()
        self.histogram.set_series(
            f"Error of {result.name}",
            (
                HistogramSeries(
                    result.format,
                    error.edges,
                    error.counts,
                    f"SNR {units.format_decibels(error.snr_db)}",
                    error.nonfinite,
                ),
                HistogramSeries("source", result.source_edges, result.source_counts, source=True),
            ),
        )
        whole = result.sampled_rows == result.rows
        self.facts.set("SNR", units.format_decibels(error.snr_db))
        self.facts.set("Max error", f"{error.max_error:.3g}")
        self.facts.set("Effective bits", f"{result.effective_bits:.2f}")
        seen = f"{units.format_count(result.sampled_rows)} of {units.format_count(result.rows)}"
        self.facts.set("Rows seen", "all" if whole else seen)
        self.settled.emit()

    def _start_sample(self) -> None:
        if self._plan is None or self._checkpoint is None:
            return
        self._jobs.run(
            "Sample the model", sample_work(self._checkpoint, self._plan), self._show_sample,
            lambda error: self.sample.setText(f"Whole model: {error}"), lambda news: self._show_sample(news[-1]),
            latest_key=SAMPLE_KEY, owner=self,
        )  # fmt: skip

    def _show_sample(self, so_far: SampleSoFar | None) -> None:
        if so_far is None:
            self.sample.setText("Whole model: no tensor is quantized.")
            return
        seen = units.format_count(so_far.seen)
        if so_far.seen < so_far.count:
            seen += f" of {units.format_count(so_far.count)}"
        self.sample.setText(
            f"Whole model, sample of {seen} tensors: SNR {units.format_decibels(so_far.snr)}; "
            f"lowest {units.format_decibels(so_far.worst_snr)} in {so_far.worst}"
        )
        self.sample.setToolTip("A part of each quantized tensor's rows, quantized and compared with the source")


def _first(plan: Plan, names: list[str]) -> str:
    for role in _FIRST_ROLES:
        found = next((t.name for t in plan.tensors if t.role is role and t.action is Action.QUANTIZE), "")
        if found:
            return found
    return names[0] if names else ""
