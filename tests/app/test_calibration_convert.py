"""Conversions that calibrate: from a click to the verified file, stopped and gone on with, and what is left behind."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cancel_help import Watch, most_work
from PySide6.QtWidgets import QApplication
from tiny_models import write_llama
from window_help import LONG, click, longest_block, open_recipe, wait_end

from app.jobs.convert_queue import UNFINISHED, ConversionQueue
from app.jobs.runner import JobState
from app.pages.convert.card import status_text
from core.calibration.forward import BlockForward
from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.cli import main
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.scratch import scratch_path
from core.recipe import Recipe
from core.run import OtherRun

pytestmark = pytest.mark.gui
TEXT = CalibrationText(samples=2, length=32)
IMPORTANCE = Recipe("Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE, text=TEXT))
CHANGED = Recipe("w4a16-g64", calibrated=Calibrated(DataMethod.NONE, (Transform.ROTATION,), TEXT))  # the quickest
FRAME = 0.050


@pytest.fixture
def ready(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The window with a tiny model of four layers; `start` converts it."""
    open_recipe(window, qtbot, write_llama(tmp_path / "tiny", layers=4, tied=False))
    return window


@pytest.fixture
def slow_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer takes a while to calibrate, and looks at the token meanwhile, as a large one does."""
    plain = BlockForward.run

    def slow(self, *arguments, **options):  # type: ignore[no-untyped-def]
        for _ in range(10):
            time.sleep(0.02)
            self._token.check()
        return plain(self, *arguments, **options)

    monkeypatch.setattr(BlockForward, "run", slow)


def start(window, qtbot, recipe: Recipe, output: Path):  # type: ignore[no-untyped-def]
    """Put the recipe in force and press Convert; returns page, entry and its card."""
    page, store = window.page("recipe"), window.services.session
    window.show_page("recipe")
    page.set_recipe(recipe)
    qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe == recipe, timeout=LONG)
    page.set_output(output)
    qtbot.waitUntil(page.convert.isEnabled, timeout=LONG)
    click(qtbot, page.convert)
    convert = window.page("convert")
    entry = convert.queue.entries[-1]
    return convert, entry, convert._cards[entry]


def weights(entry) -> int:  # type: ignore[no-untyped-def]
    return sum(t.bytes.total for t in entry.plan.tensors)


def calibrating(entry) -> bool:  # type: ignore[no-untyped-def]
    return entry.progress is not None and entry.progress.phase == "calibrating" and entry.progress.share > 0


def test_from_a_click_to_the_verified_file(ready, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out.gguf"
    _, entry, card = start(ready, qtbot, IMPORTANCE, out)
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert out.stat().st_size == entry.plan.bytes_total
    qtbot.waitUntil(lambda: {r.state for r in entry.rows} == {"verified"}, timeout=LONG)
    plain = tmp_path / "plain.gguf"
    _, other, _ = start(ready, qtbot, Recipe("Q4_0"), plain)
    wait_end(qtbot, other)
    assert weights(entry) == weights(other), "only the header is larger, which says how the numbers were chosen"
    assert plain.stat().st_size < out.stat().st_size < plain.stat().st_size + 4096
    assert plain.read_bytes() != out.read_bytes(), "the text has changed the numbers"
    ready.page("convert").choose(entry)
    click(qtbot, card.buttons["command"])
    command = shlex.split(QApplication.clipboard().text())
    assert command[:2] == ["bitsmith", "convert"]
    assert [command[command.index(f"--{word}") + 1] for word in ("method", "samples", "length")] == [
        "importance",
        "2",
        "32",
    ]
    again = tmp_path / "again.gguf"
    command[command.index("-o") + 1] = str(again)
    assert main(command[1:]) == 0
    assert again.read_bytes() == out.read_bytes(), "the command does the same"


def test_calibration_shows_how_far_it_is_and_can_be_paused(ready, qtbot, tmp_path: Path, slow_layers: None) -> None:  # type: ignore[no-untyped-def]
    _, entry, card = start(ready, qtbot, CHANGED, tmp_path / "out")
    assert status_text(entry) != "starting"
    qtbot.waitUntil(lambda: calibrating(entry), timeout=LONG)
    text = status_text(entry)
    assert "calibrating layer " in text
    assert " of 4" in text
    click(qtbot, card.buttons["pause"])
    qtbot.wait(400)
    before = entry.progress.share
    qtbot.wait(600)
    assert entry.progress.share == before
    click(qtbot, card.buttons["resume"])
    qtbot.waitUntil(lambda: entry.progress.share > before, timeout=LONG)
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert not scratch_path(tmp_path / "out").exists(), "nothing is left lying about"
    qtbot.waitUntil(lambda: card.notes.count() > 0, timeout=LONG)
    assert "fewer than" in card.notes.itemAt(0).widget().accessibleName(), "64 tokens are few; the finished row says so"
    with open_checkpoint(tmp_path / "out") as written:
        assert any(t.packed for t in written.tensors)


def test_cancelled_while_calibrating_and_gone_on(ready, qtbot, tmp_path: Path, slow_layers: None) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    _, entry, card = start(ready, qtbot, CHANGED, out)
    qtbot.waitUntil(lambda: calibrating(entry), timeout=LONG)
    watch = Watch(lambda: click(qtbot, card.buttons["cancel"]))
    watch.press()
    wait_end(qtbot, entry)
    assert watch.work < most_work()
    assert entry.state is JobState.CANCELLED
    assert not out.exists()
    assert scratch_path(out).is_dir()
    text = card.text.text()
    assert f"{out.name}.calibrated is kept" in text
    assert "Discard" in text
    click(qtbot, card.buttons["resume"])
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert entry.resumed
    whole = {f.name: f.read_bytes() for f in out.iterdir()}
    other = tmp_path / "other"
    _, second, _ = start(ready, qtbot, CHANGED, other)
    wait_end(qtbot, second)
    assert {f.name: f.read_bytes() for f in other.iterdir()} == whole, "the same as without a stop"


def test_another_runs_work_is_deleted_only_when_asked(ready, qtbot, tmp_path: Path, slow_layers: None) -> None:  # type: ignore[no-untyped-def]
    """The same output with another recipe: hours of work may wait there."""
    out = tmp_path / "out"
    _, entry, card = start(ready, qtbot, CHANGED, out)
    qtbot.waitUntil(lambda: calibrating(entry), timeout=LONG)
    click(qtbot, card.buttons["cancel"])
    wait_end(qtbot, entry)
    kept = {f.name: f.read_bytes() for f in scratch_path(out).iterdir()}
    other = replace(CHANGED, calibrated=replace(CHANGED.calibrated, text=replace(CHANGED.calibrated.text, seed=5)))
    _, entry, card = start(ready, qtbot, other, out)
    wait_end(qtbot, entry)
    assert entry.state is JobState.FAILED
    assert isinstance(entry.error, OtherRun)
    assert {f.name: f.read_bytes() for f in scratch_path(out).iterdir()} == kept
    assert card.main_button() is card.buttons["anew"]
    assert card.buttons["anew"].isVisible()
    assert not card.buttons["resume"].isVisible()
    assert "untouched" in card.text.text()
    click(qtbot, card.buttons["anew"])
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert not entry.resumed


def test_discard_leaves_nothing(ready, qtbot, tmp_path: Path, slow_layers: None) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    page, entry, card = start(ready, qtbot, CHANGED, out)
    qtbot.waitUntil(lambda: calibrating(entry), timeout=LONG)
    click(qtbot, card.buttons["cancel"])
    wait_end(qtbot, entry)
    click(qtbot, card.buttons["discard"])
    qtbot.waitUntil(lambda: entry not in page.queue.entries, timeout=LONG)
    assert not list(tmp_path.glob("out*"))


def test_discard_of_a_run_that_goes_on_elsewhere_is_refused(ready, qtbot, tmp_path: Path, slow_layers: None) -> None:  # type: ignore[no-untyped-def]
    from core.journal import Journal, journal_path

    out = tmp_path / "out"
    _, entry, card = start(ready, qtbot, CHANGED, out)
    qtbot.waitUntil(lambda: calibrating(entry), timeout=LONG)
    click(qtbot, card.buttons["cancel"])
    wait_end(qtbot, entry)
    journal = Journal(journal_path(out))
    try:
        click(qtbot, card.buttons["discard"])
        qtbot.waitUntil(card.error.isVisible, timeout=LONG)
        assert "Another run" in card.error.message.text()
        assert scratch_path(out).is_dir()
    finally:
        journal.close()


def test_after_a_crash_the_queue_offers_to_go_on(ready, qtbot, tmp_path: Path, slow_layers: None) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    _, entry, _ = start(ready, qtbot, CHANGED, out)
    qtbot.waitUntil(lambda: calibrating(entry), timeout=LONG)
    jobs, settings = ready.services.jobs, ready.services.settings
    qtbot.waitUntil(lambda: out.name in settings.text(UNFINISHED, ""), timeout=LONG)
    later = ConversionQueue(jobs, settings)  # what another start of the program would find
    (found,) = later.entries
    assert found.state is JobState.CANCELLED
    assert found.order.recipe == CHANGED
    assert "Resume" in status_text(found)
    assert f"{out.name}.calibrated" in status_text(found)
    ready.page("convert").queue.cancel(entry)
    wait_end(qtbot, entry)
    later.resume(found)
    wait_end(qtbot, found)
    assert found.state is JobState.DONE, found.error
    assert found.resumed
    assert out.is_dir()


def test_the_event_loop_is_not_blocked(ready, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The quickest of three counts: the machine may be shared."""
    runs = []
    recipe, store, queue = ready.page("recipe"), ready.services.session, ready.page("convert").queue
    for number in range(3):
        ready.show_page("recipe")
        recipe.set_recipe(IMPORTANCE)
        qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe == IMPORTANCE)
        recipe.set_output(tmp_path / f"out{number}.gguf")
        qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)

        def ended(number: int = number) -> bool:
            return len(queue.entries) > number and queue.entries[number].state.final

        runs.append(longest_block(recipe.convert.click, ended))
        assert queue.entries[-1].state is JobState.DONE, queue.entries[-1].error
        if runs[-1] < FRAME:
            break
    assert min(runs) < FRAME, f"blocked for {1000 * min(runs):.0f} ms"
