"""One tensor: heat map, profiles of its channels, distribution, and the same for the error that a format makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QStringListModel, Qt, QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from app.jobs.inspect import (
    ERROR_KEY,
    FORMAT_KEY,
    TENSOR_KEY,
    FormatReply,
    TensorReply,
    error_work,
    format_work,
    tensor_work,
)
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.pages.inspect.channel_tables import error_columns, weight_columns
from app.pages.inspect.state import InspectState
from app.pages.inspect.tensor_facts import ERROR_FACTS, WEIGHT_FACTS, show_error_facts, show_weight_facts
from app.pages.inspect.tensor_pictures import (
    distribution_of,
    error_picture,
    error_profile,
    short_name,
    weights_picture,
    weights_profile,
)
from app.pages.inspect.turns import Turns
from app.plots.distribution import DistributionPlot
from app.plots.heat_map import HeatMap
from app.plots.profiles import ProfilePlot
from app.services import Services
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import Card, label, quiet_button
from app.widgets.calm import CalmCombo
from app.widgets.folding import FoldingGrid, Part
from app.widgets.inline_error import InlineError
from app.widgets.text import explain
from app.widgets.tiles import Tiles

if TYPE_CHECKING:
    from core.inspect.error_map import ErrorMap

FOLD = 440  # px of height below which the parts beside the heat map are tabs
REST = 10  # ms without another choice before a tensor is read
AXES = (("input", "Input channels (columns)"), ("output", "Output channels (rows)"))
TABLE_WIDTHS = ("", "× median", "0.00000", "0.00000")


class TensorView(QWidget):
    """Reads the chosen tensor while it is shown; `settled` is True when nothing is on its way any more."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state, self._jobs = state, services.jobs
        self._loaded: tuple[Any, Any, int] | None = None  # checkpoint, tensor and expert that are shown or on their way
        self._reply: TensorReply | None = None
        self._format: FormatReply | None = None
        self._error: ErrorMap | None = None
        self._waiting: set[str] = set()  # keys of jobs under way
        self._following = False  # a channel chosen here comes back as a signal
        self._turns = Turns(self)  # what is still to be drawn
        self._timer = QTimer(self, singleShot=True, interval=REST)
        self._timer.timeout.connect(self._load)
        self._make_parts()
        self._lay_out()
        self._connect()

    @property
    def settled(self) -> bool:
        return not self._waiting and not self._turns.busy and not self._timer.isActive()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        from core.inspect.outliers import THRESHOLD

        self.weights_button = _switch("Weights", "The weights as they are in the source")
        self.error_button = _switch("Error", "How far they are off in the format under inspection")
        self._modes = QButtonGroup(self)
        self._modes.addButton(self.weights_button)
        self._modes.addButton(self.error_button)
        self.weights_button.setChecked(True)
        self.weight_facts, self.error_facts = Tiles(WEIGHT_FACTS), Tiles(ERROR_FACTS)
        self.heat = HeatMap("Weights")
        self.profile = ProfilePlot("Profile")
        self.axis = CalmCombo()
        self.axis.setModel(QStringListModel([title for _, title in AXES], self.axis))
        self.axis.setAccessibleName("Axis of the profile")
        self.axis.setToolTip("Along which channels the profile runs")
        self.profile.set_chooser("Along", self.axis)
        self.distribution = DistributionPlot("Distribution")
        weights = RowsModel(weight_columns(THRESHOLD), explain)
        self.channels = TablePanel(weights, "Channels by how far they stand out", TABLE_WIDTHS, totals=False)
        errors = RowsModel(error_columns(), explain)
        self.error_channels = TablePanel(errors, "Channels by their error", TABLE_WIDTHS, totals=False)
        for table in (self.channels, self.error_channels):
            table.filter.hide()
            table.name_width = 106
            table.setMinimumWidth(240)
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.error.hide()
        self.retry = quiet_button("Try again", self._reload, icon="refresh-cw", hint="Read the tensor again")
        self.retry.hide()

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.weights_button)
        head.addWidget(self.error_button)
        head.addSpacing(SPACE_3)
        self._facts = QStackedWidget()
        self._facts.addWidget(self.weight_facts)
        self._facts.addWidget(self.error_facts)
        head.addWidget(self._facts, 1)
        head.addWidget(self.retry)
        self._tables = QStackedWidget()
        self._tables.addWidget(self.channels)
        self._tables.addWidget(self.error_channels)
        self._table_title = label("Channels that stand out", "heading")
        ranked = QWidget()
        beside = QVBoxLayout(ranked)
        beside.setContentsMargins(0, 0, 0, 0)
        beside.setSpacing(SPACE_2)
        beside.addWidget(self._table_title)
        beside.addWidget(self._tables, 1)
        self.grid = FoldingGrid(
            (
                Part("Weights", self.heat, 0, 0),
                Part("Channels", ranked, 0, 1),
                Part("Profile", self.profile, 1, 0),
                Part("Distribution", self.distribution, 1, 1),
            ),
            FOLD, (3, 2), "Parts of the tensor's view",
        )  # fmt: skip
        card = Card()
        card.add(head)
        card.add(self.grid, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self.error)
        layout.addWidget(card, 1)

    def _connect(self) -> None:
        state = self._state
        state.model_changed.connect(self._on_model)
        state.tensor_changed.connect(self._ask)
        state.plan_changed.connect(self._on_format)
        state.format_changed.connect(self._on_format)
        state.channel_changed.connect(self._on_channel)
        self._modes.buttonToggled.connect(lambda _button, on: self._show_mode() if on else None)
        self.axis.activated.connect(lambda _row: self._show_profile())
        self.heat.cell_chosen.connect(self._on_cell)
        self.profile.channel_chosen.connect(lambda channel: state.choose_channel(self._axis(), channel))
        for table in (self.channels, self.error_channels):
            table.row_chosen.connect(self._on_row)

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._ask()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()
        for key in tuple(self._waiting):
            self._stop(key)
            if key == TENSOR_KEY:
                self._loaded = None

    def _on_model(self) -> None:
        for key in (TENSOR_KEY, FORMAT_KEY, ERROR_KEY):
            self._stop(key)
        self._loaded = None
        self._blank("")

    def _stop(self, key: str) -> None:
        self._jobs.discard(key)
        self._waiting.discard(key)

    def _run(self, key: str, name: str, work: Any, done: Any, progress: Any = None) -> None:
        self._waiting.add(key)

        def arrived(result: Any) -> None:
            self._waiting.discard(key)
            done(result)

        def failed(error: BaseException) -> None:
            self._waiting.discard(key)
            self._show_error(error)

        self._jobs.run(name, work, arrived, failed, progress, latest_key=key, owner=self)

    def _ask(self) -> None:
        if self.isVisible() and self._state.tensor is not None:
            if self._loaded == (self._state.checkpoint, self._state.tensor, self._state.expert):
                self._refresh_format()
            else:
                self._timer.start()

    def _reload(self) -> None:
        self._loaded = None
        self._load()

    @property
    def _expert(self) -> int | None:
        tensor = self._state.tensor
        return self._state.expert if tensor is not None and tensor.experts else None

    def _load(self) -> None:
        checkpoint, tensor = self._state.checkpoint, self._state.tensor
        if checkpoint is None or tensor is None:
            return
        self._loaded = checkpoint, tensor, self._state.expert
        self._stop(FORMAT_KEY)
        self._stop(ERROR_KEY)
        self._blank(f"Reading {tensor.name}…")
        self._run(TENSOR_KEY, f"Inspect {tensor.name}", tensor_work(checkpoint, tensor, self._expert), self._on_tensor)

    def _on_tensor(self, reply: TensorReply) -> None:
        self._reply = reply
        self.error.hide()
        self.retry.hide()
        self._turns.add(
            self._show_heat, self._show_facts, lambda: self.channels.model.set_rows(reply.ranked), self._show_profile,
            self._show_distribution, lambda: self._state.set_statistics(reply.statistics, reply.outliers),
        )  # fmt: skip
        self._refresh_format()

    def _refresh_format(self) -> None:
        """What the format under inspection makes of the tensor, as far as it is not there yet."""
        state, reply = self._state, self._reply
        checkpoint, plan, tensor = state.checkpoint, state.plan, state.tensor
        if reply is None or checkpoint is None or plan is None or tensor is None or state.planned() is None:
            self._show_mode()
            return
        if self._format is None and FORMAT_KEY not in self._waiting:
            middle = reply.statistics.rows.max.argsort()[len(reply.statistics.rows.max) // 2]
            places = (reply.largest, (int(middle), reply.largest[1]))
            work = format_work(checkpoint, plan, tensor, self._expert, state.format_name, places)
            self._run(FORMAT_KEY, f"Quantize a sample of {tensor.name}", work, self._on_requantized)
        self._show_mode()

    def _on_format(self) -> None:
        self._stop(FORMAT_KEY)
        self._stop(ERROR_KEY)
        self._format = self._error = None
        self.error.hide()
        if self._reply is not None:
            self._show_distribution()
            if self.isVisible():
                self._refresh_format()

    def _on_requantized(self, reply: FormatReply) -> None:
        self._format = reply
        self._turns.add(self._show_distribution)

    def _ask_error(self) -> None:
        state = self._state
        checkpoint, plan, tensor = state.checkpoint, state.plan, state.tensor
        if self._error is not None and self._error.done >= 1:
            return
        if ERROR_KEY in self._waiting or checkpoint is None or plan is None or tensor is None or self._reply is None:
            return
        work = error_work(checkpoint, plan, tensor, self._expert, state.format_name)
        self._run(
            ERROR_KEY, f"Error of {tensor.name}", work, self._on_error_map, lambda news: self._on_error_map(news[-1])
        )

    def _on_error_map(self, found: ErrorMap | None) -> None:
        if found is None:
            return
        self._error = found
        shown = (self._show_heat, self._show_facts, self._show_profile) if self.error_button.isChecked() else ()
        self._turns.add(*shown, lambda: self.error_channels.model.set_rows(found.ranked()))

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def _blank(self, text: str) -> None:
        self._reply = self._format = self._error = None
        self._turns.stop()
        self.error.hide()
        self.retry.hide()
        for plot in (self.heat, self.profile, self.distribution):
            plot.clear(text)
        self.weight_facts.clear()
        self.error_facts.clear()
        self.channels.model.set_rows(())
        self.error_channels.model.set_rows(())

    def _show_error(self, error: BaseException) -> None:
        self.error.show_error(error)
        if self._reply is None:
            for plot in (self.heat, self.profile, self.distribution):
                plot.clear("There is nothing to show of this tensor.")
            self.retry.show()

    def _show_mode(self) -> None:
        """Weights or error, on the same plots."""
        on = self.error_button.isChecked()
        self._facts.setCurrentIndex(int(on))
        self._tables.setCurrentIndex(int(on))
        self._table_title.setText("Channels with the largest error" if on else "Channels that stand out")
        if self._reply is None:
            return
        planned = self._state.planned()
        if on and planned is None:
            words = (
                "No error yet: there is no plan." if self._state.plan is None else "The plan leaves this tensor out."
            )
            self.heat.clear(f"{words} Choose a format on the Recipe page.")
            self.profile.clear(words)
            return
        if on:
            self._ask_error()
        if not on or self._error is not None:
            self._turns.add(self._show_heat, self._show_facts, self._show_profile)
        else:
            self.heat.clear(f"Quantizing to {self._state.format_shown}…")
            self.profile.clear(" ")

    def _show_heat(self) -> None:
        reply, tensor = self._reply, self._state.tensor
        if reply is None or tensor is None:
            return
        if not self.error_button.isChecked():
            self.heat.show_picture(weights_picture(tensor.name, reply))
        elif self._error is not None:
            self.heat.show_picture(error_picture(tensor.name, self._error))
        else:
            return
        rows = [c.index for c in reply.outliers if c.axis == "output"]
        columns = [c.index for c in reply.outliers if c.axis == "input"]
        self.heat.mark(rows, columns)
        self.heat.choose(self._state.axis, self._state.channel)

    def _show_profile(self) -> None:
        reply, tensor, axis = self._reply, self._state.tensor, self._axis()
        if reply is None or tensor is None:
            return
        title = f"{AXES[self.axis.currentIndex()][1]} of {short_name(tensor.name)}"
        if not self.error_button.isChecked():
            self.profile.show_profile(weights_profile(title, axis, reply))
        elif self._error is not None:
            self.profile.show_profile(error_profile(title, axis, self._error))
        else:
            return
        self.profile.choose(self._state.channel if self._state.axis == axis else None)

    def _show_distribution(self) -> None:
        if self._reply is not None and self._state.tensor is not None:
            shown = distribution_of(self._state.tensor.name, self._reply, self._format)
            self.distribution.show_distribution(shown)

    def _show_facts(self) -> None:
        reply = self._reply
        if reply is None:
            return
        show_weight_facts(self.weight_facts, reply.statistics, len(reply.outliers))
        if self._error is not None:
            show_error_facts(self.error_facts, self._error)

    # ---- channels --------------------------------------------------------------------------------------------------

    def _axis(self) -> str:
        return AXES[self.axis.currentIndex()][0]

    def _on_cell(self, row: int, column: int) -> None:
        """A click on the heat map chooses both channels, the one along the profile last."""
        both = (("output", row), ("input", column))
        for axis, channel in both if self._axis() == "input" else both[::-1]:
            self._state.choose_channel(axis, channel)

    def _on_row(self, row: Any) -> None:
        self._following = True
        self._state.choose_channel(row.axis, row.index)
        self._following = False
        self.heat.choose(row.axis, row.index, go=True)

    def _on_channel(self) -> None:
        axis, channel = self._state.axis, self._state.channel
        if self._following and axis != self._axis():
            self.axis.setCurrentIndex([key for key, _ in AXES].index(axis))
            self._show_profile()
        self.heat.choose(axis, channel)
        self.profile.choose(channel if axis == self._axis() else None)


def _switch(text: str, hint: str) -> QPushButton:
    button = QPushButton(text)
    button.setCheckable(True)
    button.setAutoDefault(False)
    button.setToolTip(hint)
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    return button
