"""Small parts that every page is made of."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QAction, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSpinBox,
    QSplitter,
    QSplitterHandle,
    QVBoxLayout,
    QWidget,
)

from app.icons import pixmap, set_icon
from app.language import say
from app.theme import DISPLAY, FOCUS_WIDTH, RADIUS, SPACE_2, SPACE_3, SPACE_4, SPACE_6, current, themes

ICON_GAP = 4  # px between a button's icon and its text, in addition to Qt's own 4


def set_role(widget: QWidget, **properties: object) -> None:
    """Set style properties (textRole, buttonRole, frameRole, state …) and restyle the widget if one has changed."""
    changed = False
    for name, value in properties.items():
        if widget.property(name) != value:
            widget.setProperty(name, value)
            changed = True
    if changed:
        widget.style().unpolish(widget)
        widget.style().polish(widget)
        widget.update()


def set_available(target: QWidget | QAction, reason: str = "") -> None:
    """Enable `target`, or with a reason disable it and say in its tooltip why and what to do.

    Its own tooltip comes back once it is enabled.
    """
    kept = target.property("ownToolTip")
    if kept is None:
        kept = target.toolTip()
        target.setProperty("ownToolTip", kept)
    target.setEnabled(not reason)
    target.setToolTip(reason or str(kept))


def label(text: str = "", role: str = "", *, wrap: bool = False, selectable: bool = False) -> QLabel:
    """A text in one of the style sheet's roles: display, title, heading, muted, caption, mono, ok, warning, error."""
    result = QLabel(say(text))
    result.setTextFormat(Qt.TextFormat.PlainText)
    if role:
        result.setProperty("textRole", role)
    result.setWordWrap(wrap)
    if selectable:
        result.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return result


def button(text: str, on_click: Callable[[], object] | None = None, *, icon: str = "", hint: str = "") -> QPushButton:
    """An ordinary button. hint is its tooltip."""
    result = QPushButton(say(text))
    _prepare(result, on_click, icon, hint, "text")
    return result


def quiet_button(
    text: str, on_click: Callable[[], object] | None = None, *, icon: str = "", hint: str = ""
) -> QPushButton:
    """A button without border, for small actions. With no text, `hint` is also its name for screen readers."""
    result = QPushButton(say(text))
    result.setProperty("buttonRole", "quiet")
    _prepare(result, on_click, icon, hint, "muted")
    return result


def _prepare(target: QPushButton, on_click: Callable[[], object] | None, icon: str, hint: str, role: str) -> None:
    if not target.text():  # a name would outlive a text that changes, and the text is read where there is no name
        target.setAccessibleName(say(hint))
    target.setToolTip(say(hint))
    target.setAutoDefault(False)
    if icon:
        gap = ICON_GAP if target.text() else 0
        target.setIconSize(QSize(16 + gap, 16))
        set_icon(target, icon, role, gap)
    if on_click is not None:
        target.clicked.connect(lambda _checked=False: on_click())


def number_box(name: str, low: int, high: int, value: int, *, suffix: str = "", hint: str = "") -> QSpinBox:
    """A field for a whole number. name: what a screen reader says."""
    result = QSpinBox()
    result.setRange(low, high)
    result.setValue(value)
    result.setSuffix(say(suffix))
    result.setAccessibleName(say(name))
    result.setToolTip(say(hint or name))
    result.lineEdit().setTextMargins(SPACE_2, 0, 0, 0)  # a style sheet's padding does not reach this inner field
    return result


class PrimaryButton(QPushButton):
    """The accent button, at most one a page. Its focus ring lies inside, in the text's colour on the accent."""

    def __init__(
        self, text: str, on_click: Callable[[], object] | None = None, *, icon: str = "", hint: str = ""
    ) -> None:
        super().__init__(say(text))
        self.setProperty("buttonRole", "primary")
        _prepare(self, on_click, icon, hint, "on_accent")

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.hasFocus():
            with QPainter(self) as painter:
                painter.setRenderHint(QPainter.RenderHint.Antialiasing)
                painter.setPen(QPen(current().color("on_accent"), FOCUS_WIDTH))
                painter.drawRoundedRect(QRectF(self.rect()).adjusted(3, 3, -3, -3), RADIUS - 2, RADIUS - 2)


class Splitter(QSplitter):
    """Two parts and an empty gap between them that can be dragged."""

    def __init__(self, gap: int) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setChildrenCollapsible(False)
        self.setHandleWidth(gap)

    def createHandle(self) -> QSplitterHandle:
        return _Gap(self.orientation(), self)


class _Gap(QSplitterHandle):
    def paintEvent(self, _event: QPaintEvent) -> None:
        pass


class Card(QFrame):
    """A surface with one hairline border. Fill `body`; `add` appends a widget or a layout to it."""

    def __init__(self, title: str = "", parent: QWidget | None = None, *, horizontal: bool = False) -> None:
        super().__init__(parent)
        self.setProperty("frameRole", "card")
        outer = QVBoxLayout(self)
        outer.setContentsMargins(SPACE_4, SPACE_3, SPACE_4, SPACE_3)
        outer.setSpacing(SPACE_2)
        self.header = QHBoxLayout()
        self.header.setSpacing(SPACE_2)
        if title:
            self.header.addWidget(label(title, "heading"))
            self.header.addStretch(1)
            outer.addLayout(self.header)
            self.setAccessibleName(say(title))
        self.body: QBoxLayout = QHBoxLayout() if horizontal else QVBoxLayout()
        self.body.setSpacing(SPACE_2)
        outer.addLayout(self.body, 1)

    def add(self, item: QWidget | QBoxLayout, stretch: int = 0) -> None:
        if isinstance(item, QWidget):
            self.body.addWidget(item, stretch)
        else:
            self.body.addLayout(item, stretch)


class IconLabel(QLabel):
    """One icon as a picture that follows the theme; `size` in pixels."""

    def __init__(self, name: str, role: str = "muted", size: int = 16, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._name, self._role, self._size = name, role, size
        self.setFixedSize(size, size)
        themes().changed.connect(self._redraw)
        self._redraw()

    def set(self, name: str, role: str) -> None:
        self._name, self._role = name, role
        self._redraw()

    def _redraw(self, *_theme: object) -> None:
        ratio = self.devicePixelRatioF()
        picture = pixmap(self._name, getattr(current(), self._role), round(self._size * ratio))
        picture.setDevicePixelRatio(ratio)
        self.setPixmap(picture)


class EmptyState(QWidget):
    """What a page shows while it has nothing to show: its purpose in at most two sentences, and one button or none."""

    def __init__(
        self,
        title: str,
        sentence: str,
        button: QPushButton | None = None,
        *,
        icon: str = "",
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setAccessibleName(say(title))
        self.setAccessibleDescription(say(sentence))
        layout = QVBoxLayout(self)
        layout.setSpacing(SPACE_3)
        layout.addStretch(2)
        if icon:
            layout.addWidget(IconLabel(icon, "muted", DISPLAY + SPACE_3), 0, Qt.AlignmentFlag.AlignHCenter)
        heading = label(title, "title")
        text = label(sentence, "muted", wrap=True)
        text.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        text.setFixedWidth(460)
        layout.addWidget(heading, 0, Qt.AlignmentFlag.AlignHCenter)
        row = QHBoxLayout()  # an alignment flag would take the label's height for one line and cut the others off
        row.addStretch(1)
        row.addWidget(text)
        row.addStretch(1)
        layout.addLayout(row)
        self.button = button
        if button is not None:
            layout.addSpacing(SPACE_2)
            layout.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(3)
        layout.setContentsMargins(SPACE_6, SPACE_6, SPACE_6, SPACE_6)


def line() -> QFrame:
    """A hairline across."""
    result = QFrame()
    result.setProperty("frameRole", "line")
    result.setFixedHeight(1)
    return result
