"""The Model page: ways to open a model, what it says of one, and the check of every value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PySide6.QtCore import Qt
from tiny_models import write_llama
from window_help import LONG, click, open_model

from app.pages.model.summary import short_count, type_mix
from core.checkpoint import open_checkpoint
from core.checkpoint.library import LocalModel
from core.errors import UserError
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.units import format_bytes

pytestmark = pytest.mark.gui


def finding_rows(page):  # type: ignore[no-untyped-def]
    """The texts of the findings shown."""
    layout = page.loaded.findings._list
    return [layout.itemAt(i).widget().accessibleName() for i in range(layout.count())]


def quantized(folder: Path) -> Path:
    """A GGUF in Q8_0, made from a tiny model."""
    out = folder / "tiny-Q8_0.gguf"
    with open_checkpoint(write_llama(folder / "source")) as source:
        list(run(make_plan(source, Recipe(target="Q8_0")), source, out, CancelToken()))
    return out


def test_empty_page_offers_every_way_in(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = window.page("model")
    assert page.primary() is page.start.primary
    asked: list[str] = []
    window.services.shell.choose_file.disconnect()
    window.services.shell.choose_folder.disconnect()
    window.services.shell.choose_file.connect(lambda: asked.append("file"))
    window.services.shell.choose_folder.connect(lambda: asked.append("folder"))
    click(qtbot, page.start.primary)
    page.start.open_folder.emit()
    assert asked == ["file", "folder"]
    path = write_llama(tmp_path / "tiny")
    page.start.show_local([LocalModel(path, "tiny", "LM Studio", 123_456_789)])
    item = page.start.local.item(0)
    assert "123.46 MB" in item.text()
    assert str(path) in item.toolTip()
    page.start.local.setCurrentItem(item)
    qtbot.keyClick(page.start.local, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)
    assert path in window.services.settings.recent


def test_open_model_is_summed_up(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write_llama(tmp_path / "tiny", layers=2, shards=2)
    open_model(window, qtbot, path)
    page = window.page("model")
    facts = page.loaded.summary.facts
    checkpoint = window.services.session.current.checkpoint
    assert facts.value("Architecture") == "llama"
    assert facts.value("Layers") == "2"
    assert format_bytes(checkpoint.total_bytes) in facts.value("Size")
    assert "2 safetensors files" in facts.value("Size")
    assert facts.value("Types") == "BF16"
    assert facts.value("Context") == "512 tokens"
    assert facts.value("Tokenizer").startswith("tokenizer.json")
    assert page.loaded.table.model.rowCount() == len(checkpoint.tensors)
    assert page.loaded.path.toolTip() == str(path)
    click(qtbot, page.primary())
    assert window.current_page is window.page("recipe")


def test_long_path_is_elided_in_the_middle_and_whole_in_the_tooltip(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    deep = tmp_path
    while len(str(deep)) < 200:
        deep = deep / "a-folder-with-a-long-name"
    path = write_llama(deep / "tiny")
    open_model(window, qtbot, path)
    label = window.page("model").loaded.path
    assert "…" in label.shown_text()
    assert label.shown_text().endswith("tiny")
    assert label.toolTip() == str(path)
    window.show_page("recipe")
    recipe = window.page("recipe")
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    assert recipe.output.toolTip().startswith(str(deep))
    assert recipe.convert.mapTo(recipe, recipe.convert.rect().topRight()).x() < recipe.width()


def test_quantized_source_is_said_when_opened(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    open_model(window, qtbot, quantized(tmp_path))
    rows = finding_rows(window.page("model"))
    assert any("quantized" in row and "Q8_0" in row for row in rows), rows


def test_check_of_every_value_finds_what_headers_can_not_tell(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = float("nan")

    open_model(window, qtbot, write_llama(tmp_path / "spoilt", change=spoil))
    page = window.page("model")
    assert not any("NaN" in row for row in finding_rows(page))
    click(qtbot, page.loaded.findings.scan)
    qtbot.waitUntil(lambda: page.loaded._checked, timeout=LONG)
    worst = finding_rows(page)[0]
    assert worst.startswith("Problem:")
    assert "NaN" in worst
    assert page.loaded.findings.scan.isVisible()


def test_check_can_be_stopped(window, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import time

    from core.checkpoint import doctor

    plain = doctor.scan_values

    def slow(checkpoint, token):  # type: ignore[no-untyped-def]
        for step in plain(checkpoint, token):
            time.sleep(0.05)
            token.check()
            yield step

    monkeypatch.setattr(doctor, "scan_values", slow)
    open_model(window, qtbot, write_llama(tmp_path / "tiny", layers=4))
    findings = window.page("model").loaded.findings
    click(qtbot, findings.scan)
    qtbot.waitUntil(lambda: findings.progress.value() > 0, timeout=LONG)
    assert findings.progress_text.text()
    click(qtbot, findings.cancel)
    qtbot.waitUntil(findings.scan.isVisible, timeout=LONG)
    assert "Stopped" in findings.progress_text.text()
    assert not window.page("model").loaded._checked


def test_failure_to_open_is_told_in_place(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF but no more")
    open_model(window, qtbot, broken)
    error = window.page("model").start.error
    assert error.isVisible()
    assert error.message.text().endswith(".")
    assert error.hint.text()
    open_model(window, qtbot, write_llama(tmp_path / "tiny"))
    assert not error.isVisible()


def test_sample_is_fetched_only_on_a_click(window, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    calls: list[str] = []
    folder = write_llama(tmp_path / "sample")

    def fetch() -> Path:
        calls.append("fetch")
        if len(calls) == 1:
            raise UserError("The sample could not be downloaded.", "Check the network connection.")
        return folder

    monkeypatch.setattr("core.sample.sample_path", fetch)
    page = window.page("model")
    assert calls == []
    click(qtbot, page.start.sample)
    qtbot.waitUntil(page.start.error.isVisible, timeout=LONG)
    assert "downloaded" in page.start.error.message.text()
    assert page.start.sample.isEnabled()
    click(qtbot, page.start.sample)
    assert not page.start.sample.isEnabled()
    assert "downloaded" in page.start.sample.toolTip()
    qtbot.waitUntil(lambda: window.services.session.current.checkpoint is not None, timeout=LONG)
    assert page.start.sample_state.text() == ""


def test_counts_and_mixes_in_words(tmp_path: Path) -> None:
    assert short_count(134_515_008) == "134.5 million"
    assert short_count(8_030_261_248) == "8.03 billion"
    assert short_count(999) == "999"
    with open_checkpoint(quantized(tmp_path)) as checkpoint:
        assert type_mix(checkpoint).startswith("Q8_0 ")
        assert "F32" in type_mix(checkpoint)


def test_a_small_context_does_not_stay_for_the_next_model(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    store = window.services.session
    wanted = store.current.context
    for name, longest, context in (("small", 512, 512), ("large", 4 * wanted, wanted)):
        folder = write_llama(tmp_path / name)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": longest}))
        open_model(window, qtbot, folder)
        assert store.current.context == context, name
