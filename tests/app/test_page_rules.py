"""Rules that hold on every page in every state: one primary button, names, reasons, no cut off or nested scrolling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QLabel, QPushButton, QWidget
from tiny_models import write_llama
from window_help import INTERACTIVE, LONG, controls, open_model, open_recipe, scrolls_down, visible, wait_end, wait_plan

from app.jobs.runner import JobState
from app.pages.base import Page
from app.plots import PlotPanel
from core.recipe import Recipe

pytestmark = pytest.mark.gui
MOST_CONTROLS = 12
PAGES = ("model", "recipe", "convert", "inspect", "test")
TABS = ("formats", "numbers", "method", "keep", "rules", "tensors")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "a-model-with-a-rather-long-name", hidden=288, ffn=576)


def states(window, qtbot, model: Path) -> Iterator[tuple[str, Page]]:  # type: ignore[no-untyped-def]
    """The window in one state after another, with the state's name and the page in front."""
    for key in PAGES:
        window.show_page(key)
        yield f"{key} empty", window.current_page
    open_model(window, qtbot, model)
    yield "model loaded", window.page("model")
    page = open_recipe(window, qtbot, model)
    qtbot.waitUntil(lambda: page.preview.histogram.has_data, timeout=LONG)
    yield "recipe presets", page
    page.more.click()
    for number, name in enumerate(TABS):
        page.advanced.tabs.setCurrentIndex(number)
        qtbot.wait(30)
        yield f"recipe {name}", page
    page.set_recipe(Recipe(target="w4a16-g32"))
    wait_plan(window, qtbot, "w4a16-g32")
    page.more.click()
    page.set_recipe(Recipe(target="Q8_0"))
    wait_plan(window, qtbot, "Q8_0")
    page.set_output(model.parent / "out.gguf")
    qtbot.waitUntil(page.convert.isEnabled, timeout=LONG)
    page.convert.click()
    convert = window.page("convert")
    entry = convert.queue.entries[-1]
    yield "convert running", convert
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    yield "convert done", convert
    window.show_page("inspect")
    inspect = window.page("inspect")
    qtbot.waitUntil(lambda: "map" in inspect.views and bool(inspect.views["map"]._rows), timeout=LONG)
    qtbot.waitUntil(lambda: inspect.views["map"].settled, timeout=LONG)
    yield "inspect map", inspect
    inspect.show_view("tensor")
    qtbot.waitUntil(lambda: "tensor" in inspect.views and inspect.views["tensor"].heat.has_data, timeout=LONG)
    qtbot.waitUntil(lambda: inspect.views["tensor"].settled, timeout=LONG)
    yield "inspect tensor", inspect
    inspect.views["tensor"].error_button.click()
    qtbot.waitUntil(lambda: inspect.views["tensor"].settled, timeout=LONG)
    yield "inspect error", inspect


def test_every_page_has_an_empty_state(window) -> None:  # type: ignore[no-untyped-def]
    for key in PAGES:
        window.show_page(key)
        page = window.current_page
        words = [w for w in visible(page) if isinstance(w, QLabel) and w.text() and w.wordWrap()]
        sentences = max((w.text().rstrip(".…").count(". ") + 1 for w in words), default=0)
        assert 1 <= sentences <= 2, key
        assert not [
            w
            for w in visible(page)
            if isinstance(w, QAbstractScrollArea) and w.metaObject().className() == "QTableView"
        ]
        assert page.primary() is not None, key
        assert page.primary().isVisible(), key


def test_one_primary_button_in_sight_and_few_controls(window, qtbot, model: Path) -> None:  # type: ignore[no-untyped-def]
    for state, page in states(window, qtbot, model):
        accents = [b for b in page.findChildren(QPushButton) if b.isVisible() and b.property("buttonRole") == "primary"]
        assert len(accents) <= 1, state
        assert not accents or accents[0] is page.primary(), state
        for button in accents:
            place = QRect(button.mapTo(page, QPoint(0, 0)), button.size())
            assert page.rect().contains(place), f"{state}: the primary button is cut off"
            assert not any(isinstance(w, QAbstractScrollArea) and scrolls_down(w) for w in parents(button)), state
        if "recipe presets" in state or state.endswith("empty"):
            found = controls(page)
            assert len(found) <= MOST_CONTROLS, f"{state}: {[w.accessibleName() for w in found]}"


def test_everything_that_can_be_operated_has_a_name_and_a_reason(window, qtbot, model: Path) -> None:  # type: ignore[no-untyped-def]
    for state, page in states(window, qtbot, model):
        for widget in controls(page):
            name = widget.accessibleName() or (widget.text() if hasattr(widget, "text") else "")
            assert name.strip(), f"{state}: {widget} has no name"
            if not widget.isEnabled():
                assert widget.toolTip().strip(), f"{state}: {name} is off and does not say why"
        for plot in page.findChildren(PlotPanel):
            if plot.isVisible():
                assert plot.accessibleDescription(), state
                assert not plot.has_data or any(c.isdigit() for c in plot.accessibleDescription()), state


def test_nothing_scrolls_sideways_or_inside_another(window, qtbot, model: Path) -> None:  # type: ignore[no-untyped-def]
    for state, page in states(window, qtbot, model):
        assert page.minimumSizeHint().width() <= page.width(), f"{state}: wider than the window"
        for area in (w for w in visible(page) if isinstance(w, QAbstractScrollArea)):
            if not scrolls_down(area):
                continue
            outer = [w for w in parents(area) if isinstance(w, QAbstractScrollArea) and scrolls_down(w)]
            assert not outer, f"{state}: {area} scrolls inside {outer}"


def test_no_widget_is_cut_off_sideways(window, qtbot, model: Path) -> None:  # type: ignore[no-untyped-def]
    for state, page in states(window, qtbot, model):
        for widget in visible(page):
            if not isinstance(widget, INTERACTIVE) or isinstance(widget.parent(), INTERACTIVE):
                continue
            if any(isinstance(w, INTERACTIVE) for w in parents(widget)):
                continue
            left = widget.mapTo(page, QPoint(0, 0)).x()
            assert left >= 0, f"{state}: {widget} begins left of the page"
            assert left + widget.width() <= page.width(), f"{state}: {widget.accessibleName()} is cut off"
            for area in (w for w in parents(widget) if isinstance(w, QAbstractScrollArea)):
                view = area.viewport()
                x = widget.mapTo(view, QPoint(0, 0)).x()
                assert x + widget.width() <= view.width() + 1, f"{state}: {widget.accessibleName()} is cut off"


def test_every_control_is_reached_by_tab(window, qtbot, model: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, model)
    reached: set[QWidget] = set()
    window.activateWindow()
    page.presets.cards[0].setFocus()
    qtbot.waitUntil(page.presets.cards[0].hasFocus)
    for _ in range(40):
        widget = QApplication.focusWidget()
        reached.add(widget)
        qtbot.keyClick(widget, Qt.Key.Key_Tab)
    others = [w for w in controls(page) if w.isEnabled() and w not in page.presets.cards]  # arrows move between cards
    assert not [w.accessibleName() or w.text() for w in others if w not in reached]


def test_no_blocked_frame_on_a_change_of_page(window, qtbot, model: Path) -> None:  # type: ignore[no-untyped-def]
    open_recipe(window, qtbot, model)
    best = dict.fromkeys(PAGES, 1.0)
    for _ in range(4):
        for key in PAGES:
            begin = time.perf_counter()
            window.show_page(key)
            best[key] = min(best[key], time.perf_counter() - begin)
    assert max(best.values()) < 0.050, best


def parents(widget: QWidget) -> Iterator[QWidget]:
    above = widget.parentWidget()
    while above is not None:
        yield above
        above = above.parentWidget()
