"""Whether this computer can do the work, line by line. Stands beside the window and stops nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QFrame, QGridLayout, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from app.services import Services
from app.theme import SPACE_2, SPACE_3, SPACE_4, themes
from app.widgets.basics import IconLabel, button, label, quiet_button, set_available
from app.widgets.inline_error import InlineError

if TYPE_CHECKING:
    from core.hardware.check import Check

ICONS = {"green": ("circle-check", "ok"), "amber": ("triangle-alert", "warning"), "red": ("circle-x", "error")}
WORDS = {"green": "well", "amber": "could be better", "red": "has to be mended"}


class SelfCheckDialog(QDialog):
    """`start` looks at the computer in the background and shows what it found. Esc closes it."""

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._services = services
        self.checks: list[Check] = []
        self.setWindowTitle("Self-check")
        self.setProperty("frameRole", "page")
        self.setModal(False)
        self.summary = label("", wrap=True)
        self.summary.setAccessibleName("Summary")
        self.error = InlineError()
        self.error.set_dismissable(False)
        self._scroll = QScrollArea()
        self._scroll.setWidgetResizable(True)
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setAccessibleName("What was checked")
        self.copy_button = button(
            "Copy report", self.copy, icon="copy", hint="Copy all lines; no user name, host name or path is in them"
        )
        self.again_button = quiet_button("Check again", self.start, icon="refresh-cw", hint="Look once more")
        row = QHBoxLayout()
        row.addWidget(self.again_button)
        row.addStretch(1)
        row.addWidget(self.copy_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        layout.setSpacing(SPACE_3)
        layout.addWidget(label("What this computer can do", "title"))
        layout.addWidget(self.summary)
        layout.addWidget(self.error)
        layout.addWidget(self._scroll, 1)
        layout.addLayout(row)
        self.resize(680, 600)
        themes().dress(self)

    def start(self) -> None:
        """Check, in the background."""
        self.summary.setText("Looking at this computer…")
        self.error.hide()
        for part in (self.copy_button, self.again_button):
            set_available(part, "The check is under way.")
        folder = self._services.settings.text("last/folder")
        self._services.jobs.run(
            "Self-check", lambda _token: _look(folder), self.show_checks, self.show_error,
            latest_key="self-check", owner=self,
        )  # fmt: skip

    def show_checks(self, checks: list[Check]) -> None:
        self.checks = checks
        counts = {state: sum(check.state == state for check in checks) for state in ICONS}
        parts = [f"{count} {WORDS[state]}" for state, count in counts.items() if count]
        self.summary.setText(f"{len(checks)} lines: {', '.join(parts)}. Nothing is sent anywhere.")
        lines = QWidget()
        grid = QGridLayout(lines)
        grid.setContentsMargins(0, 0, SPACE_2, 0)
        grid.setSpacing(SPACE_3)
        grid.setColumnStretch(1, 1)
        for row, check in enumerate(checks):
            icon = IconLabel(*ICONS[check.state])
            icon.setAccessibleName(f"{check.name}: {check.state}")
            words = QVBoxLayout()
            words.setSpacing(0)
            words.addWidget(label(check.name, "heading", wrap=True))
            words.addWidget(label(check.sentence, wrap=True, selectable=True))
            if check.remedy:
                words.addWidget(label(check.remedy, "muted", wrap=True, selectable=True))
            grid.addWidget(icon, row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addLayout(words, row, 1)
        grid.setRowStretch(len(checks), 1)
        self._scroll.setWidget(lines)
        themes().dress(lines)
        for part in (self.copy_button, self.again_button):
            set_available(part)

    def show_error(self, error: BaseException) -> None:
        self.summary.setText("")
        self.error.show_error(error)
        set_available(self.again_button)

    def copy(self) -> None:
        """The report to the clipboard, as `bitsmith check` prints it."""
        from core.hardware.check import report_text

        QGuiApplication.clipboard().setText(report_text(self.checks))


def _look(folder: str) -> list[Check]:
    from core.hardware.check import check_report

    return check_report(folder or None)
