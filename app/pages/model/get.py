"""Get a model: search or paste, look at what would be fetched, download. One of its views is shown at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtWidgets import (
    QAbstractButton,
    QHBoxLayout,
    QLineEdit,
    QProgressBar,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.jobs.downloading import Downloads
from app.jobs.hub import ASK_KEY, Listed, Reach, Results, ask_work, list_work
from app.models.hub import found_columns
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.pages.model.hub_settings import HubSettings
from app.pages.model.listing import ListingView
from app.pages.model.transfer import TransferView
from app.services import Services
from app.theme import PAGE_MARGIN, SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import EmptyState, button, label, quiet_button, set_available
from app.widgets.inline_error import InlineError
from app.widgets.text import explain
from core import units

if TYPE_CHECKING:
    from core.hub.reference import Reference

WIDTHS = ("", "135.00 M", "999.99 GB", "apache-2.0, other", "99 999 999", "gated")
WAITING_WIDTH = 260
NOTHING_ASKED = "Type words to search for, or paste a model's name or address."


class GetView(QWidget):
    """`left` follows the button that leads back; `open_path(path)` when a model is to be opened."""

    left = Signal()
    open_path = Signal(object)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services
        self.downloads = Downloads.of(services.jobs)
        self._before: QWidget | None = None  # what is shown again when a question has come to nothing
        self._asked: Reference | str = ""
        self._listed_as: Reference | str = ""  # what led to the list that is shown
        self._make_parts()
        self._lay_out()
        self.downloads.changed.connect(self._on_download)
        if self.downloads.order is not None:
            self._show(self.transfer)

    def reach(self) -> Reach:
        return Reach(self._services.settings.endpoint, self._services.settings.offline)

    def primary(self) -> QAbstractButton | None:
        return self.listing.download if self._stack.currentWidget() is self.listing else None

    def shown(self) -> None:
        """The view comes to the front."""
        if self._stack.currentWidget() is self.listing:
            self.listing.refresh()
        self.field.setFocus()

    def look_up(self, text: str) -> None:
        """Ask for this name, address or words."""
        self.field.setText(text)
        self._find()

    def go_on(self, reference: Reference) -> None:
        """List a repository at the commit that an earlier download has begun."""
        self.field.setText(reference.repository)
        self._list(reference)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.back = quiet_button("Back", self.left.emit, icon="arrow-left", hint="Back to the Model page (Esc)")
        self.field = QLineEdit()
        self.field.setPlaceholderText(
            "Search, or paste owner/name, owner/name:Q4_K_M, or the address of a model's page"
        )
        self.field.setToolTip(self.field.placeholderText())
        self.field.setAccessibleName("Model to search for")
        self.field.setToolTip("Enter asks the hub; a pasted name or address lists the model's files at once")
        self.field.returnPressed.connect(self._find)
        self.field.installEventFilter(self)
        self.find = button("Find", self._find, icon="search", hint="Ask the hub (Enter)")
        self.field.textChanged.connect(lambda text: set_available(self.find, "" if text.strip() else NOTHING_ASKED))
        set_available(self.find, NOTHING_ASKED)
        self.more = button(
            "Advanced", self._toggle_settings, icon="settings", hint="Mirror, offline mode, access token"
        )
        self.more.setCheckable(True)
        self.settings = HubSettings(self._services, self.reach)
        self.settings.hide()
        self.settings.changed.connect(self._ask_again)
        self.running = quiet_button("", self._show_transfer, icon="download", hint="Show the download")
        self.running.hide()
        self.error = InlineError()
        self.hint = EmptyState(
            "Get a model",
            "Type words, or paste a name or an address, and press Enter. What would be fetched, and how much, is shown "
            "before anything is.",
            icon="download",
        )
        self.nothing = EmptyState(
            "Nothing found", "Fewer or other words may find it; names are often written with dashes."
        )
        self.waiting_text = label("", "title")
        self.stop = button("Cancel", self._stop, icon="x", hint="Stop waiting for the hub")
        self.results = TablePanel(
            RowsModel(found_columns(), explain),
            "Models found",
            WIDTHS,
            filter_hint="Filter what was found",
            totals=False,
        )
        self.results.row_activated.connect(self._choose)
        self.results.view.clicked.connect(lambda index: self._choose(self.results.model.row_at(index)))
        self.listing = ListingView(self._services, self.reach)
        self.listing.asked.connect(self._download)
        self.listing.again.connect(self._ask_again)
        self.transfer = TransferView(self.downloads)
        self.transfer.asked.connect(self._on_transfer)

    def _lay_out(self) -> None:
        bar = QProgressBar()
        bar.setRange(0, 0)
        bar.setTextVisible(False)
        bar.setFixedWidth(WAITING_WIDTH)
        bar.setAccessibleName("Waiting for the hub")
        self.waiting = QWidget()
        middle = QVBoxLayout(self.waiting)
        middle.setSpacing(SPACE_3)
        middle.addStretch(2)
        for part in (self.waiting_text, bar, self.stop):
            middle.addWidget(part, 0, Qt.AlignmentFlag.AlignHCenter)
        middle.addStretch(3)
        self._stack = QStackedWidget()
        for view in (self.hint, self.waiting, self.results, self.nothing, self.listing, self.transfer):
            self._stack.addWidget(view)
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        for part in (self.back, self.field, self.find, self.more):
            head.addWidget(part, int(part is self.field))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_4, PAGE_MARGIN, SPACE_4)
        layout.setSpacing(SPACE_3)
        layout.addLayout(head)
        layout.addWidget(self.settings)
        layout.addWidget(self.running, 0, Qt.AlignmentFlag.AlignLeft)
        layout.addWidget(self.error)
        layout.addWidget(self._stack, 1)

    def _show(self, view: QWidget) -> None:
        self._stack.setCurrentWidget(view)
        self._show_running()

    def _show_running(self) -> None:
        """A line that leads back to a download while something else is looked at."""
        downloads = self.downloads
        shown = downloads.order is not None and self.current is not self.transfer
        if shown:
            share = downloads.progress.share if downloads.progress is not None else 0.0
            how = "" if downloads.state is None else downloads.state.value
            text = f"{downloads.order.repository}: {how}, {units.format_percent(share, 0)}"
            if text != self.running.text():
                self.running.setText(text)
        if shown == self.running.isHidden():
            self.running.setVisible(shown)

    def _show_transfer(self) -> None:
        self._show(self.transfer)

    @property
    def current(self) -> QWidget:
        return self._stack.currentWidget()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        down = event.type() == QEvent.Type.KeyPress and event.key() == Qt.Key.Key_Down
        if watched is self.field and down and self.current is self.results:
            self.results.view.setFocus()
            return True
        return super().eventFilter(watched, event)

    def keyPressEvent(self, event: Any) -> None:
        if event.key() == Qt.Key.Key_Escape:
            if self.current is self.waiting:
                self._stop()
            else:
                self.left.emit()
        else:
            super().keyPressEvent(event)

    # ---- questions -------------------------------------------------------------------------------------------------

    def _find(self) -> None:
        text = self.field.text()
        if not text.strip():
            return
        there = _path_of(text)
        if there is not None:  # a path was pasted
            self.open_path.emit(there)
            return
        self._asked = text
        self._ask("Ask the hub", ask_work(text, self.reach()))

    def _list(self, reference: Reference) -> None:
        self._asked = reference
        self._ask("List a repository", list_work(reference, self.reach()))

    def _ask_again(self) -> None:
        """The same question, now that it may be answered otherwise."""
        if isinstance(self._asked, str):
            if self._asked:
                self._ask("Ask the hub", ask_work(self._asked, self.reach()))
        else:
            self._list(self._asked)

    def _ask(self, name: str, work: Any) -> None:
        if self.current is not self.waiting:
            again = self.listing.listed is not None and self._asked == self._listed_as
            self._before = self.hint if self.current is self.listing and not again else self.current
        self.error.hide()
        self.waiting_text.setText("Asking the hub…")
        self._show(self.waiting)
        self._services.jobs.run(
            name, work, self._answered, self._refused, on_cancelled=self._stopped, latest_key=ASK_KEY, owner=self
        )

    def _answered(self, answer: Results | Listed) -> None:
        if isinstance(answer, Listed):
            self._listed_as = self._asked
            self.listing.show_listed(answer)
            self._show(self.listing)
            self.listing.take_focus()
            return
        self.results.filter.clear()
        self.results.model.set_rows(answer.found)
        self._show(self.results if answer.found else self.nothing)

    def _refused(self, error: BaseException) -> None:
        self._stopped()
        self.error.show_error(error)

    def _stop(self) -> None:
        self._services.jobs.discard(ASK_KEY)
        self._stopped()

    def _stopped(self) -> None:
        if self.current is self.waiting:
            self._show(self._before or self.hint)
        self.field.setFocus()

    def _choose(self, found: Any) -> None:
        from core.hub.reference import Reference

        self._list(Reference(found.repository))

    def _toggle_settings(self) -> None:
        self.settings.setVisible(self.more.isChecked())
        if self.more.isChecked():
            self.settings.look()

    # ---- the download ----------------------------------------------------------------------------------------------

    def _download(self, order: Any) -> None:
        if self.downloads.pending:
            self._show(self.transfer)
            return
        self.downloads.start(order, self.reach())
        self._show(self.transfer)
        self.transfer.buttons["pause"].setFocus()

    def _on_download(self) -> None:
        if self.downloads.order is None and self.current is self.transfer:
            self._show(self.listing if self.listing.listed is not None else self.hint)
        self._show_running()

    def _on_transfer(self, word: str) -> None:
        if word == "open" and self.downloads.result is not None:
            self.open_path.emit(self.downloads.result)
        elif word == "back":
            self.downloads.forget()
            self._show(self.hint)
            self.field.setFocus()


def _path_of(text: str) -> Path | None:
    """The file or folder that a text names, if it is one that is there and no name of a repository."""
    text = text.strip().strip("\"'")
    try:
        path = Path(text).expanduser()
        return path if path.is_absolute() and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None
