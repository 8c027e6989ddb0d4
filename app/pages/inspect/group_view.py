"""The Quantization map: one group of one row, from its values down to its bits, and other granularities beside it."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QTabWidget, QVBoxLayout, QWidget

from app.jobs.inspect_more import AS_IN_FILE, GROUP_KEY, LARGEST, GroupAsk, GroupReply, group_work, teaching_work
from app.models.table import Column, RowsModel
from app.models.table_view import TablePanel
from app.pages.inspect.byte_strip import ByteArea
from app.pages.inspect.group_controls import STORED, GroupControls
from app.pages.inspect.group_rows import WIDTHS, ShownGroup, from_map, from_variant, group_columns
from app.pages.inspect.narrow_table import NOTHING, NarrowTable
from app.pages.inspect.side_tabs import HIGH_TABS, SideTabs, in_card
from app.pages.inspect.state import InspectState
from app.pages.inspect.teaching import TeachingControls
from app.pages.inspect.turns import Turns
from app.plots.group_picture import GranularityPicture, GroupPicture
from app.services import Services
from app.theme import ROW_HEIGHT, SPACE_2, SPACE_4
from app.widgets.basics import label, quiet_button, set_available
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel, KeyValue, explain
from core.errors import UserError
from core.units import format_bits, format_count, format_decibels, format_number

DELAY = 15  # ms of rest before a group is asked for: a key that repeats asks for one, not for twenty
WIDE = 600  # px from which the table stands beside the picture
PICTURE, TABLE, SIDE = "One group", "Table", "Side by side"
SIDE_HEIGHT = 400  # px from which the table of granularities stands below their picture
PICTURE_HEIGHT = 190  # px, the least at which a picture can be read


class GroupView(QWidget):
    """Shows the chosen tensor's group around a row and column; every control changes it at once."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state, self._services = state, services
        self._column = 0  # the value that was last looked at; the group is the one around it
        self.shown_group: ShownGroup | None = None
        self._reply: GroupReply | None = None
        self._drawn = False  # whether the granularities' picture is of this reply
        self._place = NOTHING  # the value that is marked
        self._stale = True
        self._timer = QTimer(self, singleShot=True, interval=DELAY)
        self._timer.timeout.connect(self._ask)
        self._make_parts()
        self._lay_out()
        self._connect()
        self._turns = Turns(self)
        self._preparing = Turns(self)
        self._preparing.prepare((self.picture, self.granularities))
        self._on_tensor()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.controls = GroupControls()
        self.teaching = QCheckBox("Teaching data")
        self.teaching.setToolTip("Made-up weights with one outlier that you can move, in place of the model's")
        self.outlier = TeachingControls()
        self.outlier.hide()
        self.error = InlineError()
        self.problem = label("", "warning", wrap=True)
        self.problem.hide()
        self.picture = GroupPicture()
        self.bytes = ByteArea()
        self.facts = KeyValue()
        self.formula = ElidedLabel(role="muted")
        self.table = NarrowTable(RowsModel(group_columns(), explain), "Values of the group", WIDTHS, totals=False)
        self.table.filter.hide()
        self.copy = quiet_button("Copy as CSV", self._copy, icon="copy", hint="Copy all values with full precision")
        self.granularities = GranularityPicture()
        self.variants = TablePanel(
            RowsModel(_variant_columns(), explain), "Granularities",
            ("", "99.99 dB", "99.99 dB", "0.00000", "9.99 bits"), totals=False,
        )  # fmt: skip
        self.variants.filter.hide()
        self.variants.view.setToolTip("Enter or a double click opens a group of this granularity")
        self.variants.setMaximumHeight(6 * ROW_HEIGHT + SPACE_4)

    def _lay_out(self) -> None:
        self.picture.setMinimumHeight(PICTURE_HEIGHT)
        self.granularities.setMinimumHeight(PICTURE_HEIGHT)
        left = _column(self.picture, self.bytes, top=0)
        self._beside = QWidget()
        right = QVBoxLayout(self._beside)
        right.setContentsMargins(0, 0, 0, 0)
        right.setSpacing(SPACE_2)
        head = QHBoxLayout()
        head.addWidget(self.formula, 1)
        head.addWidget(self.copy)
        right.addLayout(head)
        right.addWidget(self.facts)
        right.addWidget(self.table, 1)
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setStyleSheet(HIGH_TABS)
        self.tabs.setAccessibleName("Pictures of the group")
        self.tabs.tabBar().setAccessibleName("Pictures of the group")
        self._side = in_card(self.granularities, self.variants)
        self._side.installEventFilter(self)
        self._one = SideTabs(self.tabs, left, self._beside, (PICTURE, TABLE), WIDE)
        self.tabs.addTab(self._side, SIDE)
        self.tabs.setTabToolTip(0, "Every value, its code and the bits that hold it")
        self.tabs.setTabToolTip(1, "The same weights with one scale a tensor, a row, or a group of them")
        self.tabs.setCornerWidget(self.teaching)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self.controls)
        layout.addWidget(self.outlier)
        layout.addWidget(self.problem)
        layout.addWidget(self.error)
        layout.addWidget(self.tabs, 1)

    def _connect(self) -> None:
        state = self._state
        state.tensor_changed.connect(self._on_tensor)
        state.model_changed.connect(self._on_tensor)
        state.plan_changed.connect(self._renew)
        state.format_changed.connect(self._on_format)
        state.channel_changed.connect(self._on_channel)
        self.controls.row_changed.connect(self._renew)
        self.controls.group_changed.connect(self._on_group)
        self.controls.scheme_changed.connect(self._renew)
        self.teaching.toggled.connect(self._on_teaching)
        self.outlier.moved.connect(self._on_outlier)
        self.tabs.currentChanged.connect(self._on_tab)
        self.table.row_chosen.connect(lambda row: self._highlight(row.place, self.table))
        self.picture.hovered.connect(lambda place: self._highlight(place, self.picture))
        self.bytes.hovered.connect(lambda place: self._highlight(place, self.bytes))
        self.variants.row_activated.connect(self._open_variant)

    # ---- the user asks ---------------------------------------------------------------------------------------------

    def look_at(self, row: int, column: int) -> None:
        """Open the group of one value of the chosen tensor."""
        self._column = column
        self.controls.set_rows(max(self.controls.row.maximum(), row) + 1, row)
        self._renew()

    def _on_group(self, group: int) -> None:
        if self.shown_group is not None:
            self._column = group * self.shown_group.step
        self._renew()

    def _open_variant(self, variant: Any) -> None:
        self.controls.set_granularity(variant.name)
        self.tabs.setCurrentIndex(0)
        self._renew()

    def _on_teaching(self, on: bool) -> None:
        self.outlier.setVisible(on)
        self._tell_teaching()
        self.controls.set_teaching(on)
        self._column = self.outlier.data.column if on else 0
        if not on:
            self._on_channel()
        self._renew()

    def _on_outlier(self) -> None:
        self._column = self.outlier.data.column
        self._renew()

    def _on_tab(self, _number: int) -> None:
        side = self.tabs.currentWidget() is self._side
        self.controls.set_side_by_side(side)
        if side and not self._drawn:
            self._show_variants()

    def _copy(self) -> None:
        if self.shown_group is not None:
            QGuiApplication.clipboard().setText(self.shown_group.csv())

    # ---- the state changes -----------------------------------------------------------------------------------------

    def _on_tensor(self) -> None:
        """Another tensor: nothing of the one before stays."""
        self._services.jobs.discard(GROUP_KEY)
        self._column = 0
        tensor = self._state.tensor
        rows = tensor.rows if tensor is not None else 1
        first = rows // tensor.experts * self._state.expert if tensor is not None and tensor.experts else 0
        self.controls.set_rows(rows, first)
        self._blank()
        self._on_channel()
        self._renew()

    def _on_format(self) -> None:
        if not self.teaching.isChecked():
            self.controls.set_granularity(STORED)  # another format was chosen to be looked at
        self._renew()

    def _on_channel(self) -> None:
        """A channel that was chosen elsewhere is looked at here, too."""
        state = self._state
        if state.channel is None or self.teaching.isChecked():
            return
        if state.axis == "input":
            self._column = state.channel
        elif state.channel <= self.controls.row.maximum():
            self.controls.set_rows(self.controls.row.maximum() + 1, state.channel)
            self._column = LARGEST  # the row stands out by it
        self._renew()

    # ---- asking ----------------------------------------------------------------------------------------------------

    def _renew(self, *_: object) -> None:
        self._stale = True
        if self.isVisible():
            self._timer.start()

    def _ask(self) -> None:
        state, controls = self._state, self.controls
        if not self.isVisible():
            return
        contract = state.contract
        if contract is not None and not self.teaching.isChecked():
            controls.follow(contract.name, contract.bits, contract.symmetric)
        ask = GroupAsk(
            controls.row.value(), self._column, state.format_name, controls.bits.value(),
            controls.symmetric.isChecked(), controls.opened,
        )  # fmt: skip
        if self.teaching.isChecked():
            work = teaching_work(self.outlier.data, ask)
        elif state.checkpoint is not None and state.tensor is not None:
            known = state.statistics
            extent = (float(known.min), float(known.max)) if known is not None else None
            work = group_work(state.checkpoint, state.plan, state.tensor, ask, extent)
        else:
            self._blank()
            return
        self._services.jobs.run(
            "Look at a group", work, self._on_reply, self._on_error, latest_key=GROUP_KEY, owner=self
        )

    def _on_error(self, error: BaseException) -> None:
        self._stale = False
        self._blank()
        self.error.show_error(error)

    def _on_reply(self, reply: GroupReply) -> None:
        self._stale = False
        self._reply = reply
        if self._column == LARGEST:
            self._column = reply.column
        self.error.hide()
        group: ShownGroup | None = None
        if reply.opened is not None:
            group = from_variant(reply.opened, reply.row)
        elif reply.group is not None and self.controls.opened in (STORED, AS_IN_FILE):
            group = from_map(reply.group, reply.levels, reply.row)
        self._show_problem(reply, group)
        self.controls.set_rows(reply.rows, reply.row)
        if group is not None:
            self.controls.set_groups(-(-reply.columns // group.step), group.group)
        old, self.shown_group = self.shown_group, group
        self._turns.do((self._show_group, lambda: self._show_values(old), self._show_variants))

    # ---- showing ---------------------------------------------------------------------------------------------------

    def _blank(self) -> None:
        self._turns.stop()
        self.error.hide()
        self.problem.hide()
        self.shown_group, self._reply = None, None
        self._show_group("No data yet: choose a tensor to see one of its groups.")
        self._show_values(None)
        self._show_variants()

    def _show_problem(self, reply: GroupReply, group: ShownGroup | None) -> None:
        words = ""
        if group is None and isinstance(reply.problem, UserError):
            words = f"{reply.problem.message} {reply.problem.hint}"
        elif group is None:
            words = f"Rows of {reply.columns} values have no such groups: choose another granularity."
        self.problem.setText(words)
        self.problem.setVisible(bool(words))

    def _show_group(self, why: str = "The line above says why there is nothing.") -> None:
        group = self.shown_group
        set_available(self.copy, "" if group is not None else "There are no values to copy yet.")
        self.bytes.show_group(group)
        if group is None:
            self.picture.clear(why)
            return
        title = f"Teaching data: {group.title}" if self.teaching.isChecked() else group.title
        self.picture.show_group(title, group.weights, group.stored, group.levels, [row.words for row in group.rows])

    def _show_values(self, old: ShownGroup | None) -> None:
        """Table and shared numbers; the value that was marked in `old` stays so if it is still there."""
        group = self.shown_group
        if group is None:
            self.facts.clear()
            self.formula.setText("")
            self.table.model.set_rows(())
            return
        self.facts.set_all({f.name: f.value + (f"  ·  {f.where}" if f.where else "") for f in group.facts})
        self.formula.setText(group.formula)
        self.table.model.set_rows(group.rows)
        same = old is not None and old.rows[0].column == group.rows[0].column and len(old.rows) == len(group.rows)
        self._highlight(self._place if same else NOTHING, self)

    def _show_variants(self) -> None:
        """Drawn while they are in front; else once they come there."""
        reply = self._reply
        self.variants.model.set_rows(reply.variants if reply is not None else ())
        self._drawn = self.tabs.currentWidget() is self._side
        if reply is None or not reply.variants:
            self.granularities.clear("There are no weights to compare here." if reply is not None else "")
            return
        if not self._drawn:
            return
        symmetric = "symmetric" if self.controls.symmetric.isChecked() else "asymmetric"
        lead = "Teaching data" if self.teaching.isChecked() or self._state.tensor is None else self._state.tensor.name
        self.granularities.show_errors(
            f"{lead}: {self.controls.bits.value()} bits {symmetric}, row {format_count(reply.row)}",
            [v.name for v in reply.variants],
            [v.reconstruction - reply.weights for v in reply.variants],
            [v.snr_db for v in reply.variants],
            [v.boundaries for v in reply.variants],
            reply.weights,
            reply.first,
        )

    def _highlight(self, place: int, asked_by: QWidget) -> None:
        """Mark one value in table, picture and bytes."""
        self._place = place
        if self.shown_group is None:
            return
        if asked_by is not self.picture:
            self.picture.highlight(place)
        if asked_by is not self.bytes:
            self.bytes.highlight(place)
        if asked_by is not self.table:
            self.table.mark(place)

    # ---- Qt --------------------------------------------------------------------------------------------------------

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Where it is low, the picture alone says what the table does: its strips have their SNR."""
        if watched is self._side and event.type() == QEvent.Type.Resize:
            self.variants.setVisible(self._side.height() >= SIDE_HEIGHT)
        return False

    def _tell_teaching(self) -> None:
        """While made-up data is in view, the page's tensor and format are not what is looked at."""
        self._state.set_teaching(self.teaching.isChecked() and self.isVisible())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._tell_teaching()
        if self._stale:
            self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._tell_teaching()
        self._timer.stop()
        self._services.jobs.discard(GROUP_KEY)


def _variant_columns() -> tuple[Column, ...]:
    """Columns of the table of granularities, one row a Variant."""
    return (
        Column("Granularity", lambda v: v.name, _shared_by, term="granularity"),
        Column("SNR here", lambda v: format_decibels(v.snr_db), lambda v: v.snr_db, number=True, term="SNR"),
        Column("SNR, row", lambda v: format_decibels(v.row_snr_db), lambda v: v.row_snr_db, number=True, term="SNR"),
        Column("Max error", lambda v: format_number(v.max_error), lambda v: v.max_error, number=True, term="max error"),
        Column(
            "Bits a weight", lambda v: format_bits(v.effective_bits), lambda v: v.effective_bits, number=True,
            term="effective bits",
        ),
    )  # fmt: skip


def _shared_by(variant: Any) -> float:
    """For sorting: how many weights share a scale; a row and a tensor have the most."""
    return float(variant.group) if variant.group > 0 else 1e9 - variant.group


def _column(*parts: QWidget, top: int = SPACE_2) -> QWidget:
    outer = QWidget()
    layout = QVBoxLayout(outer)
    layout.setContentsMargins(0, top, 0, 0)
    layout.setSpacing(SPACE_2)
    for number_, part in enumerate(parts):
        layout.addWidget(part, 0 if number_ else 1)
    return outer
