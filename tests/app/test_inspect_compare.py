"""Compare: source and result tensor by tensor, what is missing in words, sorting, export, and the way to the tensor."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from safetensors.numpy import load_file, save_file
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_recipe, wait_end, wait_plan

from app.pages.inspect.compare_rows import result, worst_first
from core.recipe import Recipe

pytestmark = pytest.mark.gui


def open_view(window: Any, qtbot: Any, folder: Path) -> Any:
    open_recipe(window, qtbot, folder)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.show_view("compare")
    qtbot.waitUntil(lambda: not window.services.jobs.jobs(), timeout=LONG)
    qtbot.wait(20)
    return page.views["compare"]


def copy_with(folder: Path, target: Path, change: Any) -> Path:
    """The same model with other tensors, by the safetensors library."""
    import shutil

    import torch
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    shutil.copytree(folder, target)
    tensors: dict[str, torch.Tensor] = load(target / "model.safetensors")
    change(tensors)
    save(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def compare(qtbot: Any, view: Any) -> list[Any]:
    qtbot.wait(10)
    click(qtbot, view.start if view.start.isVisible() else view.again)
    qtbot.waitUntil(lambda: view._job is None, timeout=LONG)
    return list(view.table.model.rows())


def test_source_and_latest_result_are_chosen_by_themselves(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    view = open_view(window, qtbot, folder)
    assert view.paths == [folder, None]
    assert "second" in view.start.text()
    assert "convert it first" in view.reason.text()
    recipe = window.page("recipe")
    window.show_page("recipe")
    recipe.set_recipe(Recipe(target="Q8_0"))
    wait_plan(window, qtbot, "Q8_0")
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    recipe.set_output(tmp_path / "result.gguf")
    click(qtbot, recipe.convert)
    entry = window.page("convert").queue.entries[-1]
    wait_end(qtbot, entry)
    window.show_page("inspect")
    qtbot.waitUntil(lambda: view.paths[1] == tmp_path / "result.gguf", timeout=LONG)
    rows = compare(qtbot, view)
    measured = {t.name: t.error for t in entry.result.tensors if t.error is not None}
    mine = {r.other_name: r for r in rows}
    assert set(measured) <= set(mine)
    for name, error in measured.items():
        assert mine[name].error.snr_db == pytest.approx(error.snr_db, abs=0.02), name
        assert mine[name].error.max_error == pytest.approx(error.max_error, rel=1e-5), name
    assert "tensors compared" in view.summary.text()
    assert "Lowest SNR" in view.summary.text()
    errors = [
        r.error.snr_db for r in (view.table.model.row_at(i) for i in range(view.table.model.rowCount())) if r.error
    ]
    assert errors == sorted(errors), "what suffers most is seen first"


def test_missing_and_reshaped_tensors_are_said_in_words(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    gone, other = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"

    def change(tensors: dict[str, Any]) -> None:
        del tensors[gone]
        tensors[other] = tensors[other][:256].contiguous()

    view = open_view(window, qtbot, folder)
    view.set_path(1, copy_with(folder, tmp_path / "other", change))
    rows = {r.name or r.other_name: r for r in compare(qtbot, view)}
    assert result(rows[gone]) == "only in the first"
    assert result(rows[other]) == "shapes differ: 512 × 256 and 256 × 256"
    assert result(rows["model.layers.0.mlp.gate_proj.weight"]) == "same values"
    assert "only in the first" in view.summary.text()
    view.table.filter.setText("differ")
    assert [r.name for r in view.table.model.shown()] == [other]


def test_sorted_by_error_with_the_worst_channel_named(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    spoilt = "model.layers.1.mlp.down_proj.weight"

    def change(tensors: dict[str, Any]) -> None:
        tensors[spoilt][:, 77] += 0.5
        tensors["model.layers.0.mlp.down_proj.weight"][3] += 0.01

    view = open_view(window, qtbot, folder)
    view.set_path(1, copy_with(folder, tmp_path / "other", change))
    compare(qtbot, view)
    view.table.view.sortByColumn(2, Qt.SortOrder.AscendingOrder)
    first = view.table.model.shown()[0]
    assert first.name == spoilt
    worst = worst_first(first)[0]
    assert (worst.axis, worst.index) == ("input", 77)
    assert worst.share > 0.99
    source, changed = (load_file_torch(p) for p in (folder, tmp_path / "other"))
    x, y = (t[spoilt].astype(np.float64) for t in (source, changed))
    assert first.error.snr_db == pytest.approx(10 * np.log10((x**2).sum() / ((y - x) ** 2).sum()), abs=1e-3)
    view.table.view.selectRow(0)
    assert "input channel 77" in view.details.text()
    click(qtbot, view.open)
    page = window.page("inspect")
    assert page.state.tensor.name == spoilt
    assert page.tabs.tabText(page.tabs.currentIndex()) == "Tensor"


def load_file_torch(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.torch import load_file as load

    return {name: t.float().numpy() for name, t in load(folder / "model.safetensors").items()}


def test_rows_shown_are_exported(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    view = open_view(window, qtbot, folder)
    assert not view.export.isEnabled()
    assert view.export.toolTip()
    view.set_path(1, copy_with(folder, tmp_path / "other", lambda t: None))
    compare(qtbot, view)
    view.table.filter.setText("down_proj")
    view.save(tmp_path / "rows.csv")
    view.save(tmp_path / "rows.json")
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    assert len(json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["tensors"]) == 2
    view._copy()
    assert len(QGuiApplication.clipboard().text().splitlines()) == 3
    QGuiApplication.clipboard().setText("")
    view.save(tmp_path / "no" / "folder.csv")
    assert "can not be written" in view.error.message.text()


def test_files_that_do_not_match_or_open_say_so(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    view = open_view(window, qtbot, folder)
    view.set_path(1, folder)
    assert "same file" in view.reason.text()
    assert not view.start.isEnabled()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    view.set_path(1, broken)
    compare(qtbot, view)
    assert view.error.isVisible()
    assert view.empty.isVisible()
    other = tmp_path / "foreign.safetensors"
    save_file({"something": np.ones((4, 4), np.float32)}, other)
    assert load_file(other)
    view.set_path(1, other)
    assert not view.error.isVisible(), "another file, another start"
    compare(qtbot, view)
    assert view.error.isVisible() or "only in the first" in view.summary.text()


def test_another_model_starts_anew(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    view = open_view(window, qtbot, folder)
    view.set_path(1, copy_with(folder, tmp_path / "other", lambda t: None))
    compare(qtbot, view)
    open_recipe(window, qtbot, write_llama(tmp_path / "third"))
    assert view.paths == [tmp_path / "third", None]
    assert view.table.model.rows() == []


def test_comparing_never_blocks_and_everything_has_a_name(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model", layers=6)
    view = open_view(window, qtbot, folder)
    view.set_path(1, copy_with(folder, tmp_path / "other", lambda t: None))
    assert longest_block(view.run, lambda: view._job is None and bool(view.table.model.rows())) < 0.05
    for widget in controls(view):
        assert widget.accessibleName() or getattr(widget, "text", str)(), widget
