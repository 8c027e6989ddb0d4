"""What a newcomer sees first: three ways to a model, and what this computer can run."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRectF, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.devices import DeviceChoice
from app.theme import RADIUS, SPACE_1, SPACE_2, SPACE_3, SPACE_4, current
from app.widgets.basics import IconLabel, label
from app.widgets.flow import FlowRow

TITLE = "Make a language model fit your computer"
PURPOSE = (
    "Bitsmith stores a model's numbers in fewer bits, and shows what each choice costs. Drop a model anywhere on this "
    "window, or begin with one of these."
)
PROMISE = "No account, no telemetry. The network is used only for downloads that you ask for."


class DropArea(QFrame):
    """A dashed outline that says where to drop; the whole window takes drops, so it takes none itself."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Drop a model here")

    def event(self, event: QEvent) -> bool:
        done = super().event(event)
        if event.type() in (QEvent.Type.LayoutRequest, QEvent.Type.Resize) and self.layout() is not None:
            self.setMinimumHeight(self.layout().totalHeightForWidth(self.width()))  # sentences need their lines
        return done

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(current().color("border"), 1.5, Qt.PenStyle.DashLine))
            painter.setBrush(current().color("surface"))
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), RADIUS, RADIUS)


class Way(QWidget):
    """One way to a model: its name, a sentence, and the buttons that go it."""

    def __init__(self, icon: str, title: str, sentence: str, buttons: Sequence[QPushButton]) -> None:
        super().__init__()
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(IconLabel(icon, "accent", 20))
        head.addWidget(label(title, "heading", wrap=True), 1)
        row = FlowRow(space=SPACE_2, whole=True)  # where two have no room side by side, one stands under the other
        row.set_parts(buttons)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(head)
        layout.addWidget(label(sentence, "muted", wrap=True), 1, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(row)


class ThisComputer(QWidget):
    """What the computer is and can run; `show_devices` when that is known."""

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("This computer")
        self.rows: dict[str, tuple[IconLabel, QLabel]] = {}
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE_2)
        grid.setVerticalSpacing(SPACE_1)
        grid.setColumnStretch(1, 1)
        icons = {"largest": "gauge", "parts": "cpu"}
        for number, (key, icon) in enumerate(icons.items()):
            words = label("", "" if key == "largest" else "muted", wrap=True, selectable=True)
            self.rows[key] = IconLabel(icon, "accent" if key == "largest" else "muted"), words
            grid.addWidget(self.rows[key][0], number, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(words, number, 1)
        self._show("largest", "Looking at this computer…")
        self._show("parts", "")

    def show_devices(self, choices: Sequence[DeviceChoice]) -> None:
        """choices: as the device picker has them; those of this computer count."""
        from core.hardware.words import ability

        own = [choice.device for choice in choices if choice.own and choice.device is not None]
        if not own:
            self._show("largest", "What this computer can run is not known.")
            return
        found = ability(own)
        self._show("largest", found.largest)
        graphics = found.graphics or "no graphics card that models could use, and none is needed"
        self._show("parts", f"{found.processor}; {found.memory}; {graphics}.")

    def _show(self, key: str, text: str) -> None:
        icon, words = self.rows[key]
        words.setText(text)
        for part in (icon, words):
            part.setVisible(bool(text))


def drop_area(ways: Sequence[Way], below: QWidget, computer: ThisComputer) -> DropArea:
    """All of it inside the dashed outline. below: stands under the ways."""
    area = DropArea()
    column = QVBoxLayout(area)
    column.setContentsMargins(SPACE_4 + SPACE_1, SPACE_4, SPACE_4 + SPACE_1, SPACE_3)
    column.setSpacing(SPACE_2)
    column.addWidget(label(TITLE, "title"))
    column.addWidget(label(PURPOSE, "muted", wrap=True))
    column.addStretch(1)
    row = QHBoxLayout()
    row.setSpacing(SPACE_4 + SPACE_2)
    for way in ways:
        row.addWidget(way, 1)
    column.addLayout(row)
    column.addWidget(below)
    column.addStretch(1)
    line = QFrame()
    line.setProperty("frameRole", "line")
    line.setFixedHeight(1)
    column.addWidget(line)
    column.addWidget(computer)
    promise = QHBoxLayout()
    promise.setSpacing(SPACE_2)
    promise.addWidget(IconLabel("shield-check", "ok"))
    promise.addWidget(label(PROMISE, "muted", wrap=True), 1)
    column.addLayout(promise)
    return area
