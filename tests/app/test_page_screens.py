"""The pictures of every page and state are taken, and none of them is empty.

Each state is taken in one theme here; `make screens` takes both of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from window_help import load_screens

from app.devices import find_devices

pytestmark = [pytest.mark.gui, pytest.mark.slow]
TURNS = 5  # states in one theme, and then as many in the other: switching takes half of the time


def test_every_page_in_every_state(window, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    screens = load_screens()
    window.services.session.update(device=find_devices()[0][0])
    taken = screens.take_all(window, tmp_path / "pictures", tmp_path, turns=TURNS)
    assert len(taken) == len(set(taken)) >= 90
    assert min(sum(path.stem.endswith(theme) for path in taken) for theme in screens.THEMES) >= 40
    for path in taken:
        image = QImage(str(path))
        assert (image.width(), image.height()) == (1100, 700), path
        colours = {image.pixel(x, y) for x in range(0, 1100, 11) for y in range(0, 700, 7)}
        assert len(colours) > 3, f"{path} shows nothing"
