"""The dialogs that stand beside the window and stop nothing: one of each, made when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from PySide6.QtWidgets import QDialog

if TYPE_CHECKING:
    from app.dialogs.cache import CacheDialog
    from app.dialogs.guide import GuideDialog
    from app.dialogs.self_check import SelfCheckDialog
    from app.dialogs.settings import SettingsDialog
    from app.main_window import MainWindow

Kind = TypeVar("Kind", bound=QDialog)


def self_check(window: MainWindow) -> SelfCheckDialog:
    """Whether this computer can do the work."""
    from app.dialogs.self_check import SelfCheckDialog

    dialog = window.findChild(SelfCheckDialog) or SelfCheckDialog(window.services, window)
    dialog.start()
    return _to_front(dialog)


def show_settings(window: MainWindow) -> SettingsDialog:
    """What can be set."""
    from app.dialogs.settings import SettingsDialog

    dialog = window.findChild(SettingsDialog) or SettingsDialog(window.services, window)
    dialog.refresh()
    return _to_front(dialog)


def plan_cache(window: MainWindow) -> CacheDialog:
    """What keys and values are kept in."""
    from app.dialogs.cache import CacheDialog

    dialog = window.findChild(CacheDialog) or CacheDialog(window.services, window)
    dialog.show_session(window.services.session.current)
    return _to_front(dialog)


def show_guide(window: MainWindow, address: str) -> GuideDialog:
    """The guide at a page or section, such as 'trouble#output'."""
    from app.dialogs.guide import GuideDialog

    dialog = window.findChild(GuideDialog) or GuideDialog(window)
    dialog.show_address(address)
    return _to_front(dialog)


def _to_front(dialog: Kind) -> Kind:
    dialog.show()
    dialog.raise_()
    dialog.activateWindow()
    return dialog
