"""The pictures in docs/images can be made at any time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from tiny_models import write_llama

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.gui


def test_pictures_for_the_documents(window, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("pictures", Path(__file__).with_name("pictures.py"))
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    model = write_llama(tmp_path / "tiny", hidden=256, tied=False)
    taken = pictures.take_pictures(window, model, tmp_path)
    shown = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "README.md", *ROOT.glob("docs/*.md")))
    for path in taken:
        image = QImage(str(path))
        assert (image.width(), image.height()) == pictures.SIZE
        assert (ROOT / "docs" / "images" / path.name).is_file()
        assert f"images/{path.name}" in shown
