"""The quantization map: table, picture and bytes say the same, and the bytes are those of the file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inspect_models import write_code_books
from PySide6.QtCore import QPointF
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_model, open_recipe, wait_plan

from app.jobs.inspect_more import AS_IN_FILE
from app.pages.inspect.group_controls import STORED
from core.checkpoint import open_checkpoint
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import KEEP, Recipe, Rule
from core.run import run
from core.units import format_number

pytestmark = pytest.mark.gui
TENSOR = "model.layers.1.mlp.down_proj.weight"


def open_view(window: Any, qtbot: Any, folder: Path, target: str = "Q4_0") -> Any:
    recipe = open_recipe(window, qtbot, folder)
    recipe.set_recipe(Recipe(target=target))
    wait_plan(window, qtbot, target)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.state.choose(TENSOR)
    page.show_view("group")
    view = page.views["group"]
    settle(window, qtbot, view)
    return view


def settle(window: Any, qtbot: Any, view: Any) -> Any:
    """Wait until the view shows what its controls say."""
    qtbot.wait(40)
    qtbot.waitUntil(lambda: not window.services.jobs.jobs() and not view._timer.isActive(), timeout=LONG)
    qtbot.waitUntil(lambda: not view._turns.busy, timeout=LONG)
    return view.shown_group


@pytest.fixture
def view(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    return open_view(window, qtbot, write_llama(tmp_path / "model"))


def test_bytes_are_those_of_the_written_file(window, qtbot, view, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out.gguf"
    with open_checkpoint(tmp_path / "model") as checkpoint:
        list(run(make_plan(checkpoint, Recipe(target="Q4_0")), checkpoint, out, CancelToken()))
    written = out.read_bytes()
    view.look_at(5, 70)
    group = settle(window, qtbot, view)
    assert group.rows[0].column == 64
    assert len(group.rows) == 32
    for row in group.rows:
        field = row.fields[0]
        assert written[field.offset : field.offset + len(field.data)] == field.data
        assert (int.from_bytes(field.data, "little") >> field.bit) & (1 << field.width) - 1 == row.code
    scale = np.frombuffer(written, np.float16, 1, group.source.metadata[0].fields[0].offset)[0]
    assert group.facts[0].value.startswith(f"{float(scale):.4g}".replace("-", "\u2212"))
    assert group.rows[3].stored == pytest.approx(float(scale) * (group.rows[3].code - 8))


def test_one_value_is_marked_in_table_picture_and_bytes(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    group = view.shown_group
    view.table.view.selectRow(20)
    row = group.rows[20]
    digit = row.hex[0 if row.fields[0].bit else 1]
    assert view.bytes.strip.marked == digit
    assert row.words == view.picture.readout.text()
    assert row.hex in row.words
    view.picture.hovered.emit(3)
    assert view.table.view.selectionModel().selectedRows()[0].row() == 3
    assert view.bytes.strip.marked == group.rows[3].hex[0 if group.rows[3].fields[0].bit else 1]
    line = next(n for n, (_, cells) in enumerate(view.bytes.strip._lines) for c in cells if 3 in c.values)
    at = next(n for n, c in enumerate(view.bytes.strip._lines[line][1]) if 3 in c.values)
    center = view.bytes.strip._rect(line, at).center()
    found = view.bytes.strip._at(center.x() - 6, center.y())
    assert found is not None
    assert 3 in found[0].values
    view.bytes.hovered.emit(7)
    assert view.picture.readout.text() == group.rows[7].words


def test_pointing_at_the_picture_finds_the_value(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    plot = view.picture._plot.getPlotItem().vb
    place = plot.mapViewToScene(QPointF(11.2, 0.0))
    view.picture._on_pointer(place)
    assert view.table.view.selectionModel().selectedRows()[0].row() == 11
    assert "Column 11:" in view.picture.readout.text()


def test_format_row_and_group_change_it_at_once(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    state = window.page("inspect").state
    view.controls.group.setValue(2)
    assert settle(window, qtbot, view).rows[0].column == 64
    view.controls.row.setValue(9)
    assert "row 9" in settle(window, qtbot, view).title
    for name, codes in (("Q8_0", 256), ("Q4_1", 16), ("Q6_K", 64)):
        state.choose_format(name)
        group = settle(window, qtbot, view)
        assert name in group.title
        assert group.rows[0].column <= 64 <= group.rows[-1].column, "the place stays"
        assert len(group.levels) <= codes
        near = np.abs(group.stored[:, None] - group.levels[None, :]).min(axis=1)
        assert near.max() <= 1e-6
    state.choose_format("w4a16-g128")  # of the other container: its own output
    group = settle(window, qtbot, view)
    assert group.group_size == 128
    assert any("weight_packed" in a.name for a in group.source.arrays)


def test_error_is_told_against_half_a_step(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    for row in view.shown_group.rows:
        assert row.error == pytest.approx(row.stored - row.weight, abs=1e-7)
        assert row.ratio >= 0
    assert max(row.ratio for row in view.shown_group.rows) < 2.1


def test_copies_csv_with_full_precision(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    click(qtbot, view.copy)
    rows = list(csv.DictReader(io.StringIO(QGuiApplication.clipboard().text())))
    assert len(rows) == 32
    assert float(rows[4]["weight"]) == view.shown_group.rows[4].weight
    assert int(rows[4]["offset"]) == view.shown_group.rows[4].offset
    QGuiApplication.clipboard().setText("")


def test_granularities_side_by_side_on_the_same_weights(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    variants = view.variants.model.rows()
    assert [v.name for v in variants] == ["per tensor", "per channel", "groups of 128", "groups of 64", "groups of 32"]
    assert variants[-1].row_snr_db > variants[0].row_snr_db
    view.tabs.setCurrentWidget(view._side)
    assert view.granularities.has_data
    assert view.controls.bits.isVisible()
    view.controls.bits.setValue(8)
    settle(window, qtbot, view)
    assert view.variants.model.rows()[0].snr_db > variants[0].snr_db + 15
    view.variants.row_activated.emit(view.variants.model.rows()[3])
    group = settle(window, qtbot, view)
    assert "groups of 64" in group.title
    assert len(group.rows) == 64
    assert view.bytes.isHidden(), "a granularity is in no file"


def test_teaching_data_shows_an_outlier_spoil_its_group_only(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    view.teaching.setChecked(True)
    view.outlier.magnitude.slider.setValue(40)
    view.outlier.place.box.setValue(100)
    group = settle(window, qtbot, view)
    assert group.title.startswith("4 bits groups of 32")
    assert max(group.rows, key=lambda r: abs(r.weight)).column == 100
    by_name = {v.name: v for v in view.variants.model.rows()}
    assert by_name["groups of 32"].snr_db > by_name["groups of 128"].snr_db > by_name["per channel"].snr_db
    weights = view._reply.weights
    error = np.abs(by_name["groups of 32"].reconstruction - weights)
    assert error[96:128].mean() > 5 * error[:96].mean()
    before = by_name["groups of 32"].snr_db
    view.outlier.magnitude.slider.setValue(0)
    settle(window, qtbot, view)
    assert {v.name: v for v in view.variants.model.rows()}["groups of 32"].snr_db > before + 3
    view.teaching.setChecked(False)
    assert settle(window, qtbot, view).source is not None


def test_rows_are_those_of_the_source_where_heads_are_interleaved(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    state = window.page("inspect").state
    state.choose("model.layers.0.self_attn.q_proj.weight")
    for row in (0, 1, 33, 64, 255):
        view.look_at(row, 0)
        group = settle(window, qtbot, view)
        wanted = state.checkpoint.read_rows(state.tensor, row, row + 1)[0, : len(group.rows)]
        np.testing.assert_array_equal(group.weights, wanted)
        assert f"row {row}" in group.title
        assert group.source.source.row == row


def test_another_tensor_drops_what_was_shown(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    state = window.page("inspect").state
    state.choose("model.layers.0.mlp.up_proj.weight")
    assert view.shown_group is None
    assert not view.picture.has_data
    assert "ffn_up" in settle(window, qtbot, view).title
    state.choose_channel("input", 130)
    assert settle(window, qtbot, view).rows[0].column == 128
    state.choose_channel("output", 7)
    group = settle(window, qtbot, view)
    assert "row 7" in group.title
    values = state.checkpoint.read_rows(state.tensor, 7, 8)[0]
    assert int(np.abs(values).argmax()) in [row.column for row in group.rows], "the group that the row stands out by"


def test_works_only_while_it_is_looked_at(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    window.show_page("model")
    view.controls.row.setValue(3)
    qtbot.wait(50)
    assert not window.services.jobs.jobs()
    window.show_page("inspect")
    assert "row 3" in settle(window, qtbot, view).title


def test_values_that_can_not_be_stored_are_said(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def spoil(tensors: dict[str, Any]) -> None:
        tensors[TENSOR][2, 5] = float("nan")

    view = open_view(window, qtbot, write_llama(tmp_path / "spoilt", change=spoil))
    view.look_at(2, 5)
    settle(window, qtbot, view)
    assert view.problem.isVisible()
    assert "NaN" in view.problem.text()
    view.look_at(40, 5)
    assert settle(window, qtbot, view) is not None
    assert not view.problem.isVisible()


def test_tensors_without_values_and_of_nan_alone_are_said(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def add(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.empty.weight"] = torch.zeros(0, 64)
        tensors["model.layers.0.lost.weight"] = torch.full((4, 64), float("nan"))
        few = torch.ones(4, 64)
        few[1, 3], few[1, 40] = float("nan"), -7.0
        tensors["model.layers.0.few.weight"] = few

    source = write_llama(tmp_path / "odd", change=add)
    window.open_path(source)
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.checkpoint is not None, timeout=LONG)
    window.show_page("recipe")
    window.page("recipe").set_recipe(Recipe(target="w4a16-g32", rules=(Rule("lost|few", KEEP),)))
    wait_plan(window, qtbot, "w4a16-g32")
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.state.choose("model.layers.0.empty.weight")
    for key in ("group", "tensor"):
        page.show_view(key)
        shown = page.views[key]
        qtbot.waitUntil(shown.error.isVisible, timeout=LONG)
        words = " ".join(part.text() for part in shown.error.findChildren(QLabel))
        assert "'model.layers.0.empty.weight' has no values: its shape is 0 × 64." in words
    page.show_view("group")
    view = page.views["group"]
    page.state.choose("model.layers.0.lost.weight")
    assert settle(window, qtbot, view) is not None
    assert view.picture.describe() == "64 weights, all of them NaN or Inf."
    page.state.choose("model.layers.0.few.weight")
    settle(window, qtbot, view)
    page.state.choose_channel("output", 1)
    settle(window, qtbot, view)
    assert view._column == 40, "the largest that is a number"
    view.look_at(1, 3)
    settle(window, qtbot, view)
    assert "Largest error 0 at 0." in view.picture.describe()


def test_a_quantized_file_shows_what_it_holds(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = write_llama(tmp_path / "model")
    out = tmp_path / "small.gguf"
    with open_checkpoint(folder) as checkpoint:
        list(run(make_plan(checkpoint, Recipe(target="Q8_0")), checkpoint, out, CancelToken()))
    window.open_path(out)
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.checkpoint is not None and not window.services.jobs.jobs(), timeout=LONG)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.state.choose("blk.1.ffn_down.weight")
    page.show_view("group")
    view = page.views["group"]
    view.controls.set_granularity(AS_IN_FILE)
    view.controls.scheme_changed.emit()
    group = settle(window, qtbot, view)
    assert "Q8_0" in group.title
    field = group.rows[9].fields[0]
    assert out.read_bytes()[field.offset] == group.rows[9].code
    assert np.isnan(group.rows[9].weight), "nobody knows what it was made of"
    window.services.session.update(plan=None)
    view.controls.set_granularity(STORED)
    assert "Q8_0" in settle(window, qtbot, view).title, "without a plan it is all there is to see"


def test_narrow_windows_give_the_table_a_tab(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    assert [view.tabs.tabText(n) for n in range(view.tabs.count())] == ["One group", "Side by side"]
    window.resize(1020, 600)
    click(qtbot, window.page("inspect").findings)
    qtbot.waitUntil(lambda: view.tabs.count() == 3, timeout=LONG)
    view.tabs.setCurrentIndex(1)
    assert view.table.isVisible()
    click(qtbot, window.page("inspect").findings)
    qtbot.waitUntil(lambda: view.tabs.count() == 2, timeout=LONG)


def test_everything_has_a_name_and_can_be_reached(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    from PySide6.QtCore import Qt

    for widget in controls(view):
        assert widget.accessibleName() or getattr(widget, "text", str)(), widget
        assert widget.toolTip() or widget.accessibleName(), widget
    for widget in (view.controls.row, view.controls.group, view.controls.granularity, view.table.view, view.teaching):
        assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus
    assert "levels" in view.picture.accessibleDescription()
    assert view.shown_group.rows[0].hex in view.bytes.strip.accessibleDescription()


def test_moving_never_blocks(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    def move() -> None:
        for row in range(1, 12):
            view.controls.row.setValue(row)

    def done() -> bool:
        return view.shown_group is not None and "row 11" in view.shown_group.title and not view._turns.busy

    qtbot.waitUntil(lambda: not view._preparing.busy, timeout=LONG)
    assert longest_block(move, done) < 0.05


def test_side_by_side_starts_from_the_formats_bits_and_has_a_colour_key(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    view.tabs.setCurrentWidget(view._side)
    settle(window, qtbot, view)
    assert (view.controls.bits.value(), view.controls.symmetric.isChecked()) == (4, True)
    view._state.choose_format("Q5_1")
    settle(window, qtbot, view)
    assert (view.controls.bits.value(), view.controls.symmetric.isChecked()) == (5, False)
    assert "5 bits asymmetric" in view.granularities.title.text()
    view.controls.bits.setValue(3)
    view.look_at(2, 0)
    settle(window, qtbot, view)
    assert view.controls.bits.value() == 3, "what the user chose stays while the format does"
    view._state.choose_format("Q8_0")
    settle(window, qtbot, view)
    assert view.controls.bits.value() == 8
    key = view.granularities.key
    assert key.isVisible()
    error = max(float(np.nanmax(e)) for e in view.granularities._errors)
    assert key.accessibleDescription().startswith("|weight|: dark 0, bright ")
    assert f"|error|: dark 0, bright {format_number(error, 2)}" in key.accessibleDescription()
    assert key.geometry().top() >= view.granularities._plot.geometry().bottom()


def test_with_teaching_data_the_page_does_not_say_that_the_tensor_is_shown(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    page = window.page("inspect")
    view.tabs.setCurrentWidget(view._side)
    click(qtbot, view.teaching)
    settle(window, qtbot, view)
    assert view.granularities.title.text().startswith("Teaching data")
    assert not page.tensor.isEnabled()
    assert "Teaching data" in page.tensor.toolTip()
    page.show_view("map")
    assert page.tensor.isEnabled(), "other views show the tensor"
    page.show_view("group")
    assert not page.tensor.isEnabled()
    click(qtbot, view.teaching)
    assert page.tensor.isEnabled()


@pytest.mark.parametrize("kind", ["IQ1_M", "IQ2_XXS", "IQ3_S"])
def test_a_source_whose_bits_can_not_be_shown_opens_and_says_so(window, qtbot, tmp_path: Path, kind: str) -> None:  # type: ignore[no-untyped-def]
    open_model(window, qtbot, write_code_books(tmp_path / "books.gguf"))
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.state.choose(f"blk.0.{kind.lower()}.weight")
    page.show_view("tensor")
    qtbot.waitUntil(lambda: page.views["tensor"].settled and page.state.statistics is not None, timeout=LONG)
    assert page.views["tensor"].heat.has_data
    assert page.views["tensor"].profile.has_data
    page.show_view("group")
    shown = page.views["group"]
    shown.controls.set_granularity(AS_IN_FILE)
    shown._renew()
    settle(window, qtbot, shown)
    assert f"{kind} stores several values in one code" in shown.problem.text()
    assert not shown.error.isVisible()
    shown.tabs.setCurrentWidget(shown._side)
    settle(window, qtbot, shown)
    assert shown.granularities.has_data, "granularities are of its values, which are known"


def test_plots_stand_in_cards(view) -> None:  # type: ignore[no-untyped-def]
    for plot in (view.picture, view.granularities):
        parents, parent = [], plot.parentWidget()
        while parent is not None:
            parents.append(parent.property("frameRole"))
            parent = parent.parentWidget()
        assert "card" in parents
