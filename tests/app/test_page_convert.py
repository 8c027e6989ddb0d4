"""The Convert page: states, pause, cancel, resume, failures, what a finished row says, and what a crash leaves."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from tiny_models import write_llama
from window_help import LONG, click, open_recipe, wait_end, wait_plan

from app.jobs.convert import Order, convert_work, free_output, model_name, output_folder, output_name
from app.jobs.convert_queue import UNFINISHED, ConversionQueue
from app.jobs.convert_rate import RateMeter
from app.jobs.runner import JobState
from app.pages.convert.card import status_text
from core.errors import UserError
from core.recipe import Recipe

pytestmark = pytest.mark.gui


@pytest.fixture
def slow_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of a conversion takes a while, so that there is time to pause and cancel."""
    from core.blocks import BlockWorker

    plain = BlockWorker.run

    def slow(self, *arguments):  # type: ignore[no-untyped-def]
        time.sleep(0.02)
        return plain(self, *arguments)

    monkeypatch.setattr(BlockWorker, "run", slow)


@pytest.fixture
def ready(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The window on the Recipe page, ready to convert a tiny model to Q8_0 at tmp_path/out.gguf."""
    recipe = open_recipe(window, qtbot, write_llama(tmp_path / "tiny", layers=3))
    recipe.set_recipe(Recipe(target="Q8_0"))
    wait_plan(window, qtbot, "Q8_0")
    recipe.set_output(tmp_path / "out.gguf")
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    return window


def start(window, qtbot):  # type: ignore[no-untyped-def]
    """Press Convert; returns page, entry and its card."""
    click(qtbot, window.page("recipe").convert)
    page = window.page("convert")
    entry = page.queue.entries[-1]
    return page, entry, page._cards[entry]


def running(entry) -> bool:  # type: ignore[no-untyped-def]
    return entry.state is JobState.RUNNING and entry.progress is not None


def shown_buttons(card) -> set[str]:  # type: ignore[no-untyped-def]
    return {word for word, b in card.buttons.items() if b.isVisible()}


def test_states_are_exactly_these() -> None:
    assert {s.value for s in JobState} == {"queued", "running", "paused", "cancelled", "failed", "done"}


def test_finished_row_says_all_and_offers_all(ready, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page, entry, card = start(ready, qtbot)
    wait_end(qtbot, entry)
    qtbot.waitUntil(lambda: card.verdict.text == "done")
    out = tmp_path / "out.gguf"
    assert card.name.text() == str(out) == card.name.toolTip()
    text = card.text.text()
    assert f"{out.stat().st_size:,}".replace(",", "\u202f") in text
    assert "exactly as predicted" in text
    for part in ("SNR", " dB", "peak memory", "s · "):
        assert part in text
    assert shown_buttons(card) == {"test", "folder", "open", "inspect", "command", "remove"}
    click(qtbot, card.buttons["command"])
    command = QApplication.clipboard().text()
    assert command.startswith("bitsmith convert ")
    assert "--to Q8_0" in command
    assert str(out) in command
    assert card.serve.isVisible()
    assert card.serve.command.text() == f"llama-server -m {out}"
    card.serve.runtime.setCurrentIndex(card.serve.runtime.findText("Transformers"))
    card.serve.runtime.activated.emit(card.serve.runtime.currentIndex())
    click(qtbot, card.serve.copy)
    assert QApplication.clipboard().text().count("\n") > 3, "a program is copied as its lines"
    assert f"gguf_file={out.name!r}" in QApplication.clipboard().text()
    table = page.table.model
    qtbot.waitUntil(lambda: {r.state for r in table.rows()} == {"verified"}, timeout=LONG)
    assert table.totals()[0] == f"{len(entry.plan.tensors)} of {len(entry.plan.tensors)} tensors"
    qtbot.waitUntil(lambda: page.histogram.has_data, timeout=LONG)
    assert card.verdict.state == "done"
    store = ready.services.session
    for word, shown in (("inspect", "inspect"), ("open", "model")):
        ready.show_page("convert")
        store.update(checkpoint=None, plan=None)
        click(qtbot, card.buttons[word])
        assert ready.current_page.key == shown
        qtbot.waitUntil(lambda: getattr(store.current.checkpoint, "path", None) == out, timeout=LONG)


def test_pause_resume_and_cancel(ready, qtbot, tmp_path: Path, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    page, entry, card = start(ready, qtbot)
    qtbot.waitUntil(lambda: running(entry), timeout=LONG)
    assert shown_buttons(card) == {"pause", "cancel"}
    qtbot.waitUntil(lambda: page._area.height() >= card.height() > 40, timeout=LONG)  # the whole card is in sight
    card.buttons["pause"].setFocus()
    click(qtbot, card.buttons["pause"])
    assert entry.state is JobState.PAUSED
    qtbot.waitUntil(lambda: ready.focusWidget() is card.buttons["resume"], timeout=LONG)  # Space must not meet Cancel
    qtbot.wait(300)  # what was in the pipe arrives
    done = entry.progress.bytes_done
    qtbot.wait(300)
    assert entry.progress.bytes_done == done
    assert card.verdict.text == "paused"
    assert shown_buttons(card) == {"resume", "cancel"}
    click(qtbot, card.buttons["resume"])
    qtbot.waitUntil(lambda: entry.progress.bytes_done > done, timeout=LONG)
    click(qtbot, card.buttons["cancel"])
    wait_end(qtbot, entry)
    assert entry.state is JobState.CANCELLED
    assert card.verdict.text == "cancelled"
    assert card.verdict.state != "done"
    assert entry.share < 1.0
    assert "100 %" not in card.text.text()
    assert not (tmp_path / "out.gguf").exists()
    click(qtbot, card.buttons["resume"])
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert entry.resumed
    assert (tmp_path / "out.gguf").stat().st_size == entry.plan.bytes_total
    assert all(r.result is not None for r in page.table.model.rows())


def test_progress_says_where_it_is(ready, qtbot, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    _page, entry, card = start(ready, qtbot)
    qtbot.waitUntil(lambda: running(entry) and entry.progress.tensor_index > 2, timeout=LONG)
    count = len(entry.plan.tensors)
    qtbot.waitUntil(lambda: f"of {count}" in card.text.text(), timeout=LONG)
    qtbot.waitUntil(lambda: "MB/s" in card.text.text(), timeout=LONG)
    assert "elapsed" in card.text.text()
    assert "memory" in card.text.text()
    seen: list[str] = []
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not entry.state.final:
        qtbot.wait(10)
        if not seen or card.text.text() != seen[-1]:
            seen.append(card.text.text())
    assert 2 <= len(seen) <= 16, "updates come 2 to 10 times a second, and the clock four times"
    page = ready.page("convert")
    page.queue.cancel(entry)
    wait_end(qtbot, entry)


def test_time_left_is_right_at_half_time(ready, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Blocks take time in proportion to their values; three seconds of settling are shortened with everything else."""
    from app.jobs import convert_rate
    from core.blocks import BlockWorker

    plain = BlockWorker.run

    def paced(self, block, *rest):  # type: ignore[no-untyped-def]
        tensor = ready.services.session.current.plan.tensors[block.tensor]
        time.sleep((block.stop - block.start) * tensor.shape[-1] * 2e-6)
        return plain(self, block, *rest)

    monkeypatch.setattr(BlockWorker, "run", paced)
    monkeypatch.setattr(convert_rate, "SETTLED", 0.3)
    off = []
    for number in range(3):  # the machine is shared: one run without a stall shows what the estimate is worth
        ready.show_page("recipe")
        ready.page("recipe").set_output(tmp_path / f"out{number}.gguf")
        _page, entry, card = start(ready, qtbot)
        qtbot.waitUntil(lambda e=entry: running(e) and e.share >= 0.5, timeout=LONG)
        left, asked = entry.meter.time_left(), time.monotonic()
        qtbot.waitUntil(lambda e=entry, c=card: " left" in c.text.text() or e.state.final, timeout=LONG)
        wait_end(qtbot, entry)
        took = time.monotonic() - asked
        assert left is not None
        off.append((abs(left - took) - 0.3) / took)
        if off[-1] < 0.3:
            break
    assert min(off) < 0.3, off


def test_other_pages_stay_usable_while_it_runs(ready, qtbot, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    page, entry, _card = start(ready, qtbot)
    qtbot.waitUntil(lambda: running(entry), timeout=LONG)
    assert QApplication.activeModalWidget() is None
    for key in ("model", "recipe", "inspect", "test", "convert"):
        ready.show_page(key)
        assert ready.current_page.isVisible()
    recipe = ready.page("recipe")
    recipe.set_recipe(Recipe(target="Q4_0"))
    wait_plan(ready, qtbot, "Q4_0")
    assert entry.pending
    assert entry.order.recipe.target == "Q8_0"
    page.queue.cancel(entry)
    wait_end(qtbot, entry)


def test_jobs_run_one_after_another(ready, qtbot, tmp_path: Path, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    page, first, _ = start(ready, qtbot)
    qtbot.waitUntil(lambda: running(first), timeout=LONG)
    ready.show_page("recipe")
    ready.page("recipe").set_output(tmp_path / "second.gguf")
    _, second, card = start(ready, qtbot)
    assert second.state is JobState.QUEUED
    assert card.verdict.text == "queued"
    assert page._chosen is first, "a new entry does not push the running one aside"
    page.queue.cancel(second)
    assert second.state is JobState.CANCELLED, "a queued entry is cancelled at once"
    page.queue.resume(second)
    wait_end(qtbot, first)
    wait_end(qtbot, second)
    assert (first.state, second.state) == (JobState.DONE, JobState.DONE)
    assert (tmp_path / "second.gguf").exists()


def test_a_second_press_makes_no_second_job(ready, qtbot, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    page, entry, _card = start(ready, qtbot)
    ready.show_page("recipe")
    click(qtbot, ready.page("recipe").convert)
    assert page.queue.entries == [entry]
    page.queue.cancel(entry)
    wait_end(qtbot, entry)


def test_a_chosen_file_that_exists_is_replaced_only_once(ready, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "out.gguf").write_bytes(b"something old")
    recipe = ready.page("recipe")
    recipe.set_output(tmp_path / "out.gguf")
    _page, entry, _card = start(ready, qtbot)
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert (tmp_path / "out.gguf").stat().st_size == entry.plan.bytes_total
    ready.show_page("recipe")
    assert recipe.output.text() == str(tmp_path / "tiny-Q8_0.gguf")


def test_failure_is_told_in_the_row(ready, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from core.blocks import BlockWorker

    def fail(self, block, *_rest):  # type: ignore[no-untyped-def]
        if block.tensor > 3:
            raise UserError("The disk of /data is full.", "Free some space; the run can then be resumed.")
        return plain(self, block, *_rest)

    plain = BlockWorker.run
    monkeypatch.setattr(BlockWorker, "run", fail)
    page, entry, card = start(ready, qtbot)
    wait_end(qtbot, entry)
    assert entry.state is JobState.FAILED
    assert card.error.isVisible()
    assert card.error.message.text() == "The disk of /data is full."
    assert card.error.hint.text() == "Free some space; the run can then be resumed."
    assert "Traceback" not in card.error.message.text()
    names = {b.text() for b in card.error.findChildren(type(card.buttons["pause"])) if b.isVisible()}
    assert {"Details", "Copy"} <= names
    card.error.copy()
    assert "Traceback" in QApplication.clipboard().text()
    assert card.verdict.text == "failed"
    assert "100 %" not in card.text.text()
    assert {r.state for r in page.table.model.rows() if r.result is None} == {"not written"}
    assert not (tmp_path / "out.gguf").exists()
    monkeypatch.setattr(BlockWorker, "run", plain)
    click(qtbot, card.buttons["resume"])
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert not card.error.isVisible()
    page.queue.remove(entry)
    assert not page._cards
    assert page.primary() is page.empty_button


def test_an_unexpected_error_has_no_traceback_as_headline(ready, qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from core.blocks import BlockWorker

    monkeypatch.setattr(BlockWorker, "run", lambda *_a: [][1])
    _page, entry, card = start(ready, qtbot)
    wait_end(qtbot, entry)
    assert card.error.message.text().count("\n") == 0
    assert card.error.hint.text()


def test_closing_the_window_leaves_a_resumable_state(ready, qtbot, tmp_path: Path, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    _page, entry, _card = start(ready, qtbot)
    qtbot.waitUntil(lambda: running(entry) and entry.progress.tensor_index > 4, timeout=LONG)
    ready.close()
    assert not (tmp_path / "out.gguf").exists()
    assert (tmp_path / "out.gguf.partial").exists()
    saved = json.loads(ready.services.settings.text(UNFINISHED))
    assert [o["output"] for o in saved] == [str(tmp_path / "out.gguf")]


def test_unfinished_conversions_of_before_can_go_on(services, qtbot, tmp_path: Path, slow_blocks: None) -> None:  # type: ignore[no-untyped-def]
    source = write_llama(tmp_path / "tiny")
    order = Order(source, Recipe(target="Q8_0"), tmp_path / "out.gguf")
    saved = [{"source": str(source), "output": str(order.output), "recipe": order.recipe.to_json()}]
    interrupt(order)
    services.settings.set_text(UNFINISHED, json.dumps(saved))
    queue = ConversionQueue(services.jobs, services.settings)
    (entry,) = queue.entries
    assert entry.state is JobState.CANCELLED
    assert "Resume" in status_text(entry)
    queue.resume(entry)
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert entry.resumed
    assert order.output.stat().st_size == entry.plan.bytes_total
    qtbot.waitUntil(lambda: json.loads(services.settings.text(UNFINISHED)) == [])


def test_an_unfinished_conversion_is_told_at_the_start(services, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from app.main_window import MainWindow

    source = write_llama(tmp_path / "tiny")
    order = Order(source, Recipe(target="Q8_0"), tmp_path / "out.gguf")
    interrupt(order)
    saved = [{"source": str(source), "output": str(order.output), "recipe": order.recipe.to_json()}]
    services.settings.set_text(UNFINISHED, json.dumps(saved))
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.show()
    page = window.page("convert")
    assert window.banner.isVisible()
    assert "Convert page" in window.banner.hint.text()
    window.show_page("convert")
    assert not window.banner.isVisible()
    assert not page.table.isVisible(), "there is nothing to list yet"
    assert page._no_tensors.isVisible()
    click(qtbot, page.primary())
    (entry,) = page.queue.entries
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert page.table.isVisible()


def interrupt(order: Order) -> None:
    """Run the order's work for a while and stop it, as a crash would after its last write."""
    from core.errors import Cancelled
    from core.progress import CancelToken

    token = CancelToken()
    steps = convert_work(order)(token)
    for _ in range(8):
        next(steps)
    token.cancel()
    with pytest.raises(Cancelled):
        list(steps)


def test_damaged_list_of_unfinished_conversions_is_ignored(services) -> None:  # type: ignore[no-untyped-def]
    services.settings.set_text(UNFINISHED, "{not json")
    assert ConversionQueue(services.jobs, services.settings).entries == []


def test_keyboard_chooses_an_entry_and_its_tensor(ready, qtbot) -> None:  # type: ignore[no-untyped-def]
    page, entry, card = start(ready, qtbot)
    wait_end(qtbot, entry)
    card.setFocus()
    qtbot.keyClick(card, Qt.Key.Key_Return)
    assert page._chosen is entry
    page.table.view.selectRow(2)
    assert entry.rows[2].name in page.histogram.title.text() or not page.histogram.has_data
    assert page.primary() is card.buttons["test"]


# ---- names and numbers ---------------------------------------------------------------------------------------------


def test_output_names(tmp_path: Path) -> None:
    assert output_name(Path("/models/smollm2-135m"), "Q4_K_M") == "smollm2-135m-Q4_K_M.gguf"
    assert output_name(Path("/models/Model-Q4_1.gguf"), "Q4_K_M") == "Model-Q4_K_M.gguf"
    assert output_name(Path("/models/llama.Q8_0.gguf"), "w4a16-g64") == "llama-w4a16-g64"
    shard = tmp_path / "qwen" / "model-00001-of-00002.safetensors"
    shard.parent.mkdir()
    shard.touch()
    (shard.parent / "config.json").write_text("{}")
    assert model_name(shard) == "qwen"
    assert output_folder(shard) == tmp_path
    cache = Path("/x/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/abc123")
    assert model_name(cache) == "SmolLM2-135M"
    assert output_folder(Path.home() / ".cache" / "huggingface" / "m") == Path.home()


def test_a_free_name_is_found(tmp_path: Path) -> None:
    source = tmp_path / "m"
    source.mkdir()
    first = free_output(source, "Q8_0")
    assert first == tmp_path / "m-Q8_0.gguf"
    first.touch()
    assert free_output(source, "Q8_0") == tmp_path / "m-Q8_0-2.gguf"
    assert free_output(source, "w8a16-g32", tmp_path / "elsewhere") == tmp_path / "elsewhere" / "m-w8a16-g32"


def test_rate_and_time_left_leave_pauses_out() -> None:
    meter = RateMeter()
    meter.begin(100.0)
    for second in range(1, 6):
        meter.take(second * 10_000_000, second / 20, 100.0 + second)
    assert meter.rate == pytest.approx(10e6)
    assert meter.elapsed(105.0) == pytest.approx(5.0)
    assert meter.time_left(105.0) == pytest.approx(15.0)
    meter.pause(105.0)
    assert meter.elapsed(300.0) == pytest.approx(5.0)
    meter.resume(300.0)
    meter.take(60_000_000, 6 / 20, 301.0)
    assert meter.elapsed(301.0) == pytest.approx(6.0)
    assert meter.time_left(301.0) == pytest.approx(14.0)


def test_no_time_left_in_the_first_three_seconds_nor_from_work_of_before() -> None:
    meter = RateMeter()
    meter.begin(0.0, resumed=True)
    meter.take(500, 0.5, 0.5)
    meter.take(600, 0.6, 2.5)
    assert meter.time_left(2.5) is None
    meter.take(700, 0.7, 4.5)
    assert meter.time_left(4.5) == pytest.approx(0.3 / (0.2 / 4.0))
