"""Drive the window in tests as a person would: open, choose, convert; and walk what is visible."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QHeaderView,
    QLineEdit,
    QPlainTextEdit,
    QTabBar,
    QWidget,
)

LONG = 60_000  # ms; the machine may be shared
INTERACTIVE = (QAbstractButton, QComboBox, QAbstractSpinBox, QLineEdit, QAbstractItemView, QTabBar)


def open_model(window: Any, qtbot: Any, path: Path) -> None:
    """Open a model and wait until it is read."""
    window.open_path(path)
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.checkpoint is not None or store.current.problem is not None, timeout=LONG)


def open_recipe(window: Any, qtbot: Any, path: Path) -> Any:
    """Open a model, go to the Recipe page, wait for its first plan; returns the page."""
    open_model(window, qtbot, path)
    window.show_page("recipe")
    page = window.page("recipe")
    qtbot.waitUntil(lambda: window.services.session.current.plan is not None, timeout=LONG)
    return page


def wait_plan(window: Any, qtbot: Any, target: str) -> Any:
    """Wait for the plan of that target; returns it."""
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe.target == target, timeout=LONG)
    return store.current.plan


def click(qtbot: Any, widget: QWidget) -> None:
    """A click in the middle, only if a person could do it."""
    assert widget.isVisible(), f"{widget} can not be seen"
    assert widget.isEnabled(), f"{widget} is off: {widget.toolTip()}"
    qtbot.mouseClick(widget, Qt.MouseButton.LeftButton)


def wait_end(qtbot: Any, entry: Any) -> None:
    """Wait until a conversion has ended, however it ends."""
    qtbot.waitUntil(lambda: entry.state.final, timeout=LONG)


def longest_block(run: Callable[[], object], until: Callable[[], bool], limit: float = 60.0) -> float:
    """Start something and return the longest time in seconds for which the event loop did not turn until it is over.

    Time in which this thread was ready but other programs had the processor is not counted, where the system tells.
    Reference cycles wait, as they do in the program (app.garbage): other tests have left many objects about.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _longest_block(run, until, limit)
    finally:
        if collecting:
            gc.enable()


def _longest_block(run: Callable[[], object], until: Callable[[], bool], limit: float) -> float:
    beats = [(time.perf_counter(), _preempted())]
    pulse = QTimer(interval=1, timerType=Qt.TimerType.PreciseTimer)
    pulse.timeout.connect(lambda: beats.append((time.perf_counter(), _preempted())))
    pulse.start()
    QTimer.singleShot(0, run)
    end = time.perf_counter() + limit
    settled = 0
    while settled < 3 and time.perf_counter() < end:
        QApplication.processEvents()
        settled = settled + 1 if until() and len(beats) > 5 else 0
        time.sleep(0.0005)
    pulse.stop()
    assert until(), "it did not come to an end"
    return max(b[0] - a[0] - (b[1] - a[1]) for a, b in pairwise(beats))


def _preempted() -> float:
    """Seconds that this thread has waited for a processor so far (Linux), else 0."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def visible(root: QWidget) -> Iterator[QWidget]:
    """Every widget below `root` that can be seen, the insides of compound widgets left out."""
    for child in root.children():
        if not isinstance(child, QWidget) or not child.isVisible():
            continue
        yield child
        compound = isinstance(child, (QComboBox, QAbstractSpinBox, QHeaderView, QTabBar, QPlainTextEdit))
        if not compound:
            yield from visible(child)


def controls(root: QWidget) -> list[QWidget]:
    """What a person can operate below `root` now."""
    found = []
    for widget in visible(root):
        if not isinstance(widget, INTERACTIVE) or isinstance(widget, QHeaderView):
            continue
        inside_view = isinstance(widget.parent(), (QAbstractItemView, QLineEdit))
        if not inside_view:
            found.append(widget)
    return found


def scrolls_down(area: QAbstractScrollArea) -> bool:
    return area.verticalScrollBar().maximum() > 0


def load_screens():  # type: ignore[no-untyped-def]
    """tests/app/screens.py as a module."""
    path = Path(__file__).with_name("app") / "screens.py"
    spec = importlib.util.spec_from_file_location("screens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
