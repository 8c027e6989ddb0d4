"""Every picture that the guide shows is made by the program that makes its pictures, and none other is kept."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtGui import QColor, QImage
from tiny_models import write_llama

from core import guide

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "guide" / "images"
LARGEST = 100_000  # bytes of a picture
pytestmark = pytest.mark.gui


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_guide_shows_is_what_is_made() -> None:
    shown = {name for page in guide.PAGES for name in re.findall(r"!\[[^\]]*\]\(images/(\w+)\.png\)", guide.page(page))}
    assert shown == set(load("guide_pictures").NAMES)
    assert {path.name for path in FOLDER.iterdir()} == {f"{n}{e}.png" for n in shown for e in ("", "-dark")}
    for path in FOLDER.iterdir():
        assert path.stat().st_size <= LARGEST, path.name


@pytest.mark.slow
def test_pictures_of_the_guide(window, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pictures, screens = load("guide_pictures"), load("screens")

    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"][:, 37] *= 40

    model = write_llama(tmp_path / "model", hidden=256, tied=False, change=spoil)
    camera = screens.Camera(window, tmp_path, tmp_path)
    taken = pictures.take_guide(camera, model, tmp_path / "pictures")
    assert sorted({path.stem.removesuffix("-dark") for path in taken}) == sorted(pictures.NAMES)
    assert len(taken) == 2 * len(pictures.NAMES)
    for path in taken:
        image = QImage(str(path))
        assert image.width() <= 1100
        assert image.height() <= 700
        assert len({image.pixel(x, y) for x in range(0, image.width(), 9) for y in range(0, image.height(), 7)}) > 3
        assert (QColor(image.pixel(3, 3)).lightness() < 128) == path.stem.endswith("-dark"), path.name


def test_few_colours_keep_rare_ones(qapp) -> None:  # type: ignore[no-untyped-def]
    image = QImage(64, 64, QImage.Format.Format_RGB32)
    for y in range(64):
        for x in range(64):
            image.setPixelColor(x, y, QColor(4 * x, 4 * y, 128))
    image.setPixelColor(3, 5, QColor("#0D6747"))
    few = load("guide_pictures").few_colours(image)
    assert few.colorCount() <= 256
    shown = QColor(few.pixel(3, 5))
    assert abs(shown.red() - 0x0D) + abs(shown.green() - 0x67) + abs(shown.blue() - 0x47) < 24
