"""Test → Cache: what is asked of the engine, what is shown of its answer, and the bundled engine itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from cache_example import cache_example
from fake_backend import FakeBackend
from job_help import drive
from tiny_models import write_llama

from app.help import page_for
from app.jobs import testing_cache
from app.jobs.testing_cache import (
    CacheEntry,
    CacheFound,
    CacheMeasure,
    CacheOrder,
    CacheStep,
    cache_problem,
    schemes_of,
)
from app.jobs.testing_core import CoreBackend
from app.models.caches import kl_lines, rate_lines, sentence
from app.pages.test.page import TABS, TestPage
from core.errors import Cancelled
from core.progress import CancelToken
from core.runtime.results import ResultStore
from core.units import format_number

pytestmark = pytest.mark.gui
LONG = 20_000
FILE = Path("small.gguf")


@pytest.fixture
def page(window, qtbot, tmp_path: Path) -> TestPage:  # type: ignore[no-untyped-def]
    window.show_page("test")
    page: TestPage = window.page("test")
    page.bench.backend = FakeBackend()
    for side, name in enumerate(("source.gguf", "small.gguf")):
        (tmp_path / name).write_bytes(b"")
        page.bench.choose(side, tmp_path / name)
    page.tabs.setCurrentIndex(TABS.index("Cache"))
    return page


def choose(page: TestPage, measure: CacheMeasure) -> None:
    row = page.caches.measure.findData(measure)
    page.caches.measure.setCurrentIndex(row)
    page.caches.measure.activated.emit(row)


def test_from_the_button_to_table_plot_and_history(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = page.caches
    assert page.primary() is page.cache_button
    assert page_for(page, "test") == "cache#what-it-costs"
    assert not panel.costs.isVisible(), "no empty table"
    page.cache_button.click()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert panel.found is not None
    assert panel.found.order == CacheOrder(CacheMeasure.POSITION, page.bench.slots[1].path, 1024, "exact")
    assert panel.costs.isVisible()
    assert [c.scheme.text for c in panel.costs.model.rows()][:2] == ["Q8_0", "Q8_0/F16"]
    assert "loses least" in panel.sentence.text()
    assert panel.plot.has_data
    assert "Q4_0" in panel.plot.describe()
    assert "nats" in panel.plot.read_out(6.0)
    assert len(panel.plot.table()[1]) == 4 * 5
    choose(page, CacheMeasure.NEEDLES)
    page.cache_button.click()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert panel.needles.isVisible()
    assert panel.grid.isVisible()
    assert not panel.plot.isVisible()
    assert not panel.costs.isVisible()
    choose(page, CacheMeasure.SPEED)
    page.cache_button.click()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert panel.speeds.isVisible()
    assert panel.plot.isVisible()
    assert not panel.costs.isVisible()
    assert [stored.kind for stored in page.bench.backend.history()] == ["cache"] * 3
    assert "attention" in panel.sentence.text()


def test_errors_and_cancelling_stay_on_the_tab(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    page.bench.backend.broken = {1}
    page.cache_button.click()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert page.caches.error.isVisible()
    page.bench.backend.broken, page.bench.backend.pause = set(), 0.2
    page.cache_button.click()
    assert not page.caches.measure.isEnabled()
    page.cancel.click()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert page.caches.measure.isEnabled()
    assert "Cancelled" in page.caches.sentence.text()


def test_quality_takes_the_cache_that_is_chosen_there(page: TestPage) -> None:
    page.tabs.setCurrentIndex(TABS.index("Quality"))
    chooser = page.quality.setup.cache
    chooser.activated.emit(chooser.findData("Q4_0"))
    order = page.quality.order()
    assert order is not None
    assert order.settings.cache == "Q4_0"
    page.bench.place(1, "gpu:0")
    assert page.quality.order().settings.cache == "F16", "the GPU keeps no such cache"


def test_what_the_engine_does_not_run_is_said(page: TestPage, monkeypatch: pytest.MonkeyPatch) -> None:
    page.caches._problems = dict.fromkeys(CacheMeasure, "") | {CacheMeasure.WINDOW: "It keeps no INT8."}
    choose(page, CacheMeasure.WINDOW)
    assert page.caches.why.isVisible()
    assert not page.cache_button.isEnabled()
    assert page.cache_button.toolTip() == "It keeps no INT8."
    page.bench.slots[1].device = "gpu:0"
    assert "processor" in page.caches.problem


def test_lines_and_sentences() -> None:
    timed = cache_example(CacheOrder(CacheMeasure.SPEED, FILE, 32_768))
    base, eight, four = rate_lines(timed)
    assert base.crossing is None
    assert (eight.crossing, four.crossing) == (2048, 1024)
    assert "in attention" in four.notes[0]
    assert "Q4_0 is faster than 16 bits from 1\u202f024 tokens on" in sentence(timed)
    window = cache_example(CacheOrder(CacheMeasure.WINDOW, FILE, 1024))
    said = sentence(window)
    assert said.count("they save more with keys") == 2
    assert [line.name for line in kl_lines(window.costs)] == ["INT8", "INT8,window=128", "INT4", "INT4,window=128"]
    plain, windowed = (line.points for line in kl_lines(window.costs)[:2])
    assert [n for n, _ in plain] == [64, 128, 256, 512, 1024]
    assert [n for n, _ in windowed] == [256, 512, 1024], "nothing is quantized before"
    keys = next(c for c in window.costs if c.scheme.text == "INT4/F16")
    past = sum(span.kl * (span.stop - span.start) for span in keys.spans[2:]) / (1024 - 128)
    assert f"INT4: the 128 latest tokens in 16 bits lower the KL of keys from {format_number(past, 3)}" in sentence(
        window
    )
    position = cache_example(CacheOrder(CacheMeasure.POSITION, FILE, 1024))
    assert "Q4_0 for the keys alone loses 0.016, for the values alone 0.004." in sentence(position)


def test_the_exercise_says_keys_values_and_window_apart(page: TestPage) -> None:
    page.caches.show_found(cache_example(CacheOrder(CacheMeasure.WINDOW, FILE, 1024)))
    table = page.caches.exercise
    assert table.isVisible()
    model = table.model
    cells = [[model.index(row, column).data() for column in range(3)] for row in range(4)]
    assert cells == [["INT8", "INT8", "none"], ["INT8", "INT8", "128"], ["INT8", "F16", "none"], ["INT8", "F16", "128"]]


def test_the_picture_of_numbers(page: TestPage) -> None:
    """Each cell says what it is; what is lost are those that 16 bits find."""
    found = cache_example(CacheOrder(CacheMeasure.NEEDLES, FILE, 1024))
    assert found.needles is not None
    base, last = found.needles.rows[0], found.needles.rows[-1]
    assert (base.found, last.found, found.needles.lost(last), found.needles.lost(base)) == (9, 5, 4, 0)
    assert sentence(found) == "With 16 bits the model finds 9 of 9 numbers. Of these are lost: LM2,rotate 4."
    page.caches.show_found(found)
    grid, cells = page.caches.grid, page.caches.grid._cells
    assert "F16 9" in grid.describe()
    assert grid.table()[1][0] == ["F16", 256, 0.1, 9.0]
    names, cell, high = cells._sizes()
    assert "LM2,rotate, 1\u202f024 tokens, at 90 %: not found" in cells.text_at(names + 8 * cell + 2, high * 6 + 2)
    assert "F16, 256 tokens, at 10 %: found, the right number +9.0" in cells.text_at(names + 2, high * 2 + 2)
    assert cells.text_at(2, high * 2 + 2) == "F16"
    assert cells.text_at(2, 2) == ""


def test_on_the_bundled_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.kv.contexts.CONTEXTS", (16, 32))
    backend = CoreBackend(ResultStore(tmp_path / "results.jsonl"))
    path = write_llama(tmp_path / "tiny", hidden=128, ffn=256)
    assert cache_problem(CacheMeasure.POSITION) == cache_problem(CacheMeasure.SPEED) == ""
    orders = [CacheOrder(CacheMeasure.POSITION, path, 96), CacheOrder(CacheMeasure.SPEED, path, 32)]
    if not cache_problem(CacheMeasure.WINDOW):
        orders.append(CacheOrder(CacheMeasure.WINDOW, path, 160))
    orders.append(CacheOrder(CacheMeasure.NEEDLES, path, 400))
    for order in orders:
        seen, found = drive(backend.compare_caches(order, CancelToken()))
        assert all(isinstance(step, CacheStep) and 0 <= step.share <= 1.001 for step in seen)
        assert isinstance(found, CacheFound)
        assert sentence(found)
        backend.store(CacheEntry(found))
        if found.costs:
            assert [c.scheme for c in found.costs] == list(schemes_of(order.measure))
            assert all(c.kl >= 0 and c.spans[-1].stop == order.tokens - 1 for c in found.costs)
    assert {stored.kind for stored in backend.history()} == {"cache"}
    stopped = CancelToken()
    stopped.cancel()
    with pytest.raises(Cancelled):
        drive(backend.compare_caches(orders[0], stopped))


def test_a_job_s_error_comes_through() -> None:
    def job(tell) -> int:  # type: ignore[no-untyped-def]
        tell(0.5)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        drive(testing_cache._told(job))
