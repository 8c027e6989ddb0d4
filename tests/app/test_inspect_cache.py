"""Inspect → Cache: a run from the button, what its pictures say, cancelling, and another model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_llama
from window_help import LONG, click, controls, open_recipe

from app.help import page_for

pytestmark = pytest.mark.gui


def loud(tensors: dict[str, Any]) -> None:
    """Channel 7 of key head 0, and its partner that positions turn with it."""
    for name, values in tensors.items():
        if name.endswith("k_proj.weight"):
            values[[7, 39]] *= 50


@pytest.fixture
def view(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    open_recipe(window, qtbot, write_llama(tmp_path / "loud", layers=2, change=loud))
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.show_view("cache")
    made = page.views["cache"]
    made.tokens.setValue(48)
    return made


def test_a_run_names_the_loud_channel_and_what_a_rotation_leaves(view, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    assert view.empty.isVisible()
    assert page_for(window.page("inspect"), "inspect") == "cache#what-stands-out"
    click(qtbot, view.start)
    qtbot.waitUntil(lambda: not view.running, timeout=LONG)
    before, after = (each.loudest for each in view.found.keys)
    assert before.place in (7, 39)
    assert before.ratio > 4 * after.ratio
    assert f"channel {before.place} of layer {before.layer}, head 0" in view.summary.text()
    keys, rotated, values, _ = view.maps
    assert keys.isVisible()
    assert rotated.isVisible()
    assert "4 heads" in keys.describe()
    assert values.has_data
    keys._on_pointed("Head 3, channel 5: 12")
    assert keys.readout.text() == "Layer 1, head 1, channel 5: 12"
    assert all(part.toolTip() or part.accessibleName() for part in controls(view))


def test_cancelling_and_another_model_leave_nothing(view, window, qtbot, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import core.inspect.cache_outliers as measured

    real = measured.measure_cache

    def slow(*args: Any, **more: Any) -> Any:
        steps = real(*args, **more)
        yield next(steps)
        while not more["token"].cancelled:
            time.sleep(0.005)
        return (yield from steps)

    monkeypatch.setattr(measured, "measure_cache", slow)
    view.run()
    qtbot.waitUntil(lambda: "Layer 1" in view.state_text.text(), timeout=LONG)
    click(qtbot, view.cancel)
    qtbot.waitUntil(lambda: not view.running, timeout=LONG)
    assert view.state_text.text() == "Cancelled."
    assert view.found is None
    monkeypatch.setattr(measured, "measure_cache", real)
    view.run()
    qtbot.waitUntil(lambda: not view.running, timeout=LONG)
    assert view.found is not None
    window.open_path(write_llama(tmp_path / "other"))
    qtbot.waitUntil(lambda: view.found is None, timeout=LONG)
    assert not view.maps[0].has_data
