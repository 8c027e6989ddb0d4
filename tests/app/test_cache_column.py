"""The cache's format of each column of the Test page: what the engine runs, what it took, and what was planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_backend import GPUS, FakeBackend
from job_help import drive
from PySide6.QtCore import Qt
from tiny_models import write_llama

from app.jobs.testing import Question, Setup
from app.jobs.testing_core import CoreBackend
from app.pages.test.page import TestPage
from core.progress import CancelToken
from core.runtime.results import ResultStore

pytestmark = pytest.mark.gui
LONG = 20_000


@pytest.fixture
def page(window, qtbot, tmp_path: Path) -> TestPage:  # type: ignore[no-untyped-def]
    window.show_page("test")
    page: TestPage = window.page("test")
    page.bench.backend = FakeBackend()
    for side, name in enumerate(("source.gguf", "small.gguf")):
        (tmp_path / name).write_bytes(b"")
        page.bench.choose(side, tmp_path / name)
    return page


def test_a_column_offers_what_its_engine_runs(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    chooser = page.advanced.caches[1]
    model = chooser.model()
    enabled = {
        chooser.itemData(r) for r in range(chooser.count()) if model.index(r, 0).flags() & Qt.ItemFlag.ItemIsEnabled
    }
    assert enabled == {"F16", "Q8_0", "Q4_0", "Q8_0/Q4_0"}
    grey = chooser.findData("FP8")
    assert "keeps no cache in FP8" in chooser.itemData(grey, Qt.ItemDataRole.ToolTipRole)
    assert chooser.accessibleName()
    assert chooser.toolTip()
    chooser.activated.emit(chooser.findData("Q8_0"))
    assert page.bench.slots[1].cache == "Q8_0"
    page.generate.click()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert [m.setup.cache for m in page.bench.backend.models] == ["F16", "Q8_0"]
    rows = {row.name: row for row in page.numbers.model.rows()}
    assert rows["KV cache, planned"].ratio == "0.53 ×"
    assert rows["KV cache and buffers, allocated"].texts[1] == "27.25 MB (25.99 MiB)"
    assert rows["KV cache, planned"].notes == ("Keys and values in F16", "Keys and values in Q8_0")
    page.bench.devices = GPUS
    page.bench.place(1, "gpu:0")
    model = chooser.model()
    assert not model.index(chooser.findData("Q8_0"), 0).flags() & Qt.ItemFlag.ItemIsEnabled


def test_on_the_bundled_engine(tmp_path: Path) -> None:
    """Planned is what is held, for a model without sliding layers; the rest of what is allocated are buffers."""
    backend = CoreBackend(ResultStore(tmp_path / "results.jsonl"))
    path = write_llama(tmp_path / "tiny", hidden=128, ffn=256)
    assert backend.refuses("Q8_0/Q4_0", "cpu") == ""
    assert backend.refuses("Q8_0,window=64", "gpu:0") == ""
    assert "must be rotated" in backend.refuses("LM2", "gpu:0")
    assert backend.refuses("LM2,rotate,window=64", "cpu") == ""
    found = []
    for cache in ("F16", "Q8_0"):
        _, model = drive(backend.load(0, Setup(path, "exact", 64, cache=cache), CancelToken()))
        _, measured = drive(backend.generate(0, model, Question("the the", tokens=4), CancelToken()))
        assert (measured.cache, measured.cache_planned) == (cache, model.loaded.program.cache.nbytes)
        assert measured.cache_allocated >= measured.cache_planned
        found.append(measured)
        model.close()
    assert found[1].cache_planned * 16 == found[0].cache_planned * 8.5
    less = found[0].cache_allocated - found[1].cache_allocated
    assert less == pytest.approx(found[0].cache_planned - found[1].cache_planned, rel=0.01)
