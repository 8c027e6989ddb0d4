"""A verdict on the page: passed or failed and why, limits, figures, error by layer, and texts side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QFont, QResizeEvent, QTextCharFormat, QTextCursor, QTextLength, QTextTableFormat
from PySide6.QtWidgets import QHBoxLayout, QMenu, QTextEdit, QVBoxLayout, QWidget

from app.models.quality import basis, figure_columns, figure_rows, headline, limit_columns
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.plots.quality_plots import LayerErrorPlot, NeedlePicture
from app.theme import SPACE_1, SPACE_2, SPACE_3, current, themes
from app.widgets.basics import Card, IconLabel, button, label
from app.widgets.folding import FoldingGrid, Part
from app.widgets.text import ElidedLabel, explain
from app.widgets.verdict import STATES
from core.units import format_count

if TYPE_CHECKING:
    from core.verdict.evaluation import Evaluation
    from core.verdict.texts import TextPair
    from core.verdict.thresholds import Verdict

_WORD = re.compile(r"\s*\S+")
BESIDE = 1250  # px from which the limits stand beside the other parts
WORDS = 900  # px from which buttons have all their words
GRID_HEIGHT = 680  # px from which everything stands in a grid
FORMATS = {"HTML, for reading": ".html", "Markdown": ".md", "JSON": ".json"}


class TextsView(QTextEdit):
    """Greedy texts of both files beside each other. From the first difference on underlined, its word bold."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._pairs: tuple[TextPair, ...] = ()
        self.setReadOnly(True)
        self.setTabChangesFocus(True)
        self.setAccessibleName("Texts of both files side by side")
        self.setPlaceholderText("Not measured: switch “Texts side by side” on under Advanced.")
        themes().changed.connect(self._redraw)

    def show_pairs(self, pairs: Sequence[TextPair]) -> None:
        self._pairs = tuple(pairs)
        same = sum(pair.difference is None for pair in pairs)
        self.setAccessibleDescription(f"{same} of {len(pairs)} texts are the same." if pairs else "")
        self._redraw()

    def _redraw(self, *_theme: object) -> None:
        self.clear()
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for number, pair in enumerate(self._pairs):
            if number:
                cursor.insertBlock()
            cursor.insertText(f"“{pair.prompt.strip()}” ", _look(bold=True))
            cursor.insertText(_difference(pair), _look(muted=True))
            table = QTextTableFormat()
            table.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
            half = QTextLength(QTextLength.Type.PercentageLength, 50)
            table.setColumnWidthConstraints([half, half])
            table.setCellPadding(SPACE_2)
            table.setCellSpacing(0)
            table.setBorder(0)
            cells = cursor.insertTable(2, 2, table)
            for column, (name, text) in enumerate((("Source", pair.source), ("Quantized", pair.artifact))):
                cells.cellAt(0, column).firstCursorPosition().insertText(name, _look(muted=True))
                place = cells.cellAt(1, column).firstCursorPosition()
                start = len(text) if pair.difference is None else pair.letter
                place.insertText(text[:start].lstrip("\n"), _look())
                end = start + _word_length(text[start:])
                place.insertText(text[start:end], _look(bold=True, marked=True))
                place.insertText(text[end:], _look(marked=True))
            cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.endEditBlock()
        self.moveCursor(QTextCursor.MoveOperation.Start)


def _difference(pair: TextPair) -> str:
    if pair.difference is None:
        return "is continued alike."
    return f"is continued differently from new token {format_count(pair.difference + 1)} on."


def _word_length(text: str) -> int:
    """Letters up to the end of the first word."""
    found = _WORD.match(text)
    return found.end() if found else len(text)


def _look(*, bold: bool = False, muted: bool = False, marked: bool = False) -> QTextCharFormat:
    result = QTextCharFormat()
    theme = current()
    result.setForeground(theme.color("muted" if muted else "text"))
    if bold:
        result.setFontWeight(QFont.Weight.DemiBold)
    if marked:
        if bold:
            result.setBackground(theme.color("selected"))
        result.setUnderlineStyle(QTextCharFormat.UnderlineStyle.DashUnderline)
        result.setUnderlineColor(theme.color("accent"))
    return result


class QualityResult(QWidget):
    """`save_asked(suffix)` and `copy_asked()` follow the buttons."""

    save_asked = Signal(str)
    copy_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = IconLabel("circle-slash", "muted", 20)
        self.word = label("", "title")
        self.word.setAccessibleName("Verdict")
        self.sentence = label("", wrap=True, selectable=True)
        self.sentence.setAccessibleName("Why")
        self.basis = ElidedLabel(role="muted")
        self.saved = ElidedLabel(role="muted")
        self.saved.hide()
        self.notes = label("", "warning", wrap=True)
        self.notes.hide()
        self.save = button("Save report…", icon="save", hint="Everything in one file, for the team to keep")
        self.save.setProperty("hasMenu", True)
        menu = QMenu(self.save)
        menu.setToolTipsVisible(True)
        for name, suffix in FORMATS.items():
            menu.addAction(f"{name}…", lambda suffix=suffix: self.save_asked.emit(suffix))
        self.save.setMenu(menu)
        self.copy = button(
            "Copy as Markdown", self.copy_asked.emit, icon="copy", hint="The whole report, for an issue or a page"
        )
        self.limits = TablePanel(
            RowsModel(limit_columns(), explain), "Limits",
            ("", "FAIL, but close", "0.03123 nats", "0.00012 nats", "at most 0.05 nats"), totals=False,
        )  # fmt: skip
        self.figures = TablePanel(
            RowsModel(figure_columns(explain), explain), "Figures", ("", "888.88 MB, 88.8 % of source", "0.00012"),
            totals=False,
        )  # fmt: skip
        for table in (self.limits, self.figures):
            table.filter.hide()
            table.view.setSortingEnabled(False)
        self.layers = LayerErrorPlot()
        self.texts = TextsView()
        self.needle = NeedlePicture()
        self._later: list[Callable[[], object]] = []
        self._timer = QTimer(self, interval=0)
        self._timer.timeout.connect(self._do_next)
        self._lay_out()

    def _lay_out(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(SPACE_2)
        top.addWidget(self.mark)
        top.addWidget(self.word)
        top.addWidget(self.sentence, 1)
        top.addWidget(self.copy)
        top.addWidget(self.save)
        layers = Card()
        layers.add(self.layers, 1)
        needle = Card()
        needle.add(self.needle, 1)
        self._cards = layers, needle
        self.grid = FoldingGrid(
            (
                Part("Limits", self.limits, 0, 0),
                Part("Figures", self.figures, 1, 0, 2),
                Part("Error by layer", layers, 0, 1),
                Part("Texts", self.texts, 2, 1),
                Part("Long texts", needle, 1, 1),
            ),
            GRID_HEIGHT, (4, 4, 5), "Parts of the verdict", beside=False,
        )  # fmt: skip
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(top)
        layout.addWidget(self.saved)
        layout.addWidget(self.notes)
        layout.addWidget(self.basis)
        layout.addWidget(self.grid, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.grid.set_beside(self.width() >= BESIDE)
        words = self.width() >= WORDS
        self.copy.setText("Copy as Markdown" if words else "Copy")
        self.save.setText("Save report…" if words else "Save…")

    def set_low(self, on: bool) -> None:
        """Leave out what the tables need the room of; it is the headline's tooltip, too."""
        self.basis.setVisible(not on)
        self.needle.readout.setVisible(not on)
        self.layers.set_low(on)
        for card in self._cards:
            card.layout().setContentsMargins(SPACE_3, SPACE_1 if on else SPACE_3, SPACE_3, SPACE_1 if on else SPACE_3)

    def parts(self) -> tuple[QWidget, ...]:
        return self, self.limits, self.figures, self.layers, self.texts, self.needle

    def show_evaluation(self, evaluation: Evaluation) -> None:
        """Everything but the verdict; pictures come a turn of the event loop each."""
        self.basis.setText(basis(evaluation))
        self.sentence.setToolTip(basis(evaluation))
        self.figures.model.set_rows(figure_rows(evaluation))
        self.figures.fit_first_column()
        self._later = [
            lambda: self.layers.prepare() if evaluation.layers.layers else None,
            lambda: self.layers.show_errors(evaluation.layers),
            lambda: self.texts.show_pairs(evaluation.texts),
            lambda: self.needle.show_result(evaluation.needle),
        ]
        self._timer.start()

    @property
    def settled(self) -> bool:
        """Whether the pictures have come, too."""
        return not self._later

    def _do_next(self) -> None:
        if self._later:
            self._later.pop(0)()
        if not self._later:
            self._timer.stop()

    def show_verdict(self, verdict: Verdict, notes: Sequence[str] = ()) -> None:
        """Headline and limits. notes: what a reader has to know, such as that the limits are others than before."""
        self.saved.hide()
        state, word, sentence = headline(verdict)
        name, role = STATES[state]
        self.mark.set(name, role)
        self.word.setText(word)
        self.sentence.setText(sentence)
        self.limits.model.set_rows(verdict.lines)
        self.limits.fit_first_column()
        self.notes.setText(" ".join(notes))
        self.notes.setVisible(bool(notes))
        self.setAccessibleName(f"Verdict: {word.lower()}")
        self.setAccessibleDescription(sentence)
