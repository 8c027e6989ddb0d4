"""The window's self-check: opened from the menu, filled in the background, copied without names."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication
from window_help import LONG, click

from app.dialogs.self_check import SelfCheckDialog
from core.hardware.check import Check

pytestmark = pytest.mark.gui


def test_the_menu_opens_it_and_the_report_names_nobody(window, qtbot, tmp_path: Path, monkeypatch) -> None:
    home = tmp_path / "Jörg Karl Müller"
    home.mkdir()
    for key, value in {"HOME": str(home), "USERPROFILE": str(home), "USER": "jörg müller"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(platform, "node", lambda: "müllers-pc")
    window.services.settings.set_text("last/folder", str(home))
    window.actions_by_key["self_check"].trigger()
    dialog = window.findChild(SelfCheckDialog)
    assert dialog.isVisible()
    assert not dialog.copy_button.isEnabled()
    qtbot.waitUntil(lambda: bool(dialog.checks), timeout=LONG)
    click(qtbot, dialog.copy_button)
    text = QGuiApplication.clipboard().text()
    assert "Output folder: Can be written to" in text
    for word in ("jörg", "karl", "müller", str(home).lower(), str(tmp_path)):
        assert word not in text.lower()
    assert window.self_check() is dialog  # one is enough
    qtbot.waitUntil(dialog.copy_button.isEnabled, timeout=LONG)


def test_each_state_has_its_icon_and_its_count(services, qtbot) -> None:
    dialog = SelfCheckDialog(services)
    qtbot.addWidget(dialog)
    dialog.show_checks(
        [
            Check("Python", "green", "Python is here."),
            Check("Memory", "amber", "Little is free.", "Close other programs."),
            Check("Output folder", "red", "It can not be written to.", "Choose another folder."),
        ]
    )
    assert dialog.summary.text().startswith("3 lines: 1 well, 1 could be better, 1 has to be mended.")
    dialog.show_error(ValueError("odd"))
    assert not dialog.error.isHidden()
    assert dialog.again_button.isEnabled()
