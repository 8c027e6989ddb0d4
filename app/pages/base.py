"""What the main window expects of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QAbstractButton, QWidget

from app.services import Services


class Page(QWidget):
    """One entry of the navigation.

    `key` names it in code, `title` on the screen, `icon` in resources/icons. A page lays itself out with PAGE_MARGIN
    around it and has at most one accent button, which `primary` returns and Ctrl+Enter presses. made: those of its
    `pieces` that exist already.
    """

    key = ""
    title = ""
    icon = ""

    def __init__(
        self, services: Services, parent: QWidget | None = None, made: Mapping[str, QWidget] | None = None
    ) -> None:
        super().__init__(parent)
        self.services = services
        self._made = dict(made or {})
        self.setProperty("frameRole", "page")
        self.setAccessibleName(f"{self.title} page")

    @classmethod
    def pieces(cls) -> Mapping[str, Callable[[], QWidget]]:
        """Large parts by name that can be made before the page, each in a turn of the event loop of its own."""
        return {}

    def piece(self, name: str) -> Any:
        """One of `pieces`, made now unless it exists already."""
        return self._made.pop(name, None) or self.pieces()[name]()

    def primary(self) -> QAbstractButton | None:
        """The page's accent button as it stands now, or None."""
        return None

    def parts(self) -> tuple[QWidget, ...]:
        """What is styled one after the other when the theme changes; several where one would take over 50 ms."""
        return (self,)

    def shown(self) -> None:
        """Called each time the page comes to the front."""

    def look_at(self, name: str) -> None:
        """Another page asks to show this tensor of the open model."""

    def help_page(self) -> str:
        """The guide's page about what is shown now; '' for the usual one of this page (app.help)."""
        return ""

    def take_drop(self, path: Path, place: QPoint) -> bool:
        """A file dropped on this page at `place`. False: the window opens it as a model."""
        return False
