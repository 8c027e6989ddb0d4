"""The sweep: one layer or a whole decode step over the batch, 16 bits against quantized."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtWidgets import QComboBox, QFileDialog, QHBoxLayout, QMenu, QTableView, QTabWidget, QVBoxLayout, QWidget

from app.jobs.testing import Shape, SweepOrder
from app.jobs.testing_bench import Bench
from app.models.table import Column, RowsModel
from app.models.table_view import TablePanel
from app.plots.roofline import RooflinePlot
from app.plots.sweep import QUANTITIES, SweepPlot
from app.theme import SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import Card, button, label, number_box, set_available
from app.widgets.calm import CalmCombo
from app.widgets.inline_error import InlineError
from app.widgets.text import explain, term
from core import units
from core.errors import UserError
from core.runtime.sweep import BATCHES, Sweep, sweep_data

SUFFIXES = {"CSV": ".csv", "PNG": ".png", "JSON": ".json"}


class SweepPanel(QWidget):
    """Controls above, plots below, and one sentence with what they mean."""

    def __init__(self, bench: Bench, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bench = bench
        self._sweep: Sweep | None = None
        self._shapes: tuple[Shape, ...] = ()
        self.shape = CalmCombo()
        self.shape.setAccessibleName("What to measure")
        self.shape.setToolTip("One layer of the model, one of a common size, or a whole step of generation")
        self.shape.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.shape.setMinimumContentsLength(28)
        self.shape.activated.connect(lambda _row: self._show_context())
        self.context_word = term("context", "Context", "muted")
        self.context = number_box("Context of the sweep", 1, 131072, 128, suffix=" tokens", hint=explain("context"))
        self.context.setMinimumWidth(130)
        self.context_word.setBuddy(self.context)
        self.export = button("Export", icon="download", hint="Save values or pictures of this sweep")
        self.export.setProperty("hasMenu", True)
        menu = QMenu(self.export)
        menu.setToolTipsVisible(True)
        for name in SUFFIXES:
            menu.addAction(f"{name}…", lambda name=name: self._ask_export(name))
        self.export.setMenu(menu)
        self.quantity = CalmCombo()
        self.quantity.setAccessibleName("What the plot shows")
        self.quantity.setToolTip("What the plot shows over the batch")
        for quantity in QUANTITIES:
            self.quantity.addItem(quantity.title, quantity.key)
        self.quantity.activated.connect(lambda _row: self._draw())
        self.plot = SweepPlot()
        self.plot.set_chooser("Over the batch", self.quantity)
        self.roofline = RooflinePlot()
        self.traffic = TablePanel(
            RowsModel(_traffic_columns(), explain), "Traffic", ("", "9 999.99 MB", "99.99 ×"), totals=False
        )  # fmt: skip
        self.traffic.filter.hide()
        self.traffic_note = label("", "muted", wrap=True)
        self.error = InlineError()
        self.sentence = label("", wrap=True, selectable=True)
        self.sentence.setAccessibleName("Result of the sweep")
        self._lay_out()
        self._show(None)
        bench.swept.connect(self._show)
        bench.sweep_failed.connect(self.error.show_error)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        word = label("Measure", "muted")
        word.setBuddy(self.shape)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(word)
        row.addWidget(self.shape, 1)
        row.addSpacing(SPACE_2)
        row.addWidget(self.context_word)
        row.addWidget(self.context)
        row.addStretch(1)
        row.addWidget(self.export)
        left = Card()
        left.add(self.plot, 1)
        right = Card()
        self.tabs = QTabWidget()
        self.tabs.setAccessibleName("Roofline and traffic")
        self.tabs.tabBar().setAccessibleName("Roofline and traffic")
        self.tabs.addTab(self.roofline, "Roofline")
        beside = QWidget()
        column = QVBoxLayout(beside)
        column.setContentsMargins(0, SPACE_2, 0, 0)
        column.addWidget(self.traffic, 1)
        column.addWidget(self.traffic_note)
        self.tabs.addTab(beside, "Traffic")
        self.tabs.setTabToolTip(0, explain("roofline"))
        self.tabs.setTabToolTip(1, explain("traffic"))
        right.add(self.tabs, 1)
        plots = QHBoxLayout()
        plots.setSpacing(SPACE_4)
        plots.addWidget(left, 1)
        plots.addWidget(right, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(row)
        layout.addWidget(self.error)
        layout.addLayout(plots, 1)
        layout.addWidget(self.sentence)
        view: QTableView = self.traffic.view
        view.setSortingEnabled(False)

    # ---- content ---------------------------------------------------------------------------------------------------

    def show_shapes(self, shapes: Sequence[Shape]) -> None:
        """What can be measured with the present files; the choice stays where it can."""
        if tuple(shapes) == self._shapes:
            return
        before = self.shape.currentData()
        self._shapes = tuple(shapes)
        self.shape.clear()
        for shape in self._shapes:
            self.shape.addItem(shape.label, shape.label)
        row = self.shape.findData(before)
        self.shape.setCurrentIndex(max(row, 0) if self._shapes else -1)
        set_available(self.shape, "" if self._shapes else "Choose a file above first.")
        self._show_context()

    def _show_context(self) -> None:
        shape = self._chosen()
        decode = shape is not None and shape.decode
        for widget in (self.context_word, self.context):
            set_available(widget, "" if decode else "Only a whole decode step has a context. Choose it at the left.")

    def _chosen(self) -> Shape | None:
        return next((s for s in self._shapes if s.label == self.shape.currentData()), None)

    def order(self) -> SweepOrder | None:
        """What the controls say now; None when nothing can be measured."""
        shape = self._chosen()
        if shape is None:
            return None
        bench = self._bench
        return SweepOrder(shape, bench.paths, self.context.value(), bench.arithmetic, bench.slots[1].device)

    def _show(self, sweep: Sweep | None) -> None:
        self._sweep = sweep
        finished = sweep is not None and sweep is self._bench.sweep
        set_available(self.export, "" if finished else "Run a sweep first; there is nothing to save yet.")
        if sweep is None:
            self.sentence.setText("")
            self.traffic.model.set_rows(())
            self.traffic_note.setText("No data yet: run a sweep to see what each way moves through memory.")
            return
        self.error.hide()
        self._draw()
        self.traffic.model.set_rows(_traffic_rows(sweep))
        self.traffic_note.setText(
            "For one product or step at batch 1." if sweep.traffic else "Known when it has ended."
        )
        self.sentence.setText(sweep_sentence(sweep) if finished else _progress_sentence(sweep))

    def _draw(self) -> None:
        if self._sweep is not None:
            self.plot.show_sweep(self._sweep, self.quantity.currentData())
            self.roofline.show_sweep(self._sweep)

    # ---- taking it along -------------------------------------------------------------------------------------------

    def _ask_export(self, name: str) -> None:
        suffix = SUFFIXES[name]
        chosen, _ = QFileDialog.getSaveFileName(self, "Save the sweep", f"sweep{suffix}", f"*{suffix}")
        if chosen:
            self.save(Path(chosen))

    def save(self, path: Path) -> None:
        """Write a .csv, .png (the plot in view) or .json, by the name's ending."""
        if self._sweep is None:
            return
        try:
            if path.suffix.lower() == ".json":
                path.write_text(json.dumps(sweep_data(self._sweep), indent=2) + "\n", encoding="utf-8")
            else:
                self.plot.save(path)
        except OSError as error:
            self.error.show_error(
                UserError(f"{path.name} could not be written: {error.strerror or error}.", "Choose another folder.")
            )


def sweep_sentence(sweep: Sweep) -> str:
    """What the plots mean."""
    ratios = dict(sweep.speedups)
    if not ratios:
        return sweep.note
    name = sweep.names[1][:1].upper() + sweep.names[1][1:]
    first = f"{name} is {ratios[min(ratios)]:.2f} × as fast as {sweep.names[0]} at batch {min(ratios)}"
    if sweep.crossover is None:
        end = f"and still {ratios[max(ratios)]:.2f} × at batch {max(ratios)}"
    elif sweep.crossover == min(ratios):
        end = "so compression does not help here at any batch"
    else:
        end = f"and compression stops helping at batch {sweep.crossover}"
    return " ".join(part for part in (f"{first}, {end}.", sweep.note) if part)


def _progress_sentence(sweep: Sweep) -> str:
    if not sweep.points:
        return "Preparing the weights…"
    last = sweep.points[-1]
    return f"Measured {sweep.names[last.side]} at batch {last.batch} of {max(BATCHES)}…"


def _traffic_columns() -> tuple[Column, ...]:
    return (
        Column("Way", lambda r: r[0], term="traffic"),
        Column(
            "Bytes moved",
            lambda r: units.format_decimal(r[1]),
            lambda r: r[1],
            number=True,
            tooltip=lambda r: units.format_bytes(r[1]),
        ),
        Column("Ratio", lambda r: r[2], number=True, tooltip=lambda r: f"{r[2]} of what 16 bits move"),
    )


def _traffic_rows(sweep: Sweep) -> list[tuple[str, float, str]]:
    base = sweep.traffic[0][1] if sweep.traffic else 0.0
    return [(way, amount, f"{amount / base:.2f} ×" if base else "–") for way, amount in sweep.traffic]
