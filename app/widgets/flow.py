"""A row of parts that breaks its line when there is no more room, as text does."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.theme import SPACE_1, SPACE_3


class FlowRow(QWidget):
    """As many lines as its parts need at its width. It sets its height itself: layouts that ask for a height by width
    take no notice of stretch factors."""

    def __init__(self, parent: QWidget | None = None, *, space: int = SPACE_3, whole: bool = False) -> None:
        """space: px between two parts of a line. whole: it is never narrower than its widest part."""
        super().__init__(parent)
        self._parts: list[QWidget] = []
        self._space, self._whole = space, whole
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(0)

    def set_parts(self, parts: Sequence[QWidget]) -> None:
        """Replace all parts; the old ones are deleted."""
        for part in self._parts:
            part.hide()
            part.deleteLater()
        self._parts = list(parts)
        for part in self._parts:
            part.setParent(self)
            part.show()
        self.place()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.place()

    def event(self, event: QEvent) -> bool:
        done = super().event(event)
        if event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Show, QEvent.Type.StyleChange):
            self.place()  # a part asks for another size, as all do once they are styled
        return done

    def sizeHint(self) -> QSize:
        return QSize(0, self.height())

    def set_line(self, width: int) -> None:
        """Beside other widgets: exactly this wide; 0: whatever there is."""
        policy = QSizePolicy.Policy.Fixed if width else QSizePolicy.Policy.Ignored
        self.setSizePolicy(policy, QSizePolicy.Policy.Fixed)
        self.setMinimumWidth(width)
        self.place()

    def whole_width(self) -> int:
        """Of all parts that are shown, in one line."""
        shown = [part.sizeHint().width() for part in self._parts if not part.isHidden()]
        return sum(shown) + self._space * max(len(shown) - 1, 0)

    def place(self) -> None:
        """Put the parts where they belong, after one of them has changed."""
        lines: list[list[QWidget]] = []
        x = 0
        for part in self._parts:
            if part.isHidden():
                continue
            width = part.sizeHint().width()
            if not lines or x + width > self.width():
                lines.append([])
                x = 0
            lines[-1].append(part)
            x += width + self._space
        if self._whole:
            self.setMinimumWidth(max((part.sizeHint().width() for line in lines for part in line), default=0))
        y = 0
        for line in lines:
            x, high = 0, max(part.sizeHint().height() for part in line)
            for part in line:
                size = part.sizeHint()
                part.setGeometry(x, y + (high - size.height()) // 2, size.width(), size.height())
                x += size.width() + self._space
            y += high + SPACE_1
        if max(y - SPACE_1, 0) != self.height():
            self.setFixedHeight(max(y - SPACE_1, 0))
