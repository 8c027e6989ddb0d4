"""What the input doctor found, each in one sentence with a next step, and the button that looks at every value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QProgressBar, QScrollArea, QVBoxLayout, QWidget

from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import Card, button, label
from app.widgets.verdict import Verdict

# severity → (verdict state, word)
_SEVERITIES = {"error": ("error", "Problem"), "warning": ("warning", "Warning"), "info": ("info", "Note")}
_ORDER = ("error", "warning", "info")


class FindingsCard(Card):
    """`set_findings` fills the list. `scan_asked` and `cancel_asked` follow the buttons."""

    scan_asked = Signal()
    cancel_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Check", parent)
        self.scan = button(
            "Check every value", self.scan_asked.emit, icon="shield-check",
            hint="Reads the whole model in the background and looks for NaN, infinite and zero values",
        )  # fmt: skip
        self.cancel = button("Stop", self.cancel_asked.emit, icon="x", hint="Stop checking; what was found stays")
        self.header.addWidget(self.scan)
        self.header.addWidget(self.cancel)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setAccessibleName("Values checked")
        self.progress_text = label("", "muted")
        running = QHBoxLayout()
        running.setSpacing(SPACE_3)
        running.addWidget(self.progress, 1)
        running.addWidget(self.progress_text)
        self._list = QVBoxLayout()
        self._list.setSpacing(SPACE_3)
        self._list.setContentsMargins(0, 0, SPACE_2, 0)
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(0, 0, 0, 0)
        column.addLayout(self._list)
        column.addStretch(1)
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self._area.setWidget(inside)
        self._area.setAccessibleName("What the check found")
        self.add(running)
        self.body.addWidget(self._area, 1)
        self.show_scan(None)

    def set_findings(self, findings: Sequence[Any], checked: bool) -> None:
        """Worst first. checked: every value has been looked at, so that 'nothing found' says so."""
        while self._list.count():
            item = self._list.takeAt(0)
            item.widget().deleteLater()
        for finding in sorted(findings, key=lambda f: _ORDER.index(f.severity)):
            self._list.addWidget(_FindingRow(finding))
        if not findings:
            headers = "Names, sizes and settings are as they should be."
            self._list.addWidget(_Good("Every value has been looked at." if checked else headers))

    def show_scan(self, share: float | None, text: str = "") -> None:
        """Share done, 0…1, while the scan runs; None while it does not."""
        running = share is not None
        self.scan.setVisible(not running)
        self.cancel.setVisible(running)
        self.progress.setVisible(running)
        self.progress_text.setVisible(running or bool(text))
        self.progress_text.setText(text)
        if share is not None:
            self.progress.setRange(0, 1000)
            self.progress.setValue(round(1000 * share))


class _FindingRow(QWidget):
    def __init__(self, finding: Any) -> None:
        super().__init__()
        state, word = _SEVERITIES[finding.severity]
        layout = QVBoxLayout(self)  # beside it, names of tensors would have no room in a small window
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        layout.addWidget(Verdict(state, word))
        layout.addWidget(label(finding.message, wrap=True, selectable=True))
        if finding.hint:
            layout.addWidget(label(finding.hint, "muted", wrap=True, selectable=True))
        self.setAccessibleName(f"{word}: {finding.message} {finding.hint}".strip())


class _Good(QWidget):
    def __init__(self, sentence: str) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addWidget(Verdict("ok", "Nothing wrong"), 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(label(sentence, "muted", wrap=True), 1)
