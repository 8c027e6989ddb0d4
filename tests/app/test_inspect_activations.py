"""Activations: a run from the button, what it shows, the threshold that moves, cancelling, and texts of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PySide6.QtWidgets import QFileDialog
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_recipe

from app.plots.activation_plots import ChannelPair, DepthMap, DepthProfile
from app.plots.heat_map import ArrayMatrix
from app.services import Services
from core.checkpoint import open_checkpoint
from core.inspect.layerwise import measure_activations

pytestmark = pytest.mark.gui
CHANNEL = 21


def loud(tensors: dict[str, Any]) -> None:
    """One channel of every layer's attention input is 30 times the others: its norm's weight is."""
    for name, values in tensors.items():
        if name.endswith("input_layernorm.weight"):
            values[CHANNEL] = 30


@pytest.fixture
def view(window, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The view of a tiny model with a loud channel, before anything was run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_recipe(window, qtbot, write_llama(tmp_path / "loud", change=loud))
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.show_view("activations")
    made = page.views["activations"]
    made.tokens.setValue(32)
    qtbot.waitUntil(lambda: not window.services.jobs.jobs(), timeout=LONG)
    return made


def run(qtbot: Any, view: Any, button: Any = None) -> None:
    click(qtbot, button or view.start)
    qtbot.waitUntil(lambda: not view.running and not view._turns.busy, timeout=LONG)
    qtbot.wait(20)


def test_empty_view_says_what_it_is_for(view) -> None:  # type: ignore[no-untyped-def]
    assert view.empty.isVisible()
    assert view.start.isVisible()
    assert not view.again.isVisible()
    assert not view.map.has_data


def test_a_run_shows_the_loud_channel_across_depth(window, qtbot, view, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    assert view.error.isHidden(), view.error.message.text()
    assert view.map.has_data
    assert f"channel {CHANNEL}" in view.map.accessibleDescription()
    with open_checkpoint(tmp_path / "loud") as checkpoint:
        generator = measure_activations(checkpoint, None, 32)
        try:
            while True:
                next(generator)
        except StopIteration as end:
            wanted = end.value
    assert len(view.table.model.rows()) == len(wanted.layers)
    for shown, layer in zip(view.table.model.rows(), wanted.layers, strict=True):
        np.testing.assert_array_equal(shown.max, layer.max)
    view.map.canvas.zoom(64.0)
    view.map.choose("input", CHANNEL, go=True)
    words = view.map.canvas.words_at(0, CHANNEL)
    assert words.startswith(f"Layer 0, channel {CHANNEL}: ")
    assert float(words.split(": ")[1]) == pytest.approx(wanted.layers[0].max[CHANNEL], rel=1e-3)


def test_threshold_moves_the_shares_and_the_line(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    everything = view.found
    for value in (0.5, 6.0, 40.0):
        view.threshold.setValue(value)
        share = everything.share_above(value)
        assert view.summary.text().startswith(f"{share * 100:.2f} %")
        assert view.profile._line.value() == pytest.approx(np.log10(value))
        column = next(c for c in view.table.model.columns if c.title == "Above line")
        layer = view.table.model.rows()[0]
        assert column.text(layer) == f"{layer.share_above(value) * 100:.2f} %"
    view.profile._line.setValue(np.log10(3.0))  # as a drag does
    assert view.threshold.value() == pytest.approx(3.0)
    assert view.summary.text().startswith(f"{everything.share_above(3.0) * 100:.2f} %")


def test_one_layer_shows_activations_beside_their_weights(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    view.map.cell_chosen.emit(1, CHANNEL)
    state = window.page("inspect").state
    assert (state.axis, state.channel) == ("input", CHANNEL)
    layer = view.table.current_row()
    assert layer.layer == 1
    assert view.pair.has_data
    assert CHANNEL in view.pair.largest()
    with open_checkpoint(state.checkpoint.path) as checkpoint:
        weights = np.max(
            [np.abs(checkpoint.read_rows(checkpoint.tensor(n))).max(axis=0) for n in layer.tensors], axis=0
        )
    np.testing.assert_allclose(view.pair._weights, weights, rtol=1e-6)
    view.table.row_activated.emit(layer)
    assert state.tensor.name == layer.tensors[0]
    page = window.page("inspect")
    assert page.tabs.tabText(page.tabs.currentIndex()) == "Tensor"


def test_the_worst_place_comes_first_and_its_choice_goes_where_it_says_nothing(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    worst = next((a for a in view.found.breaking() if a.layer is not None), None)
    assert worst is not None
    assert view.place.currentData() is worst.place
    assert "With a scale a token" in view.summary.text()
    assert view.place.isVisible()
    view.tabs.setCurrentWidget(view._layer_tabs.together)
    assert not view.place.isVisible()
    assert view.threshold.isVisible(), "the table's share is that above the line"


def test_choosing_a_tensor_shows_its_input(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    window.page("inspect").state.choose("model.layers.1.mlp.down_proj.weight")
    assert "feed-forward down" in view.pair.title.text().casefold()


def test_own_text_and_file(window, qtbot, view, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    view.text_kind.setCurrentIndex(1)
    view.text_kind.activated.emit(1)
    assert view.own_text.isVisible()
    click(qtbot, view.start)
    assert "empty" in view.error.message.text()
    qtbot.wait(20)
    view.own_text.setPlainText("the the a few words the")
    run(qtbot, view)
    assert view.error.isHidden()
    own = len(view.found.tokens)
    assert own < 32
    gone = tmp_path / "gone.txt"
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_a: (str(gone), ""))
    view.text_kind.setCurrentIndex(2)
    view.text_kind.activated.emit(2)
    run(qtbot, view, view.again)
    assert "gone.txt can not be read" in view.error.message.text()
    gone.write_text("the " * 100, encoding="utf-8")
    run(qtbot, view, view.again)
    assert view.error.isHidden()
    assert len(view.found.tokens) == 32


def test_cancel_leaves_nothing_half_shown(window, qtbot, view, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    import time

    import core.inspect.layerwise as layerwise

    plain = layerwise.measure_activations

    def slow(*args: Any, **more: Any) -> Any:
        generator = plain(*args, **more)
        token = args[3]
        while True:
            time.sleep(0.05)
            token.check()
            try:
                yield next(generator)
            except StopIteration as end:
                return end.value

    monkeypatch.setattr(layerwise, "measure_activations", slow)
    click(qtbot, view.start)
    qtbot.waitUntil(lambda: "Layer" in view.state_text.text(), timeout=LONG)
    assert view.progress.isVisible()
    click(qtbot, view.cancel)
    qtbot.waitUntil(lambda: not view.running, timeout=LONG)
    assert view.found is None
    assert view.empty.isVisible()
    assert "Cancelled" in view.state_text.text()


def test_another_model_clears_it(window, qtbot, view, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    open_recipe(window, qtbot, write_llama(tmp_path / "other"))
    assert view.found is None
    assert not view.map.has_data
    assert view.table.model.rows() == []


def test_showing_and_moving_never_blocks(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    """The run uses every core, and the machine may be shared: the quickest of three counts."""
    qtbot.waitUntil(lambda: not view._preparing.busy, timeout=LONG)

    def is_over() -> bool:
        return view.found is not None and not view.running and not view._turns.busy

    assert min(longest_block(button.click, is_over) for button in (view.start, view.again, view.again)) < 0.05


def test_everything_has_a_name(window, qtbot, view) -> None:  # type: ignore[no-untyped-def]
    run(qtbot, view)
    for widget in controls(view):
        assert widget.accessibleName() or getattr(widget, "text", str)(), widget


def test_pooling_keeps_a_single_outlier() -> None:
    values = np.ones((3, 5000), np.float32)
    values[1, 3777] = 9
    cells = ArrayMatrix(values).pooled((0, 3), (0, 5000), 3, 512)
    assert cells.shape == (3, 512)
    assert (cells == 9).sum() == 1
    assert cells[1, 3777 * 512 // 5000] == 9


def test_plots_take_zeros_and_values_that_are_not_finite(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    depth, profile, pair = DepthMap(), DepthProfile(), ChannelPair()
    for plot in (depth, profile, pair):
        qtbot.addWidget(plot)
        plot.show()
    values = np.zeros((2, 8), np.float32)
    depth.show_values("zeros", values, (0, 1))
    values[0, 3], values[1, 2] = np.nan, np.inf
    depth.show_values("odd", values, (0, 1))
    assert "2 channels" in depth.note.text()
    profile.show_values("zeros", (0, 1), np.zeros(2), np.zeros(2), np.zeros(2), 6.0)
    pair.show_values("zeros", np.zeros(8), np.zeros(8))
    pair.show_values("one", np.array([0.0, 1.0, np.inf]), np.zeros(0))
    assert "largest max |x|" in depth.csv()
    assert "layer,max,rms" in profile.csv()
    assert pair.csv().splitlines()[0] == "channel,activation,weight"
