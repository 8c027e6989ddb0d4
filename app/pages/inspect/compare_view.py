"""Compare: two files tensor by tensor, such as a source and what was made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import (
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QMenu,
    QProgressBar,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.dialogs.open_model import choose_model
from app.jobs.convert_queue import ConversionQueue, Entry
from app.jobs.inspect_more import COMPARE_KEY, Compared, compare_work
from app.jobs.runner import Job, JobState
from app.models.table import RowsModel
from app.pages.inspect.compare_rows import SNR_COLUMN, WIDTHS, compare_columns, details, in_words
from app.pages.inspect.narrow_table import NarrowTable
from app.pages.inspect.state import InspectState
from app.services import Services
from app.theme import SPACE_2
from app.widgets.basics import EmptyState, PrimaryButton, button, label, quiet_button, set_available
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel, breakable, explain

SIDES = ("First", "Second")
NO_FILE = "no file chosen"
REFRESH = 400  # ms between two pictures of the rows: each is arranged and painted anew


class CompareView(QWidget):
    """Both files are chosen by themselves: the open model and its latest result; any others can be."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state, self._services = state, services
        self._queue = ConversionQueue.of(services.jobs, services.settings)
        self.paths: list[Path | None] = [None, None]
        self._chosen = [False, False]  # by the user, and so not to be replaced by a newer result
        self._rows: list[Any] = []
        self._job: Job | None = None
        self._refresh_rows = QTimer(self, singleShot=True, interval=REFRESH)
        self._refresh_rows.timeout.connect(self._show_rows)
        self._make_parts()
        self._lay_out()
        state.model_changed.connect(self._on_model)
        self._queue.changed.connect(self._on_conversion)
        self.table.row_chosen.connect(self._show_details)
        self.table.row_activated.connect(self._open)
        self._on_model()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.start = PrimaryButton("Compare", self._on_start, icon="play", hint="Compare both files tensor by tensor")
        self.again = button("Compare", self.run, icon="play", hint="Compare both files tensor by tensor")
        self.cancel = button("Cancel", self._cancel, icon="x", hint="Stop; the rows so far stay")
        self.swap = quiet_button("Swap", self._swap, icon="refresh-cw", hint="The second becomes the first")
        self.names = [ElidedLabel(NO_FILE, mono=True) for _ in SIDES]
        self.choose = [
            button(
                "Choose…", lambda side=side: self._choose(side), icon="folder-open", hint=f"Choose the {s.lower()} file"
            )
            for side, s in enumerate(SIDES)
        ]
        for words, chooser in zip(SIDES, self.choose, strict=True):
            chooser.setAccessibleName(f"Choose the {words.lower()} file")
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self.progress.setAccessibleName("Progress of the comparison")
        self.progress.hide()
        self.reason = label("", "muted", wrap=True)
        self.error = InlineError()
        self.summary = label("", "", wrap=True, selectable=True)
        self.summary.setAccessibleName("What was found")
        self.table = NarrowTable(
            RowsModel(compare_columns(), explain),
            "Compared tensors",
            WIDTHS,
            filter_hint="Filter by name, format or result",
        )
        self.table.stretches = True
        self.table.view.sortByColumn(SNR_COLUMN, Qt.SortOrder.AscendingOrder)  # what suffers most is seen first
        self.details = label("", "muted", wrap=True, selectable=True)
        self.details.setAccessibleName("Worst channels")
        self.open = quiet_button(
            "Open tensor", self._open_current, icon="arrow-right", hint="Show it in the Tensor view"
        )
        self.export = quiet_button("Export", icon="download", hint="Copy or save the table")
        menu = QMenu(self.export)
        menu.setToolTipsVisible(True)
        menu.addAction("Copy as CSV", self._copy)
        menu.addAction("Save as CSV…", lambda: self._save(".csv"))
        menu.addAction("Save as JSON…", lambda: self._save(".json"))
        self.export.clicked.connect(lambda: menu.popup(self.export.mapToGlobal(self.export.rect().bottomLeft())))

    def _lay_out(self) -> None:
        files = QGridLayout()
        files.setSpacing(SPACE_2)
        for row, words in enumerate(SIDES):
            word = label(words, "muted")
            word.setBuddy(self.choose[row])
            files.addWidget(word, row, 0)
            files.addWidget(self.names[row], row, 1)
            files.addWidget(self.choose[row], row, 2)
        files.addWidget(self.swap, 0, 3)
        buttons = QHBoxLayout()
        buttons.addWidget(self.again)
        buttons.addWidget(self.cancel)
        files.addLayout(buttons, 1, 3)
        files.setColumnStretch(1, 1)
        self.empty = EmptyState(
            "Nothing compared yet",
            "Here every tensor of one file is held against the same one of another, such as the source and a result.",
            self.start,
            icon="layers",
        )
        shown = QWidget()
        column = QVBoxLayout(shown)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addWidget(self.summary)
        above = QHBoxLayout()
        above.setSpacing(SPACE_2)
        for part, stretch in ((self.table.filter, 1), (self.open, 0), (self.export, 0)):
            above.addWidget(part, stretch)
        column.addLayout(above)
        column.addWidget(self.table, 1)
        column.addWidget(self.details)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.empty)
        self._stack.addWidget(shown)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(files)
        layout.addWidget(self.progress)
        layout.addWidget(self.reason)
        layout.addWidget(self.error)
        layout.addWidget(self._stack, 1)

    # ---- files -----------------------------------------------------------------------------------------------------

    def set_path(self, side: int, path: Path | None) -> None:
        """Compare this file on side 0 or 1."""
        self._services.jobs.discard(COMPARE_KEY)
        self._refresh_rows.stop()
        self._job = None
        self.paths[side] = path
        self.names[side].setText(str(path) if path is not None else NO_FILE)
        self._rows = []
        self.table.model.set_rows(())
        self._stack.setCurrentWidget(self.empty)
        self.error.hide()
        self._refresh()

    def _choose(self, side: int) -> None:
        settings = self._services.settings
        path = choose_model(self, settings.text("last/folder"))
        if path is not None:
            settings.set_text("last/folder", str(path.parent))
            self._chosen[side] = True
            self.set_path(side, path)

    def _swap(self) -> None:
        first, second = self.paths
        self._chosen.reverse()
        self.set_path(0, second)
        self.set_path(1, first)

    def _on_model(self) -> None:
        """Another model: it and its latest result, unless the user has chosen."""
        checkpoint = self._state.checkpoint
        self._chosen = [False, False]
        self.set_path(0, checkpoint.path if checkpoint is not None else None)
        self.set_path(1, self._latest())

    def _on_conversion(self, entry: Entry) -> None:
        if entry.state is JobState.DONE and not self._chosen[1] and self._job is None:
            latest = self._latest()
            if latest is not None and latest != self.paths[1]:
                self.set_path(1, latest)

    def _latest(self) -> Path | None:
        """The newest finished result of the open model."""
        checkpoint = self._state.checkpoint
        done = [e for e in self._queue.entries if e.state is JobState.DONE and checkpoint is not None]
        mine = [e for e in done if checkpoint is not None and e.order.source == checkpoint.path]
        return mine[-1].order.output if mine else None

    # ---- comparing -------------------------------------------------------------------------------------------------

    def _on_start(self) -> None:
        """The empty view's button: choose what is missing, then compare."""
        missing = next((side for side in (1, 0) if self.paths[side] is None), None)
        if missing is not None:
            self._choose(missing)
        else:
            self.run()

    def run(self) -> None:
        """Compare both files in the background."""
        first, second = self.paths
        if first is None or second is None or self._job is not None:
            return
        self.error.hide()
        self._rows = []
        self.table.model.set_rows(())
        self.details.setText("")
        self._job = self._services.jobs.run(
            "Compare", compare_work(first, second), lambda _none: self._end(), self._on_error, self._on_progress,
            on_cancelled=lambda: self._end("Cancelled; "), latest_key=COMPARE_KEY, owner=self,
        )  # fmt: skip
        self.summary.setText("Comparing…")
        self._stack.setCurrentIndex(1)
        self._refresh()

    def _cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _on_progress(self, steps: tuple[Compared, ...]) -> None:
        new = [s.result for s in steps if s.result is not None]
        self.progress.setValue(round(1000 * steps[-1].share))
        self.summary.setText(f"Comparing… {len(self._rows) + len(new)} of {steps[-1].count} tensors.")
        self._rows += new
        if new and not self._refresh_rows.isActive():
            self._refresh_rows.start()

    def _show_rows(self) -> None:
        self.table.model.set_rows(self._rows)

    def _on_error(self, error: BaseException) -> None:
        self._end()
        if not self._rows:
            self._stack.setCurrentWidget(self.empty)
        self.error.show_error(error)

    def _end(self, lead: str = "") -> None:
        self._job = None
        self._refresh_rows.stop()
        self._show_rows()
        self.summary.setText(breakable(lead + in_words(self._rows)) if self._rows else lead)
        if not self._rows:
            self._stack.setCurrentWidget(self.empty)
        self._refresh()

    def _refresh(self) -> None:
        """What can be pressed, and why something can not."""
        running = self._job is not None
        first, second = self.paths
        reason = ""
        if first is None:
            reason = "Choose the first file, or open a model."
        elif second is None:
            reason = "Choose the second file: a result of this model, or convert it first."
        elif first == second:
            reason = "Both are the same file: choose another."
        missing = next((side for side in (1, 0) if self.paths[side] is None), None)
        self.start.setText("Compare" if missing is None else f"Choose the {SIDES[missing].lower()} file…")
        busy = "It is running already; Cancel stops it." if running else ""
        set_available(self.start, busy or (reason if missing is None else ""))
        set_available(self.again, busy or reason)
        self.reason.setText(reason)
        self.reason.setVisible(bool(reason))
        self.cancel.setVisible(running)
        self.progress.setVisible(running)
        self.again.setVisible(not running and self._stack.currentIndex() == 1)
        nothing = "" if self._rows else "There are no rows yet: compare two files first."
        set_available(self.export, nothing)
        self._refresh_open()

    # ---- one tensor ------------------------------------------------------------------------------------------------

    def _show_details(self, row: Any) -> None:
        self.details.setText(breakable(details(row)))
        self._refresh_open()

    def _refresh_open(self) -> None:
        row = self.table.current_row()
        if row is None:
            reason = "Select a tensor in the list first."
        else:
            reason = (
                "" if self._name_here(row) else "The open model has no tensor of this name: open one of both files."
            )
        set_available(self.open, reason)

    def _name_here(self, row: Any) -> str:
        """What the open model calls the tensor; '' when it does not have it."""
        checkpoint = self._state.checkpoint
        for name in (row.name, row.other_name):
            if checkpoint is not None and name:
                try:
                    return checkpoint.tensor(name).name
                except KeyError:
                    pass
        return ""

    def _open(self, row: Any) -> None:
        name = self._name_here(row)
        if name:
            self._state.open(name)

    def _open_current(self) -> None:
        row = self.table.current_row()
        if row is not None:
            self._open(row)

    # ---- taking it along -------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        from core.inspect.compare_rows import to_csv

        QGuiApplication.clipboard().setText(to_csv(self.table.model.shown()))

    def _save(self, suffix: str) -> None:
        chosen, _ = QFileDialog.getSaveFileName(self, "Save the comparison", f"comparison{suffix}", f"*{suffix}")
        if chosen:
            self.save(Path(chosen))

    def save(self, path: Path) -> None:
        """Write the rows shown, as sorted, as .csv or .json."""
        from core.inspect.compare_rows import to_csv, to_json

        rows = self.table.model.shown()
        try:
            path.write_text(to_json(rows) if path.suffix.lower() == ".json" else to_csv(rows), encoding="utf-8")
        except OSError as error:
            self.error.show_text(f"{path.name} can not be written: {error.strerror}.", "Choose another folder.")

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
