"""The Inspect page's Map and Tensor view on real checkpoints: what is planted in the weights is found and seen."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QImage
from safetensors.torch import save_file
from tiny_models import write_llama
from window_help import LONG, click, longest_block, open_model

from app.plots.colors import WEIGHTS, shades
from core.errors import UserError

pytestmark = pytest.mark.gui
DOWN = "model.layers.1.mlp.down_proj.weight"
CHANNEL = 337  # input channel of DOWN that is planted
FRAME = 0.050


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A model with one column of one tensor 40 times as large as the others, and one NaN elsewhere."""

    def change(tensors: dict[str, Any]) -> None:
        tensors[DOWN][:, CHANNEL] *= 40
        tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = float("nan")

    return write_llama(tmp_path / "planted", layers=3, change=change)


def open_inspect(window: Any, qtbot: Any, source: Path) -> Any:
    """Open a model and go to the Inspect page; returns it once its survey has ended."""
    open_model(window, qtbot, source)
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.plan is not None, timeout=LONG)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.waitUntil(lambda: "map" in page.views and bool(page.views["map"]._rows), timeout=LONG)
    qtbot.waitUntil(lambda: page.views["map"].settled, timeout=LONG)
    return page


def open_tensor(page: Any, qtbot: Any, name: str) -> Any:
    """Open a tensor; returns its view once everything is there."""
    page.look_at(name)
    qtbot.waitUntil(lambda: "tensor" in page.views, timeout=LONG)
    view = page.views["tensor"]
    qtbot.waitUntil(lambda: view._reply is not None and view._reply.statistics.name == name, timeout=LONG)
    qtbot.waitUntil(lambda: view.settled, timeout=LONG)
    return view


# ---- the map -----------------------------------------------------------------------------------------------------


def test_map_shows_every_tensor_and_the_worst_one_first(window, qtbot, planted: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    view = page.views["map"]
    assert not view.error.isVisible(), view.error.accessibleName()
    tensors = page.state.checkpoint.tensors
    assert len(view._rows) == len(tensors) == len(view.map.table()[1])
    first = view.table.model.row_at(0)
    assert first.name == DOWN, "sorted by the outlier ratio"
    assert DOWN in view.map.accessibleDescription()
    brightest = QColor(*(int(c) for c in shades(WEIGHTS)[-1]))
    canvas = view.map.canvas
    place = canvas._box(*canvas._where[DOWN]).center().toPoint()
    assert canvas.grab().toImage().pixelColor(place) == brightest
    assert "1 tensor has values that are not finite" in view.map.note.text()
    assert "Findings" in view.status.text(), "the next step is said"
    labels = {row for _, row, _, _ in view.map.table()[1]}
    assert {"embedding", "input_layernorm", "post_attention_layernorm", "feed-forward down"} <= labels


@pytest.mark.parametrize("measure", range(6))
def test_every_measure_has_numbers_and_words(window, qtbot, planted: Path, measure: int) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    view = page.views["map"]
    view.measure.setCurrentIndex(measure)
    view.measure.activated.emit(measure)
    assert view.measure.toolTip()
    assert view.map.has_data
    known = [row[3] for row in view.map.table()[1] if row[3] != ""]
    assert len(known) >= 3 * 7, view.measure.currentText()
    canvas = view.map.canvas
    canvas._tell(canvas._where[DOWN])
    assert view.map.readout.text().startswith(DOWN)
    assert any(c.isdigit() for c in view.map.readout.text().removeprefix(DOWN))


def test_a_map_of_many_rows_folds_earlier(window, qtbot, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from app.pages.inspect.map_view import FOLD_ROWS
    from app.plots.model_map import MapTensor

    view = open_inspect(window, qtbot, planted).views["map"]
    assert len({tensor.row for tensor in view._tensors}) <= FOLD_ROWS
    assert not view.parts.folded
    tall = tuple(MapTensor(f"t{i}", f"row {i}", 0) for i in range(FOLD_ROWS + 40))
    monkeypatch.setattr("app.pages.inspect.map_view.map_rows", lambda _tensors: tall)
    view._place_tensors()
    assert view.parts.folded


def test_a_click_on_the_map_opens_the_tensor(window, qtbot, planted: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    canvas = page.views["map"].map.canvas
    qtbot.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=canvas._box(*canvas._where[DOWN]).center().toPoint())
    assert page.state.tensor.name == DOWN == page.tensor.currentText()
    assert page.tabs.tabText(page.tabs.currentIndex()) == "Tensor"


def test_survey_can_be_stopped_and_goes_on(window, qtbot, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from core.inspect import survey as module

    whole, go_on = module.survey, threading.Event()

    def slow(checkpoint: Any, plan: Any, token: Any, cache: Any = None) -> Any:
        for number, row in enumerate(whole(checkpoint, plan, token, cache)):
            yield row
            while number >= 3 and not go_on.is_set():
                token.check()
                go_on.wait(0.005)

    monkeypatch.setattr(module, "survey", slow)
    open_model(window, qtbot, planted)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.waitUntil(lambda: "map" in page.views and len(page.views["map"]._rows) >= 4, timeout=LONG)
    view = page.views["map"]
    qtbot.waitUntil(lambda: "tensors, " in view.status.text(), timeout=LONG)
    assert view.progress.isVisible()
    click(qtbot, view.stop)
    qtbot.waitUntil(lambda: view._job is None, timeout=LONG)
    assert view.status.text().startswith("Stopped. ")
    assert not view.progress.isVisible()
    go_on.set()
    click(qtbot, view.again)
    qtbot.waitUntil(lambda: view.settled and len(view._rows) == len(page.state.checkpoint.tensors), timeout=LONG)
    assert not view.again.isVisible()


def test_a_failing_survey_is_told_in_place(window, qtbot, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    from core.inspect import survey as module

    def broken(*_arguments: Any) -> Any:
        raise UserError("The file ends too soon.", "Copy it again.")

    monkeypatch.setattr(module, "survey", broken)
    open_model(window, qtbot, planted)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.waitUntil(lambda: "map" in page.views and page.views["map"].error.isVisible(), timeout=LONG)
    assert page.views["map"]._job is None
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.plan is not None and not window.services.jobs.jobs(), timeout=LONG)
    if not page.findings.isChecked():
        click(qtbot, page.findings)
    none = page.views["panel"].none
    words = "The model could not be measured; the Map says why."
    qtbot.waitUntil(lambda: none.isVisible() and none.text() == words, timeout=LONG)
    monkeypatch.undo()
    page.show_view("map")
    click(qtbot, page.views["map"].again)
    qtbot.waitUntil(lambda: none.text() != words, timeout=LONG)
    qtbot.waitUntil(lambda: bool(page.state.survey) and page.views["map"].settled, timeout=LONG)
    assert not page.state.survey_stopped


# ---- one tensor --------------------------------------------------------------------------------------------------


def test_planted_channel_is_first_and_visible(window, qtbot, planted: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    view = open_tensor(page, qtbot, DOWN)
    first = view.channels.model.row_at(0)
    assert (first.axis, first.index) == ("input", CHANNEL)
    assert first.ratio > 20
    assert view.channels.model.columns[0].text(first) == f"column {CHANNEL}"
    assert page.state.outliers[0].index == CHANNEL
    picture = tmp_path / "heat.png"
    view.heat.save(picture)
    image = QImage(str(picture))
    canvas = view.heat.canvas
    from app.plots.figure import _TITLE_HEIGHT

    corner = canvas.mapTo(view.heat._whole, QPoint(0, 0))
    middle = canvas.area().center().y()

    def saved(column: float) -> QColor:
        return image.pixelColor(
            round(2 * (corner.x() + canvas._x(column))), round(2 * (corner.y() + middle + _TITLE_HEIGHT))
        )

    table = shades(WEIGHTS).astype(int)

    def shade(color: QColor) -> int:
        return int(np.abs(table - np.array([color.red(), color.green(), color.blue()])).sum(axis=1).argmin())

    beside = max(shade(saved(c)) for c in (CHANNEL - 40, CHANNEL + 40))
    assert shade(saved(CHANNEL + 0.5)) > beside + 60
    assert f"{CHANNEL}" in view.profile.accessibleDescription().replace("\u202f", "")


def test_a_channel_of_the_table_moves_the_heat_map(window, qtbot, planted: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    view = open_tensor(page, qtbot, DOWN)
    view.axis.setCurrentIndex(1)
    view.channels.view.selectRow(0)
    assert (page.state.axis, page.state.channel) == ("input", CHANNEL)
    shown = view.heat.canvas.view
    assert shown.left <= CHANNEL < shown.right
    assert shown.width < 100
    assert view.axis.currentIndex() == 0, "the profile follows"
    assert view.profile._line.value() == CHANNEL


def test_error_is_shown_on_the_same_plots(window, qtbot, planted: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    page.state.choose_format("Q4_0")
    view = open_tensor(page, qtbot, DOWN)
    assert "after Q4_0" in view.distribution.readout.text()
    view.heat.canvas.zoom(3.0)
    part = view.heat.canvas.view
    click(qtbot, view.error_button)
    qtbot.waitUntil(lambda: view._error is not None and view._error.done >= 1 and view.settled, timeout=LONG)
    assert view.heat.title.text().endswith("in Q4_0")
    assert view.heat.canvas.view == part, "the same window"
    assert view.error_facts.value("SNR").endswith(" dB")
    assert view.error_facts.value("Rows seen") == "all"
    worst = view.error_channels.model.row_at(0)
    assert (worst.axis, worst.index // 32) == ("input", CHANNEL // 32), "its group has the coarsest steps"
    assert view._error.format == "Q4_0"
    page.state.choose_format("Q8_0")
    qtbot.waitUntil(lambda: view._error is not None and view._error.format == "Q8_0" and view.settled, timeout=LONG)
    assert view.heat.title.text().endswith("in Q8_0")


def test_newest_choice_wins(window, qtbot, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """A slow tensor that was left arrives after the next one: nothing of it is shown."""
    from core.inspect import statistics as module

    whole = module.inspect_tensor

    def slow(checkpoint: Any, tensor: Any, token: Any, expert: Any = None) -> Any:
        found = whole(checkpoint, tensor, token, expert)
        if tensor.name == DOWN:
            threading.Event().wait(0.3)
        return found

    page = open_inspect(window, qtbot, planted)
    monkeypatch.setattr(module, "inspect_tensor", slow)
    page.look_at(DOWN)
    qtbot.waitUntil(lambda: "tensor" in page.views, timeout=LONG)
    qtbot.wait(60)
    other = "model.layers.2.self_attn.q_proj.weight"
    view = open_tensor(page, qtbot, other)
    qtbot.wait(500)
    assert "q_proj" in view.heat.title.text()
    assert view._reply.statistics.name == other
    assert page.state.statistics.name == other


def test_unreadable_tensor_says_so_and_can_be_tried_again(  # type: ignore[no-untyped-def]
    window, qtbot, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.inspect import statistics as module

    whole = module.inspect_tensor

    def broken(*_arguments: Any) -> Any:
        raise UserError("The file ends too soon.", "Copy it again.")

    page = open_inspect(window, qtbot, planted)
    monkeypatch.setattr(module, "inspect_tensor", broken)
    page.look_at(DOWN)
    qtbot.waitUntil(lambda: "tensor" in page.views and page.views["tensor"].error.isVisible(), timeout=LONG)
    view = page.views["tensor"]
    assert not view.heat.has_data
    monkeypatch.setattr(module, "inspect_tensor", whole)
    click(qtbot, view.retry)
    qtbot.waitUntil(lambda: view.heat.has_data and view.settled, timeout=LONG)
    assert not view.error.isVisible()


@pytest.mark.parametrize("target", ["Q4_0", "w4a16-g32"])
def test_permuted_rows_are_shown_as_the_source_has_them(window, qtbot, tmp_path: Path, target: str) -> None:  # type: ignore[no-untyped-def]
    """A GGUF interleaves the rows of query heads; the error map's rows are still those of the weights."""
    from core.recipe import Recipe

    name = "model.layers.0.self_attn.q_proj.weight"

    def change(tensors: dict[str, Any]) -> None:
        tensors[name][5] *= 30

    page = open_inspect(window, qtbot, write_llama(tmp_path / "heads", change=change))
    window.page("recipe").set_recipe(Recipe(target=target))
    qtbot.waitUntil(lambda: page.state.plan is not None and page.state.plan.recipe.target == target, timeout=LONG)
    view = open_tensor(page, qtbot, name)
    click(qtbot, view.error_button)
    qtbot.waitUntil(lambda: view._error is not None and view._error.done >= 1 and view.settled, timeout=LONG)
    row, _, _ = view.heat.canvas.largest()
    step = view.heat.canvas.cells_shown()[0].row_step
    assert row <= 5 < row + step
    assert view._error.rows.max.argmax() == 5


def test_experts_of_a_stack_are_looked_at_one_by_one(window, qtbot, tmp_path: Path, planted: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "stack"
    folder.mkdir()
    values = torch.from_numpy(np.random.default_rng(5).normal(0, 0.05, (4, 64, 128)).astype(np.float32))
    values[2, 7] *= 50
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file({name: values, "model.embed_tokens.weight": values[0].clone()}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "unknown", "num_experts": 4}', encoding="utf-8")
    open_model(window, qtbot, folder)
    window.show_page("inspect")
    page = window.page("inspect")
    assert page.state.checkpoint.tensor(name).experts == 4
    view = open_tensor(page, qtbot, name)
    assert page.expert.isVisible()
    page.expert.setValue(2)
    qtbot.waitUntil(lambda: view._reply is not None and view._reply.statistics.expert == 2, timeout=LONG)
    qtbot.waitUntil(lambda: view.settled, timeout=LONG)
    first = view.channels.model.row_at(0)
    assert (first.axis, first.index) == ("output", 7)
    assert (view.heat.canvas.view.rows, view.heat.canvas.view.columns) == (64, 128)


# ---- from elsewhere ----------------------------------------------------------------------------------------------


def test_tensor_tables_of_other_pages_lead_here(window, qtbot, planted: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    window.show_page("model")
    table = window.page("model").loaded.table
    button = next(b for b in table._row_buttons if "Inspect" in b.text())
    table.view.setCurrentIndex(table.model.index(-1, 0))
    assert not button.isEnabled()
    assert button.toolTip()
    place = next(i for i, t in enumerate(table.model.rows()) if t.name == DOWN)
    table.view.selectRow(place)
    click(qtbot, button)
    assert window.current_page is page
    assert page.state.tensor.name == DOWN
    window.show_page("recipe")
    recipe = window.page("recipe")
    recipe.more.click()
    recipe.advanced.tabs.setCurrentIndex(5)
    qtbot.waitUntil(lambda: recipe.advanced.tensors.model.rowCount() > 0, timeout=LONG)
    wanted = next(
        i for i, t in enumerate(recipe.advanced.tensors.model.rows()) if "layers.2.mlp.up" in t.source.sources[0].name
    )
    recipe.advanced.tensors.view.selectRow(wanted)
    click(qtbot, recipe.advanced.tensors._row_buttons[0])
    assert page.state.tensor.name == "model.layers.2.mlp.up_proj.weight"
    assert page.tabs.tabText(page.tabs.currentIndex()) == "Tensor"


def test_nothing_of_the_model_before_stays(window, qtbot, planted: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    view = open_tensor(page, qtbot, DOWN)
    other = write_llama(tmp_path / "other", layers=1)
    open_model(window, qtbot, other)
    assert not view.heat.has_data
    assert view.channels.model.rowCount() == 0
    assert not page.views["map"]._rows
    assert page.state.statistics is None


# ---- the event loop ----------------------------------------------------------------------------------------------


def test_opening_a_tensor_blocks_no_frame(window, qtbot, planted: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_inspect(window, qtbot, planted)
    view = open_tensor(page, qtbot, DOWN)
    blocks = []
    for number in range(6):
        name = f"model.layers.{number % 3}.mlp.gate_proj.weight"
        done = lambda name=name: (  # noqa: E731
            view._reply is not None and view._reply.statistics.name == name and view.settled
        )
        blocks.append(longest_block(lambda name=name: page.look_at(name), done))
    assert min(blocks) < FRAME, [round(1000 * b) for b in blocks]


def test_ten_thousand_tensors_fill_the_map_without_a_blocked_frame(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = write_llama(tmp_path / "many", hidden=32, heads=1, kv_heads=1, layers=1112, ffn=32)
    open_model(window, qtbot, source)
    qtbot.waitUntil(lambda: window.services.session.current.plan is not None, timeout=LONG)
    qtbot.waitUntil(lambda: not window.services.jobs.jobs("pool"), timeout=LONG)
    page = window.page("inspect")
    window.show_page("inspect")
    qtbot.waitUntil(lambda: "map" in page.views, timeout=LONG)
    view = page.views["map"]
    blocks = []
    for _ in range(5):
        blocks.append(longest_block(lambda: None, lambda: len(view._rows) > 10_000 and view.settled))
        if blocks[-1] < FRAME:
            break
        view._surveyed = None
        view._rows.clear()
        view._start_if_needed()
    assert min(blocks) < FRAME, [round(1000 * b) for b in blocks]
