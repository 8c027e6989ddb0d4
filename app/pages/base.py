"""What the main window expects of a page."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QAbstractButton, QWidget

from app.services import Services


class Page(QWidget):
    """One entry of the navigation.

    `key` names it in code, `title` on the screen, `icon` in resources/icons. A page lays itself out with PAGE_MARGIN
    around it and has at most one accent button, which `primary` returns and Ctrl+Enter presses.
    """

    key = ""
    title = ""
    icon = ""

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.services = services
        self.setProperty("frameRole", "page")
        self.setAccessibleName(f"{self.title} page")

    def primary(self) -> QAbstractButton | None:
        """The page's accent button as it stands now, or None."""
        return None

    def parts(self) -> tuple[QWidget, ...]:
        """What is styled one after the other when the theme changes; several where one would take over 50 ms."""
        return (self,)

    def shown(self) -> None:
        """Called each time the page comes to the front."""

    def take_drop(self, path: Path, place: QPoint) -> bool:
        """A file dropped on this page at `place`. False: the window opens it as a model."""
        return False
