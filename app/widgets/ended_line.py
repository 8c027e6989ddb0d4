"""One quiet line after a run that ended unexpectedly: where the report lies, and the way to go on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from PySide6.QtWidgets import QFrame, QHBoxLayout, QWidget

from app.jobs.reveal import reveal
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import IconLabel, label, quiet_button
from app.widgets.text import breakable
from core import privacy


class EndedLine(QFrame):
    """report: None where none could be written. names, resume: conversions that can go on, and what starts them."""

    def __init__(
        self, report: Path | None, names: list[str], resume: Callable[[], object], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setProperty("frameRole", "banner")
        text = "Bitsmith ended unexpectedly last time."
        if report is not None:
            text += f" A report lies in {privacy.shorten_home(str(report.parent))}; nothing is sent anywhere."
        if names:
            text += f" {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "") + " can be resumed."
        self.text = label(breakable(text).replace(os.sep, f"{os.sep}\u200b"), wrap=True, selectable=True)
        self.text.setToolTip(privacy.shorten_home(str(report)) if report is not None else "")
        self.setAccessibleName("The last run ended unexpectedly")
        self.setAccessibleDescription(text)
        self._resume, self._report = resume, report
        self.resume_button = quiet_button(
            "Resume", self._go_on, icon="play", hint="Go on with the conversion from where it stood"
        )
        self.resume_button.setVisible(bool(names))
        self.report_button = quiet_button(
            "Show report", self._show_report, icon="folder-open", hint="Open the folder of the report"
        )
        self.report_button.setVisible(report is not None)
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        row.setSpacing(SPACE_2)
        row.addWidget(IconLabel("info", "muted"))
        row.addWidget(self.text, 1)
        row.addWidget(self.resume_button)
        row.addWidget(self.report_button)
        row.addWidget(quiet_button("", self.hide, icon="x", hint="Dismiss this message"))

    def _show_report(self) -> None:
        if self._report is not None:
            reveal(self._report)

    def _go_on(self) -> None:
        self.hide()
        self._resume()
