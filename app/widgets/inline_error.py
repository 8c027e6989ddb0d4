"""An error told in place: what is wrong, what to do next, and the details for whoever asks."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from app.help import help_desk
from app.language import say
from app.theme import CAPTION, SPACE_2, SPACE_3, mono_font
from app.widgets.basics import IconLabel, label, quiet_button, set_role
from core.errors import UserError
from core.guide import INSIDE, address

WORDS_WIDTH = 360  # px from which 'Copy' has its word
MORE_WIDTH = 560  # px from which 'Read more' has its words


class InlineError(QFrame):
    """message and hint as text, 'Details', 'Copy' and 'Dismiss'. Hidden until `show_error` is called."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("frameRole", "banner")
        self.setAccessibleName("Error")
        self.message = label("", "error", wrap=True, selectable=True)
        self.hint = label("", "", wrap=True, selectable=True)
        self._icon = IconLabel("circle-x", "error")
        self._details = QPlainTextEdit()
        self._details.setReadOnly(True)
        self._details.setFont(mono_font(CAPTION))
        self._details.setAccessibleName("Details of the error")
        self._details.setFixedHeight(120)
        self._details.hide()
        self._details_button = quiet_button("Details", self._toggle_details, hint="Show what happened inside")
        copy = self._copy_button = quiet_button("Copy", self.copy, icon="copy", hint="Copy message and details")
        copy.setAccessibleName("Copy")
        self.more = quiet_button("Read more", self._read_more, icon="book-open", hint="What the guide says about this")
        self.more.setAccessibleName("Read more")
        self._topic = ""
        self._offered: Callable[[], object] | None = None
        self.action = quiet_button("", self._take_offer)
        self.action.hide()
        self._dismiss = quiet_button("", self.hide, icon="x", hint="Dismiss this message")

        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(self.message)
        words.addWidget(self.hint)
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(self._icon)
        row.addLayout(words, 1)
        row.addWidget(self.action)
        row.addWidget(self.more)
        row.addWidget(self._details_button)
        row.addWidget(copy)
        row.addWidget(self._dismiss)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        layout.addLayout(row)
        layout.addWidget(self._details)
        self.hide()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        for part, word, width in ((self._copy_button, "Copy", WORDS_WIDTH), (self.more, "Read more", MORE_WIDTH)):
            text = word if self.width() >= width else ""  # the sentences need the room more
            if part.text() != text:
                part.setText(text)

    def show_error(self, error: BaseException) -> None:
        """Show a UserError's two sentences; for any other exception say so plainly and keep the trace in Details."""
        if isinstance(error, UserError):
            message, hint, topic = error.message, error.hint, error.topic
        else:
            message = f"Something went wrong inside the program ({type(error).__name__})."
            hint = "Copy the details and report them; your files were not changed by this."
            topic = INSIDE
        self.show_text(message, hint, "".join(traceback.format_exception(error)), topic=topic)

    def show_text(
        self, message: str, hint: str = "", details: str = "", *, warning: bool = False, topic: str = ""
    ) -> None:
        """Show a sentence and a next step; `warning` shows it as one that does not stop anything.

        topic: the section about trouble that 'Read more' opens; '' opens their page, and for a warning there is none.
        """
        self._topic = topic
        self._offered = None
        self.action.hide()
        self.more.setVisible(bool(topic) or not warning)
        self.message.setText(message)
        self.hint.setText(hint)
        self.hint.setVisible(bool(hint))
        set_role(self.message, textRole="warning" if warning else "error")
        self._icon.set("triangle-alert" if warning else "circle-x", "warning" if warning else "error")
        self.setAccessibleName("Warning" if warning else "Error")
        self.setAccessibleDescription(f"{message} {hint}".strip())
        self._details.setPlainText(details)
        self._details_button.setVisible(bool(details))
        self._details.hide()
        self.show()

    def offer(self, text: str, hint: str, do: Callable[[], object]) -> None:
        """A button beside what is shown, which goes with it. hint: what it does."""
        self._offered = do
        self.action.setText(say(text))
        self.action.setToolTip(say(hint))
        self.action.setAccessibleName(say(text))
        self.action.show()

    def _take_offer(self) -> None:
        do = self._offered
        self.hide()
        if do is not None:
            do()

    @property
    def is_warning(self) -> bool:
        """Whether what is shown stops nothing."""
        return self.accessibleName() == "Warning"

    def set_dismissable(self, on: bool) -> None:
        self._dismiss.setVisible(on)

    def copy(self) -> None:
        """Message, hint and details to the clipboard."""
        parts = (self.message.text(), self.hint.text(), self._details.toPlainText())
        QGuiApplication.clipboard().setText("\n".join(part for part in parts if part))

    def _read_more(self) -> None:
        help_desk().asked.emit(address(self._topic))

    def _toggle_details(self) -> None:
        shown = self._details.isHidden()
        self._details.setVisible(shown)
        self._details_button.setText("Hide details" if shown else "Details")
