"""The error map against the whole tensor decoded from the written file, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from inspect_models import converted, gguf_recipe, open_checkpoint, write_experts
from tiny_models import write_llama

from core.errors import Cancelled
from core.formats import Method
from core.inspect import error_map as module
from core.inspect.error_map import ErrorMap, error_map
from core.inspect.logical import LogicalCheckpoint
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe


def spoil(tensors):
    weight = tensors["model.layers.0.mlp.down_proj.weight"].float()
    weight[:, 77] *= 30
    weight[200] *= 9
    tensors["model.layers.0.mlp.down_proj.weight"] = weight.to(torch.bfloat16)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = write_llama(tmp_path_factory.mktemp("llama"), layers=1, change=spoil)
    with open_checkpoint(folder) as checkpoint:
        yield checkpoint


def last(maps) -> ErrorMap:
    return list(maps)[-1]


def planned(checkpoint, recipe, name):
    return next(t for t in make_plan(checkpoint, recipe).tensors if t.name == name)


def check(found: ErrorMap, source: np.ndarray, decoded: np.ndarray) -> None:
    error = np.abs(decoded.astype(np.float64) - source)
    signal = np.square(source, dtype=np.float64).sum()
    assert found.done == 1
    for channels, axis in ((found.rows, 1), (found.columns, 0)):
        np.testing.assert_allclose(channels.max, error.max(axis=axis), rtol=1e-6)
        np.testing.assert_allclose(channels.rms, np.sqrt((error**2).mean(axis=axis)), rtol=1e-5)
        np.testing.assert_allclose(channels.share, (error**2).sum(axis=axis) / (error**2).sum(), rtol=1e-4)
        assert channels.share.sum() == pytest.approx(1, rel=1e-4)
    assert found.stats.snr_db == pytest.approx(10 * np.log10(signal / (error**2).sum()), abs=1e-4)
    assert found.nrmse == pytest.approx(np.sqrt((error**2).sum() / signal), rel=1e-6)
    for i in range(len(found.row_edges) - 1):
        for j in range(len(found.column_edges) - 1):
            cell = error[found.row_edges[i] : found.row_edges[i + 1], found.column_edges[j] : found.column_edges[j + 1]]
            assert found.cells[i, j] == pytest.approx(cell.max(), rel=1e-6)


@pytest.mark.parametrize("kind", ["Q4_K", "NVFP4", "Q8_0"])
def test_the_last_map_is_what_the_written_file_says(llama, kind, tmp_path):
    plan = converted(llama, gguf_recipe(kind, Method.SEARCH), tmp_path / "out.gguf")
    t = next(t for t in plan.tensors if t.name == "blk.0.ffn_down.weight")
    found = last(error_map(llama, t, Method.SEARCH, CancelToken(), 30, 17))
    with open_checkpoint(tmp_path / "out.gguf") as written:
        check(
            found,
            llama.read_rows(llama.tensor("model.layers.0.mlp.down_proj.weight")),
            written.read_rows(written.tensor(t.name)),
        )
    assert found.format == kind
    assert found.columns.share[64:96].sum() > 0.7  # the planted input channel, 77, spoils the group that it is in
    assert found.rows.share.argmax() == 200


def test_maps_grow_evenly_and_the_first_is_an_overview(llama, monkeypatch):
    monkeypatch.setattr(module, "TASK_VALUES", 1024)
    monkeypatch.setattr(module, "BETWEEN", 0.0)
    t = planned(llama, Recipe("Q4_K_M"), "blk.0.ffn_down.weight")
    maps = list(error_map(llama, t, Method.ROUND, CancelToken(), 16, 16, seconds=60))
    assert maps[0].done == 16 / 256
    assert not np.isnan(maps[0].cells).any()  # one row in each row of cells
    assert np.isnan(maps[0].rows.max).sum() == 240
    assert [m.done for m in maps] == sorted(m.done for m in maps)
    assert len(maps) > 4
    assert maps[0].stats.snr_db == pytest.approx(maps[-1].stats.snr_db, abs=3)
    seen = np.flatnonzero(~np.isnan(maps[2].rows.max))
    assert np.diff(seen).max() <= 16


def test_no_long_pause_between_maps_changes_no_figure(llama, monkeypatch):
    t = planned(llama, Recipe("w4a16-g32-asym"), "model.layers.0.mlp.down_proj.weight")
    one = last(error_map(llama, t, Method.SEARCH, CancelToken(), 8, 8))
    monkeypatch.setattr(module, "TASK_VALUES", 4096)
    other = last(error_map(llama, t, Method.SEARCH, CancelToken(), 8, 8, seconds=0))
    np.testing.assert_array_equal(one.cells, other.cells)
    assert one.stats.rms_error == pytest.approx(other.stats.rms_error, rel=1e-12)


def test_a_large_matrix_is_seen_before_its_largest_value_is_known(llama, monkeypatch):
    t = planned(llama, gguf_recipe("NVFP4"), "blk.0.ffn_down.weight")
    want = last(error_map(llama, t, Method.SEARCH, CancelToken(), 8, 8))
    monkeypatch.setattr(module, "LONG_SCAN", 1000)
    maps = list(error_map(llama, t, Method.SEARCH, CancelToken(), 8, 8))
    assert len(maps) >= 2
    assert 0 < maps[0].done < 1
    assert maps[0].stats.snr_db == pytest.approx(want.stats.snr_db, abs=3)
    np.testing.assert_array_equal(maps[-1].cells, want.cells)
    assert maps[-1].stats == want.stats


def test_a_source_tensors_rows_come_in_its_own_order(llama):
    """Rows of the query projection are permuted in GGUF; `of` undoes it."""
    t = planned(llama, Recipe("Q4_0"), "blk.0.attn_q.weight")
    name = "model.layers.0.self_attn.q_proj.weight"
    permuted = last(error_map(llama, t, Method.ROUND, CancelToken(), 256, 1))
    own = last(error_map(llama, t, Method.ROUND, CancelToken(), 256, 1, of=name))
    order = np.arange(256).reshape(4, 2, 32).swapaxes(1, 2).reshape(-1)  # four heads of 64
    np.testing.assert_array_equal(own.rows.rms[order], permuted.rows.rms)
    np.testing.assert_array_equal(own.columns.rms, permuted.columns.rms)
    with pytest.raises(IndexError):
        last(error_map(llama, t, Method.ROUND, CancelToken(), of="model.norm.weight"))


def test_experts_one_by_one(tmp_path):
    with open_checkpoint(write_experts(tmp_path / "experts")) as checkpoint:
        t = planned(checkpoint, gguf_recipe("NVFP4"), "blk.0.ffn_up_exps.weight")
        whole = last(error_map(checkpoint, t, Method.ROUND, CancelToken()))
        assert len(whole.rows.max) == t.rows
        for expert in range(3):
            one = last(error_map(checkpoint, t, Method.ROUND, CancelToken(), expert=expert))
            name = f"model.layers.0.mlp.experts.{expert}.up_proj.weight"
            same = last(error_map(checkpoint, t, Method.ROUND, CancelToken(), of=name))
            np.testing.assert_array_equal(one.rows.max, whole.rows.max[expert * 256 : (expert + 1) * 256])
            np.testing.assert_array_equal(one.cells, same.cells)
        with pytest.raises(IndexError):
            last(error_map(checkpoint, t, Method.ROUND, CancelToken(), expert=3))


def test_a_copied_tensor_has_no_error(llama):
    t = planned(llama, Recipe("w4a16-g128"), "model.embed_tokens.weight")
    (found,) = error_map(llama, t, Method.SEARCH, CancelToken())
    assert (found.done, found.nrmse, found.cells.max(), found.stats.snr_db) == (1, 0, 0, float("inf"))


def test_values_that_are_not_finite_are_counted_and_left_out(tmp_path):
    def change(tensors):
        weight = tensors["model.layers.0.mlp.up_proj.weight"]
        weight[3, 5], weight[4, 6] = float("nan"), float("inf")

    with open_checkpoint(write_llama(tmp_path / "bad", layers=1, change=change)) as checkpoint:
        t = planned(checkpoint, gguf_recipe("BF16"), "blk.0.ffn_up.weight")
        t = planned(checkpoint, gguf_recipe("F16"), t.name)
        found = last(error_map(checkpoint, t, Method.SEARCH, CancelToken(), 4, 4))
        assert found.stats.nonfinite == 2
        assert np.isfinite(found.cells).all()
        assert np.isfinite(found.rows.rms).all()


def test_rows_too_long_to_be_held(llama, monkeypatch):
    import core.blocks

    monkeypatch.setattr(core.blocks, "LONG_ROW", 256)
    monkeypatch.setattr(module, "LONG_ROW", 256)
    t = planned(llama, Recipe("w8a16-channel"), "model.layers.0.mlp.down_proj.weight")
    found = last(error_map(llama, t, Method.ROUND, CancelToken(), 8, 8))
    monkeypatch.undo()
    want = last(error_map(llama, t, Method.ROUND, CancelToken(), 8, 8))
    np.testing.assert_array_equal(found.cells, want.cells)
    np.testing.assert_allclose(found.columns.rms, want.columns.rms)


def test_it_can_be_cancelled(llama):
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        last(error_map(llama, planned(llama, Recipe("Q4_0"), "blk.0.ffn_up.weight"), Method.ROUND, token))


@pytest.mark.parametrize("scale", [1e-24, 1e25])
def test_channels_of_very_small_and_large_weights(tmp_path, scale):
    """Their squares are beyond float32."""
    name = "model.layers.0.mlp.down_proj.weight"

    def change(tensors):
        tensors[name] *= scale

    recipe = Recipe("w4a16-g32", Method.ROUND)
    with open_checkpoint(write_llama(tmp_path / "model", change=change)) as checkpoint:
        source = checkpoint.read_rows(checkpoint.tensor(name))
        found = last(error_map(checkpoint, planned(checkpoint, recipe, name), recipe.method, CancelToken(), 8, 8))
        converted(checkpoint, recipe, tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as written:
        decoded = LogicalCheckpoint(written)
        check(found, source, decoded.read_rows(decoded.tensor(name)))
