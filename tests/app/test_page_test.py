"""The Test page with an engine that answers at once: loading, answers, numbers, sweep, history, cancel and unload."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fake_backend import GPUS, FakeBackend
from job_help import convert
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QFont, QGuiApplication, QTextCharFormat
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_model, open_recipe, wait_end, wait_plan

from app.jobs.testing import Piece
from app.jobs.testing_bench import SlotState
from app.models.answers import compare
from app.pages.test import TestPage
from core.recipe import Recipe
from core.runtime.results import ResultStore
from resources import glossary

pytestmark = pytest.mark.gui
MOST_CONTROLS = 12
CANCEL_SECONDS = 0.2


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """The engine of every Test page made from now on."""
    made = FakeBackend()
    monkeypatch.setattr("app.jobs.testing_core.CoreBackend", lambda: made)
    return made


@pytest.fixture
def page(backend: FakeBackend, window, tmp_path: Path) -> TestPage:  # type: ignore[no-untyped-def]
    """The page in front, a file in each column."""
    window.show_page("test")
    made = window.page("test")
    for side, name in enumerate(("model", "model-Q4_K_M.gguf")):
        path = tmp_path / name
        path.write_bytes(b"")
        made.bench.choose(side, path)
    return made


def wait_idle(qtbot, page: TestPage) -> None:  # type: ignore[no-untyped-def]
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    qtbot.waitUntil(lambda: not page.services.jobs.jobs(), timeout=LONG)


def generate(qtbot, page: TestPage, tokens: int = 12) -> None:  # type: ignore[no-untyped-def]
    page.prompt.tokens.setValue(tokens)
    click(qtbot, page.generate)
    wait_idle(qtbot, page)


def test_empty_until_there_is_a_file(backend: FakeBackend, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    window.show_page("test")
    page = window.page("test")
    assert page.primary() is page.empty_button
    assert page.empty_button.isVisible()
    open_model(window, qtbot, write_llama(tmp_path / "model"))
    window.show_page("test")
    assert page.primary() is page.generate
    assert page.columns[0].file.text() == "model"
    assert page.columns[1].file.text() == ""
    assert "drop" in page.columns[1].text.text()


def test_the_last_conversion_fills_the_second_column(backend: FakeBackend, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = write_llama(tmp_path / "model")
    recipe = open_recipe(window, qtbot, source)
    recipe.set_recipe(Recipe(target="Q8_0"))
    recipe.set_output(tmp_path / "out.gguf")
    store = window.services.session
    wait_plan(window, qtbot, "Q8_0")
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    recipe.convert.click()
    wait_end(qtbot, window.page("convert").queue.entries[-1])
    page = window.page("test")
    qtbot.waitUntil(lambda: page.bench.paths == (source, tmp_path / "out.gguf"), timeout=LONG)
    page.bench.choose(0, tmp_path / "out.gguf")
    convert = window.page("convert")
    convert._cards[convert.queue.entries[-1]].buttons["test"].click()  # both are its files again
    assert window.current_page is page
    assert page.bench.paths == (source, tmp_path / "out.gguf")
    window.open_path(tmp_path / "out.gguf")  # the result opened as a model does not become its own source
    qtbot.waitUntil(lambda: store.current.checkpoint is not None, timeout=LONG)
    assert page.bench.paths == (source, tmp_path / "out.gguf")


def test_both_files_answer_and_the_difference_is_named(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    generate(qtbot, page)
    assert [side for side, _ in backend.asked] == [0, 1]
    a, b = (view.toPlainText() for view in page.answers.views)
    assert a == " Paris. It is also the largest city of the country,"
    assert b == " Paris. It is also a large city of this country,"
    sentence = page.answers.sentence.text()
    assert sentence.startswith("Same for 5 tokens, then they differ")
    assert "near-tie margin 0.02" in sentence
    assert page.answers.views[0].accessibleDescription() == sentence
    assert page.answers.views[0].marks == page.answers.views[1].marks == {5, 6, 9}
    for view in page.answers.views:
        document = view.document()
        first = document.find(" the" if view is page.answers.views[0] else " a", document.find("also").position())
        style = first.charFormat()
        assert style.fontWeight() == QFont.Weight.DemiBold
        assert style.underlineStyle() != QTextCharFormat.UnderlineStyle.NoUnderline  # not by colour alone


def test_equal_answers_say_so() -> None:
    pieces = [Piece(0, n, f" {n}") for n in range(7)]
    same = compare(pieces, [Piece(1, p.id, p.text) for p in pieces])
    assert same.sentence() == "The same for all 7 tokens."
    shorter = compare(pieces, [Piece(1, p.id, p.text) for p in pieces[:4]])
    assert shorter.sentence() == "Same for 4 tokens, then they differ: “ 4” against the end."
    assert shorter.marks == ({4, 5, 6}, frozenset())


def test_numbers_have_units_and_ratios(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    generate(qtbot, page)
    rows = {r.name: r for r in (page.numbers.model.row_at(i) for i in range(page.numbers.model.rowCount()))}
    assert rows["Time per token, median"].texts == ("12.50 ms", "6.10 ms")
    assert rows["Time per token, median"].ratio == "0.49 ×"
    assert rows["Generation"].texts[0].endswith("tokens/s")
    assert rows["Weights"].texts[0] == "269.06 MB (256.60 MiB)"
    assert rows["Share of the bandwidth bound"].texts == ("91.0 %", "74.0 %")
    assert rows["Energy per token"].texts == ("not measured", "not measured")
    assert page.energy.text().startswith("Energy is not measured: this processor's energy counter")
    assert {row.term for row in rows.values()} <= set(glossary())
    assert page.slower.isHidden()
    kernels = [page.kernels.model.row_at(i) for i in range(page.kernels.model.rowCount())]
    assert {(k.side, k.kernel) for k in kernels} >= {(0, "gemv bf16"), (1, "gemv 4-bit")}
    assert all(k.isa and k.reason and k.shape for k in kernels)


def test_a_slower_file_is_told_with_its_reason(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    backend.slow = True
    generate(qtbot, page)
    assert page.answers.slower.text() == "A token takes 1.51 times as long as with the source, because it does."
    assert page.answers.slower.isVisible()
    assert page.slower.text() == page.answers.slower.text()


def test_every_control_reaches_the_engine(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    assert len(controls(page)) <= MOST_CONTROLS, [w.accessibleName() or w.text() for w in controls(page)]
    click(qtbot, page.more)
    advanced = page.advanced
    page.prompt.prompt.setPlainText("One\nTwo")
    page.prompt.chat.setChecked(True)
    advanced.temperature.setValue(0.7)
    advanced.top_k.setValue(40)
    advanced.top_p.setValue(0.9)
    advanced.min_p.setValue(0.05)
    advanced.repetition.setValue(1.1)
    advanced.seed.setValue(7)
    advanced.stop.setText("\\n\\n;END")
    advanced.activations.setCurrentIndex(1)
    advanced.context.setValue(4096)
    generate(qtbot, page, 3)
    _, question = backend.asked[0]
    s = question.sampling
    assert (question.prompt, question.chat, question.tokens, question.stop) == ("One\nTwo", True, 3, ("\n\n", "END"))
    assert (s.temperature, s.top_k, s.top_p, s.min_p, s.repetition, s.seed) == (0.7, 40, 0.9, 0.05, 1.1, 7)
    assert all(m.setup.arithmetic == "exact" and m.setup.context == 4096 for m in backend.models)


def test_another_contract_loads_anew_and_closes_the_old(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    generate(qtbot, page, 2)
    generate(qtbot, page, 2)
    assert len(backend.models) == 2  # loaded once
    page.advanced.activations.setCurrentIndex(1)
    generate(qtbot, page, 2)
    assert [m.closed for m in backend.models] == [True, True, False, False]


def test_load_and_unload(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    column, slot = page.columns[0], page.bench.slots[0]
    click(qtbot, column.load)
    wait_idle(qtbot, page)
    assert slot.state is SlotState.LOADED
    assert column.load.text() == "Unload"
    assert "holds 280.00 MB" in column.text.text()
    click(qtbot, column.load)
    wait_idle(qtbot, page)
    assert slot.model is None
    assert backend.models[0].closed
    assert column.load.text() == "Load"


def test_loading_shows_how_far_it_is_and_stops(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    backend.pause = 0.15
    click(qtbot, page.columns[1].load)
    qtbot.waitUntil(lambda: page.columns[1].bar.isVisible() and page.columns[1].bar.value() > 0, timeout=LONG)
    assert "% packed" in page.columns[1].text.text()
    assert not page.generate.isEnabled()
    assert page.generate.toolTip() == page.reason.text() == "Loading…"
    click(qtbot, page.cancel)
    begin = time.monotonic()
    wait_idle(qtbot, page)
    assert time.monotonic() - begin < CANCEL_SECONDS + 3 * backend.pause
    assert page.bench.slots[1].state is SlotState.CHOSEN
    assert backend.models == []


def test_cancel_keeps_what_has_come(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    backend.pause = 0.02
    page.prompt.tokens.setValue(500)
    click(qtbot, page.generate)
    qtbot.waitUntil(lambda: len(page.bench.slots[0].pieces) > 4, timeout=LONG)
    assert page.columns[1].verdict.text == "waiting"
    click(qtbot, page.cancel)
    wait_idle(qtbot, page)
    assert page.answers.views[0].toPlainText().startswith(" Paris. It is")
    assert "Cancelled" in page.answers.sentence.text()
    assert page.bench.slots[0].state is SlotState.LOADED
    assert backend.records == []


def test_a_broken_file_says_why_and_the_other_one_answers(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    backend.broken = {1}
    generate(qtbot, page)
    error = page.answers.errors[1]
    assert error.isVisible()
    assert error.message.text() == "blk.3.attn_q.weight has 12 bytes too few."
    assert error.hint.text() == "Download the file again."
    assert page.columns[1].verdict.text == "failed"
    assert page.answers.views[0].toPlainText()
    backend.broken = set()
    generate(qtbot, page)
    assert not error.isVisible()
    assert page.columns[1].verdict.text == "loaded"


def test_ctrl_enter_generates_from_the_prompt(page: TestPage, window, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    window.activateWindow()
    page.prompt.prompt.setFocus()
    qtbot.waitUntil(page.prompt.prompt.hasFocus)
    QTest.keyClick(window.windowHandle(), Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: bool(backend.asked), timeout=LONG)
    wait_idle(qtbot, page)
    assert page.prompt.prompt.toPlainText() == "The capital of France is"
    reached = set()
    for _ in range(30):
        widget = QApplication.focusWidget()
        reached.add(widget)
        qtbot.keyClick(widget, Qt.Key.Key_Tab)
    assert {page.generate, page.more, page.columns[1].load, page.prompt.tokens, *page.answers.views} <= reached


@pytest.mark.filterwarnings("ignore:Function.*Q(DragEnter|Drop)Event:DeprecationWarning")
def test_a_drop_fills_the_column_under_it(page: TestPage, window, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for x, side in ((300, 0), (1000, 1)):
        path = tmp_path / f"dropped-{side}.gguf"
        path.write_bytes(b"")
        data = QMimeData()
        data.setUrls([QUrl.fromLocalFile(str(path))])
        drop = (Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
        QApplication.sendEvent(window, QDragEnterEvent(QPoint(x, 300), *drop))
        QApplication.sendEvent(window, QDropEvent(QPointF(x, 300), *drop))
        assert page.bench.slots[side].path == path
        assert window.current_page is page


def test_sweep_from_start_to_export(
    page: TestPage, backend: FakeBackend, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    page.tabs.setCurrentIndex(3)
    sweep = page.sweep
    qtbot.waitUntil(lambda: sweep.shape.count() == 3, timeout=LONG)
    assert page.primary() is page.sweep_button
    assert not sweep.export.isEnabled()
    assert not sweep.context.isEnabled()
    sweep.shape.setCurrentIndex(2)
    sweep.shape.activated.emit(2)
    assert sweep.context.isEnabled()
    sweep.context.setValue(1024)
    click(qtbot, page.sweep_button)
    wait_idle(qtbot, page)
    assert backend.swept[0].shape.decode
    assert backend.swept[0].context == 1024
    assert "3.56 × as fast" in sweep.sentence.text()
    assert "stops helping at batch 16" in sweep.sentence.text()
    for number in range(sweep.quantity.count()):
        sweep.quantity.setCurrentIndex(number)
        sweep.quantity.activated.emit(number)
        assert sweep.plot.has_data
        assert sweep.plot.title.text().startswith(sweep.quantity.currentText())
        assert "batch 16" in sweep.plot.accessibleDescription()
        assert "batch 4" in sweep.plot.read_out(2.1)
    assert "20.00 GB/s" in sweep.roofline.accessibleDescription()
    assert "of the roof" in sweep.roofline.read_out(0.0)
    assert sweep.traffic.model.row_at(0) == ("16 bits", 33.5e6, "1.00 ×")
    for suffix in (".csv", ".json", ".png"):
        target = tmp_path / f"sweep{suffix}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_a, target=target, **_k: (str(target), ""))
        sweep._ask_export(suffix[1:].upper())
        assert target.stat().st_size > 100
    assert len((tmp_path / "sweep.csv").read_text().splitlines()) == 17
    data = json.loads((tmp_path / "sweep.json").read_text())
    assert data["compression_stops_helping_at_batch"] == 16
    assert data["points"][8]["speedup"] == pytest.approx(3.564, abs=0.01)
    sweep.save(tmp_path / "nowhere" / "x.csv")
    assert sweep.error.isVisible()


def test_history_compares_two_and_copies_markdown(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    history = page.history
    page.tabs.setCurrentIndex(6)
    assert not history.copy.isVisible()  # a sentence instead of an empty table
    generate(qtbot, page)
    backend.slow = True
    generate(qtbot, page)
    page.tabs.setCurrentIndex(6)
    qtbot.waitUntil(lambda: history.table.model.rowCount() == 2, timeout=LONG)
    assert len(history.selected()) == 1
    assert history.copy.isEnabled()
    history.table.view.selectAll()
    assert "A: Generate 12 tokens" in history.names.text()
    click(qtbot, history.copy)
    text = QGuiApplication.clipboard().text()
    assert "| Generation | 80.0 tokens/s | 80.0 tokens/s | 1.00 × |" in text
    assert "Test processor, 2 cores" in text
    assert "int8 per 32 values" in text
    history.table.view.clearSelection()
    assert not history.copy.isEnabled()
    assert history.copy.toolTip()
    history.table.view.selectRow(0)
    click(qtbot, history.remove)
    qtbot.waitUntil(lambda: history.table.model.rowCount() == 1, timeout=LONG)


def test_terms_are_explained(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    generate(qtbot, page)
    click(qtbot, page.more)
    known = {word.casefold() for word in glossary()}
    for number in range(page.tabs.count()):
        page.tabs.setCurrentIndex(number)
        for label in page.findChildren(QLabel):
            if label.isVisible() and label.text().casefold() in known:
                assert label.toolTip(), label.text()


def test_nothing_blocks_the_event_loop(page: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    """Two answers of 400 tokens, 500 a second; the quickest of three runs counts, since the machine may be shared."""
    generate(qtbot, page, 2)
    backend.pause = 0.002
    page.prompt.tokens.setValue(400)
    runs = []
    for _ in range(3):
        runs.append(longest_block(page.generate.click, lambda: not page.bench.busy and bool(page.bench.comparison)))
        if runs[-1] < 0.05:
            break
    assert min(runs) < 0.05, f"blocked for {1000 * min(runs):.0f} ms"


def test_on_the_bundled_engine(window, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A tiny model and its conversion, with nothing replaced but the place of the history."""
    from app.jobs.testing_core import CoreBackend

    source = write_llama(tmp_path / "tiny", hidden=128, ffn=256)
    convert(source, "Q8_0", tmp_path / "tiny-Q8_0.gguf")
    window.show_page("test")
    page = window.page("test")
    page.bench.backend = CoreBackend(ResultStore(tmp_path / "results.jsonl"))
    page.bench.choose(0, source)
    page.bench.choose(1, tmp_path / "tiny-Q8_0.gguf")
    page.prompt.prompt.setPlainText("the the")
    generate(qtbot, page, 8)
    for slot in page.bench.slots:
        assert slot.error is None, slot.error
        assert slot.measured is not None
        assert 0 < len(slot.pieces) <= 8
    assert page.answers.sentence.text()
    assert page.kernels.model.rowCount() > 4
    assert "holds" in page.columns[1].text.text()
    qtbot.waitUntil(lambda: page.history.table.model.rowCount() == 1, timeout=LONG)
    page.bench.choose(0, tmp_path / "nothing.gguf")
    generate(qtbot, page, 2)
    assert page.answers.errors[0].isVisible()
    assert "nothing.gguf" in page.answers.errors[0].message.text()
    assert page.bench.slots[1].measured is not None


def test_closed_while_generating(page: TestPage, window, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    backend.pause = 0.01
    page.prompt.tokens.setValue(4000)
    click(qtbot, page.generate)
    qtbot.waitUntil(lambda: len(page.bench.slots[0].pieces) > 3, timeout=LONG)
    begin = time.monotonic()
    window.close()
    assert time.monotonic() - begin < 2.0
    assert not window.services.jobs.jobs() or all(job.state.final for job in window.services.jobs.jobs())


def test_with_advanced_open_in_the_smallest_window_answers_keep_their_room(page: TestPage, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    window.resize(900, 600)
    generate(qtbot, page)
    answers = page.answers
    assert all(tiles.isVisible() for tiles in answers.tiles)
    hidden = [name for tiles in answers.tiles for name, part in tiles._values.items() if not part.isVisible()]
    assert not hidden
    click(qtbot, page.more)
    qtbot.waitUntil(lambda: not answers.tiles[0].isVisible(), timeout=LONG)
    line = answers.views[0].fontMetrics().lineSpacing()
    qtbot.waitUntil(lambda: all(view.height() >= 4 * line for view in answers.views), timeout=LONG)
    assert answers.sentence.geometry().bottom() <= answers.height(), "nothing overlaps or is cut off"
    click(qtbot, page.more)
    qtbot.waitUntil(answers.tiles[0].isVisible, timeout=LONG)


def test_a_speed_up_is_a_multiple_and_counts_are_grouped() -> None:
    from core.runtime.results import number_text

    assert number_text(1.874, "") == "1.87 ×"
    assert number_text(12_345.0, "tokens") == "12\u202f345"


def test_without_a_gpu_the_device_is_grey_with_the_reason(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    wait_idle(qtbot, page)
    for column in page.columns:
        assert not column.device.isEnabled()
        assert "no NVIDIA or AMD GPU is at hand" in column.device.toolTip()
        assert column.same.isHidden()
        assert column.vram.isHidden()


@pytest.fixture
def gpus(page: TestPage, backend: FakeBackend, qtbot) -> TestPage:  # type: ignore[no-untyped-def]
    """A page that knows of two GPUs."""
    wait_idle(qtbot, page)
    backend.found, page.bench.devices = GPUS, None
    page.bench.look_for_devices()
    wait_idle(qtbot, page)
    return page


def test_a_column_runs_on_the_gpu_that_is_chosen(gpus: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    page, column = gpus, gpus.columns[1]
    assert [column.device.itemText(i) for i in range(column.device.count())] == ["CPU", "GPU", "GPU 1"]
    assert column.device.itemData(1, Qt.ItemDataRole.ToolTipRole) == "NVIDIA GeForce RTX 4090"
    column.device.setCurrentIndex(2)
    column.device.activated.emit(2)
    page.advanced.fallback.setChecked(True)
    generate(qtbot, page)
    assert [(m.setup.device, m.setup.fallback) for m in backend.models] == [("cpu", False), ("gpu:1", True)]
    assert page.columns[0].vram.isHidden()
    assert column.vram.isVisible()
    assert column.vram.words.text() == "driver 7.90 GB of 24.00 GB · predicted 1.01 GB"
    assert column.vram.accessibleDescription() == column.vram.words.text()
    assert page.bench.logits is None  # two files: nothing to compare logit by logit
    names = [row.name for row in page.numbers.model.rows()]
    assert "GPU memory in use" in names
    row = page.numbers.model.rows()[names.index("GPU memory in use")]
    assert row.texts[0] == "–"
    column.device.setCurrentIndex(0)
    column.device.activated.emit(0)
    generate(qtbot, page)
    assert backend.models[-1].setup.device == "cpu"
    assert backend.models[-2].closed
    assert column.vram.isHidden()


def test_the_same_file_on_both_is_compared_logit_by_logit(gpus: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    page = gpus
    assert page.columns[0].same.isHidden()
    click(qtbot, page.columns[1].same)
    assert page.bench.paths[0] == page.bench.paths[1]
    assert [slot.device for slot in page.bench.slots] == ["cpu", "gpu:0"]
    assert page.columns[1].same.isHidden()
    generate(qtbot, page)
    expected = (
        "Logits over 17 tokens: relative error at most 0.31 %, mean 0.04 %; the likeliest token is the same after "
        "every one."
    )
    assert expected in page.answers.sentence.text()
    assert page.logits.text() == expected
    page.bench.choose(1, page.bench.paths[1].with_name("model-Q4_K_M.gguf"))
    assert page.bench.logits is None


def test_a_sweep_runs_where_the_quantized_file_does(gpus: TestPage, backend: FakeBackend, qtbot) -> None:  # type: ignore[no-untyped-def]
    page = gpus
    page.bench.place(1, "gpu:0")
    page.tabs.setCurrentWidget(page.sweep)
    wait_idle(qtbot, page)
    click(qtbot, page.sweep_button)
    wait_idle(qtbot, page)
    assert backend.swept[-1].device == "gpu:0"
    assert page.quality.order().settings.device == "gpu:0"
