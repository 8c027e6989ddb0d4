"""Which page of the guide is about what is on the screen, and how any part of the window asks for one."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QTabBar, QWidget

# Key of a page of the window → page of the guide.
PAGES = {
    "model": "first-conversion",
    "recipe": "formats",
    "convert": "converting",
    "inspect": "outliers",
    "test": "speed",
}
# The same by the title of the tab in front, where another page of the guide is nearer.
TABS = {
    ("recipe", "Method"): "methods",
    ("recipe", "Keep"): "formats#exceptions",
    ("recipe", "Rules"): "formats#exceptions",
    ("recipe", "Numbers"): "runtimes",
    ("recipe", "Size"): "budget",
    ("inspect", "Compare"): "outliers#compare-two-files",
    ("inspect", "Activations"): "outliers#activations",
    ("inspect", "Cache"): "cache#what-stands-out",
    ("test", "Quality"): "quality",
    ("test", "Sweep"): "speed#the-batch-sweep",
    ("test", "Cache"): "cache#what-it-costs",
}


class HelpDesk(QObject):
    """`asked(address)`: show this page of the guide, such as 'formats' or 'trouble#output'."""

    asked = Signal(str)


def page_for(page: QWidget, key: str) -> str:
    """The address of what the guide says about the window's page as it stands now."""
    shown = (bar.tabText(bar.currentIndex()) for bar in page.findChildren(QTabBar) if bar.isVisible())
    return next((TABS[key, title] for title in shown if (key, title) in TABS), PAGES[key])


_desk: HelpDesk | None = None


def help_desk() -> HelpDesk:
    """The program's one help desk. The window listens, whatever asks."""
    global _desk
    if _desk is None:
        _desk = HelpDesk()
    return _desk
