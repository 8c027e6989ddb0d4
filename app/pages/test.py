"""The Test page. Says what it is for until tests of a result are part of the program."""

from __future__ import annotations

from PySide6.QtWidgets import QAbstractButton, QVBoxLayout, QWidget

from app.pages.base import Page
from app.services import Services
from app.widgets.basics import EmptyState, PrimaryButton


class TestPage(Page):
    """Will measure quality and speed of a converted model against its original."""

    __test__ = False  # a page, not a test case
    key = "test"
    title = "Test"
    icon = "flask-conical"

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(services, parent)
        self.go_on = PrimaryButton(
            "See conversions and their errors", lambda: services.shell.show_page.emit("convert"), icon="arrow-right"
        )
        layout = QVBoxLayout(self)
        layout.addWidget(
            EmptyState(
                "Test is not part of this version yet",
                "It will let the original and the converted model answer side by side, and measure speed, memory and "
                "quality. Until then the Convert page shows the error of each tensor after verification.",
                self.go_on,
                icon=self.icon,
            )
        )

    def primary(self) -> QAbstractButton:
        return self.go_on
