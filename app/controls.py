"""Where the window's controls are on the screen, for programs that try an installed one with a mouse.

Only written when BITSMITH_CONTROLS names a file, so that what is clicked is found by its name and not by where it lay
when the test was written.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget

EVERY_MS = 200


def controls() -> list[dict[str, Any]]:
    """Every named control that can be seen: what a screen reader calls it, its role, whether it can be used, and the
    middle of what is seen of it, in pixels of the screen.
    """
    found = []
    for widget in QApplication.allWidgets():
        name = _name(widget)
        if not name or not widget.isVisible():
            continue
        seen = widget.visibleRegion().boundingRect()
        if seen.isEmpty():
            continue
        middle = widget.mapToGlobal(seen.center())
        role = widget.property("buttonRole") or type(widget).__name__
        found.append({"name": name, "role": role, "enabled": widget.isEnabled(), "x": middle.x(), "y": middle.y()})
    return sorted(found, key=lambda c: (c["name"], c["role"], c["y"], c["x"]))


def tell(parent: QWidget, place: Path) -> QTimer:
    """Write them to `place` now and then, while `parent` is there. A place that can not be written to is let be."""
    last: list[list[dict[str, Any]]] = []
    beside = place.with_name(place.name + ".new")

    def write() -> None:
        now = controls()
        if last != [now]:
            with suppress(OSError):
                beside.write_text(json.dumps(now), encoding="utf-8")
                beside.replace(place)  # a reader finds all of it or the one before
                last[:] = [now]

    timer = QTimer(parent)
    timer.timeout.connect(write)
    timer.start(EVERY_MS)
    return timer


def _name(widget: QWidget) -> str:
    if widget.accessibleName():
        return widget.accessibleName()
    return widget.text().replace("&", "") if isinstance(widget, QAbstractButton) else ""
