"""A table with a filter box above and a totals row below, for any RowsModel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from PySide6.QtCore import QEvent, QItemSelectionModel, QObject, QPoint, QRect, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QPushButton,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from app.models.names import NameDelegate
from app.models.table import RowsModel
from app.theme import ROW_HEIGHT, SPACE_2, current, ui_font
from app.widgets.basics import quiet_button, set_available

MINIMUM_ROWS = 3
CELL_PADDING = 22  # left and right of a cell's text, with room for the sort arrow in the header
ICON_ROOM = 20
COPY_AT_ONCE = 500  # rows: about 10 ms
NO_ROW = "Choose a row of the table first."
NAME_WIDTH = 160  # the first column is never narrower; the rest can be scrolled to
LONG_NAMES = 300  # px of the first column before another one is widened


class TablePanel(QWidget):
    """`row_chosen(row)` follows the current row; `row_activated(row)` follows Enter or a double click.

    widths: sample text for each column, from which its width follows; the first column takes what is left.
    """

    row_chosen = Signal(object)
    row_activated = Signal(object)

    def __init__(
        self,
        model: RowsModel,
        name: str,
        widths: tuple[str, ...],
        *,
        filter_hint: str = "Filter by any word",
        totals: bool = True,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.model = model
        self._copying: list[Any] = []
        self._copied: list[str] = []
        self._copy_timer = QTimer(self, singleShot=True, interval=0)
        self._copy_timer.timeout.connect(self._copy_some)
        self.filter = QLineEdit()
        self.filter.setPlaceholderText(filter_hint)
        self.filter.setClearButtonEnabled(True)
        self.filter.setAccessibleName(f"Filter {name}")
        self.filter.setToolTip("Rows in which every word occurs are shown; Esc shows all again")
        self.filter.textChanged.connect(self._on_filter)
        self.name_width = NAME_WIDTH
        self._row_buttons: list[QPushButton] = []
        self.view = QTableView()
        self.view.setAccessibleName(name)
        self._widths = widths
        self._wide: tuple[int, int, int] | None = None  # a column, and the least and the wished for width of its text
        self._prepare_view(widths)
        self.totals = TotalsRow(self.view, model)
        if not totals:  # to show it now, without a parent, would be a window of its own for a moment
            self.totals.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        self._top = QHBoxLayout()
        self._top.setSpacing(SPACE_2)
        self._top.addWidget(self.filter, 1)
        layout.addLayout(self._top)
        layout.addSpacing(SPACE_2)
        layout.addWidget(self.view, 1)
        layout.addWidget(self.totals)
        self.filter.installEventFilter(self)

    def add_row_action(self, text: str, icon: str, hint: str, on_row: Callable[[Any], object]) -> QPushButton:
        """Something to do with the current row: a button beside the filter, and an entry of the row's menu."""

        def act() -> None:
            row = self.current_row()
            if row is not None:
                on_row(row)

        button = quiet_button(text, act, icon=icon, hint=hint)
        self._top.addWidget(button)
        self._row_buttons.append(button)
        set_available(button, NO_ROW)
        entry = QAction(text, self.view)
        entry.triggered.connect(act)
        self.view.addAction(entry)
        return button

    def current_row(self) -> Any:
        """The value of the current row, or None."""
        index = self.view.currentIndex()
        return self.model.row_at(index) if index.isValid() else None

    def copy_selection(self) -> None:
        """Selected rows to the clipboard, tab between cells, newline between rows; many rows bit by bit."""
        ranges = self.view.selectionModel().selection()
        numbers = sorted({n for r in ranges for n in range(r.top(), r.bottom() + 1)})
        self._copying = [self.model.row_at(n) for n in numbers]
        self._copied = []
        self._copy_some()

    def _copy_some(self) -> None:
        columns = self.model.columns
        some, self._copying = self._copying[:COPY_AT_ONCE], self._copying[COPY_AT_ONCE:]
        self._copied += ["\t".join([c.text(row) for c in columns]) for row in some]
        if self._copying:
            self._copy_timer.start()
        else:
            QGuiApplication.clipboard().setText("\n".join(self._copied))

    def _prepare_view(self, widths: tuple[str, ...]) -> None:
        view = self.view
        view.setModel(self.model)
        view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        view.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        view.setItemDelegateForColumn(0, NameDelegate(view))
        view.setWordWrap(False)
        view.setShowGrid(False)
        view.setTabKeyNavigation(False)  # Tab leaves the table
        view.setIconSize(QSize(14, 14))
        view.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        view.verticalHeader().hide()
        view.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        view.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        view.setMinimumHeight(ROW_HEIGHT * (MINIMUM_ROWS + 1))
        header = view.horizontalHeader()
        header.setHighlightSections(False)
        # Of its own, always empty: to look up whether a column is selected, it asks every row at every painting.
        header.setSelectionModel(QItemSelectionModel(self.model, header))
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        header.setSortIndicatorClearable(True)
        view.setSortingEnabled(True)
        metrics = self.fontMetrics()
        for column, sample in enumerate(widths):
            spec = self.model.columns[column]
            width = max(metrics.horizontalAdvance(sample), metrics.horizontalAdvance(spec.title)) + CELL_PADDING
            header.resizeSection(column, width + (ICON_ROOM if spec.icon else 0))
        view.viewport().installEventFilter(self)
        header.setMinimumSectionSize(48)
        view.selectionModel().currentRowChanged.connect(self._on_current)
        view.activated.connect(lambda index: self.row_activated.emit(self.model.row_at(index)))
        copy = QAction("Copy rows", view)
        copy.setShortcut(QKeySequence.StandardKey.Copy)
        copy.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        copy.triggered.connect(self.copy_selection)
        view.addAction(copy)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)

    def _on_filter(self, text: str) -> None:
        self.model.set_filter(text)

    def _on_current(self, index: Any, _previous: Any) -> None:
        for button in self._row_buttons:
            set_available(button, "" if index.isValid() else NO_ROW)
        if index.isValid():
            self.row_chosen.emit(self.model.row_at(index))

    def fit_column(self, column: int, texts: Iterable[str]) -> None:
        """Room for the longest of these, as long as the first column keeps LONG_NAMES; no less than there was."""
        advance = self.fontMetrics().horizontalAdvance
        self._wide = column, advance(self._widths[column]), max(map(advance, texts), default=0)
        self.fit_first_column()

    def fit_first_column(self) -> None:
        header = self.view.horizontalHeader()
        others = header.length() - header.sectionSize(0)
        if self._wide is not None:
            column, least, wanted = self._wide
            others -= header.sectionSize(column)
            spare = self.view.viewport().width() - others - LONG_NAMES
            header.resizeSection(column, max(least + CELL_PADDING, min(wanted + CELL_PADDING, spare)))
            others += header.sectionSize(column)
        header.resizeSection(0, max(self.view.viewport().width() - others, self.name_width))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.view.viewport():
            if event.type() == QEvent.Type.Resize:
                self.fit_first_column()
            return False
        is_key = watched is self.filter and event.type() == QEvent.Type.KeyPress
        if is_key and event.key() == Qt.Key.Key_Escape and self.filter.text():
            self.filter.clear()
            return True
        if is_key and event.key() == Qt.Key.Key_Down:
            self.view.setFocus()
            return True
        return super().eventFilter(watched, event)


class TotalsRow(QWidget):
    """The sums of the rows shown, each under its column."""

    def __init__(self, view: QTableView, model: RowsModel) -> None:
        super().__init__()
        self._view, self._model = view, model
        self.setFixedHeight(ROW_HEIGHT)
        self.setAccessibleName("Totals")
        header = view.horizontalHeader()
        header.sectionResized.connect(lambda *_: self.update())
        view.horizontalScrollBar().valueChanged.connect(lambda _value: self.update())
        for signal in (model.modelReset, model.dataChanged, model.layoutChanged):
            signal.connect(self._ask)
        self._texts = model.totals()
        # Many rows may change in one go; the sums are made once, when the event loop gets to it, a column a turn.
        self._column = 0
        self._later = QTimer(self, interval=0)
        self._later.timeout.connect(self._sum_next)

    def texts(self) -> list[str]:
        """What stands in the totals row, one text a column."""
        return list(self._texts)

    def _ask(self, *_: object) -> None:
        if not self.isHidden():
            self._column = 0
            self._later.start()

    def _sum_next(self) -> None:
        columns = self._model.columns
        while self._column < len(columns) and columns[self._column].total is None:
            self._column += 1
        if self._column < len(columns):
            self._texts[self._column] = self._model.total(self._column)
            self._column += 1
            return
        self._later.stop()
        self.setAccessibleDescription(", ".join(t for t in self._texts if t))
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            theme = current()
            painter.setFont(ui_font(bold=True))
            painter.setPen(QPen(theme.color("text")))
            header = self._view.horizontalHeader()
            left = self._view.viewport().mapTo(self._view, QPoint(0, 0)).x()
            for column, text in enumerate(self._texts):
                if not text:
                    continue
                spec = self._model.columns[column]
                x = left + header.sectionViewportPosition(column)
                room = QRect(x + 8, 0, header.sectionSize(column) - 16, self.height())
                if spec.number:  # a text may run over the empty cells beside it
                    room.setLeft(left + self._free_from(column) + 8)
                else:
                    room.setRight(left + self._free_until(column) - 8)
                side = Qt.AlignmentFlag.AlignRight if spec.number else Qt.AlignmentFlag.AlignLeft
                shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, room.width())
                painter.drawText(room, side | Qt.AlignmentFlag.AlignVCenter, shown)

    def _free_from(self, column: int) -> int:
        header = self._view.horizontalHeader()
        before = next((c for c in range(column - 1, -1, -1) if self._texts[c]), None)
        if before is None:
            return -header.offset()
        start = header.sectionViewportPosition(before)
        # Half of the empty cells between belongs to the text before.
        return (start + header.sectionSize(before) + header.sectionViewportPosition(column)) // 2

    def _free_until(self, column: int) -> int:
        header = self._view.horizontalHeader()
        following = next((c for c in range(column + 1, len(self._texts)) if self._texts[c]), None)
        end = header.length() if following is None else header.sectionPosition(following)
        return end - header.offset()
