"""PyTorch is imported ahead, and only in a pause."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import QApplication, QWidget
from window_help import LONG

from app.jobs import JobRunner
from app.jobs import warming as module
from app.jobs.warming import Warming

pytestmark = pytest.mark.gui


def move(widget: QWidget) -> None:
    none = Qt.MouseButton.NoButton
    event = QMouseEvent(QEvent.Type.MouseMove, QPointF(1, 1), QPointF(1, 1), none, none, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(widget, event)


def test_it_waits_for_a_pause_and_loads_once(qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "QUIET_MS", 300)
    widget, loaded = QWidget(), []
    qtbot.addWidget(widget)
    warming = Warming(JobRunner(), widget, lambda: loaded.append(1))
    warming.ask()
    for _ in range(8):  # somebody moves the mouse for longer than the pause that is waited for
        qtbot.wait(60)
        move(widget)
        if not warming.waiting:  # the machine was away between two moves
            break
        assert not loaded
    qtbot.waitUntil(lambda: loaded == [1], timeout=LONG)
    warming.ask()
    assert not warming.waiting
    move(widget)
    qtbot.wait(50)
    assert loaded == [1]


def test_a_failure_to_load_is_left_to_the_run_that_needs_it(qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "QUIET_MS", 1)
    widget = QWidget()
    qtbot.addWidget(widget)

    def missing() -> None:
        raise ImportError("no module named torch")

    jobs = JobRunner()
    warming = Warming(jobs, widget, missing)
    warming.ask()
    qtbot.waitUntil(lambda: not warming.waiting and not jobs.jobs(), timeout=LONG)
