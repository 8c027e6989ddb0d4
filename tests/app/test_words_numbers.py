"""What the window says: terms are explained, sizes are decimal beside their binary twin, counts are grouped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QAbstractButton, QLabel, QTableView
from tiny_models import write_llama
from window_help import LONG, open_recipe, visible, wait_end

from app.main_window import PAGES
from core.recipe import Recipe
from resources import glossary

pytestmark = pytest.mark.gui
PAIR = re.compile(r"([\d.]+) (kB|MB|GB|TB) \(([\d.]+) (KiB|MiB|GiB|TiB)\)")
DECIMAL = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNGROUPED = re.compile(r"(?<![\w.\-/])\d{5,}(?![\w.\-/])")  # five digits or more in a row, outside of names


def states(window, qtbot, folder: Path) -> Iterator[str]:  # type: ignore[no-untyped-def]
    """The window in one state after another."""
    for key in PAGES:
        window.show_page(key)
        yield f"{key} empty"
    page = open_recipe(window, qtbot, write_llama(folder / "model", hidden=576, heads=9, kv_heads=3, ffn=1536))
    page.set_recipe(Recipe(target="Q4_K_M"))
    qtbot.waitUntil(page.convert.isEnabled, timeout=LONG)
    qtbot.waitUntil(lambda: page.preview.histogram.has_data and "lowest" in page.preview.sample.text(), timeout=LONG)
    yield "recipe"
    page.more.click()
    for number in range(page.advanced.tabs.count()):
        page.advanced.tabs.setCurrentIndex(number)
        yield f"recipe tab {number}"
    window.show_page("model")
    yield "model"
    window.show_page("recipe")
    page.set_output(folder / "out.gguf")
    page.convert.click()
    wait_end(qtbot, window.page("convert").queue.entries[-1])
    qtbot.wait(50)
    yield "convert done"


def texts(window) -> Iterator[tuple[object, str]]:  # type: ignore[no-untyped-def]
    for widget in visible(window):
        if isinstance(widget, (QLabel, QAbstractButton)) and widget.text():
            yield widget, widget.text()
        elif isinstance(widget, QTableView):
            model = widget.model()
            for row in range(min(model.rowCount(), 40)):
                for column in range(model.columnCount()):
                    yield widget, str(model.index(row, column).data() or "")


def test_every_term_that_stands_alone_is_explained(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    known = {word.casefold() for word in glossary()}
    seen = set()
    for state in states(window, qtbot, tmp_path):
        for widget, text in texts(window):
            if isinstance(widget, QLabel) and text.casefold() in known:
                seen.add(text.casefold())
                parent = widget.parentWidget()
                assert widget.toolTip() or parent.toolTip(), f"{state}: {text} is not explained"
    assert {"snr", "max error", "effective bits", "context", "batch", "architecture"} <= seen


def test_every_explanation_is_short() -> None:
    assert not [word for word, text in glossary().items() if not 0 < len(text.split()) <= 25]


def test_sizes_are_decimal_beside_their_binary_twin_and_counts_are_grouped(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pairs = 0
    for state in states(window, qtbot, tmp_path):
        for _, text in texts(window):
            for number, unit, twin, binary in PAIR.findall(text):
                pairs += 1
                here, there = float(number) * DECIMAL[unit], float(twin) * BINARY[binary]
                assert here == pytest.approx(there, abs=0.006 * (DECIMAL[unit] + BINARY[binary])), f"{state}: {text}"
            assert not UNGROUPED.findall(text.replace(str(tmp_path), "")), f"{state}: {text}"
    assert pairs > 12


def test_the_window_computes_no_size_by_itself() -> None:
    """Only `core.units` may know what a megabyte is; a rate and a table's column divide by 10^6 under that title."""
    allowed = {"models/tensors.py": 1, "pages/convert/card.py": 1}
    root = Path(__file__).resolve().parents[2] / "app"
    found = {}
    for path in root.rglob("*.py"):
        divisions = re.findall(
            r"(?<!/)/ ?(?:1024|2 ?\*\* ?[123]0|1e[369]|1_?000_?000)\b", path.read_text(encoding="utf-8")
        )
        if divisions:
            assert not [d for d in divisions if "1024" in d or "**" in d], path
            found[path.relative_to(root).as_posix()] = len(divisions)
    assert found == allowed
