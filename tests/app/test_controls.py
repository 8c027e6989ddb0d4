"""What an installed program tells those who try it with a mouse: packaging/clicks.py finds each of its steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget
from window_help import LONG

from app.controls import controls, tell

sys.path.append(str(Path(__file__).parents[2] / "packaging"))
from clicks import STEPS, Click, find

pytestmark = pytest.mark.gui


def step(control: str) -> Click:
    return next(s for s in STEPS if s.control == control)


def click_at(window: QWidget, place: tuple[int, int] | None) -> None:
    """As a mouse would: on whatever lies there."""
    assert place is not None
    inside = window.mapFromGlobal(QPoint(*place))
    target = window.childAt(inside)
    QTest.mouseClick(target, Qt.MouseButton.LeftButton, pos=target.mapFrom(window, inside))


def test_the_start_shows_the_sample(window) -> None:  # type: ignore[no-untyped-def]
    assert find(controls(), step("Try the sample model")) is not None
    assert find(controls(), step("Generate")) is None


def test_every_other_click_leads_to_the_next(loaded, qtbot) -> None:  # type: ignore[no-untyped-def]
    for control, page in (("Choose a format", "recipe"), ("Test", "test")):
        click_at(loaded, find(controls(), step(control)))
        assert loaded.current_page is loaded.page(page)
        if page == "recipe":
            qtbot.waitUntil(lambda: find(controls(), step("Convert")) is not None, timeout=LONG)
    assert any(c["name"].startswith("Generate") and c["role"] == "primary" for c in controls())


def test_they_are_written_where_the_environment_says(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "controls.json"
    timer = tell(window, place)
    qtbot.waitUntil(place.exists, timeout=LONG)
    assert json.loads(place.read_text(encoding="utf-8")) == controls()
    window.show_page("recipe")
    qtbot.waitUntil(lambda: json.loads(place.read_text(encoding="utf-8")) == controls(), timeout=LONG)
    timer.stop()
    tell(window, tmp_path / "none" / "controls.json").stop()
