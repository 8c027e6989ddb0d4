"""The Test page: two files side by side, what their answers took, sweeps over the batch, and the history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QAbstractButton, QHBoxLayout, QStackedWidget, QTabWidget, QVBoxLayout, QWidget

from app.dialogs.open_model import choose_model
from app.jobs.convert_queue import ConversionQueue, Entry
from app.jobs.runner import JobState
from app.jobs.testing import SIDES, Backend
from app.jobs.testing_bench import Bench
from app.models.answers import logits_sentence
from app.models.kernel_report import kernel_columns, kernel_rows
from app.models.results import number_columns, number_rows
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.pages.base import Page
from app.pages.test.answers import AnswersPanel
from app.pages.test.caches import CachePanel
from app.pages.test.column import FileColumn
from app.pages.test.controls import AdvancedCard, PromptRow, question
from app.pages.test.history import HistoryPanel
from app.pages.test.quality import QualityPanel
from app.pages.test.sweep import SweepPanel
from app.services import Services
from app.session import Session
from app.theme import PAGE_MARGIN, SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import EmptyState, PrimaryButton, button, label, set_available
from app.widgets.inline_error import InlineError
from app.widgets.scrolled import scrolled
from app.widgets.text import explain

TABS = ("Text", "Numbers", "Kernels", "Sweep", "Quality", "Cache", "History")
TAB_HINTS = (
    "Both files' answers to one prompt, beside each other",
    "Times, memory and traffic of both answers",
    "Which code has run each operation, and why",
    "How times change when 1 to 128 texts are answered at once",
    "How much the quantized file differs from the source on a text, and whether that is within limits",
    "What keeping keys and values in fewer bits costs, by position in a text and in time",
    "Earlier measurements on this computer, and two of them beside each other",
)
SHAPES_KEY = "test-shapes"
KERNEL_WIDTHS = (
    "",
    "9 heads on 3 × 64",
    "Q5_0 × int8 per 32 values…",
    "avx512bf16",
    "the best this processor has",
    "Quantized",
)
STATES = {
    "loading": "Loading…", "generating": "Generating…", "sweeping": "Measuring…", "judging": "Measuring…",
    "caching": "Measuring…", "": "",
}  # fmt: skip


class TestPage(Page):
    """Shows the bench and asks it."""

    __test__ = False  # a page, not a test case
    key = "test"
    title = "Test"
    icon = "flask-conical"

    def __init__(
        self,
        services: Services,
        parent: QWidget | None = None,
        made: Mapping[str, QWidget] | None = None,
        *,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(services, parent, made)
        if backend is None:
            from app.jobs.testing_core import CoreBackend

            backend = CoreBackend()
        queue = ConversionQueue.of(services.jobs, services.settings)
        self.bench = Bench(backend, services.jobs, queue, self)
        self._shapes_known = False
        self._make_parts()
        self._lay_out()
        self._connect(queue)
        self.bench.follow(services.session.current)
        self._refresh()

    @classmethod
    def pieces(cls) -> Mapping[str, Callable[[], QWidget]]:
        return {"numbers": _numbers_table, "kernels": _kernel_table, "history": HistoryPanel, "quality": QualityPanel}

    def primary(self) -> QAbstractButton | None:
        if self._stack.currentWidget() is self._empty:
            return self.empty_button
        shown = self.tabs.currentWidget()
        buttons = {self.sweep: self.sweep_button, self.quality: self.judge_button, self.caches: self.cache_button}
        button = buttons.get(shown, self.generate)
        return button if button.isVisibleTo(self) else None

    def parts(self) -> tuple[QWidget, ...]:
        views = (
            self.tabs.tabBar(),
            self.prompt,
            self.advanced,
            self.answers,
            self.sweep,
            self.caches,
            self.history,
            *self.quality.parts(),
        )
        tables = self.numbers, self.kernels, self.logits, self.slower, self.energy
        return self._empty, self._head, *self.columns, *views, *tables

    def shown(self) -> None:
        self.bench.follow(self.services.session.current)
        self.bench.look_for_devices()
        self.bench.refresh_history()
        self._look_for_shapes()
        self.quality.look_at_files()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        bench = self.bench
        self.empty_button = PrimaryButton("Choose a file…", lambda: self._choose(0), icon="folder-open")
        self.generate = PrimaryButton(
            "Generate", self._generate, icon="play", hint="Let both files answer the prompt (Ctrl+Enter)"
        )
        self.sweep_button = PrimaryButton(
            "Run sweep", self._run_sweep, icon="play", hint="Measure over batches of 1 to 128 (Ctrl+Enter)"
        )
        self.judge_button = PrimaryButton(
            "Measure quality", self._judge, icon="play", hint="Let both files read the text, and judge (Ctrl+Enter)"
        )
        self.cache_button = PrimaryButton(
            "Measure caches", self._compare_caches, icon="play", hint="Let the file run with each cache (Ctrl+Enter)"
        )
        self.cancel = button("Cancel", bench.cancel, icon="x", hint="Stop; what has come so far stays in view")
        self.more = button("Advanced", self._toggle_advanced, icon="sliders-horizontal")
        self.more.setCheckable(True)
        self.more.setToolTip("Sampling, stop strings, activations, context and cache")
        self.reason = label("", "muted")
        self.columns = (FileColumn(bench.slots[0]), FileColumn(bench.slots[1]))
        self.prompt = PromptRow()
        self.advanced = AdvancedCard()
        self._advanced_area = scrolled(self.advanced, whole=True)
        self._advanced_area.hide()
        self.answers = AnswersPanel(bench)
        self.numbers = self.piece("numbers")
        self.slower = label("", "warning", wrap=True, selectable=True)
        self.energy = label("", "muted", wrap=True)
        self.logits = label("", wrap=True, selectable=True)
        self.logits.setAccessibleName("Comparison of the logits")
        self.kernels = self.piece("kernels")
        self.sweep = SweepPanel(bench)
        self.quality = self.piece("quality")
        self.quality.attach(bench, self.services)
        self.caches = CachePanel(bench)
        self.history = self.piece("history")
        self.error = InlineError()

    def _lay_out(self) -> None:
        self._empty = EmptyState(
            "Nothing to test yet",
            "Here the original and the converted model answer the same prompt side by side, and you see what each "
            "token cost in time and memory.",
            self.empty_button,
            icon=self.icon,
        )
        self._head = QWidget()
        head = QHBoxLayout(self._head)
        head.setContentsMargins(0, 0, 0, 0)
        head.setSpacing(SPACE_2)
        head.addWidget(label("Test", "title"))
        head.addSpacing(SPACE_2)
        head.addWidget(self.reason, 1)
        head.addWidget(self.more)
        head.addWidget(self.cancel)
        head.addWidget(self.generate)
        head.addWidget(self.sweep_button)
        head.addWidget(self.judge_button)
        head.addWidget(self.cache_button)
        files = QHBoxLayout()
        files.setSpacing(SPACE_4)
        for column in self.columns:
            files.addWidget(column, 1)
        self.tabs = QTabWidget()
        self.tabs.setAccessibleName("Views of the test")
        self.tabs.tabBar().setAccessibleName("Views of the test")
        self.tabs.setDocumentMode(True)  # no frame, whether or not the style sheet has come
        self.tabs.tabBar().setDrawBase(False)
        parts = (
            self._text_tab(),
            self._numbers_tab(),
            self._kernels_tab(),
            self.sweep,
            self.quality,
            self.caches,
            self.history,
        )
        for title, part in zip(TABS, parts, strict=True):
            self.tabs.addTab(part, title)
        for number, hint in enumerate(TAB_HINTS):
            self.tabs.setTabToolTip(number, hint)
        loaded = self._loaded = QWidget()
        layout = QVBoxLayout(loaded)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_3, PAGE_MARGIN, SPACE_3)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self._head)
        layout.addLayout(files)
        layout.addWidget(self.tabs, 1)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(loaded)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._stack)

    def _text_tab(self) -> QWidget:
        return _column(self.prompt, self._advanced_area, self.answers)

    def _numbers_tab(self) -> QWidget:
        self.numbers.filter.hide()
        self.numbers.view.setSortingEnabled(False)
        self.slower.hide()
        self.energy.hide()
        self.logits.hide()
        return _column(self.numbers, self.logits, self.slower, self.energy)

    def _kernels_tab(self) -> QWidget:
        return _column(self.kernels)

    def _connect(self, queue: ConversionQueue) -> None:
        bench = self.bench
        for column in self.columns:
            column.choose_asked.connect(self._choose)
            column.load_asked.connect(self._load)
            column.unload_asked.connect(bench.unload)
            column.place_asked.connect(bench.place)
            column.place_asked.connect(lambda *_place: self.quality.look_at_files())
            column.same_asked.connect(self._take_same)
        for side, chooser in enumerate(self.advanced.caches):
            chooser.chosen.connect(partial(bench.keep, side))
        bench.slot_changed.connect(self._on_slot)
        bench.memory_changed.connect(lambda side: self.columns[side].refresh(bench))
        bench.devices_changed.connect(self._show_devices)
        bench.busy_changed.connect(self._refresh)
        bench.asked.connect(self._on_asked)
        bench.answered.connect(lambda _side: self._show_numbers())
        bench.ended.connect(self._on_ended)
        self.quality.estimated.connect(self._refresh)
        bench.history_changed.connect(self.history.show_stored)
        self.history.remove_asked.connect(bench.refresh_history)
        self.tabs.currentChanged.connect(lambda _number: self._refresh())
        self.tabs.currentChanged.connect(lambda _number: self._look_for_shapes())
        self.tabs.currentChanged.connect(lambda _number: self.quality.look_at_files())
        self.tabs.currentChanged.connect(lambda _number: self.caches.look())
        self.caches.refreshed.connect(self._refresh)
        self.prompt.prompt.textChanged.connect(self._refresh)
        self.services.session.changed.connect(self._on_session)
        queue.changed.connect(self._on_conversion)

    def look_at(self, source: Path, result: Path) -> None:
        """Take both files, as a finished conversion has them."""
        self.bench.take(source, result)

    # ---- the user asks ---------------------------------------------------------------------------------------------

    def _choose(self, side: int) -> None:
        settings = self.services.settings
        path = choose_model(self, settings.text("last/folder"))
        if path is not None:
            settings.set_text("last/folder", str(path.parent))
            self.bench.choose(side, path)

    def _take_same(self, side: int) -> None:
        """The other column's file here, too, on another device where there is one."""
        bench = self.bench
        path = bench.slots[1 - side].path
        if path is None or bench.busy:
            return
        bench.choose(side, path)
        gpus = bench.devices.gpus if bench.devices is not None else ()
        if gpus and bench.slots[0].device == bench.slots[1].device:
            bench.place(side, gpus[0][0] if bench.slots[side].device == "cpu" else "cpu")

    def _show_devices(self) -> None:
        for column in self.columns:
            column.show_devices(self.bench)

    def take_drop(self, path: Path, place: QPoint) -> bool:
        """A file dropped on the left half is the source, on the right half the quantized one."""
        if self.bench.busy:
            return True
        right = self._stack.currentWidget() is self._loaded and place.x() > self.width() // 2
        self.bench.choose(1 if right else 0, path)
        return True

    def _load(self, side: int) -> None:
        self._take_setup()
        self.bench.load(side)

    def _generate(self) -> None:
        self._take_setup()
        self.tabs.setCurrentIndex(TABS.index("Text"))
        self.bench.ask(question(self.prompt, self.advanced))

    def _run_sweep(self) -> None:
        self._take_setup()
        order = self.sweep.order()
        if order is not None:
            self.bench.run_sweep(order)

    def _judge(self) -> None:
        order = self.quality.order()
        if order is not None:
            self.bench.judge(order)

    def _compare_caches(self) -> None:
        self._take_setup()
        order = self.caches.order()
        if order is not None and not self.caches.problem:
            self.bench.compare_caches(order)

    def _take_setup(self) -> None:
        self.bench.arithmetic = self.advanced.arithmetic
        self.bench.context = self.advanced.context.value()
        self.bench.fallback = self.advanced.fallback.isChecked()

    def _toggle_advanced(self) -> None:
        self._advanced_area.setVisible(self.more.isChecked())
        self.prompt.set_low(self.more.isChecked())

    # ---- the bench speaks ------------------------------------------------------------------------------------------

    def _on_slot(self, side: int) -> None:
        self.columns[side].refresh(self.bench)
        self.advanced.show_cache(self.bench, side)
        if not self.bench.busy:
            self._refresh()

    def _on_asked(self) -> None:
        self._show_numbers()
        self._shapes_known = False
        self._look_for_shapes()

    def _on_session(self, _old: Session, new: Session) -> None:
        self.bench.follow(new)

    def _on_conversion(self, entry: Entry) -> None:
        if entry.state is JobState.DONE:
            self.bench.follow(self.services.session.current)

    def _on_ended(self, state: JobState) -> None:
        slots = self.bench.slots
        notes = [self.bench.disturbed] if self.bench.disturbed and any(s.measured for s in slots) else []
        if state is JobState.CANCELLED and any(s.pieces for s in slots):
            notes.append("Cancelled; what had come until then is shown.")
        if self.bench.logits is not None:
            notes.insert(0, logits_sentence(self.bench.logits))
        self._show_numbers()
        self.answers.show_errors()
        self.answers.show_end(self.bench.comparison, self.bench.slower, notes)
        self._refresh()
        self.bench.follow(self.services.session.current)

    def _show_numbers(self) -> None:
        a, b = (slot.measured for slot in self.bench.slots)
        self.numbers.model.set_rows(number_rows(a, b))
        self.kernels.model.set_rows(kernel_rows((a, b)))
        self.logits.setText(logits_sentence(self.bench.logits) if self.bench.logits is not None else "")
        self.logits.setVisible(bool(self.logits.text()))
        self.slower.setText(self.bench.slower)
        self.slower.setVisible(bool(self.slower.text()))
        reason = next((m.energy_reason for m in (a, b) if m is not None and m.energy is None), "")
        self.energy.setText(f"Energy is not measured: {reason[:1].lower()}{reason[1:]}" if reason else "")
        self.energy.setVisible(bool(reason))

    def _look_for_shapes(self) -> None:
        """Which layers can be swept, once somebody looks: the files' headers are read for it."""
        if self._shapes_known or not self.sweep.isVisible():
            return
        self._shapes_known = True
        paths, models = self.bench.paths, (self.bench.slots[0].model, self.bench.slots[1].model)
        self.services.jobs.run(
            "Look for layers", lambda _token: tuple(self.bench.backend.shapes(paths, models)), self.sweep.show_shapes,
            lambda _error: self.sweep.show_shapes(()), latest_key=SHAPES_KEY, owner=self,
        )  # fmt: skip

    def _refresh(self) -> None:
        """Which view is shown, and what can be pressed."""
        bench = self.bench
        self._stack.setCurrentWidget(self._loaded if bench.ready else self._empty)
        shown = self.tabs.currentWidget()
        sweeping, judging, caching = shown is self.sweep, shown is self.quality, shown is self.caches
        self.generate.setVisible(not (sweeping or judging or caching))
        self.sweep_button.setVisible(sweeping)
        self.judge_button.setVisible(judging)
        self.cache_button.setVisible(caching)
        self.more.setVisible(self.tabs.currentIndex() == 0)
        self.cancel.setVisible(bool(bench.busy))
        set_available(self.cancel, "It stops as soon as the present piece of work is done." if bench.stopping else "")
        busy = "Stopping…" if bench.stopping else STATES[bench.busy]
        empty = "" if self.prompt.prompt.toPlainText() or bench.busy else "The prompt is empty."
        problem = self.quality.problem or self.quality.expected if judging else "" if sweeping or caching else empty
        self.reason.setText(busy or problem)
        set_available(self.generate, busy)
        set_available(self.sweep_button, busy)
        set_available(self.judge_button, busy or self.quality.problem)
        set_available(self.cache_button, busy or self.caches.problem)
        for column in self.columns:
            column.set_loads(not judging and not caching)
            column.refresh(bench)
        for side in (0, 1):
            self.advanced.show_cache(bench, side)


def _numbers_table() -> TablePanel:
    return TablePanel(
        RowsModel(number_columns(SIDES, explain), explain), "Measured numbers",
        ("", "999.99 MB (999.99 MiB)", "999.99 MB (999.99 MiB)", "99.99 ×"), totals=False,
    )  # fmt: skip


def _kernel_table() -> TablePanel:
    return TablePanel(
        RowsModel(kernel_columns(), explain), "Kernel report", KERNEL_WIDTHS,
        filter_hint="Filter by operation, kernel or reason", totals=False,
    )  # fmt: skip


def _column(*parts: QWidget) -> QWidget:
    outer = QWidget()
    layout = QVBoxLayout(outer)
    layout.setContentsMargins(0, SPACE_3, 0, 0)
    layout.setSpacing(SPACE_2)
    for part in parts:
        layout.addWidget(part, 1 if isinstance(part, (TablePanel, AnswersPanel)) else 0)
    return outer
