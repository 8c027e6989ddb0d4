"""The calibration text, to be read before it is used. Stands beside the window and stops nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QDialog, QPlainTextEdit, QVBoxLayout, QWidget

from app.theme import SPACE_3, SPACE_4, themes
from app.widgets.basics import label
from app.widgets.inline_error import InlineError
from core import units

if TYPE_CHECKING:
    from core.calibration.text import Samples

WORKING = "Choosing the passages…"


class CalibrationTextDialog(QDialog):
    """`show_working`, `show_samples` or `show_error`: one of them is what it says. Esc closes it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Calibration text")
        self.setProperty("frameRole", "page")
        self.setModal(False)
        self.settings = label("", wrap=True)
        self.settings.setAccessibleName("How much of which text")
        self.shares = label("", "muted", wrap=True)
        self.shares.setAccessibleName("What the text consists of")
        self.warnings = label("", "warning", wrap=True)
        self.warnings.setAccessibleName("Warnings about the text")
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setTabChangesFocus(True)
        self.text.setAccessibleName("Beginnings of the first samples")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_4, SPACE_4, SPACE_4, SPACE_4)
        layout.setSpacing(SPACE_3)
        layout.addWidget(label("What is sent through the model", "title"))
        for part in (self.settings, self.shares, self.warnings, self.error):
            layout.addWidget(part)
        layout.addWidget(self.text, 1)
        self.resize(640, 560)
        themes().dress(self)
        self.show_working("")

    def show_working(self, settings: str) -> None:
        """settings: in words, which text is asked for; what was shown of another one goes."""
        self.settings.setText(settings)
        self._say(WORKING)
        self.text.setPlainText("")
        self.text.show()
        self.error.hide()

    def show_samples(self, samples: Samples, shares: str) -> None:
        """shares: what it consists of, in words."""
        self._say(f"Consists of {shares}.", samples.warnings)
        shown, count = len(samples.preview), units.format_count(len(samples.ids))
        parts = [f"[Sample {i} of {count}]\n{text} […]" for i, text in enumerate(samples.preview, 1)]
        more = "" if shown >= len(samples.ids) else "\n\n[The others are like these.]"
        self.text.setPlainText("\n\n".join(parts) + more)
        self.text.show()
        self.error.hide()

    def show_error(self, error: BaseException) -> None:
        """There is no such text, or it can not be used."""
        self._say("")
        self.text.hide()
        self.error.show_error(error)

    def _say(self, shares: str, warnings: tuple[str, ...] = ()) -> None:
        self.shares.setText(shares)
        self.shares.setVisible(bool(shares))
        self.warnings.setText("\n".join(f"Warning: {text}" for text in warnings))
        self.warnings.setVisible(bool(warnings))
