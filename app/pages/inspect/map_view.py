"""The Map: every tensor of the model coloured by one measure, filled while the survey runs, and the same as a table."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QProgressBar, QVBoxLayout, QWidget

from app.jobs.inspect import ERROR_KEY, FORMAT_KEY, SURVEY_KEY, TENSOR_KEY, survey_work
from app.jobs.runner import Job
from app.models.table import RowsModel
from app.pages.inspect.measures import map_rows, survey_columns, value_of, words_about
from app.pages.inspect.narrow_table import FittingTable
from app.pages.inspect.state import InspectState
from app.pages.inspect.turns import Turns
from app.plots.model_map import MapTensor, ModelMap, ModelPicture
from app.services import Services
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import Card, label, quiet_button
from app.widgets.calm import CalmCombo
from app.widgets.folding import FoldingGrid, Part
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel, explain
from core.inspect.measures import MEASURES
from core.units import format_count, format_decimal, format_percent

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.inspect.survey import SurveyRow
    from core.plan import Plan
    from core.tensor_info import TensorInfo

WIDTHS = ("", "Layer", "Outlier ratio", "99.9999", "9 999.99", "w4a16-g128", "SNR (dB)", "Gain (dB)")
NAME = "layers.27.self_attn.q_proj"  # a name that is to be whole
SPARE = (1, 3, 4)  # columns that a narrow table does without: the name says the layer, its tooltip the rest
FOLD, FOLD_ROWS = 380, 11  # px of height below which map and table are tabs, for a map of so many rows; …
FOLD_MORE, FOLD_MOST = 20, 560  # … px more for each further row, whose label would have no place otherwise
RATIO = 2  # the column that the table is sorted by at first
PIECE = 1000  # tensors whose figures are taken over in one turn of the event loop
FIRST_REFRESH, REFRESH = 1, 100  # ms until the first picture of the survey, and between two …
CROWDED, CROWDED_REFRESH = 1000, 600  # … and with more tensors than this
PLAN_REST = 400  # ms without another plan before its errors are predicted
AHEAD = (TENSOR_KEY, FORMAT_KEY, ERROR_KEY)  # what somebody waits for goes before the survey


class MapView(QWidget):
    """The survey begins when the view is first shown with a model, and anew with another plan."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state, self._jobs = state, services.jobs
        self._rows: dict[str, SurveyRow] = {}
        self._values: dict[str, float | None] = {}  # of the measure that is shown
        self._damaged: set[str] = set()  # tensors with values that are not finite
        self._tensors: tuple[MapTensor, ...] = ()
        self._places: dict[str, int] = {}  # number of each tensor in the table
        self._news: dict[int, TensorInfo] = {}
        self._surveyed: tuple[Checkpoint, Plan | None] | None = None  # what the rows are of, once the survey has begun
        self._job: Job | None = None
        self._paused = False
        self._follower: QWidget | None = None  # shows what the survey finds while the map itself is hidden
        self._rest = REFRESH
        self._turns = Turns(self)
        self._make_parts()
        self._lay_out()
        self._connect()
        self._on_model()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.measure = CalmCombo()
        self.measure.setAccessibleName("Measure that colours the map")
        self.measure.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        for measure in MEASURES:
            self.measure.addItem(measure.title)
            hint = explain(measure.title)
            self.measure.setItemData(self.measure.count() - 1, hint, Qt.ItemDataRole.ToolTipRole)
        self.measure.activated.connect(lambda _row: self._show())
        self.progress = QProgressBar()
        self.progress.setAccessibleName("Progress of the survey")
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(120)
        self.status = ElidedLabel(role="muted")
        self.stop = quiet_button("Stop", self._stop, icon="x", hint="Stop measuring; what is there stays")
        self.again = quiet_button("Go on", self._start, icon="play", hint="Measure the tensors that are still missing")
        self.map = ModelMap("Map of the model")
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.error.hide()
        self.table = FittingTable(
            RowsModel(survey_columns(self._rows), explain), "Tensors of the map", WIDTHS,
            filter_hint="Filter tensors by name or format", totals=False, name_sample=NAME, spare=SPARE,
        )  # fmt: skip
        self.table.view.sortByColumn(RATIO, Qt.SortOrder.DescendingOrder)
        self._refresh = QTimer(self, singleShot=True)
        self._refresh.timeout.connect(self._show_news)
        self._plan_timer = QTimer(self, singleShot=True, interval=PLAN_REST)
        self._plan_timer.timeout.connect(self._start_if_needed)

    def _lay_out(self) -> None:
        word = label("Coloured by", "muted")
        word.setBuddy(self.measure)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(word)
        row.addWidget(self.measure)
        row.addSpacing(SPACE_2)
        row.addWidget(self.progress)
        row.addWidget(self.status, 1)
        row.addWidget(self.stop)
        row.addWidget(self.again)
        card = Card()
        card.add(self.map)
        self.parts = FoldingGrid(
            (Part("Map", card, 0, 0), Part("Table", self.table, 1, 0)), FOLD, (5, 3), "Map and table", beside=False
        )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addLayout(row)
        layout.addWidget(self.error)
        layout.addWidget(self.parts, 1)

    def _connect(self) -> None:
        state = self._state
        state.model_changed.connect(self._on_model)
        state.plan_changed.connect(self._on_plan)
        state.tensor_changed.connect(self._mark)
        self.map.tensor_opened.connect(state.open)
        self.table.row_chosen.connect(lambda tensor: state.choose(tensor.name))
        self.table.row_activated.connect(lambda tensor: state.open(tensor.name))
        self._jobs.changed.connect(self._make_way)

    # ---- the model and its plan ------------------------------------------------------------------------------------

    def _on_model(self) -> None:
        self._jobs.discard(SURVEY_KEY)
        self._rows.clear()
        self._news.clear()
        self._turns.stop()
        self._damaged.clear()
        self._job, self._surveyed, self._paused = None, None, False
        checkpoint = self._state.checkpoint
        tensors = checkpoint.tensors if checkpoint is not None else ()
        self._tensors = ()
        self._places = {t.name: i for i, t in enumerate(tensors)}
        self._rest = REFRESH if len(tensors) <= CROWDED else CROWDED_REFRESH
        self.table.model.set_rows(tensors)
        self.error.hide()
        self.map.clear()
        QTimer.singleShot(1, self, self._place_tensors)
        if self._looked_at():
            self._start_if_needed()

    def _place_tensors(self) -> None:
        checkpoint = self._state.checkpoint
        self._tensors = map_rows(checkpoint.tensors if checkpoint is not None else ())
        rows = len({tensor.row for tensor in self._tensors})
        self.parts.set_height(min(FOLD + FOLD_MORE * max(0, rows - FOLD_ROWS), FOLD_MOST))
        steps = self.map.arranging(self._tensors)  # a turn each: there may be ten thousand
        count = 3 + len(self._tensors) // PIECE
        self._turns.add(*(partial(next, steps, None) for _ in range(count)), self._show)
        self._mark()

    def _on_plan(self) -> None:
        if self._looked_at():
            self._plan_timer.start()

    def follow(self, follower: QWidget) -> None:
        """Survey as long as `follower` can be seen, too."""
        self._follower = follower
        self._plan_timer.start(0 if self._surveyed is None else PLAN_REST)

    def _looked_at(self) -> bool:
        return self.isVisible() or (self._follower is not None and self._follower.isVisible())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._plan_timer.start(0 if self._surveyed is None else PLAN_REST)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not self._looked_at():
            self._plan_timer.stop()  # what runs goes on: it is wanted when somebody comes back

    def _start_if_needed(self) -> None:
        checkpoint, plan = self._state.checkpoint, self._state.plan
        if checkpoint is None or self._surveyed == (checkpoint, plan):
            return
        self._start()

    # ---- the survey ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Measure; what is known from before is there again at once."""
        checkpoint, plan = self._state.checkpoint, self._state.plan
        if checkpoint is None:
            return
        self._surveyed = checkpoint, plan
        self._paused = False
        self.error.hide()
        self._job = self._jobs.run(
            "Survey the model", survey_work(checkpoint, plan), lambda _result: self._end(""), self._fail,
            self._on_rows, on_cancelled=self._on_stopped, latest_key=SURVEY_KEY, owner=self,
        )  # fmt: skip
        self._state.set_survey_stopped("")
        self._make_way()
        self._show_progress()

    def _stop(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _on_rows(self, news: tuple[Any, ...]) -> None:
        tensors = self._state.checkpoint.tensors if self._state.checkpoint is not None else ()
        for step in news:
            row = step.result
            self._rows[row.name] = row
            place = self._places.get(row.name)
            if place is not None:
                self._news[place] = tensors[place]
        if not self._refresh.isActive():
            self._refresh.start(FIRST_REFRESH if len(self._rows) == len(news) else self._rest)

    def _show_news(self) -> None:
        """Table, map and the page's state, the event loop turns in between: there may be ten thousand rows."""
        news = dict(islice(self._news.items(), PIECE))
        if not news:
            return
        for place in news:
            del self._news[place]
        measure = MEASURES[self.measure.currentIndex()]
        for tensor in news.values():
            row = self._rows[tensor.name]
            self._values[tensor.name] = value_of(row, measure)
            if row.statistics is not None and row.statistics.nonfinite:
                self._damaged.add(tensor.name)
        self.map.look([tensor.name for tensor in news.values()], self._values, measure.falling)
        self.table.model.replace_rows(news)
        if self._job is not None:
            self._show_progress()
        self._turns.add(*((self._show_news,) if self._news else (self._sort, self._show_map, self._tell)))

    @property
    def settled(self) -> bool:
        """Whether everything that was measured is shown and nothing more is on its way."""
        return self._job is None and not self._turns.busy and not self._news

    def _sort(self) -> None:
        header = self.table.view.horizontalHeader()
        if header.sortIndicatorSection() >= 0:
            self.table.model.sort(header.sortIndicatorSection(), header.sortIndicatorOrder())

    def _tell(self) -> None:
        self._state.set_survey(dict(self._rows))

    def _end(self, words: str) -> None:
        self._job = None
        self._refresh.stop()
        self._show_news()
        self._show_progress()
        if words:
            self.status.setText(f"{words} {self.status.text()}".strip())

    def _on_stopped(self) -> None:
        self._end("Stopped.")
        self._state.set_survey_stopped("Measuring was stopped; the Map goes on with it.")

    def _fail(self, error: BaseException) -> None:
        self._end("")
        self.error.show_error(error)
        self._state.set_survey_stopped("The model could not be measured; the Map says why.")

    def _make_way(self, _job: Job | None = None) -> None:
        """Wait while somebody waits for a tensor."""
        if self._job is None or self._job.state.final:
            return
        busy = any(job.latest_key in AHEAD and not job.state.final for job in self._jobs.jobs("pool"))
        if busy != self._paused:
            self._paused = busy
            (self._job.pause if busy else self._job.resume)()

    # ---- pictures --------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Everything anew, in the measure that is chosen."""
        measure = MEASURES[self.measure.currentIndex()]
        self.measure.setToolTip(explain(measure.title) or measure.title)
        self._values = {name: value_of(row, measure) for name, row in self._rows.items()}
        self._show_map(whole=True)

    def _show_map(self, *, whole: bool = False) -> None:
        checkpoint, measure = self._state.checkpoint, MEASURES[self.measure.currentIndex()]
        if checkpoint is None or not self._tensors:
            self.map.clear()
            return
        lost = len(self._damaged)
        words = "1 tensor has" if lost == 1 else f"{format_count(lost)} tensors have"
        note = f"{words} values that are not finite (NaN or Inf)." if lost else ""
        picture = ModelPicture(
            f"{measure.title}: {Path(checkpoint.path).name}", measure.axis, self._tensors, self._values,
            lambda name: words_about(self._rows.get(name), name, measure), measure.log, measure.falling, measure.text,
            None if whole else (),
        )  # fmt: skip
        self.map.show_map(picture, note)

    def _show_progress(self) -> None:
        checkpoint = self._state.checkpoint
        count, total = len(self._rows), len(checkpoint.tensors) if checkpoint is not None else 0
        running = self._job is not None
        newest = next(reversed(self._rows.values()), None) if self._rows else None
        share = newest.bytes_done / newest.bytes_total if newest is not None and newest.bytes_total else 0.0
        self.progress.setVisible(running)
        self.progress.setValue(round(100 * share))
        words = f"{format_count(count)} of {format_count(total)} tensors"
        if running and newest is not None:
            words += f", {format_percent(share, 0)} of {format_decimal(newest.bytes_total)}"
        elif count and count == total:
            words += ". Findings says what stands out and what can be done."
        self.status.setText("Measuring…" if running and not count else words)
        self.stop.setVisible(running)
        self.again.setVisible(not running and count < total and self._surveyed is not None)

    def _mark(self) -> None:
        tensor = self._state.tensor
        self.map.choose(tensor.name if tensor is not None else "")
