"""At the sizes that the window is made for, in every state: no word is cut off, nothing overlaps or is out of reach."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from layout_faults import faults
from PySide6.QtCore import QRect
from PySide6.QtWidgets import QLabel, QPushButton, QWidget
from window_help import load_screens

from app.devices import find_devices
from app.main_window import MainWindow
from app.theme import themes
from app.widgets.calm import CalmCombo

pytestmark = pytest.mark.gui

SIZES = ((1100, 700), (1280, 800))
SMALL = (800, 600)
SETTLED = 1.5  # seconds in which a new size has been laid out, beside other programs


def test_the_walker_sees_what_is_wrong(qtbot) -> None:  # type: ignore[no-untyped-def]
    """Each kind of fault, made on purpose; and the same widgets with enough room."""
    window = QWidget()
    qtbot.addWidget(window)
    window.resize(400, 200)
    button, words, low = (
        QPushButton("Open a folder", window),
        QLabel("A sentence", window),
        QLabel("Two lines " * 9, window),
    )
    low.setWordWrap(True)
    places = [QRect(10, 10, 160, 32), QRect(10, 60, 200, 20), QRect(10, 90, 200, 100)]

    def lay_out() -> list[str]:
        for widget, place in zip((button, words, low), places, strict=True):
            widget.setGeometry(place)
        window.show()
        return faults(window)

    assert lay_out() == []
    for number, place, said in (
        (0, QRect(10, 10, 50, 32), "too narrow"),
        (0, QRect(300, 10, 160, 32), "outside of"),
        (1, QRect(10, 60, 30, 20), "too narrow for 'A sentence'"),
        (1, QRect(10, 30, 200, 20), "lies over"),
        (2, QRect(10, 90, 200, 14), "too low"),
        (2, QRect(10, 150, 200, 100), "up or down"),
    ):
        kept, places[number] = places[number], place
        assert any(said in fault for fault in lay_out()), (number, said)
        places[number] = kept


def settled_faults(window, qtbot) -> list[str]:  # type: ignore[no-untyped-def]
    """What stays once everything has found its place."""
    until = time.monotonic() + SETTLED
    while (found := faults(window)) and time.monotonic() < until:
        qtbot.wait(50)
    return found


def test_the_first_picture_has_nothing_cut_off(services, qtbot) -> None:  # type: ignore[no-untyped-def]
    """As it is shown, without a change of its size that would lay it out anew; and once devices are known."""
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.setMinimumSize(0, 0)
    window.resize(*SIZES[0])
    with qtbot.waitExposed(window):
        window.show()
    assert settled_faults(window, qtbot) == []
    services.shell.devices_known.emit(find_devices()[0])
    assert settled_faults(window, qtbot) == []


@pytest.mark.parametrize("text", ["CPU", "Auto", "Bundled text"])
def test_a_chooser_shows_what_it_has_room_for(qtbot, text: str) -> None:  # type: ignore[no-untyped-def]
    box = CalmCombo()
    qtbot.addWidget(box)
    themes().dress(box)
    box.addItem(text)
    box.resize(box.sizeHint())
    box.show()
    assert box.shown_text() == text
    box.resize(box.width() - 12, box.height())
    assert "\u2026" in box.shown_text()


@pytest.mark.slow
def test_nothing_is_cut_off_in_any_state(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    screens = load_screens()
    window.services.session.update(device=find_devices()[0][0])
    camera = screens.Camera(window, tmp_path / "pictures", tmp_path)
    found = []
    for name in screens.states(camera):
        for size in SIZES:
            window.resize(*size)
            qtbot.wait(20)
            found += [f"{name} at {size[0]}: {fault}" for fault in settled_faults(window, qtbot)]
    assert found == []
