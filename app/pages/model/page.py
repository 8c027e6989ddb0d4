"""The Model page: which of its views is shown, and the jobs behind them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QAbstractButton, QHBoxLayout, QStackedWidget, QVBoxLayout, QWidget

from app.jobs.downloading import Downloads
from app.jobs.library import LIBRARY_KEY, SAMPLE_KEY, Library, library_work, sample_work
from app.jobs.scan import SCAN_KEY, scan_work
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.models.tensors import source_columns
from app.pages.base import Page
from app.pages.model.findings import FindingsCard
from app.pages.model.start import OpeningView, StartView
from app.pages.model.summary import SummaryCard
from app.services import Services
from app.session import Session
from app.theme import PAGE_MARGIN, ROW_HEIGHT, SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import PrimaryButton, button
from app.widgets.scrolled import scrolled
from app.widgets.text import ElidedLabel, explain
from core.units import format_decimal, format_percent

if TYPE_CHECKING:
    from app.pages.model.get import GetView
    from core.checkpoint.base import Checkpoint

TYPE = 4  # the column of types, whose names may be long: 'int4 g64 asymmetric'
WIDTHS = ("", "feed-forward gate-up", "99", "128 256 × 14 336", "Q4_K_M", "99 999.999")
CARDS_HEIGHT = 216
LOOK_DELAY = 100  # ms: the first picture goes before the search of the disk and the libraries it loads


class ModelPage(Page):
    """Start view, opening view, the open model, or the view that gets one."""

    key = "model"
    title = "Model"
    icon = "box"

    def __init__(
        self, services: Services, parent: QWidget | None = None, made: Mapping[str, QWidget] | None = None
    ) -> None:
        super().__init__(services, parent, made)
        self.start = StartView()
        self.opening = OpeningView()
        self.loaded = LoadedView(services)
        self.downloads = Downloads.of(services.jobs)
        self._getting = False
        self._stack = QStackedWidget()
        for view in (self.start, self.opening, self.loaded):
            self._stack.addWidget(view)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._stack)
        shell = services.shell
        self.start.open_file.connect(shell.choose_file)
        self.start.open_folder.connect(shell.choose_folder)
        self.start.open_path.connect(self._open)
        self.start.get_sample.connect(self._get_sample)
        self.start.get_model.connect(lambda: self._get(""))
        self.start.go_on.connect(self._go_on)
        shell.get_model.connect(self._get)
        shell.devices_known.connect(self.start.computer.show_devices)
        self.downloads.finished.connect(self._downloaded)
        self.downloads.changed.connect(self._show_download)
        services.session.changed.connect(self._on_session)
        self._show(services.session.current)
        QTimer.singleShot(LOOK_DELAY, self, self._look_for_models)

    def primary(self) -> QAbstractButton | None:
        if self._stack.currentWidget() is self.start:
            return self.start.primary
        if self._getting:
            return self.get.primary()
        return self.loaded.primary if self._stack.currentWidget() is self.loaded else None

    def help_page(self) -> str:
        return "hub" if self._getting else ""

    def shown(self) -> None:
        self.start.show_recent(self.services.settings.recent)

    @cached_property
    def get(self) -> GetView:
        """Made when first shown: the first picture does not need it."""
        from app.pages.model.get import GetView

        view = GetView(self.services)
        view.left.connect(self._leave)
        view.open_path.connect(self._open)
        self._stack.addWidget(view)
        for part in view.findChildren(QWidget):
            part.setAcceptDrops(False)  # a file dropped anywhere is a model to open
        return view

    def _open(self, path: Path) -> None:
        if self.services.session.current.opening is None:  # a double click asks twice
            self.services.shell.open_path.emit(path)

    def _on_session(self, old: Session, new: Session) -> None:
        if (old.checkpoint, old.opening, old.problem, old.findings) != (
            new.checkpoint, new.opening, new.problem, new.findings,
        ):  # fmt: skip
            self._show(new)

    def _show(self, session: Session) -> None:
        if session.opening is not None:
            self._getting = False
            self.loaded.forget()
            self.opening.title.setText(f"Reading {session.opening.name}")
            self._stack.setCurrentWidget(self.opening)
        elif self._getting:
            self._stack.setCurrentWidget(self.get)
        elif session.checkpoint is not None:
            self.loaded.show_session(session)
            self._stack.setCurrentWidget(self.loaded)
        else:
            self.loaded.forget()
            self.start.show_recent(self.services.settings.recent)
            if session.problem is not None:
                self.start.error.show_error(session.problem)
            else:
                self.start.error.hide()
            self._stack.setCurrentWidget(self.start)

    def _look_for_models(self) -> None:
        self.services.jobs.run(
            "Look for models", library_work(self.services.settings.models_folder), self._found,
            lambda _e: self.start.show_local(()), latest_key=LIBRARY_KEY, owner=self,
        )  # fmt: skip

    def _found(self, library: Library) -> None:
        self.start.show_local(library.models, library.unfinished)

    def _get(self, text: str) -> None:
        self._getting = True
        self._show(self.services.session.current)
        self.get.shown()
        if text:
            self.get.look_up(text)

    def _go_on(self, begun: Any) -> None:
        """begun: an unfinished download, or the name of a repository."""
        self._get("")
        if isinstance(begun, str):
            self.get.look_up(begun)
        else:
            from core.hub.reference import Reference

            self.get.go_on(Reference(begun.repository, begun.revision, begun.file))

    def _leave(self) -> None:
        self._getting = False
        self._show(self.services.session.current)
        self._look_for_models()
        (self.primary() or self).setFocus()

    def _show_download(self) -> None:
        """How far a download is, on the button that leads to it."""
        downloads = self.downloads
        share = downloads.progress.share if downloads.progress is not None else 0.0
        text = f"Downloading, {format_percent(share, 0)}" if downloads.pending else "Get a model…"
        if text != self.start.get.text():
            self.start.get.setText(text)

    def _downloaded(self, path: Path) -> None:
        """Open it, unless the window has gone on to something else."""
        session = self.services.session.current
        self._look_for_models()
        if self._getting or (session.checkpoint is None and session.opening is None):
            self.services.shell.open_path.emit(path)
        else:
            self.services.settings.add_recent(path)
            self.services.shell.notice.emit(f"{path.name} has been downloaded.", "Open it by File, Open recent.")

    def _get_sample(self) -> None:
        self.start.show_sample_state("Getting the sample model (93 MB), once…")
        self.services.jobs.run(
            "Get the sample model", sample_work(), self._sample_done, self._sample_failed,
            latest_key=SAMPLE_KEY, owner=self,
        )  # fmt: skip

    def _sample_done(self, path: Path) -> None:
        self.start.show_sample_state("")
        session = self.services.session.current
        if session.checkpoint is None and session.opening is None:
            self.services.shell.open_path.emit(path)

    def _sample_failed(self, error: BaseException) -> None:
        self.start.show_sample_state("")
        self.start.error.show_error(error)


class LoadedView(QWidget):
    """Summary, findings and tensors of the open model."""

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._services = services
        self._checkpoint: Checkpoint | None = None
        self._scanned: list[Any] = []
        self._checked = False
        self.name = ElidedLabel(role="title")
        self.path = ElidedLabel(role="muted")
        self.primary = PrimaryButton(
            "Choose a format", lambda: services.shell.show_page.emit("recipe"), icon="arrow-right",
            hint="Go on to the Recipe page (Ctrl+Enter)",
        )  # fmt: skip
        other = button("Open another…", services.shell.choose_file.emit, icon="folder-open", hint="Ctrl+O")
        self.summary = SummaryCard()
        self.findings = FindingsCard()
        self.table = TablePanel(
            RowsModel(source_columns(), explain), "Tensors", WIDTHS, filter_hint="Filter tensors by name, role or type"
        )
        self.table.add_row_action(
            "Inspect this tensor", "search", "Show its weights, channels and error on the Inspect page", self._inspect
        )
        self.table.row_activated.connect(self._inspect)
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(self.name)
        words.addWidget(self.path)
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addLayout(words, 1)
        head.addSpacing(SPACE_4)
        head.addWidget(other)
        head.addWidget(self.primary)
        cards = QHBoxLayout()
        cards.setSpacing(SPACE_4)
        cards.addWidget(self.summary, 1)
        cards.addWidget(self.findings, 1)
        inside = QWidget()
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scrolled(inside))
        layout = QVBoxLayout(inside)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_4, PAGE_MARGIN, SPACE_4)
        layout.setSpacing(SPACE_3)
        layout.addLayout(head)
        layout.addLayout(cards)
        layout.addWidget(self.table, 1)
        self.table.view.setMinimumHeight(3 * ROW_HEIGHT)  # a window of 600 px has no room for more beside the cards
        self.findings.setFixedHeight(CARDS_HEIGHT)
        self.summary.setFixedHeight(CARDS_HEIGHT)
        self.findings.scan_asked.connect(self._scan)
        self.findings.cancel_asked.connect(self._stop_scan)

    def show_session(self, session: Session) -> None:
        """Fill everything from a session that has a model."""
        checkpoint = session.checkpoint
        if checkpoint is not self._checkpoint:
            self._services.jobs.discard(SCAN_KEY)
            self._checkpoint, self._scanned, self._checked = checkpoint, [], False
            self.findings.show_scan(None)
            self.name.setText(checkpoint.path.name)
            self.path.setText(str(checkpoint.path))
            self.summary.show_session(session)
            self.table.filter.clear()
            self.table.model.set_rows(checkpoint.tensors)
            self.table.fit_column(TYPE, {t.dtype for t in checkpoint.tensors})
        self._show_findings(session.findings)

    def forget(self) -> None:
        """Let go of a model that has been closed."""
        if self._checkpoint is not None:
            self._services.jobs.discard(SCAN_KEY)
            self._checkpoint, self._scanned, self._checked = None, [], False
            self.table.model.set_rows(())

    def _show_findings(self, findings: tuple[Any, ...]) -> None:
        self.findings.set_findings((*findings, *self._scanned), self._checked)

    def _inspect(self, tensor: Any) -> None:
        self._services.shell.inspect_tensor.emit(tensor.name)

    def _scan(self) -> None:
        if self._checkpoint is None:
            return
        self._scanned, self._checked = [], False
        self.findings.show_scan(0.0, "starting…")
        self._services.jobs.run(
            "Check every value", scan_work(self._checkpoint), self._scan_done, self._scan_failed, self._scan_progress,
            on_cancelled=self._scan_stopped, latest_key=SCAN_KEY, owner=self,
        )  # fmt: skip

    def _stop_scan(self) -> None:
        for job in self._services.jobs.jobs():
            if job.latest_key == SCAN_KEY:
                job.cancel()

    def _scan_progress(self, values: tuple[Any, ...]) -> None:
        step = values[-1]
        share = step.bytes_done / step.bytes_total if step.bytes_total else 1.0
        self.findings.show_scan(share, f"{format_percent(share, 0)} of {format_decimal(step.bytes_total)}")

    def _scan_done(self, findings: Any) -> None:
        self._scanned, self._checked = list(findings or ()), True
        self.findings.show_scan(None)
        self._show_findings(self._services.session.current.findings)

    def _scan_stopped(self) -> None:
        self.findings.show_scan(None, "Stopped before every value was seen.")

    def _scan_failed(self, error: BaseException) -> None:
        self.findings.show_scan(None, str(error))
