"""The head of one column: which file, whether it is loaded, and how far loading is."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QProgressBar, QSizePolicy, QSpacerItem, QVBoxLayout, QWidget

from app.jobs.testing_bench import CPU, Bench, Slot, SlotState
from app.pages.test.device_memory import DeviceMemoryBar
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import button, label, set_available
from app.widgets.calm import CalmCombo
from app.widgets.text import ElidedLabel, explain
from app.widgets.verdict import Verdict
from core import units
from core.errors import UserError

PROGRESS_STEPS = 1000
WORDS_WIDTH = 400  # px from which every button has its word …
NAME_WIDTH = 340  # … and the file's name has room beside them
MINIMUM = QSizePolicy.Policy.Minimum
LOOKS = {  # state → (verdict, word)
    SlotState.EMPTY: ("unknown", "no file"),
    SlotState.CHOSEN: ("unknown", "not loaded"),
    SlotState.LOADING: ("running", "loading"),
    SlotState.LOADED: ("ok", "loaded"),
    SlotState.FAILED: ("failed", "failed"),
}
SAME_HINT = "Take the other column's file here, too: on another device, both are compared logit by logit"
BUSY = "Wait until the running work has ended, or cancel it."


class FileColumn(QFrame):
    """`choose_asked`, `load_asked`, `unload_asked` and `same_asked` follow the buttons, `place_asked` the device."""

    choose_asked = Signal(int)
    load_asked = Signal(int)
    unload_asked = Signal(int)
    place_asked = Signal(int, str)
    same_asked = Signal(int)

    def __init__(self, slot: Slot, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._slot = slot
        self._loads = True
        self.setProperty("frameRole", "card")
        self.setAccessibleName(f"{slot.title} file")
        name = label(slot.title, "heading")
        self.file = ElidedLabel(mono=True)
        self.choose = button(
            "Choose…", lambda: self.choose_asked.emit(slot.side), icon="folder-open",
            hint=f"Choose the {slot.title.lower()} file; a drop on this column does the same",
        )  # fmt: skip
        self.choose.setAccessibleName(f"Choose the {slot.title.lower()} file")
        self.load = button("Load", self._toggle)
        self.verdict = Verdict()
        self.text = ElidedLabel(role="muted")
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName(f"Loading of the {slot.title.lower()} file")
        self.bar.setFixedWidth(120)
        self.device = CalmCombo()
        self.device.setAccessibleName(f"Device of the {slot.title.lower()} file")
        self.device.setToolTip(explain("device"))
        self.device.addItem("CPU", CPU)
        self.device.activated.connect(lambda _row: self.place_asked.emit(slot.side, self.device.currentData()))
        self.same = button("Same file", lambda: self.same_asked.emit(slot.side), hint=SAME_HINT)
        self.same.setAccessibleName(f"Take the other column's file for the {slot.title.lower()} file, too")
        self.same.hide()
        self.vram = DeviceMemoryBar(slot)
        self.vram.hide()
        keep = self.bar.sizePolicy()
        keep.setRetainSizeWhenHidden(False)
        self.bar.setSizePolicy(keep)
        self._wide = True
        first = self._first = QHBoxLayout()
        first.setSpacing(SPACE_2)
        first.addWidget(name)
        first.addWidget(self.file, 1)
        self._stretch = QSpacerItem(0, 0, MINIMUM, MINIMUM)
        first.addItem(self._stretch)
        first.addWidget(self.choose)
        first.addWidget(self.load)
        second = QHBoxLayout()
        second.setSpacing(SPACE_2)
        second.addWidget(self.verdict)
        second.addWidget(self.text, 1)
        second.addWidget(self.bar, 0, Qt.AlignmentFlag.AlignVCenter)
        second.addWidget(self.same)
        second.addWidget(self.device)
        layout = self._column = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        layout.setSpacing(SPACE_1)
        layout.addLayout(first)
        layout.addLayout(second)
        layout.addWidget(self.vram)
        layout.addStretch(1)  # beside a column that has more to say

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        wide = self.width() >= NAME_WIDTH
        if wide != self._wide:
            self._wide = wide
            (self._column if wide else self._first).removeWidget(self.file)
            if wide:
                self._first.insertWidget(1, self.file, 1)
            else:
                self._column.insertWidget(1, self.file)  # a line of its own, or there would be nothing to read
            self._stretch.changeSize(0, 0, MINIMUM if wide else QSizePolicy.Policy.Expanding, MINIMUM)
            self.bar.setFixedWidth(120 if wide else 48)
        text = "Choose…" if self.width() >= WORDS_WIDTH else ""
        if self.choose.text() != text:
            self.choose.setText(text)

    def set_loads(self, on: bool) -> None:
        """Off where the view reads files by itself, so that there is nothing to be loaded beforehand."""
        self._loads = on
        self.load.setVisible(on)

    def show_devices(self, bench: Bench) -> None:
        """The processor, and the GPUs that there are; with none, why."""
        found = bench.devices
        self.device.clear()
        self.device.addItem("CPU", CPU)
        for name, title in found.gpus if found is not None else ():
            self.device.addItem(name.upper().replace(":0", "").replace(":", " "), name)
            self.device.setItemData(self.device.count() - 1, title, Qt.ItemDataRole.ToolTipRole)
        self.refresh(bench)

    def _refresh_device(self, bench: Bench) -> None:
        slot, found = self._slot, bench.devices
        self.device.setCurrentIndex(max(self.device.findData(slot.device), 0))
        why = "Looking for GPUs…" if found is None else ""
        if found is not None and not found.gpus:
            why = f"It runs on the processor: {found.reason or 'no GPU is at hand'}. {found.remedy}".rstrip()
        set_available(self.device, why or (BUSY if bench.busy else ""))
        other = bench.slots[1 - slot.side]
        several = found is not None and bool(found.gpus) and slot.side == 1
        self.same.setVisible(several and other.path is not None and other.path != slot.path)
        set_available(self.same, BUSY if bench.busy else "")
        self.vram.show_memory(slot.memory)

    def refresh(self, bench: Bench) -> None:
        """Show the slot as it is now."""
        slot = self._slot
        self._refresh_device(bench)
        self.file.setText(slot.path.name if slot.path else "")
        self.file.setToolTip(str(slot.path) if slot.path else "")
        state, word = LOOKS[slot.state]
        if slot.waiting and slot.state is SlotState.LOADED:
            state, word = "queued", "waiting"
        if slot.state is SlotState.CHOSEN and not self._loads:
            state, word = ("running", "measuring") if bench.busy else ("unknown", "chosen")
        if slot.error is not None:
            state, word = "failed", "failed"
        self.verdict.set(state, word)
        self.text.setText(self._sentence(bench))
        loading = slot.state is SlotState.LOADING
        self.bar.setVisible(loading)
        known = loading and slot.share >= 0
        self.bar.setRange(0, PROGRESS_STEPS if known or not loading else 0)
        if known:
            self.bar.setValue(round(PROGRESS_STEPS * slot.share))
        loaded = slot.model is not None
        self.load.setText("Unload" if loaded else "Load")
        self.load.setAccessibleName(f"{self.load.text()} the {slot.title.lower()} file")
        why = BUSY if bench.busy else "" if slot.path else "Choose a file first."
        self.load.setProperty("ownToolTip", "Give its memory back" if loaded else "Read the file into memory")
        set_available(self.load, why)
        set_available(self.choose, BUSY if bench.busy else "")
        self.setAccessibleDescription(f"{self.file.text()}, {word}. {self.text.text()}")

    def _sentence(self, bench: Bench) -> str:
        slot = self._slot
        if slot.error is not None:
            error = slot.error
            return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        match slot.state:
            case SlotState.EMPTY:
                return "Choose a file, or drop one here."
            case SlotState.CHOSEN:
                return "Generate loads it by itself." if self._loads else ""
            case SlotState.LOADING:
                return f"{units.format_percent(slot.share, 0)} packed" if slot.share >= 0 else "reading its header"
            case _:
                held = f"holds {units.format_decimal(slot.model.nbytes)}" if slot.model is not None else ""
                if slot.model is not None and slot.model.cache != "F16":
                    held = f"cache {slot.model.cache} · {held}"
                if slot.waiting:
                    return "answers when the other one has: together they would disturb each other's times"
                return " · ".join(part for part in (slot.model.summary if slot.model else "", held) if part)

    def _toggle(self) -> None:
        (self.unload_asked if self._slot.model is not None else self.load_asked).emit(self._slot.side)
