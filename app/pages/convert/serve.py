"""How the file that has just been written is run: a command for each runtime that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QVBoxLayout, QWidget

from app.theme import SPACE_1, SPACE_2
from app.widgets.basics import button, label
from app.widgets.calm import CalmCombo
from app.widgets.text import ElidedLabel
from core.serving import Command


class ServeRow(QWidget):
    """`show_commands`; one runtime is chosen, its command is shown in one line and copied as a whole."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._commands: tuple[Command, ...] = ()
        self.runtime = CalmCombo()
        self.runtime.setAccessibleName("Runtime to run the result with")
        self.runtime.setToolTip("The program that shall run the result")
        self.runtime.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.command = ElidedLabel(mono=True)
        self.copy = button("Copy", self._copy, icon="terminal", hint="Copy the command that runs the result")
        self.copy.setAccessibleName("Copy the command that runs the result")
        self.note = label("", "muted", wrap=True, selectable=True)
        first = QHBoxLayout()
        first.setSpacing(SPACE_2)
        first.addWidget(label("Run it with", "muted"))
        first.addWidget(self.runtime)
        first.addWidget(self.command, 1)
        first.addWidget(self.copy)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1)
        layout.addLayout(first)
        layout.addWidget(self.note)
        self.runtime.activated.connect(self._show)
        self.hide()

    def show_commands(self, commands: Sequence[Command]) -> None:
        """The first is chosen. The row is hidden where there are none."""
        if tuple(commands) == self._commands:
            return
        self._commands = tuple(commands)
        self.runtime.clear()
        self.runtime.addItems([command.runtime for command in self._commands])
        self.setVisible(bool(self._commands))
        if self._commands:
            self._show(0)

    def _show(self, row: int) -> None:
        command = self._commands[row]
        self.command.setText("; ".join(command.text.splitlines()))
        self.command.setToolTip(command.text)
        self.note.setText(command.note)
        self.note.setVisible(bool(command.note))

    def _copy(self) -> None:
        if self._commands:
            QGuiApplication.clipboard().setText(self._commands[self.runtime.currentIndex()].text)
