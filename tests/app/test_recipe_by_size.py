"""The tab Size: measure, choose a point of the curve, and the page's recipe, plan and memory bar follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_recipe

from app.devices import DeviceChoice
from app.pages.recipe import by_size
from app.pages.recipe.by_size import BySizePanel
from core.calibration.settings import CalibrationText
from core.methods.choice import Calibrated, DataMethod
from core.recipe import Recipe
from core.units import format_bytes, format_number

pytestmark = pytest.mark.gui
TAB = 6
FRAME = 0.050
START = Recipe("Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE, text=CalibrationText(samples=2, length=16)))


def settle(window, qtbot) -> None:  # type: ignore[no-untyped-def]
    store, jobs, page = window.services.session, window.services.jobs, window.page("recipe")

    def still() -> bool:
        plan = store.current.plan
        resting = page.advanced.by_size._rest.isActive() or page._plan_timer.isActive()
        return not resting and not jobs.jobs() and plan is not None and plan.recipe == store.current.recipe

    qtbot.waitUntil(still, timeout=LONG)


@pytest.fixture
def page(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The Recipe page with a tiny model, the tab open, its cost known."""
    made = open_recipe(window, qtbot, write_llama(tmp_path / "tiny", tied=False))
    click(qtbot, made.more)
    made.advanced.tabs.setCurrentIndex(TAB)
    made.set_recipe(START)
    settle(window, qtbot)
    return made


@pytest.fixture
def measured(page, window, qtbot) -> BySizePanel:  # type: ignore[no-untyped-def]
    panel = page.advanced.by_size
    click(qtbot, panel.measure)
    settle(window, qtbot)
    assert panel.slider.isVisible(), panel.error.message.text()
    return panel


def test_the_cost_is_said_before_and_nothing_is_measured_unasked(page) -> None:  # type: ignore[no-untyped-def]
    panel = page.advanced.by_size
    assert page.advanced.tabs.tabText(TAB) == "Size"
    assert panel.measure.isEnabled(), panel.measure.toolTip()
    assert "(about " in panel.measure.text()
    assert " of memory" in panel.cost.text()
    assert not panel.slider.isVisible()
    assert not panel.bar.isVisible()


def test_moving_the_slider_makes_the_point_the_recipe(measured, page, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel, store = measured, window.services.session
    assert store.current.recipe == START, "a curve alone changes nothing"
    points = panel._curve.points
    assert len(points) >= 10
    assert panel.plot.has_data
    before = store.current.plan.bytes_total
    nearest = min(abs(p.bytes - before) for p in points)
    assert abs(points[panel.slider.value()].bytes - before) == nearest, "the slider begins where the recipe is"
    assert "Move the slider" in panel.words.text()
    shown = window.memory_bar.estimate.used
    number = len(points) // 3
    panel.slider.setValue(number)
    settle(window, qtbot)
    point = points[number]
    assert store.current.recipe == point.recipe
    assert store.current.recipe.rules == point.recipe.rules != ()
    assert store.current.plan.bytes_total == point.bytes, "exact for GGUF"
    assert page.outcome.size.text() == format_bytes(point.bytes)
    assert window.memory_bar.estimate.used != shown
    assert panel.slider.value() == number
    words = panel.words.text()
    assert format_bytes(point.bytes) in words
    assert f"predicted KL {format_number(point.kl, 3)}" in words
    chosen = sum(o.bytes for u, f in zip(page.sizing._found.units, point.formats, strict=True)
                 for o in u.options if o.format == f)  # fmt: skip
    bits = 8 * chosen / sum(u.values for u in page.sizing._found.units)
    assert f"{bits:.2f} bits a weight (norms aside)" in words
    assert "too low" in panel.caveat.text()
    assert "verdict" in panel.caveat.text()
    assert panel.plot.in_force == point.bytes
    click(qtbot, panel.back)
    settle(window, qtbot)
    assert store.current.recipe == START


def test_another_target_and_a_preset_undo_it(measured, page, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    store = window.services.session
    measured.slider.setValue(2)
    settle(window, qtbot)
    assert store.current.recipe.rules
    formats = page.advanced.formats
    formats.edited.emit(Recipe("Q8_0", rules=store.current.recipe.rules))
    settle(window, qtbot)
    assert store.current.recipe == Recipe("Q8_0")
    measured.slider.setValue(3)
    settle(window, qtbot)
    page._choose_offer(page._offers[0])
    settle(window, qtbot)
    assert store.current.recipe.rules == ()
    assert measured.slider.isVisible(), "another GGUF target keeps the curve"


def test_by_keyboard_and_for_screen_readers(measured, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = measured
    for widget in controls(panel):
        assert widget.accessibleName() or getattr(widget, "text", str)(), widget
    assert panel.slider.accessibleName() == "Size of the output"
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow, timeout=LONG)
    panel.slider.setFocus()
    at = panel.slider.value()
    QTest.keyClick(panel.slider, Qt.Key.Key_Right)
    assert panel.slider.value() == at + 1
    settle(window, qtbot)
    assert window.services.session.current.recipe == panel._curve.points[at + 1].recipe
    assert format_bytes(panel._curve.points[at + 1].bytes) in panel.slider.accessibleDescription()
    assert format_bytes(panel._curve.points[at + 1].bytes) in panel.plot.accessibleDescription()


def test_the_best_that_fits_the_device(measured, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel, store = measured, window.services.session
    own = panel._curve.own
    rest = window.memory_bar.estimate.used - store.current.plan.bytes_total
    capacity = rest + (own[10].bytes + own[11].bytes) // 2
    store.update(device=DeviceChoice("tiny", "A tiny card", capacity, 1e9, own=False))
    settle(window, qtbot)
    assert "A tiny card" in panel.fits.accessibleName()
    click(qtbot, panel.fits)
    settle(window, qtbot)
    fit = panel._curve.fit
    assert own[10].bytes <= fit.bytes < own[11].bytes
    assert store.current.recipe == fit.recipe
    estimate = window.memory_bar.estimate
    assert estimate.used <= capacity
    assert store.current.plan.bytes_total == fit.bytes
    store.update(device=DeviceChoice("none", "A speck", rest + 1000, 1e9, own=False))
    settle(window, qtbot)
    assert not panel.fits.isEnabled()
    assert panel.fits.toolTip() == panel.room.text() != ""


def test_a_second_time_is_there_at_once(measured, page, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    count = len(measured._curve.points)
    page.set_recipe(Recipe("mlx-4bit-g64", calibrated=START.calibrated))
    settle(window, qtbot)
    assert not measured.slider.isVisible(), "another kind of output has another curve"
    page.set_recipe(START)
    settle(window, qtbot)
    assert measured.slider.isVisible()
    assert len(measured._curve.points) == count


def test_cancel(page, window, qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import time

    from core.budget import sensitivity
    from core.budget.sensitivity import SensitivityProgress

    def slow(checkpoint, wish, token):  # type: ignore[no-untyped-def]
        for block in range(1000):
            token.check()
            time.sleep(0.01)
            yield SensitivityProgress("importance", block, 1000)

    monkeypatch.setattr(sensitivity, "sensitivities", slow)
    panel = page.advanced.by_size
    click(qtbot, panel.measure)
    qtbot.waitUntil(lambda: panel.step.text().startswith("Step 1 of 2"), timeout=LONG)
    page.advanced.tabs.setCurrentIndex(0)
    page.advanced.tabs.setCurrentIndex(TAB)
    assert panel.bar.isVisible(), "it goes on out of sight"
    click(qtbot, panel.cancel)
    qtbot.waitUntil(panel.measure.isVisible, timeout=LONG)
    assert panel.measure.isEnabled()
    assert not panel.plot.has_data
    settle(window, qtbot)


def test_off_with_the_reason(page, window, qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A kind of output that has no mixes, and a kind of model that can not be run."""
    panel = page.advanced.by_size
    page.set_recipe(Recipe("hf-bf16"))
    qtbot.waitUntil(lambda: "can not be mixed by size" in panel.cost.text(), timeout=LONG)
    assert "mlx" in panel.cost.text()
    assert not panel.measure.isEnabled()
    assert panel.measure.toolTip() == panel.cost.text() == panel.measure.accessibleDescription()
    monkeypatch.setattr("core.methods.forecast.FAMILIES", ())
    page.set_recipe(Recipe("Q4_0"))
    qtbot.waitUntil(lambda: "can not be run" in panel.cost.text(), timeout=LONG)
    assert not panel.measure.isEnabled()
    settle(window, qtbot)


def test_nothing_stands_still_and_nothing_is_cut(page, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    window.resize(900, 600)
    panel = page.advanced.by_size
    panel.measure.click()
    settle(window, qtbot)
    jobs, store = window.services.jobs, window.services.session
    assert page.advanced.tabs.tabBar().sizeHint().width() <= page.advanced.tabs.width()
    assert panel.width() <= page.advanced.tabs.widget(TAB).viewport().width()
    last = panel._curve.points[5].recipe

    def over() -> bool:
        plan = store.current.plan
        return store.current.recipe == last and plan is not None and plan.recipe == last and not jobs.jobs()

    assert longest_block(lambda: [panel.slider.setValue(n) for n in (9, 8, 7, 6, 5)], over) < FRAME


def test_a_step_says_how_long_it_will_still_take(qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from core.budget.sensitivity import SensitivityProgress

    panel, now = BySizePanel(), [100.0]
    qtbot.addWidget(panel)
    monkeypatch.setattr(by_size.time, "monotonic", lambda: now[0])
    panel.show_running()
    panel.show_running(SensitivityProgress("importance", 1, 30))
    assert panel.step.text() == "Step 1 of 2, importance: 1 of 30 blocks"
    now[0] += 20.0
    panel.show_running(SensitivityProgress("importance", 11, 30))
    assert panel.step.text().endswith("11 of 30 blocks · about 38 s left of this step")
    panel.show_running(SensitivityProgress("sensitivity", 0, 30))
    assert panel.step.text() == "Step 2 of 2, sensitivity: 0 of 30 blocks", "each step has a pace of its own"
