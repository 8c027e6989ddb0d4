"""What every figure has around it: a title, a legend, a read-out, notes, and ways to take it along."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QGuiApplication, QPainter, QPaintEvent, QPen, QPixmap, QRegion
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QLabel, QMenu, QPushButton, QStackedLayout, QVBoxLayout, QWidget

from app.icons import set_icon
from app.plots.series import DASHES, LegendItem
from app.theme import CAPTION, HEADING, SPACE_1, SPACE_2, SPACE_3, Theme, current, themes, ui_font
from app.widgets.basics import label, set_available
from app.widgets.flow import FlowRow
from app.widgets.text import ElidedLabel

NO_DATA = "No data yet"
_TITLE_HEIGHT = HEADING + SPACE_3  # px of a picture


class FigurePanel(QWidget):
    """Base of everything drawn. What is drawn goes into `_figure_layout`; `show_figure` brings it to the front.

    A figure overrides `table`, `describe` and `repaint_figure`. While there is no data, a sentence stands in its place.
    """

    def __init__(self, name: str, empty: str = NO_DATA, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._name = name
        self._empty_text = empty
        self.title = ElidedLabel(name, "heading")
        self.note = label("", "warning", wrap=True)
        self.readout = ElidedLabel(role="caption")
        self.readout.setFont(ui_font(CAPTION))
        self._make_menu()
        self._lay_out()
        self.clear()
        themes().changed.connect(self._on_theme)

    # ---- for figures to override -----------------------------------------------------------------------------------

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Column names and rows of what is drawn, for CSV."""
        return (), ()

    def describe(self) -> str:
        """The key numbers in words, for screen readers."""
        return ""

    def repaint_figure(self) -> None:
        """Draw again what is shown, in the colours of another theme."""

    # ---- content ---------------------------------------------------------------------------------------------------

    @property
    def has_data(self) -> bool:
        return self._layers.currentWidget() is self._figure

    def clear(self, text: str = "") -> None:
        """Show a sentence in place of the plot; the panel's own one by default."""
        self._message.setText(text or self._empty_text)
        self._layers.setCurrentWidget(self._message)
        self.title.setText(self._name)
        self.note.hide()
        self._show_legend(())
        self.readout.setText("")
        set_available(self._menu_button, "There is nothing to copy or save yet.")
        self.setAccessibleName(self._name)
        self.setAccessibleDescription(self._message.text())

    def show_figure(self, title: str, legend: Sequence[LegendItem] = (), note: str = "") -> None:
        """Show the figure under this title. note: what is not in it, such as values left out."""
        self.title.setText(title)
        self.note.setText(note)
        self.note.setVisible(bool(note))
        self._show_legend(legend)
        self.readout.setText(self.read_hint())
        self._layers.setCurrentWidget(self._figure)
        set_available(self._menu_button)
        self.setAccessibleName(title)
        self.setAccessibleDescription(" ".join(part for part in (self.describe(), note) if part))

    def read_hint(self) -> str:
        """What the read-out says while the pointer is elsewhere. Keeps the line's height, so nothing jumps."""
        return "Point at the plot to read values."

    # ---- taking it along -------------------------------------------------------------------------------------------

    def picture(self) -> QPixmap:
        """Title, legend and plot at twice the screen's resolution."""
        pixmap = QPixmap(self._picture_size() * 2)
        pixmap.setDevicePixelRatio(2)
        pixmap.fill(current().color("surface"))
        with QPainter(pixmap) as painter:
            self._paint_picture(painter)
        return pixmap

    def _picture_size(self) -> QSize:
        return self._whole.size() + QSize(0, _TITLE_HEIGHT)

    def _paint_picture(self, painter: QPainter) -> None:
        width = self._whole.width()
        painter.setFont(ui_font(HEADING, bold=True))
        painter.setPen(current().color("text"))
        shown = painter.fontMetrics().elidedText(self.title.text(), Qt.TextElideMode.ElideMiddle, width)
        painter.drawText(0, 0, width, _TITLE_HEIGHT, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, shown)
        self._whole.render(painter, QPoint(0, _TITLE_HEIGHT), QRegion(), QWidget.RenderFlag.DrawChildren)

    def set_chooser(self, lead: str, chooser: QWidget) -> None:
        """Put a control in the title's place that chooses what is drawn, such as 'Error of [tensor]'."""
        word = label(lead, "heading")
        word.setBuddy(chooser)
        self.title.hide()
        self._top.insertWidget(0, word)
        self._top.insertWidget(1, chooser, 1)

    def csv(self) -> str:
        """The drawn values, one row a bin or point, with full precision."""
        columns, rows = self.table()
        lines = [",".join(_quoted(name) for name in columns)]
        lines += [",".join(repr(v) if isinstance(v, float) else _quoted(str(v)) for v in row) for row in rows]
        return "\n".join(lines) + "\n"

    def _save(self, suffix: str) -> None:
        suggestion = "".join(c if c.isalnum() or c in "-_. " else "_" for c in self.title.text())
        name, _ = QFileDialog.getSaveFileName(self, "Save the plot", f"{suggestion}{suffix}", f"*{suffix}")
        if name:
            self.save(Path(name))

    def save(self, path: Path) -> None:
        """Write a .png, .svg or .csv, by the name's ending."""
        match path.suffix.lower():
            case ".csv":
                path.write_text(self.csv(), encoding="utf-8")
            case ".svg":
                self._write_svg(path)
            case _:
                self.picture().save(str(path))

    def _write_svg(self, path: Path) -> None:
        generator = QSvgGenerator()
        generator.setFileName(str(path))
        generator.setTitle(self.title.text())
        generator.setDescription(self.accessibleDescription())
        size = self._picture_size()
        generator.setSize(size)
        generator.setViewBox(QRect(QPoint(0, 0), size))
        with QPainter(generator) as painter:
            painter.fillRect(QRect(QPoint(0, 0), size), current().color("surface"))
            self._paint_picture(painter)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_menu(self) -> None:
        self._menu_button = QPushButton()
        self._menu_button.setProperty("buttonRole", "quiet")
        self._menu_button.setAccessibleName("Copy or save this plot")
        self._menu_button.setToolTip("Copy or save this plot")
        set_icon(self._menu_button, "download", "muted")
        menu = QMenu(self._menu_button)
        menu.setToolTipsVisible(True)
        clipboard = QGuiApplication.clipboard
        menu.addAction("Copy picture", lambda: clipboard().setPixmap(self.picture()))
        menu.addAction("Copy values as CSV", lambda: clipboard().setText(self.csv()))
        menu.addAction("Save picture as PNG…", lambda: self._save(".png"))
        menu.addAction("Save picture as SVG…", lambda: self._save(".svg"))
        menu.addAction("Save values as CSV…", lambda: self._save(".csv"))
        self._menu_button.clicked.connect(
            lambda: menu.popup(self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft()))
        )

    def _lay_out(self) -> None:
        self._whole = QWidget()
        self._figure = QWidget()
        self._figure_layout = QVBoxLayout(self._figure)
        self._figure_layout.setContentsMargins(0, 0, 0, 0)
        self._message = label("", "muted", wrap=True)
        self._message.setAlignment(Qt.AlignmentFlag.AlignCenter)
        layers = QWidget()
        self._layers = QStackedLayout(layers)
        self._layers.addWidget(self._message)
        self._layers.addWidget(self._figure)
        self._legend_items: tuple[LegendItem, ...] | None = None
        self._entries: list[_LegendEntry] = []
        self._legend = FlowRow()
        whole = QVBoxLayout(self._whole)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(SPACE_1)
        whole.addWidget(self._legend)
        whole.addWidget(layers, 1)
        top = self._top = QHBoxLayout()
        top.setSpacing(SPACE_2)
        top.addWidget(self.title, 1)
        top.addWidget(self._menu_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1)
        layout.addLayout(top)
        layout.addWidget(self._whole, 1)
        layout.addWidget(self.readout)
        layout.addWidget(self.note)

    def _show_legend(self, items: Sequence[LegendItem]) -> None:
        items, before = tuple(items), self._legend_items
        if items == before:
            return  # a plot that grows ten times a second must not flicker
        self._legend_items = items
        if before is None or len(before) != len(items):
            self._entries = [_LegendEntry(item) for item in items]
            self._legend.set_parts(self._entries)
            return
        for entry, item in zip(self._entries, items, strict=True):  # new widgets are dressed anew, which takes its time
            entry.show_item(item)
        self._legend.place()

    def _on_theme(self, _theme: Theme) -> None:
        if self.has_data:
            self.repaint_figure()


class _LegendEntry(QWidget):
    """A piece of the line as it is drawn, and its name."""

    def __init__(self, item: LegendItem) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1 + 2)
        self._text = QLabel()
        self._text.setTextFormat(Qt.TextFormat.PlainText)
        self._text.setFont(ui_font(CAPTION))
        self._text.setProperty("textRole", "caption")
        self._line = _LineSample(item)
        layout.addWidget(self._line)
        layout.addWidget(self._text)
        self.show_item(item)

    def show_item(self, item: LegendItem) -> None:
        self._text.setText(item.label)
        self._line.show_item(item)
        self.setToolTip(item.hint)


class _LineSample(QWidget):
    def __init__(self, item: LegendItem) -> None:
        super().__init__()
        self._item = item
        self.setFixedSize(20, 12)

    def show_item(self, item: LegendItem) -> None:
        self._item = item
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            color: QColor = self._item.color(current())
            if self._item.fill:
                veil = QColor(color)
                veil.setAlphaF(0.25)
                painter.fillRect(self.rect().adjusted(0, 5, 0, 0), veil)
            painter.setPen(QPen(color, 2, DASHES[self._item.dash]))
            painter.drawLine(0, 5, self.width(), 5)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text
