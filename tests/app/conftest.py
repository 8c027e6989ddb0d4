"""Fixtures of the window's tests: settings of their own, and a runner that must end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from tiny_models import write_llama

from app.bootstrap import build_services
from app.services import Services
from app.settings import Settings


@pytest.fixture
def services(qapp: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """Shared parts with empty settings, in light colours; every thread must have ended afterwards."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what is measured stays in the test
    settings = Settings(tmp_path / "settings.ini")
    settings.theme = "light"
    made = build_services(settings)
    yield made
    assert made.jobs.shutdown(5.0), "a job did not end"


@pytest.fixture
def window(services: Services, qtbot):  # type: ignore[no-untyped-def]
    """The whole window at 1100 × 700, every page built."""
    from app.main_window import PAGES, MainWindow

    made = MainWindow(services)
    qtbot.addWidget(made)
    made.resize(1100, 700)
    with qtbot.waitExposed(made):
        made.show()
    for key in PAGES:
        made.page(key)
    return made


@pytest.fixture
def loaded(window, tmp_path: Path, qtbot):  # type: ignore[no-untyped-def]
    """The whole window with a tiny model open and planned, and no job left."""
    folder = tmp_path / "tiny"
    write_llama(folder)
    window.open_path(folder)
    session = window.services.session
    qtbot.waitUntil(lambda: session.current.plan is not None, timeout=20_000)
    qtbot.waitUntil(lambda: not window.services.jobs.jobs(), timeout=20_000)
    return window
