"""The Convert page: the queue above, the tensors and the error of the chosen conversion below."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractButton,
    QFrame,
    QHBoxLayout,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.jobs.convert_queue import ConversionQueue, Entry
from app.jobs.reveal import reveal
from app.jobs.runner import JobState
from app.memory_view import cache_of
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.models.tensors import TensorRun, run_columns
from app.pages.base import Page
from app.pages.convert.card import EntryCard
from app.plots import ErrorHistogram, HistogramSeries
from app.services import Services
from app.session import Session
from app.theme import PAGE_MARGIN, SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import Card, EmptyState, PrimaryButton, Splitter, label
from app.widgets.text import explain
from core import units
from core.errors import UserError
from core.run import command_line

REFRESH_MS = 250  # clock and rate, four times a second
PLOT_MS = 350  # the histogram of the newest tensor: between two deliveries of progress, not in the turn of one
PLOT_WIDTH = 256  # px that the titles of the axes need
LOW, QUEUE_HEIGHT_LOW = 460, 96  # px: where the page is below LOW, the tensors need the room more
QUEUE_HEIGHT = 196  # two conversions; more can be scrolled to
FORMAT = 2  # column
WIDTHS = ("", "not written", "w4a16-g128", "99.99", "0.99999", "999.999")


class ConvertPage(Page):
    """Shows the queue and asks it to pause, cancel and go on."""

    key = "convert"
    title = "Convert"
    icon = "play"

    def __init__(
        self, services: Services, parent: QWidget | None = None, made: Mapping[str, QWidget] | None = None
    ) -> None:
        super().__init__(services, parent, made)
        self.queue = ConversionQueue.of(services.jobs, services.settings)
        self._cards: dict[Entry, EntryCard] = {}
        self._chosen: Entry | None = None
        self._dirty: dict[int, TensorRun] = {}
        self._pinned: str | None = None  # the tensor whose error the user wants to see, instead of the newest
        self._drawn: tuple[Entry, str] | None = None
        self._make_parts()
        self._lay_out()
        queue = self.queue
        queue.added.connect(self._on_added)
        queue.changed.connect(self._on_changed)
        queue.removed.connect(self._on_removed)
        queue.planned.connect(self._on_planned)
        queue.tensors_changed.connect(self._on_tensors)
        services.session.changed.connect(self._on_session)
        self._clock = QTimer(self, interval=REFRESH_MS)
        self._clock.timeout.connect(self._tick)
        self._plot_timer = QTimer(self, singleShot=True, interval=PLOT_MS)
        self._plot_timer.timeout.connect(lambda: services.jobs.turns.ask((self, "draw"), self._draw))
        for entry in queue.entries:
            self._on_added(entry)
        if queue.entries and not queue.told:
            self.services.shell.notice.emit(
                "A conversion of an earlier session has not ended.", "Resume it on the Convert page (Ctrl+3)."
            )
        self._show_empty(services.session.current)

    def primary(self) -> QAbstractButton | None:
        if self._stack.currentWidget() is self._empty:
            return self.empty_button
        card = self._cards.get(self._chosen) if self._chosen is not None else None
        return card.main_button() if card is not None else None

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.empty_button = PrimaryButton("Choose a format", self._go_on, icon="arrow-right")
        self.table = TablePanel(
            RowsModel(run_columns(), explain), "Tensors of the conversion", WIDTHS, filter_hint="Filter tensors"
        )
        self.table.row_chosen.connect(self._on_row)
        self.histogram = ErrorHistogram(
            "Newest error", "No data yet: the error appears with the first finished tensor."
        )
        self.histogram.x_title = "Error, weight units"  # there is less room than elsewhere
        self.title_text = label("Conversions", "title")
        self.summary = label("", "muted")

    def _lay_out(self) -> None:
        self._empty = EmptyState(
            "Nothing to convert yet",
            "Conversions run here in the background, one after another; you see each tensor's error as it is written.",
            self.empty_button,
            icon=self.icon,
        )
        self._list = QVBoxLayout()
        self._list.setContentsMargins(0, 0, 0, 0)
        self._list.setSpacing(SPACE_2)
        self._list.addStretch(1)
        self._inside = inside = QWidget()
        inside.setLayout(self._list)
        inside.installEventFilter(self)  # a card's height changes with its state and with its error's details
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._area.setAccessibleName("Queue of conversions")
        self._area.setWidget(inside)
        plot = Card()
        plot.add(self.histogram, 1)
        plot.setMinimumWidth(PLOT_WIDTH)
        self._split = Splitter(SPACE_4)
        self._split.addWidget(self.table)
        self._split.addWidget(plot)
        self._split.setSizes([632, PLOT_WIDTH])
        head = QHBoxLayout()
        head.setSpacing(SPACE_3)
        head.addWidget(self.title_text)
        head.addWidget(self.summary, 1)
        loaded = QWidget()
        layout = QVBoxLayout(loaded)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_4, PAGE_MARGIN, SPACE_3)
        layout.setSpacing(SPACE_3)
        layout.addLayout(head)
        layout.addWidget(self._area)
        self._no_tensors = label("Its tensors and their errors are shown here once it goes on.", "muted")
        self._no_tensors.setAlignment(Qt.AlignmentFlag.AlignCenter)
        layout.addWidget(self._split, 1)
        layout.addWidget(self._no_tensors, 1)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(loaded)
        self._loaded = loaded
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._stack)

    def _show_empty(self, session: Session) -> None:
        ready = session.checkpoint is not None
        self.empty_button.setText("Choose a format" if ready else "Open a model…")
        self.empty_button.setAccessibleName(self.empty_button.text())
        self._stack.setCurrentWidget(self._loaded if self._cards else self._empty)

    def _go_on(self) -> None:
        shell = self.services.shell
        if self.services.session.current.checkpoint is not None:
            shell.show_page.emit("recipe")
        else:
            shell.choose_file.emit()

    # ---- the queue speaks ------------------------------------------------------------------------------------------

    def _on_added(self, entry: Entry) -> None:
        card = EntryCard(entry)
        card.chosen.connect(self.choose)
        card.asked.connect(self._do)
        self._cards[entry] = card
        self._tell_cache(card, self.services.session.current)
        self._list.insertWidget(0, card)  # the newest on top
        self._fit_list()
        self._stack.setCurrentWidget(self._loaded)
        if self._chosen is None or not self._chosen.pending:
            self.choose(entry)
        self._count()

    def _on_session(self, old: Session, new: Session) -> None:
        self._show_empty(new)
        if new.cache != old.cache or new.shape is not old.shape:
            for card in self._cards.values():
                self._tell_cache(card, new)

    @staticmethod
    def _tell_cache(card: EntryCard, session: Session) -> None:
        """The head's size counts for results of the open model alone."""
        own = session.checkpoint is not None and session.checkpoint.path == card.entry.order.source
        head_dim = session.shape.head_dim if own and session.shape is not None else 0
        card.set_cache(cache_of(session) if session.cache else None, head_dim)

    def _on_removed(self, entry: Entry) -> None:
        card = self._cards.pop(entry, None)
        if card is not None:
            card.hide()
            card.deleteLater()
        if self._chosen is entry:
            self._chosen = None
            if self.queue.entries:
                self.choose(self.queue.entries[-1])
        self._fit_list()
        self._show_empty(self.services.session.current)
        self._count()

    def _on_changed(self, entry: Entry) -> None:
        card = self._cards.get(entry)
        if card is None:
            return
        ended = card.verdict.state != entry.state.value
        card.refresh()
        if ended:
            self._fit_list()
            self._count()
            if entry.state is JobState.RUNNING and self._chosen is not None and not self._chosen.pending:
                self.choose(entry)
        if entry is self._chosen:
            self._flush()
            if not self._plot_timer.isActive():
                self._plot_timer.start()

    def _on_planned(self, entry: Entry) -> None:
        if entry is self._chosen:
            self._dirty.clear()
            self._show_rows(entry)

    def _show_rows(self, entry: Entry) -> None:
        """The conversion's tensors; a sentence for one of an earlier session, whose plan is not known yet."""
        self.table.model.set_rows(entry.rows)
        self.table.fit_column(FORMAT, {row.format for row in entry.rows})
        self._split.setVisible(bool(entry.rows))
        self._no_tensors.setVisible(not entry.rows)

    def _on_tensors(self, entry: Entry, rows: list[int]) -> None:
        if entry is self._chosen:
            self._dirty.update((row, entry.rows[row]) for row in rows)

    def _flush(self) -> None:
        if self._dirty:
            self.table.model.replace_rows(self._dirty)
            self._dirty = {}
        entry = self._chosen
        if entry is not None and entry.newest is not None and self._pinned is None and entry.pending:
            place = self.table.model.position(entry.newest)
            if place is not None:
                self.table.view.scrollTo(self.table.model.index(place, 0))

    def _tick(self) -> None:
        for entry, card in self._cards.items():
            if entry.pending:
                card.refresh()

    def _count(self) -> None:
        pending = len(self.queue.pending)
        done = sum(e.state is JobState.DONE for e in self.queue.entries)
        words = [f"{pending} to go"] if pending else []
        words += [f"{done} done"] if done else []
        stopped = sum(e.resumable for e in self.queue.entries)
        words += [f"{stopped} stopped"] if stopped else []
        self.summary.setText(", ".join(words))
        self.services.shell.queue_changed.emit(pending)
        if pending and not self._clock.isActive():
            self._clock.start()
        elif not pending:
            self._clock.stop()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._inside and event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize):
            QTimer.singleShot(0, self, self._fit_list)
        return super().eventFilter(watched, event)

    def _fit_list(self) -> None:
        """As high as its cards, up to a limit, and the cards as wide as it is."""
        for card in self._cards.values():
            card.fit(self._area.viewport().width())
        self._list.activate()
        needed = self._list.minimumHeightForWidth(self._area.viewport().width())
        needed = max(needed, self._list.minimumSize().height())  # −1 while no card has a text that wraps
        limit = QUEUE_HEIGHT if self.height() >= LOW else QUEUE_HEIGHT_LOW
        self._area.setFixedHeight(min(max(needed, 1), limit))

    # ---- the user asks ---------------------------------------------------------------------------------------------

    def choose(self, entry: Entry) -> None:
        """Show this conversion's tensors and error below."""
        if entry is self._chosen:
            return
        self._chosen = entry
        self._pinned = None
        self._dirty.clear()
        for other, card in self._cards.items():
            card.set_selected(other is entry)
        self._show_rows(entry)
        self._drawn = None
        self._draw()

    def _do(self, word: str, entry: Entry) -> None:
        order = entry.order
        match word:
            case "pause":
                self.queue.pause(entry)
            case "resume":
                self.queue.resume(entry)
            case "anew":
                self.queue.start_anew(entry)
            case "cancel":
                self.queue.cancel(entry)
            case "discard":
                self.queue.discard(entry)
            case "remove":
                self.queue.remove(entry)
            case "test":
                self.services.shell.test_files.emit(order.source, order.output)
            case "open":
                self.services.shell.open_path.emit(order.output)
            case "inspect":
                self.services.shell.open_path.emit(order.output)
                self.services.shell.show_page.emit("inspect")
            case "command":
                QGuiApplication.clipboard().setText(command_line(order.recipe, order.source, order.output))
            case "folder":
                if not reveal(order.output):
                    self.services.shell.problem.emit(
                        UserError("No file manager could be opened.", f"The result is {order.output}.")
                    )

    def _on_row(self, row: TensorRun) -> None:
        self._pinned = row.name
        self._draw()

    def _draw(self) -> None:
        """The error of the pinned tensor, else of the newest one that has any."""
        entry = self._chosen
        row = self._row_to_draw(entry) if entry is not None else None
        if entry is None or row is None or row.result is None or row.result.error is None:
            if self._pinned is not None or self._drawn is None:
                self.histogram.clear("" if row is None else f"No error to show for {row.name}: it is {row.state}.")
                self._drawn = None
            return
        if self._drawn == (entry, row.name):
            return
        error = row.result.error
        snr = f"SNR {units.format_decibels(error.snr_db)}"
        series = HistogramSeries(
            row.result.format, error.edges, error.counts, snr, error.nonfinite, values=error.values
        )
        self.histogram.set_series(f"Error of {row.name}", (series,))
        self._drawn = (entry, row.name)

    def _row_to_draw(self, entry: Entry) -> TensorRun | None:
        if self._pinned is not None:
            number = entry.index.get(self._pinned)
            return entry.rows[number] if number is not None else None
        last = entry.newest if entry.newest is not None else -1
        for number in range(last, -1, -1):
            row = entry.rows[number]
            if row.result is not None and row.result.error is not None and row.result.error.edges:
                return row
        return None
