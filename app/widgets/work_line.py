"""What every piece of long work shows: a bar, the buttons of its state, a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtWidgets import QAbstractButton, QProgressBar, QWidget

from core.units import format_duration

PROGRESS_STEPS = 1000  # of a bar
SEPARATOR = " · "  # between what a line says of the work


def progress_bar(name: str) -> QProgressBar:
    """In PROGRESS_STEPS; the text stands beside it. name: what a screen reader says."""
    bar = QProgressBar()
    bar.setRange(0, PROGRESS_STEPS)
    bar.setTextVisible(False)
    bar.setAccessibleName(name)
    return bar


def show_buttons(buttons: Mapping[str, QAbstractButton], words: Sequence[str], focused: QWidget | None) -> None:
    """Of all buttons exactly these. The focus goes to the first where its own one is hidden: Pause and Resume stand in
    one place, and a key pressed again must not meet Cancel."""
    held = next((word for word, made in buttons.items() if made is focused), None)
    for word in words:
        buttons[word].show()
    if held is not None and held not in words:
        buttons[words[0]].setFocus()
    for word, made in buttons.items():
        made.setVisible(word in words)


def clock_text(seconds: float) -> str:
    """A running clock: whole seconds, so that it does not flicker."""
    return f"{round(seconds)} s" if seconds < 59.5 else format_duration(seconds)
