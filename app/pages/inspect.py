"""The Inspect page. Says what it is for until inspection is part of the program."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtWidgets import QAbstractButton, QVBoxLayout, QWidget

from app.pages.base import Page
from app.services import Services
from app.widgets.basics import EmptyState, PrimaryButton


class InspectPage(Page):
    """Will show where in a model the large and the sensitive weights are."""

    key = "inspect"
    title = "Inspect"
    icon = "search"

    def __init__(
        self, services: Services, parent: QWidget | None = None, made: Mapping[str, QWidget] | None = None
    ) -> None:
        super().__init__(services, parent, made)
        self.go_on = PrimaryButton(
            "See the model's tensors", lambda: services.shell.show_page.emit("model"), icon="arrow-right"
        )
        layout = QVBoxLayout(self)
        layout.addWidget(
            EmptyState(
                "Inspect is not part of this version yet",
                "It will show a tensor's weights as a heat map, rank its outlier channels and open single groups as "
                "codes. Until then the Model page lists all tensors, and the Recipe page shows the error of each.",
                self.go_on,
                icon=self.icon,
            )
        )

    def primary(self) -> QAbstractButton:
        return self.go_on
