"""What is cut off, lies over something else, or is out of reach in a window as it stands now.

`faults(window)` walks over all visible widgets. What shortens its text itself and keeps the whole of it in a tooltip is
no fault, nor is what can be scrolled to from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QComboBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QScrollBar,
    QStackedWidget,
    QStyle,
    QStyleOptionComboBox,
    QTabBar,
    QTabWidget,
    QWidget,
)

from app.widgets.cache_picker import NamedPicker
from app.widgets.calm import CalmCombo
from app.widgets.text import ElidedLabel

SMALLEST = 1000  # px of a window's width from which nothing scrolls sideways
SLACK = 1  # px that rounding may take
READABLE = 60  # px in which a shortened choice can still be told from others
FREE = (QScrollBar, QHeaderView)  # Qt places these itself
FITS_ITSELF = (QStackedWidget, QTabWidget, QAbstractItemView)


def faults(window: QWidget) -> list[str]:
    """One line for each, with the widget's name and how much it lacks."""
    found = []
    for widget in _visible(window):
        found += [f"{_name(widget)}: {words}" for words in (*_cut_text(widget), *_out_of_reach(widget, window))]
    if window.width() >= SMALLEST:
        areas = [area for area in window.findChildren(QScrollArea) if area.isVisibleTo(window)]
        hidden = [(area, area.horizontalScrollBar().maximum()) for area in areas]
        found += [f"{_name(area)}: scrolls sideways by {n} px of {area.viewport().width()}" for area, n in hidden if n]
    found += [f"{_name(a)} lies over {_name(b)}" for a, b in _overlapping(window)]
    return found


def _visible(window: QWidget) -> Iterator[QWidget]:
    for widget in window.findChildren(QWidget):
        seen = widget.isVisibleTo(window) and widget.window() is window
        if seen and not isinstance(widget, FREE) and not _inside_view(widget):
            yield widget


def _inside_view(widget: QWidget) -> bool:
    """Whether a table or list shows it: those have columns that the user drags."""
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, QAbstractItemView | QAbstractSpinBox | QComboBox) and not isinstance(parent, QScrollArea):
            return True
        parent = parent.parentWidget()
    return False


def _cut_text(widget: QWidget) -> Iterator[str]:
    lack = 0
    if isinstance(widget, QAbstractButton):
        if widget.text():
            lack = widget.sizeHint().width() - widget.width()
    elif isinstance(widget, ElidedLabel):
        room = widget.contentsRect().width()
        if widget.text() and room < min(_width(widget, widget.text()), READABLE):
            yield f"'{widget.text()}' has {room} px, which is nothing to read"
    elif isinstance(widget, QLabel):
        yield from _cut_label(widget)
    elif isinstance(widget, QComboBox):
        option = QStyleOptionComboBox()
        widget.initStyleOption(option)
        field = widget.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, widget
        )
        lack = _width(widget, widget.currentText()) - field.width()
        if isinstance(widget, CalmCombo | NamedPicker) and field.width() >= READABLE:
            lack = 0
        if lack > SLACK and widget.currentText() in widget.toolTip():
            lack = 0
    elif isinstance(widget, QTabBar):
        lack = sum(widget.tabSizeHint(n).width() for n in range(widget.count()) if widget.isTabVisible(n))
        lack -= widget.width()
    elif isinstance(widget, QLineEdit) and not widget.text():
        lack = _width(widget, widget.placeholderText()) - (widget.width() - 16) if widget.placeholderText() else 0
        if lack > SLACK and widget.placeholderText() in widget.toolTip():
            lack = 0
    if lack > SLACK:
        yield f"{lack} px too narrow"


def _cut_label(widget: QLabel) -> Iterator[str]:
    text, room = widget.text(), widget.contentsRect()
    if not text or widget.textFormat() == Qt.TextFormat.RichText or not room.isValid():
        return
    if widget.wordWrap():
        lack = widget.heightForWidth(widget.width()) - widget.height()
        if lack > SLACK + 2:
            yield f"{lack} px too low for '{text[:60]}'"
        longest = max((_width(widget, word) for word in text.split()), default=0)
        if longest > room.width() + SLACK:
            yield f"{longest - room.width()} px too narrow for a word of '{text[:60]}'"
        return
    lack = max(_width(widget, line) for line in text.split("\n")) - room.width()
    if lack > SLACK:
        yield f"{lack} px too narrow for '{text[:60]}'"
    lack = widget.fontMetrics().height() * len(text.split("\n")) - room.height()
    if lack > SLACK + 2:
        yield f"{lack} px too low for '{text[:60]}'"


def _out_of_reach(widget: QWidget, window: QWidget) -> Iterator[str]:
    """A control or text of which a part lies outside of what holds it. Up and down a scroll area brings it."""
    if not isinstance(widget, QAbstractButton | QLabel | QComboBox | QLineEdit | QAbstractSpinBox):
        return
    if isinstance(widget, QLabel) and not widget.text():
        return
    area = QRect(QPoint(0, 0), widget.size())
    at: QWidget = widget
    while at is not window:
        parent = at.parentWidget()
        if parent is None:
            return
        area.translate(at.pos())
        holder = parent.parentWidget()
        scrolls = isinstance(holder, QAbstractScrollArea)
        if isinstance(holder, QAbstractScrollArea) and holder.horizontalScrollBar().maximum() > 0:
            return
        if area.left() < -SLACK or area.right() > parent.width() - 1 + SLACK:
            yield f"{max(-area.left(), area.right() + 1 - parent.width())} px outside of {_name(parent)}, sideways"
            return
        if scrolls:
            return
        if area.top() < -SLACK or area.bottom() > parent.height() - 1 + SLACK:
            yield f"{max(-area.top(), area.bottom() + 1 - parent.height())} px outside of {_name(parent)}, up or down"
            return
        at = parent


def _overlapping(window: QWidget) -> Iterator[tuple[QWidget, QWidget]]:
    by_parent: dict[QWidget, list[QWidget]] = {}
    for widget in _visible(window):
        parent = widget.parentWidget()
        if parent is not None and not isinstance(parent, FITS_ITSELF) and _holds_something(widget):
            by_parent.setdefault(parent, []).append(widget)
    for siblings in by_parent.values():
        for one, other in combinations(siblings, 2):
            common = one.geometry().intersected(other.geometry())
            if common.width() > SLACK and common.height() > SLACK:
                yield one, other


def _holds_something(widget: QWidget) -> bool:
    return widget.width() > 0 and widget.height() > 0 and not (isinstance(widget, QLabel) and not widget.text())


def _width(widget: QWidget, text: str) -> int:
    return widget.fontMetrics().horizontalAdvance(text)


def _name(widget: QWidget) -> str:
    words = widget.accessibleName() or (widget.text() if isinstance(widget, QPushButton | QLabel) else "")
    kind = type(widget).__name__
    inside = widget.parentWidget()
    holder = f" in {type(inside).__name__}" if inside is not None else ""
    return f"{kind} '{words[:40]}'{holder}"
