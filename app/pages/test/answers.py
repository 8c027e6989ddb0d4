"""Both answers beside each other while they come, with the tokens marked that the other one does not have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from PySide6.QtCore import QSize
from PySide6.QtGui import QFont, QResizeEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QTextEdit, QVBoxLayout, QWidget

from app.jobs.testing import SIDES, Measured, Piece
from app.jobs.testing_bench import Bench
from app.models.answers import Comparison, common_start
from app.theme import SPACE_2, SPACE_4, current, themes
from app.widgets.basics import label
from app.widgets.inline_error import InlineError
from app.widgets.text import explain
from app.widgets.tiles import Tiles
from core import units
from core.errors import UserError

LEAST_HEIGHT = 44  # px: two lines, which is what the smallest window has beside the advanced settings
FIGURES = ("First token", "Per token", "Tokens/s", "Bound", "Peak memory")
LOW = 176  # px below which figures and reasons give their room to the answers; Numbers has them, too


class AnswerView(QTextEdit):
    """A growing answer. Tokens that differ are underlined with dashes on a ground; the first of them is bold too."""

    def __init__(self, side: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._side = side
        self._pieces: list[Piece] = []
        self._marks: frozenset[int] = frozenset()
        self._first = -1
        self.setReadOnly(True)
        self.setMinimumHeight(LEAST_HEIGHT)
        self.setTabChangesFocus(True)
        self.setAccessibleName(f"Answer of the {SIDES[side].lower()} file")
        self.setPlaceholderText(f"The {SIDES[side].lower()} file's answer appears here.")
        themes().changed.connect(self._redraw)

    def start(self) -> None:
        """Empty, ready for another answer."""
        self._pieces, self._marks, self._first = [], frozenset(), -1
        self.clear()

    def append_pieces(self, pieces: Sequence[Piece], marked_from: int | None) -> None:
        """Add tokens at the end; those numbered `marked_from` and above are marked."""
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4
        number = len(self._pieces)
        self._pieces += pieces
        if marked_from is not None and marked_from < len(self._pieces):
            self._marks |= frozenset(range(max(number, marked_from), len(self._pieces)))
            self._first = marked_from
        self._insert(number)
        if at_end:
            bar.setValue(bar.maximum())

    def show_marks(self, marks: frozenset[int], first: int) -> None:
        """Mark exactly these tokens; `first` is the one where the answers part."""
        if (marks, first) != (self._marks, self._first):
            self._marks, self._first = marks, first
            self._redraw()

    @property
    def marks(self) -> frozenset[int]:
        return self._marks

    def _redraw(self, *_theme: object) -> None:
        place = self.verticalScrollBar().value()
        self.clear()
        self._insert(0)
        self.verticalScrollBar().setValue(place)

    def _insert(self, start: int) -> None:
        """Write the tokens from number `start` on at the end, tokens of one look at once: each edit lays out anew."""
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.beginEditBlock()
        numbers = range(start, len(self._pieces))
        for look, run in groupby(numbers, lambda number: (number in self._marks, number == self._first)):
            cursor.insertText("".join(self._pieces[number].text for number in run), self._format(*look))
        cursor.endEditBlock()

    @staticmethod
    def _format(marked: bool, first: bool) -> QTextCharFormat:
        result = QTextCharFormat()
        theme = current()
        result.setForeground(theme.color("text"))
        if marked:
            result.setBackground(theme.color("selected"))
            result.setUnderlineStyle(QTextCharFormat.UnderlineStyle.DashUnderline)
            result.setUnderlineColor(theme.color("accent"))
        if first:
            result.setFontWeight(QFont.Weight.DemiBold)
            result.setUnderlineStyle(QTextCharFormat.UnderlineStyle.SingleUnderline)
        return result


class AnswersPanel(QWidget):
    """Two answers, five figures under each, and the sentence that compares them."""

    def __init__(self, bench: Bench, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bench = bench
        self._low = False
        self.views = (AnswerView(0), AnswerView(1))
        self.tiles = (Tiles(FIGURES), Tiles(FIGURES))
        self.errors = (InlineError(), InlineError())
        self.sentence = label("", wrap=True, selectable=True)
        self.sentence.setAccessibleName("Comparison of the answers")
        self.sentence.setToolTip(f"Near-tie: {explain('near-tie')}")
        self.slower = label("", "warning", wrap=True, selectable=True)
        self.slower.hide()
        row = QHBoxLayout()
        row.setSpacing(SPACE_4)
        for view, tiles, error in zip(self.views, self.tiles, self.errors, strict=True):
            error.set_dismissable(False)
            column = QVBoxLayout()
            column.setSpacing(SPACE_2)
            column.addWidget(error)
            column.addWidget(view, 1)
            column.addWidget(tiles)
            row.addLayout(column, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(row, 1)
        layout.addWidget(self.sentence)
        layout.addWidget(self.slower)
        bench.asked.connect(self._start)
        bench.pieces_added.connect(self._append)
        bench.answered.connect(lambda side: self._show_figures(side, bench.slots[side].measured))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        low = self.height() < LOW
        if low != self._low:
            self._low = low
            for tiles in self.tiles:
                tiles.setVisible(not low)
            self._show_slower()

    def _show_slower(self) -> None:
        self.slower.setVisible(bool(self.slower.text()) and not self._low)

    def minimumSizeHint(self) -> QSize:
        """Of what is there when it is low."""
        return QSize(super().minimumSizeHint().width(), LEAST_HEIGHT)

    def _start(self) -> None:
        for side in (0, 1):
            self.views[side].start()
            self.tiles[side].clear()
            self.errors[side].hide()
        self.sentence.setText("")
        self.slower.setText("")
        self._show_slower()

    def _append(self, side: int, pieces: Sequence[Piece]) -> None:
        slots = self._bench.slots
        start: int | None = None
        if side == 1 and slots[0].pieces:
            same = common_start(slots[0].pieces, slots[1].pieces)
            start = same if same < len(slots[0].pieces) else None
        self.views[side].append_pieces(pieces, start)

    def _show_figures(self, side: int, measured: Measured | None) -> None:
        tiles = self.tiles[side]
        if measured is None:
            tiles.clear()
            return
        rate, bound = measured.decode_rate, measured.bound_fraction
        tiles.set("First token", units.format_duration(measured.first_token))
        tiles.set("Per token", units.format_duration(measured.token_p50) if measured.token_p50 else "–")
        words = units.format_tokens_per_second(rate) if rate else "–"
        tiles.set("Tokens/s", words.removesuffix(" tokens/s"))
        tiles.set("Bound", units.format_percent(bound, 0) if bound is not None else "–")
        tiles.set("Peak memory", units.format_decimal(measured.peak_memory))

    def show_end(self, comparison: Comparison | None, slower: str, notes: Sequence[str]) -> None:
        """What came of it. notes: what else is worth knowing, such as that a conversion ran meanwhile."""
        words = [comparison.sentence()] if comparison is not None else []
        self.sentence.setText(" ".join([*words, *notes]))
        self.slower.setText(slower)
        self._show_slower()
        if comparison is not None:
            for view, marks in zip(self.views, comparison.marks, strict=True):
                view.show_marks(marks, comparison.same if comparison.differs else -1)
                view.setAccessibleDescription(comparison.sentence())

    def show_errors(self) -> None:
        """Each side's error, where its answer would stand."""
        for slot, error in zip(self._bench.slots, self.errors, strict=True):
            if slot.error is None:
                error.hide()
            elif isinstance(slot.error, UserError):
                error.show_text(slot.error.message, slot.error.hint, topic=slot.error.topic)
            else:
                error.show_error(slot.error)
