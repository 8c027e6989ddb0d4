"""The Convert page."""

from __future__ import annotations

from PySide6.QtWidgets import QAbstractButton, QVBoxLayout, QWidget

from app.pages.base import Page
from app.services import Services
from app.widgets.basics import EmptyState, PrimaryButton


class ConvertPage(Page):
    """The Convert page while no model is open."""

    key = "convert"
    title = "Convert"
    icon = "play"

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(services, parent)
        self._button = PrimaryButton("Open a model", services.shell.choose_file.emit, icon="folder-open")
        layout = QVBoxLayout(self)
        layout.addWidget(EmptyState("No model is open", "Drop a model folder or file here.", self._button, icon="play"))

    def primary(self) -> QAbstractButton | None:
        return self._button
