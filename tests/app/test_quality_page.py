"""The Quality tab on tiny models: to a verdict, other limits without a new run, cancel, errors, reports, pictures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cancel_help import Watch, most_work
from job_help import convert
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QComboBox, QFileDialog, QLabel
from tiny_models import write_llama
from verdict_example import LAYERS, NEEDLE, TASKS, TEXTS, example
from window_help import LONG, click, controls, longest_block

from app.jobs.runner import JobState
from app.jobs.testing_core import CoreBackend
from app.jobs.testing_quality import QualityOrder, QualityStep
from app.models.quality import TERMS, headline, limit_columns, so_far
from app.pages.test import TestPage
from app.pages.test.page import TABS
from core.calibration.settings import CalibrationText
from core.formats import Method
from core.methods.choice import Calibrated, DataMethod
from core.metrics.windows import Figure
from core.progress import CancelToken
from core.recipe import Recipe
from core.runtime.results import ResultStore
from core.verdict.settings import Score
from core.verdict.thresholds import PRESETS, Thresholds, find_thresholds, judge
from resources import glossary

pytestmark = pytest.mark.gui
MOST_CONTROLS = 12
TEXT = "The quick brown fox jumps over the lazy dog, the hen and the other fourteen things. " * 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, its Q8_0 and Q4_0 files, another vocabulary, and a file that is damaged."""
    folder = tmp_path_factory.mktemp("models")

    def louder(tensors: dict[str, Any]) -> None:
        for name, tensor in tensors.items():
            if "norm" not in name:
                tensor *= 3

    def damaged(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = float("nan")

    source = write_llama(folder / "source", hidden=64, ffn=96, change=louder)
    convert(source, "Q8_0", folder / "good.gguf")
    convert(source, "Q4_0", folder / "worse.gguf")
    write_llama(folder / "damaged", hidden=64, ffn=96, change=damaged)
    other = write_llama(folder / "other", hidden=64, ffn=96)
    data = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["merges"] = data["model"]["merges"][:1]
    (other / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture
def page(window, models: Path, tmp_path: Path) -> TestPage:  # type: ignore[no-untyped-def]
    """The tab in front, both files chosen, four short windows of an own text."""
    window.show_page("test")
    made = window.page("test")
    made.bench.backend = CoreBackend(ResultStore(tmp_path / "results.jsonl"))
    made.bench.choose(0, models / "source")
    made.bench.choose(1, models / "good.gguf")
    made.tabs.setCurrentIndex(TABS.index("Quality"))
    setup = made.quality.setup
    setup.set_text(models / "text.txt")
    setup.windows.setValue(4)
    setup.length.setValue(48)
    return made


def measure(qtbot, page: TestPage) -> None:  # type: ignore[no-untyped-def]
    click(qtbot, page.judge_button)
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=3 * LONG)
    qtbot.waitUntil(lambda: page.quality.result.settled and not page.services.jobs.jobs(), timeout=LONG)


def choose(box: QComboBox, value: object) -> None:
    box.setCurrentIndex(box.findData(value))
    box.activated.emit(box.currentIndex())


def choose_preset(page: TestPage, name: str) -> None:
    choose(page.quality.setup.preset, name)


def results(page: TestPage) -> dict[str, str]:
    model = page.quality.result.limits.model
    return {line.key: limit_columns()[1].text(line) for line in model.rows()}


def test_from_two_files_to_a_verdict_kept_and_judged_anew(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    quality, result = page.quality, page.quality.result
    assert page.primary() is page.judge_button
    assert len(controls(page)) <= MOST_CONTROLS, [w.accessibleName() for w in controls(page)]
    qtbot.waitUntil(lambda: quality.setup.time.text().startswith("Takes about"), timeout=LONG)
    measure(qtbot, page)
    evaluation = quality.evaluation
    assert not quality.error.isVisible(), quality.error.message.text()
    assert evaluation is not None
    assert evaluation.quality.windows == 4
    assert quality.stack.currentWidget() is result
    assert set(results(page)) == {"kl_mean", "kl_p99", "flips", "perplexity_ratio"}
    assert result.word.text() == ("Passed" if judge(evaluation, PRESETS["balanced"]).passed else "Failed")
    assert result.accessibleDescription() == result.sentence.text()
    assert result.layers.has_data
    assert "after layer" in result.layers.accessibleDescription()
    assert "of 3 texts are the same" in result.texts.accessibleDescription()
    assert "good.gguf against source: 4 windows × 48 tokens of text.txt" in result.basis.text()
    figures = {row.name: row for row in result.figures.model.rows()}
    assert figures["KL divergence, mean"].value.endswith("nats")
    assert figures["KL divergence, mean"].error != "–"
    assert {row.term for row in figures.values() if row.term} <= set(glossary())
    qtbot.waitUntil(lambda: page.history.table.model.rowCount() == 1, timeout=LONG)
    stored = page.history.table.model.row_at(0)
    assert stored.kind == "eval"
    assert "'balanced'" in stored.title
    assert stored.numbers[0].value == pytest.approx(evaluation.quality.kl_mean.value)
    # Other limits judge anew, without a run, and the page says that they came afterwards.
    key = quality.setup.values["kl_mean"]
    key.setValue(1000.0)
    assert quality.setup.preset.currentData() == "own"
    assert results(page)["kl_mean"].startswith("pass")
    assert "chosen after" in result.notes.text()
    key.setValue(0.001 if evaluation.quality.kl_mean.value > 0.001 else 0.0)
    choose_preset(page, "balanced")
    assert not result.notes.isVisible()
    assert quality.evaluation is evaluation
    page.bench.choose(1, evaluation.artifact.path.with_name("worse.gguf"))
    assert "other files" in result.notes.text()


def test_another_preset_turns_a_pass_into_a_failure() -> None:
    evaluation = example()
    words = {name: headline(judge(evaluation, limits)) for name, limits in PRESETS.items()}
    assert words["loose"][1] == words["balanced"][1] == "Passed"
    state, word, sentence = words["strict"]
    assert (state, word) == ("failed", "Failed")
    assert sentence == (
        "Limits “strict” are not met: mean KL divergence is 0.04 nats, allowed is at most 0.01 nats; 2 more of 4 fail."
    )
    near = replace(evaluation.quality, kl_mean=Figure(0.0495, 0.001))
    assert "more windows would tell" in headline(judge(replace(evaluation, quality=near), PRESETS["balanced"]))[2]
    assert headline(judge(evaluation, Thresholds()))[1] == "Measured"
    missing = headline(judge(evaluation, Thresholds("own", decode_ratio=1.0)))
    assert "not measured" in missing[2]


def test_the_verdict_so_far_names_what_is_furthest_out() -> None:
    quality = example().quality
    assert so_far(quality, PRESETS["balanced"]) == ("ok", "Within these limits so far.")
    state, why = so_far(quality, PRESETS["strict"])
    assert (state, why) == ("failed", "Not within the limits so far: KL divergence is 0.04 nats, allowed 0.01 nats.")
    assert so_far(quality, Thresholds(size_ratio=0.5)) == ("", "")


def test_the_preset_on_the_page_changes_the_verdict(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    quality = page.quality
    quality._start(quality.order())
    quality._show(example())
    assert quality.result.word.text() == "Passed"
    choose_preset(page, "strict")
    assert quality.result.word.text() == "Failed"
    assert "FAIL" in results(page)["kl_mean"]
    assert all(quality.result.limits.model.columns[1].icon(line) for line in quality.result.limits.model.rows())
    choose_preset(page, "loose")
    assert quality.result.word.text() == "Passed"
    assert not page.bench.busy
    assert "Mean KL ≤ 0.15 nats" in quality.setup.explained.text()


class _Slow(CoreBackend):
    """An engine whose measurement goes on until it is cancelled."""

    def evaluate(self, order: QualityOrder, token: CancelToken) -> Iterator[QualityStep]:  # type: ignore[override]
        share = 0.0
        while True:
            token.check()
            time.sleep(0.01)
            share = min(share + 0.01, 0.9)
            yield QualityStep("measuring the artifact", share, example().quality if share > 0.1 else None)


def test_figures_come_while_it_runs_and_cancel_judges_nothing(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    page.bench.backend = _Slow()
    quality = page.quality
    click(qtbot, page.judge_button)
    qtbot.waitUntil(lambda: quality.tiles.value("KL divergence") == "0.04 nats", timeout=LONG)
    assert "quantized file" in quality.stage.text()
    assert "so far" in quality.stage.text()
    assert quality.bar.value() > 0
    assert (quality.so_far.isVisible(), quality.so_far_why.text()) == (True, "Within these limits so far.")
    assert page.columns[0].verdict.text == "measuring"
    assert not page.columns[0].load.isVisible(), "nothing has to be loaded for this"
    assert not page.judge_button.isEnabled()
    assert page.judge_button.toolTip()
    click(qtbot, page.cancel)
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert quality.stage.text().startswith("Cancelled, so nothing is judged.")
    assert not quality.so_far.isVisible()
    assert not quality.bar.isVisible()
    assert quality.evaluation is None


def test_the_engine_stops_soon(page: TestPage, qtbot, models: Path) -> None:  # type: ignore[no-untyped-def]
    page.quality.setup.windows.setValue(64)
    page.quality.setup.length.setValue(16)
    click(qtbot, page.judge_button)
    qtbot.waitUntil(lambda: page.quality.bar.value() > 0 or not page.bench.busy, timeout=LONG)
    watch = Watch(page.bench.cancel)
    watch.press()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    assert watch.work < most_work()


@pytest.mark.parametrize(
    ("side", "name", "words"),
    [(1, "other", "different tokens"), (1, "damaged", "not finite"), (1, "nothing.gguf", "nothing.gguf")],
)
def test_errors_are_a_sentence_with_a_next_step(page: TestPage, qtbot, models: Path, side, name, words) -> None:  # type: ignore[no-untyped-def]
    page.bench.choose(side, models / name)
    measure(qtbot, page)
    error = page.quality.error
    assert error.isVisible()
    assert words in error.message.text()
    assert error.hint.text().endswith(".")
    assert page.quality.evaluation is None
    page.bench.choose(side, models / "good.gguf")
    measure(qtbot, page)
    assert not error.isVisible()
    assert page.quality.evaluation is not None


def test_one_file_is_not_enough_and_the_page_says_so(window, models: Path) -> None:  # type: ignore[no-untyped-def]
    window.show_page("test")
    page = window.page("test")
    page.bench.choose(0, models / "source")
    page.tabs.setCurrentIndex(TABS.index("Quality"))
    assert not page.judge_button.isEnabled()
    assert page.judge_button.toolTip() == page.reason.text() != ""


def test_reports_are_saved_and_copied(page: TestPage, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    quality = page.quality
    quality._start(quality.order())
    quality._show(replace(example(), layers=LAYERS, needle=NEEDLE, texts=TEXTS, tasks=TASKS))
    for suffix in (".html", ".md", ".json"):
        target = tmp_path / f"report{suffix}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_a, target=target, **_k: (str(target), ""))
        quality._ask_save(suffix)
        qtbot.waitUntil(target.exists, timeout=LONG)
    qtbot.waitUntil(lambda: quality.result.saved.text().endswith("report.json"), timeout=LONG)
    assert json.loads((tmp_path / "report.json").read_text())["verdict"]["passed"] is True
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert quality.result.saved.isVisible()
    click(qtbot, quality.result.copy)
    copied = QGuiApplication.clipboard().text()
    assert copied.strip() == (tmp_path / "report.md").read_text().strip()
    assert "| pass | Mean KL divergence |" in copied
    quality.save(tmp_path / "nowhere" / "report.md")
    qtbot.waitUntil(quality.error.isVisible, timeout=LONG)
    assert "report.md" in quality.error.message.text()


def test_pictures_say_what_they_show(page: TestPage, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    quality = page.quality
    quality._start(quality.order())
    quality._show(replace(example(), layers=LAYERS, needle=NEEDLE, texts=TEXTS))
    qtbot.waitUntil(lambda: quality.result.settled, timeout=LONG)
    result = quality.result
    assert result.layers.read_out(2.2) == "Layer 1: mean 3.00 % · worst token 30.00 %"
    assert result.layers.csv().splitlines()[1].startswith("embedding,")
    assert "source finds 2 and the quantized file 1; 1 that" in result.needle.accessibleDescription()
    result.grid.tabs.setCurrentIndex(result.grid.tabs.count() - 1)
    cells = result.needle._cells
    texts = {cells.text_at(x, y) for x in range(0, cells.width(), 8) for y in range(0, cells.height(), 4)}
    assert "Quantized, 256 tokens, at 90 %: not found (−0.5 nats)" in texts
    document = result.texts.document()
    first = document.find("yet")
    assert first.charFormat().fontWeight() == QFont.Weight.DemiBold
    assert first.charFormat().fontUnderline() or first.charFormat().underlineStyle()
    assert "is continued alike" in result.texts.toPlainText()


def test_every_option_reaches_the_settings(page: TestPage, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    setup = page.quality.setup
    click(qtbot, setup.more)
    for box in (setup.speed, setup.layers, setup.texts):
        box.click()
    assert setup.settings().needle == ()
    for choice, value in ((setup.arithmetic, "fast"), (setup.needle, 16_384), (setup.score, "second-half")):
        choose(choice, value)
    choose(setup.spread, False)
    setup.set_tasks(str(tmp_path / "tasks.jsonl"))
    settings = setup.settings("GPTQ", "prose")
    assert settings.needle == (256, 1024, 4096, 16_384)
    assert (settings.text.score, settings.text.spread) == (Score.SECOND_HALF, False)
    assert (settings.speed, settings.layers, settings.prompts, settings.arithmetic) == (True, 0, (), "fast")
    assert (settings.text.windows, settings.text.length) == (4, 48)
    assert settings.tasks.endswith("tasks.jsonl")
    assert (settings.method, settings.calibration) == ("GPTQ", "prose")
    setup.values["flips"].setValue(3.0)
    setup.values["kl_p99"].setValue(0.0)
    setup.values["needles_lost"].setValue(0.0)
    limits = setup.thresholds()
    assert (limits.flips, limits.kl_p99, limits.needles_lost, limits.decode_ratio) == (0.03, None, 0.0, None)
    known = {word.casefold() for word in glossary()}
    for label in page.quality.findChildren(QLabel):
        if label.isVisible() and label.text().casefold() in known:
            assert label.toolTip(), label.text()


def test_every_limit_can_be_set_and_what_it_takes_is_measured(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    setup = page.quality.setup
    click(qtbot, setup.more)
    assert set(setup.values) == {f.name for f in fields(Thresholds)} - {"name"}
    for key in setup.values:
        assert TERMS[key] in glossary(), key
        assert setup.values[key].toolTip(), key
    setup.layers.setChecked(False)
    for key, shown in (("needles_lost", 0.0), ("decode_rate", 5.0), ("layer_error", 3.0), ("size_bytes", 1.5)):
        setup.values[key].setValue(shown)
    settings, limits = setup.settings(), setup.thresholds()
    assert settings.needle == (256, 1024, 4096)
    assert settings.speed
    assert settings.layers
    assert (limits.needles_lost, limits.decode_rate, limits.size_bytes) == (0.0, 5.0, 1.5e6)
    assert limits.layer_error == pytest.approx(0.03)
    setup.set_tasks("tasks.jsonl")
    assert setup.tasks.text() == "Without tasks.jsonl"
    click(qtbot, setup.tasks)
    assert setup.settings().tasks == ""


def test_limits_are_kept_in_a_file_as_the_command_line_reads_it(page: TestPage, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    quality, setup = page.quality, page.quality.setup
    file = tmp_path / "team.json"
    file.write_text('{"kl_mean": 0.0312345, "needles_lost": 0}', encoding="utf-8")
    setup.limits.read(file)
    assert setup.thresholds() == find_thresholds(str(file))  # not what the boxes would round it to
    assert setup.preset.currentData() == "own"
    assert setup.settings().needle
    setup.limits.write(tmp_path / "copy.json")
    assert find_thresholds(str(tmp_path / "copy.json")) == Thresholds("team", kl_mean=0.0312345, needles_lost=0.0)
    setup.values["flips"].setValue(2.0)
    assert setup.thresholds().name == "my own"
    assert setup.thresholds().kl_mean == pytest.approx(0.031)
    file.write_text('{"kl_men": 1}', encoding="utf-8")
    setup.limits.read(file)
    assert quality.error.isVisible()
    assert "kl_men" in quality.error.message.text()
    choose_preset(page, "own")
    assert setup.options.isVisible()


def test_ctrl_enter_measures_and_small_windows_cut_nothing(page: TestPage, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    page.bench.backend = _Slow()
    window.resize(900, 600)
    window.activateWindow()
    page.quality.setup.windows.setFocus()
    qtbot.waitUntil(page.quality.setup.windows.hasFocus)
    QTest.keyClick(window.windowHandle(), Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: page.bench.busy == "judging", timeout=LONG)
    page.bench.cancel()
    qtbot.waitUntil(lambda: not page.bench.busy, timeout=LONG)
    quality = page.quality
    quality._show(replace(example(), layers=LAYERS, needle=NEEDLE, texts=TEXTS))
    qtbot.waitUntil(lambda: quality.result.settled, timeout=LONG)
    QTest.qWait(50)
    page.bench.choose(1, page.bench.paths[1].with_name("worse.gguf"))
    qtbot.waitUntil(lambda: quality.setup.time.text() != "", timeout=LONG)
    assert page.reason.text() == quality.setup.time.text(), "where the row below is left out"
    window.resize(1500, 1000)
    qtbot.waitUntil(lambda: quality.setup.time.isVisible(), timeout=LONG)
    assert page.reason.text() == "", "it stands in one place only"
    for table in (quality.result.limits, quality.result.figures):
        for column in range(1, len(table.model.columns)):
            texts = [table.model.columns[column].text(row) for row in table.model.rows()]
            room = table.view.columnWidth(column) - 12
            assert all(table.fontMetrics().horizontalAdvance(text) <= room for text in texts), texts
    window.resize(900, 600)
    QTest.qWait(50)
    bottom = quality.result.limits.mapTo(quality, quality.result.limits.rect().bottomLeft()).y()
    assert bottom <= quality.height()
    assert quality.result.copy.geometry().right() < quality.result.save.geometry().left()
    click(qtbot, quality.setup.more)
    assert quality.setup.options.isVisible()
    assert quality.setup.mapTo(quality, quality.setup.rect().bottomLeft()).y() <= quality.height()


def test_showing_a_verdict_does_not_block(page: TestPage, qtbot) -> None:  # type: ignore[no-untyped-def]
    """The quickest of three counts, since the machine may be shared."""
    quality, shown = page.quality, replace(example(), layers=LAYERS, needle=NEEDLE, texts=TEXTS)
    quality._start(quality.order())
    runs = []
    for _ in range(3):
        runs.append(longest_block(lambda: quality._show(shown), lambda: quality.result.settled))
        if runs[-1] < 0.05:
            break
    assert min(runs) < 0.05, f"blocked for {1000 * min(runs):.0f} ms"


def test_how_a_file_was_made_goes_into_its_report(
    page: TestPage, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = {
        "plain.gguf": Recipe("Q4_K_M", method=Method.ROUND),
        "good.gguf": Recipe("Q4_0", calibrated=Calibrated(DataMethod.GPTQ, text=CalibrationText(samples=32))),
    }
    entries = [
        SimpleNamespace(state=JobState.DONE, order=SimpleNamespace(output=models / name, source=None, recipe=recipe))
        for name, recipe in recipes.items()
    ]
    monkeypatch.setattr(page.bench, "_queue", SimpleNamespace(entries=entries, pending=()))
    assert page.bench.made_by(models / "plain.gguf") == (f"Q4_K_M, {Method.ROUND.value}", "none")
    assert page.bench.made_by(models / "worse.gguf") == ("", "")
    order = page.quality.order()
    assert order is not None
    assert (order.settings.method, order.settings.calibration) == ("Q4_0, GPTQ", "32 × 512 tokens")
