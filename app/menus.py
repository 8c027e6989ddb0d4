"""The menu bar, made from the list of actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMainWindow, QMenu

from app.actions import ACTIONS
from app.language import say
from app.settings import Settings
from app.widgets.basics import set_available


def build_menus(window: QMainWindow, actions: dict[str, QAction]) -> dict[str, QMenu]:
    """A menu for each title that actions name, and 'Open recent', by title."""
    menus: dict[str, QMenu] = {}
    groups: dict[str, QActionGroup] = {}
    last_group: dict[str, str] = {}
    for spec in ACTIONS:
        menu = menus.get(spec.menu)
        if menu is None:
            menu = menus[spec.menu] = window.menuBar().addMenu(say(spec.menu))
            menu.setToolTipsVisible(True)
        elif last_group.get(spec.menu) != spec.group or spec.key in ("settings", "quit"):
            menu.addSeparator()
        last_group[spec.menu] = spec.group
        if spec.group:
            groups.setdefault(spec.group, QActionGroup(window)).addAction(actions[spec.key])
        menu.addAction(actions[spec.key])
        if spec.key == "open_folder":
            recent = menus[RECENT] = menu.addMenu(say(RECENT))
            recent.setToolTipsVisible(True)
    return menus


RECENT = "Open recent"


def fill_recent(menu: QMenu, settings: Settings, open_path: Callable[[Path], object]) -> None:
    """The models opened last, or a line that says that there is none."""
    menu.clear()
    for path in settings.recent:
        action = QAction(path.name, menu)
        action.setToolTip(str(path))
        action.triggered.connect(lambda _checked=False, path=path: open_path(path))
        menu.addAction(action)
    if menu.isEmpty():
        action = QAction("Nothing opened yet", menu)
        set_available(action, "Models that you open are listed here.")
        menu.addAction(action)
