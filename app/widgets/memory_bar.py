"""The memory bar: what the model needs on the chosen device, always in sight and exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QPen, QResizeEvent, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QHBoxLayout,
    QLabel,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.devices import DeviceChoice
from app.language import say
from app.memory_view import cache_of, cache_of_recipe, estimate_for, plan_caches, room_text
from app.services import Services
from app.session import Session
from app.theme import CAPTION, SPACE_1, SPACE_2, SPACE_3, SPACE_4, SPACE_6, current, ui_font
from app.widgets.basics import label, number_box
from app.widgets.cache_picker import HINT, NAME, CachePicker, NamedPicker
from app.widgets.memory_strip import MemoryStrip, segment_brush
from app.widgets.text import ElidedLabel, explain, term
from app.widgets.verdict import Verdict
from core.units import format_binary, format_bytes, format_count, format_decimal, format_tokens_per_second

if TYPE_CHECKING:
    from core.memory import MemoryEstimate

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
_NAMES = {  # shorter than core's labels, which stand in the tooltip
    "payload": "weights",
    "scales": "scales",
    "padding": "headers",
    "kept": "kept",
    "kv": "KV cache",
    "workspace": "work",
    "free": "free",
}


TITLES_WIDTH = 272  # px of "Device", "Context", "Batch", "Cache" and the margins around everything
MARGINS_WIDTH = 112  # of these the margins, which are left where the bar is below NARROW: tooltips have the words
DEVICE_WIDTH, NARROW_DEVICE, NARROW = 184, 128, 1000  # px of the device's name, also where the bar is below NARROW
LOW = 660  # px of a window's height below which a page needs the line about the cache more


def total_text(estimate: MemoryEstimate) -> str:
    """'7.70 GB of 24.00 GB (7.17 of 22.35 GiB)'; without a capacity '7.70 GB (7.17 GiB)'."""
    if estimate.capacity is None:
        return format_bytes(estimate.used)
    used, capacity = format_binary(estimate.used), format_binary(estimate.capacity)
    if used.split()[-1] == capacity.split()[-1]:
        used = used.split()[0]
    return f"{format_decimal(estimate.used)} of {format_decimal(estimate.capacity)} ({used} of {capacity})"


class MemoryBar(QFrame):
    """Device, context, batch and the cache's format choose what is asked for; the strip and the numbers follow from the
    session alone. `planner_asked`: all that can be chosen of the cache shall be shown."""

    planner_asked = Signal()

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._store = services.session
        self._choices: tuple[DeviceChoice, ...] = ()
        self._estimate: MemoryEstimate | None = None
        self._bound = ""  # tokens a second at most
        self.setProperty("frameRole", "bar")
        self.setAccessibleName("Memory")
        self._make_controls()
        self.strip = MemoryStrip()
        self.strip.setAccessibleName("Memory by use")
        self.total = ElidedLabel()
        self.total.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.verdict = Verdict()
        self.bound = label("", "caption")
        self.room = ElidedLabel(role="caption")
        self._legend = {key: _LegendEntry(key) for key in _NAMES}
        self._hint = label("", "caption")
        self._lay_out()
        self._store.changed.connect(self._on_session)
        self._fill_contexts(self._store.current)
        self.refresh()

    @property
    def estimate(self) -> MemoryEstimate | None:
        """What is shown now."""
        return self._estimate

    def set_devices(self, choices: Sequence[DeviceChoice]) -> None:
        """Fill the picker: this computer's devices first, then the others. Keeps the session's device when it is in."""
        self._choices = tuple(choices)
        model = QStandardItemModel(self.device)
        previous = None
        for number, choice in enumerate(self._choices):
            if choice.own != previous:
                heading = QStandardItem("This computer" if choice.own else "Other devices")
                heading.setEnabled(False)
                heading.setToolTip("Choose one of the devices below.")
                model.appendRow(heading)
                previous = choice.own
            size = f" · {format_decimal(choice.capacity)}" if choice.capacity is not None else ""
            item = QStandardItem(choice.label + size)
            item.setData(number, _NUMBER_ROLE)
            item.setData(choice.label, NAME)
            item.setToolTip(choice.note)
            model.appendRow(item)
        self.device.setPlaceholderText("Choose a device")
        self.device.blockSignals(True)
        self.device.setModel(model)
        self.device.blockSignals(False)
        self._show_device(self._store.current)

    def refresh(self) -> None:
        """Compute and show the present session's memory."""
        session = self._store.current
        self._estimate = estimate = estimate_for(session)
        self.strip.set_estimate(estimate)
        for entry in self._legend.values():
            entry.show_bytes(estimate)
        empty = estimate is None
        self._hint.setVisible(empty)
        self.verdict.setVisible(not empty)
        self.bound.setVisible(not empty)
        self._show_cache(session)
        if estimate is None:
            self.total.setText("")
            self._hint.setText(
                "Reading the model…" if session.opening else "The memory a model needs is shown here once one is open."
            )
            self.strip.setAccessibleDescription(self._hint.text())
            return
        self._show_verdict(estimate)
        self._fit()
        self.strip.setAccessibleDescription(self._describe(estimate))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()
        # And in a turn of its own: what is shown or hidden while the window lays itself out can keep its old place.
        QTimer.singleShot(0, self, self._fit)

    def _fit(self) -> None:
        """Leave words and sizes out where there is no room for all; tooltips have them."""
        narrow = self.width() < NARROW
        self.device.setMaximumWidth(NARROW_DEVICE if narrow else DEVICE_WIDTH)
        for title in self._titles:
            title.setVisible(not narrow)
        if self._estimate is None:
            return
        shown = [entry for entry in self._legend.values() if not entry.isHidden()]
        self.bound.setText(f"≤ {self._bound}" if narrow else f"at most {self._bound}")
        for entry in shown:
            entry.shorten(False)
        room = self.width() - 2 * SPACE_6 - (0 if self.bound.isHidden() else self.bound.sizeHint().width())
        if sum(entry.sizeHint().width() + SPACE_3 for entry in shown) > room:
            for entry in shown:
                entry.shorten(True)
        full = total_text(self._estimate)
        short = full.split(" (")[0]
        taken = sum(p.width() + SPACE_4 for p in (self.context, self.batch, self.cache))
        taken += self.device.maximumWidth() + self.verdict.sizeHint().width()
        taken += MARGINS_WIDTH if narrow else TITLES_WIDTH
        for text in (full, short, short.split(" of ")[0]):
            self.total.setText(text)
            if self.total.sizeHint().width() <= self.width() - taken:
                break
        for part in (*shown, self._lower):  # now: while other parts are laid out their requests can get lost
            part.layout().activate()
        self.total.setToolTip(full)
        self.room.setVisible(bool(self.room.text()) and self.window().height() >= LOW)

    def _show_verdict(self, estimate: MemoryEstimate) -> None:
        if estimate.fits is None:
            self.verdict.set("unknown", "no device chosen")
        elif estimate.fits:
            self.verdict.set("ok", "fits")
        else:
            self.verdict.set("error", f"{format_decimal(estimate.shortfall)} too much")
        self.bound.setVisible(estimate.decode is not None)
        if estimate.decode is not None:
            self._bound = format_tokens_per_second(estimate.decode.tokens_per_second)
            step = f"A step reads {format_bytes(estimate.decode.bytes_per_step)}."
            self.bound.setToolTip(f"{explain('decode bound')}\n{step}")

    def _show_cache(self, session: Session) -> None:
        scheme = cache_of(session)
        self.cache.show_scheme(scheme, cache_of_recipe(session), session.shape.head_dim if session.shape else 0)
        planned = plan_caches(session, (scheme,))
        self.room.setText(room_text(planned[0], session.context) if planned else "")
        self.room.setVisible(bool(planned))
        if planned:
            self.cache.setToolTip("\n".join((say(HINT), self.room.text())))

    def _describe(self, estimate: MemoryEstimate) -> str:
        parts = [f"{s.label} {format_bytes(s.bytes)}" for s in estimate.segments if s.bytes]
        return f"{total_text(estimate)}, {self.verdict.text}. {', '.join(parts)}."

    def _make_controls(self) -> None:
        self.device = NamedPicker()
        self.device.setAccessibleName("Target device")
        self.device.setMinimumWidth(120)
        self.device.setMaximumWidth(DEVICE_WIDTH)
        self.device.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.device.setMinimumContentsLength(20)
        self.device.setMaxVisibleItems(16)
        self.device.view().setMinimumWidth(300)
        self.device.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.device.setPlaceholderText("Looking for devices…")
        self.device.activated.connect(self._on_device)
        self.context = QComboBox()
        self.context.setAccessibleName("Context length in tokens")
        self.context.setToolTip("Tokens that one conversation may hold; the KV cache grows with it")
        self.context.setFixedWidth(132)
        self.context.activated.connect(self._on_context)
        self.batch = number_box(
            "Batch: sequences at the same time",
            1,
            512,
            self._store.current.batch,
            hint="Sequences that are answered at the same time; each has a KV cache of its own",
        )
        self.batch.setFixedWidth(64)
        self.batch.valueChanged.connect(lambda value: self._store.update(batch=value))
        self.cache = CachePicker()
        self.cache.setFixedWidth(116)
        self.cache.chosen.connect(self._on_cache)
        self.cache.planner_asked.connect(self.planner_asked)

    def _lay_out(self) -> None:
        upper = QHBoxLayout()
        upper.setSpacing(SPACE_2)
        titles = (("Device", ""), ("Context", ""), ("Batch", ""), ("cache format", "Cache"))
        controls = (self.device, self.context, self.batch, self.cache)
        self._titles: list[QLabel] = []
        for (word, text), control in zip(titles, controls, strict=True):
            name = term(word, text, "muted")
            name.setBuddy(control)
            self._titles.append(name)
            upper.addWidget(name)
            upper.addWidget(control)
            upper.addSpacing(SPACE_2)
        upper.addWidget(self.total, 1)
        upper.addSpacing(SPACE_1)
        upper.addWidget(self.verdict)
        legend = self._lower = QWidget()
        legend.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)  # cut off rather than widen a window
        lower = QHBoxLayout(legend)
        lower.setContentsMargins(0, 0, 0, 0)
        lower.setSpacing(SPACE_3)
        for entry in self._legend.values():
            lower.addWidget(entry)
        lower.addWidget(self._hint)
        lower.addStretch(1)
        lower.addWidget(self.bound)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_6, SPACE_2, SPACE_6, SPACE_3)
        layout.setSpacing(SPACE_2)
        layout.addLayout(upper)
        layout.addWidget(self.strip)
        layout.addWidget(legend)
        layout.addWidget(self.room)

    def _on_session(self, old: Session, new: Session) -> None:
        if new.shape is not old.shape or new.context != old.context:
            self._fill_contexts(new)
        if new.device is not old.device:
            self._show_device(new)
        if self.batch.value() != new.batch:
            self.batch.blockSignals(True)
            self.batch.setValue(new.batch)
            self.batch.blockSignals(False)
        self.refresh()

    def _fill_contexts(self, session: Session) -> None:
        longest = session.shape.context if session.shape is not None and session.shape.context else CONTEXTS[-1]
        values = sorted({c for c in CONTEXTS if c <= longest} | {longest, session.context})
        self.context.clear()
        for value in values:
            self.context.addItem(f"{format_count(value)} tokens", value)
        self.context.setCurrentIndex(values.index(session.context))

    def _show_device(self, session: Session) -> None:
        wanted = session.device.key if session.device is not None else None
        number = next((n for n, choice in enumerate(self._choices) if choice.key == wanted), None)
        self.device.setCurrentIndex(-1 if number is None else self._row_of(number))
        note = session.device.note if session.device is not None else ""
        self.device.setToolTip("\n".join(part for part in ("The device the result shall run on", note) if part))

    def _row_of(self, number: int) -> int:
        model = self.device.model()
        return next(row for row in range(model.rowCount()) if model.index(row, 0).data(_NUMBER_ROLE) == number)

    def _on_device(self, row: int) -> None:
        number = self.device.model().index(row, 0).data(_NUMBER_ROLE)
        if number is not None:
            self._store.update(device=self._choices[number])

    def _on_cache(self, text: str) -> None:
        self._store.update(cache="" if text == cache_of_recipe(self._store.current).text else text)

    def _on_context(self, row: int) -> None:
        tokens = self.context.itemData(row)
        self._store.update(context=tokens, wanted_context=tokens)


_NUMBER_ROLE = NAME + 1


class _Swatch(QWidget):
    """A small square filled as the segment is."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self.setFixedSize(10, 10)

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            theme = current()
            painter.fillRect(self.rect(), theme.color("surface"))
            painter.fillRect(self.rect(), segment_brush(self._key, theme))
            if self._key in ("free", "padding"):
                painter.setPen(QPen(theme.color("border"), 1))
                painter.drawRect(self.rect().adjusted(0, 0, -1, -1))


class _LegendEntry(QWidget):
    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self._size = ""
        self._text: QLabel = label()
        self._text.setFont(ui_font(CAPTION))
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1 + 2)
        layout.addWidget(_Swatch(key))
        layout.addWidget(self._text)

    def shorten(self, on: bool) -> None:
        """The name alone, or with its size."""
        self._text.setText(_NAMES[self._key] if on else f"{_NAMES[self._key]} {self._size}")

    def show_bytes(self, estimate: MemoryEstimate | None) -> None:
        segment = next((s for s in estimate.segments if s.key == self._key), None) if estimate else None
        self.setVisible(segment is not None and segment.bytes > 0)
        if segment is not None:
            self._size = format_decimal(segment.bytes)
            self.shorten(False)
            self._text.setProperty("term", segment.label)
            size = f"{segment.label}: {format_bytes(segment.bytes)}"
            self.setToolTip("\n".join(part for part in (size, explain(segment.label)) if part))
