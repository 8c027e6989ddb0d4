"""Two checkpoints tensor by tensor, against what the conversion itself measured and against numpy."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
from checkpoint_files import write_folder, write_safetensors
from inspect_models import converted, open_checkpoint, write_experts
from tiny_models import write_llama

from core.errors import Cancelled, UserError
from core.formats import Method
from core.inspect.compare import compare
from core.inspect.compare_rows import Match, to_csv, to_json
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    with open_checkpoint(write_llama(tmp_path_factory.mktemp("llama"))) as checkpoint:
        yield checkpoint


def rows_of(first, second):
    steps = list(compare(first, second, CancelToken()))
    shares = [s.share for s in steps]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    rows = [s.row for s in steps if s.row is not None]
    assert len(rows) == steps[0].count
    return rows


def measured(checkpoint, recipe, output):
    """Errors as the conversion measures them."""
    job = run(make_plan(checkpoint, recipe), checkpoint, output, CancelToken(), threads=1)
    while True:
        try:
            next(job)
        except StopIteration as end:
            return {t.name: t.error for t in end.value.tensors}


def test_source_and_gguf_agree_with_what_the_run_measured(llama, tmp_path):
    errors = measured(llama, Recipe("Q4_K_M"), tmp_path / "out.gguf")
    with open_checkpoint(tmp_path / "out.gguf") as written:
        rows = rows_of(llama, written)
        assert {r.match for r in rows} == {Match.COMPARED}
        assert {r.other_name for r in rows} == {t.name for t in written.tensors}
        for r in rows:
            want = errors[r.other_name]
            assert r.error.snr_db == pytest.approx(want.snr_db if want else math.inf)
            assert r.error.max_error == (want.max_error if want else 0)
        q = next(r for r in rows if r.other_name == "blk.1.attn_q.weight")
        assert (q.name, q.format, q.other_format) == ("model.layers.1.self_attn.q_proj.weight", "BF16", "Q4_K")
        assert q.note == "rows of each head put in order"
        back = {r.other_name: r for r in rows_of(written, llama)}
        assert back[q.name].error.max_error == q.error.max_error
        # Channels have the numbers of the first of the two: row 2j+s of a head of 64 is the source's s·32+j.
        forth = next(w.index for w in q.worst if w.axis == "output")
        here = next(w.index for w in back[q.name].worst if w.axis == "output")
        assert forth == here // 64 * 64 + here % 2 * 32 + here % 64 // 2


def test_packed_weights_are_one_tensor_again(llama, tmp_path):
    errors = measured(llama, Recipe("w4a16-g64-asym"), tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as written:
        rows = {r.name: r for r in rows_of(llama, written)}
    for name, want in errors.items():
        assert rows[name].error.snr_db == pytest.approx(want.snr_db if want else math.inf)
    up = rows["model.layers.0.mlp.up_proj.weight"]
    assert up.other_name == up.name
    assert up.other_format == "int4 g64 asymmetric"
    assert up.nrmse == pytest.approx(10 ** (-up.error.snr_db / 20))


def test_two_results_of_different_containers(llama, tmp_path):
    converted(llama, Recipe("w8a16-g32"), tmp_path / "folder")
    converted(llama, Recipe("Q8_0"), tmp_path / "out.gguf")
    with open_checkpoint(tmp_path / "folder") as one, open_checkpoint(tmp_path / "out.gguf") as other:
        rows = rows_of(one, other)
        assert {r.match for r in rows} == {Match.COMPARED}
        k = next(r for r in rows if r.other_name == "blk.0.attn_k.weight")
        order = np.arange(128).reshape(2, 2, 32).swapaxes(1, 2).reshape(-1)
        from core.inspect.logical import LogicalCheckpoint

        left = LogicalCheckpoint(one)
        x = left.read_rows(left.tensor(k.name))[order].astype(np.float64)
        y = other.read_rows(other.tensor(k.other_name))
        assert k.error.snr_db == pytest.approx(10 * np.log10((x**2).sum() / ((x - y) ** 2).sum()))


def test_experts_are_compared_as_a_stack(tmp_path):
    with open_checkpoint(write_experts(tmp_path / "experts")) as source:
        converted(source, Recipe("Q5_0", Method.ROUND), tmp_path / "out.gguf")
        with open_checkpoint(tmp_path / "out.gguf") as written:
            rows = rows_of(source, written)
    up = next(r for r in rows if r.other_name == "blk.1.ffn_up_exps.weight")
    assert up.name == "model.layers.1.mlp.experts.*.up_proj.weight"
    assert up.shape == up.other_shape == (3, 256, 256)
    assert 25 < up.error.snr_db < 40


def test_a_norms_offset_is_undone(tmp_path):
    from decoder_models import write_model

    write_model(tmp_path / "gemma", "gemma3")
    with open_checkpoint(tmp_path / "gemma") as source:
        converted(source, Recipe("F32"), tmp_path / "out.gguf")
        with open_checkpoint(tmp_path / "out.gguf") as written:
            rows = rows_of(source, written)
    assert all(r.error.max_error == 0 for r in rows if r.match is Match.COMPARED)
    norm = next(r for r in rows if r.other_name == "blk.0.attn_norm.weight")
    assert norm.note == "1 added to the norm, as a GGUF stores it"


def small(path, **arrays):
    path.mkdir()
    write_safetensors(path / "model.safetensors", arrays)
    return open_checkpoint(path)


def test_figures_channels_and_odd_ones_by_hand(tmp_path):
    x = np.zeros((4, 6), np.float32)
    x[:, :] = 3.0
    y = x.copy()
    y[2, 5] += 4.0
    y[0, 1] -= 3.0
    nan = np.array([[1, np.nan, 2]], np.float32)
    with (
        small(tmp_path / "a", both=x, left=x, shape=x, nan=nan, zero=x * 0) as one,
        small(tmp_path / "b", both=y, right=y, shape=x[:3].copy(), nan=nan + 1, zero=x * 0) as other,
    ):
        rows = {r.name or r.other_name: r for r in rows_of(one, other)}
    both = rows["both"]
    assert both.error.snr_db == pytest.approx(10 * math.log10(216 / 25))
    assert both.nrmse == pytest.approx(5 / math.sqrt(216))
    assert both.error.max_error == 4
    worst = [(w.axis, w.index, w.max_error, round(w.share, 4)) for w in both.worst]
    assert worst == [("output", 2, 4, 0.64), ("output", 0, 3, 0.36), ("input", 5, 4, 0.64), ("input", 1, 3, 0.36)]
    assert both.worst[0].rms_error == pytest.approx(math.sqrt(16 / 6))
    assert both.worst[0].snr_db == pytest.approx(10 * math.log10(54 / 16))
    assert rows["left"].match is Match.ONLY_LEFT
    assert rows["right"].match is Match.ONLY_RIGHT
    assert rows["shape"].match is Match.SHAPES
    assert math.isnan(rows["shape"].nrmse)
    assert (rows["nan"].error.nonfinite, rows["nan"].error.values, rows["nan"].error.max_error) == (1, 2, 1)
    assert rows["zero"].error.snr_db == math.inf
    assert rows["zero"].nrmse == 0


def test_sorting_csv_and_json(tmp_path):
    x = np.ones((2, 2), np.float32)
    names = ["layers.10.w", "layers.9.w", "=1+1"]
    with (
        small(tmp_path / "a", **dict.fromkeys(names, x), only=x) as one,
        small(tmp_path / "b", **{names[0]: x * 1.5, names[1]: x * 1.1, names[2]: x}) as other,
    ):
        rows = rows_of(one, other)
    table = list(csv.DictReader(io.StringIO(to_csv(rows))))
    by_name = {r["name"]: r for r in table}
    assert by_name["'=1+1"]["snr_db"] == "inf"
    assert by_name["layers.10.w"]["max_error"] == "0.5"
    assert by_name["only"]["snr_db"] == ""
    assert by_name["only"]["shape"] == "2×2"
    data = {t["name"]: t for t in json.loads(to_json(rows))["tensors"]}
    assert data["=1+1"]["exact"] is True
    assert data["=1+1"]["error"]["snr_db"] is None
    assert data["layers.10.w"]["nrmse"] == 0.5
    assert data["only"]["match"] == "only in the first"


def test_nothing_in_common_is_said(tmp_path):
    x = np.ones((2, 2), np.float32)
    write_folder(tmp_path / "model")
    with (
        small(tmp_path / "a", one=x) as one,
        small(tmp_path / "b", other=x) as other,
        pytest.raises(UserError),
    ):
        list(compare(one, other, CancelToken()))


def test_a_comparison_can_be_cancelled_between_blocks(llama, monkeypatch):
    import core.inspect.compare as module

    monkeypatch.setattr(module, "BLOCK_VALUES", 1024)
    token = CancelToken()
    steps = compare(llama, llama, token)
    next(steps)
    token.cancel()
    with pytest.raises(Cancelled):
        list(steps)


def test_a_tied_head_that_only_one_has_is_explained(tmp_path):
    def tie(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    with open_checkpoint(write_llama(tmp_path / "tied", layers=1, change=tie)) as source:
        converted(source, Recipe("Q8_0"), tmp_path / "out.gguf")
        with open_checkpoint(tmp_path / "out.gguf") as written:
            rows = {r.name: r for r in rows_of(source, written)}
    assert rows["lm_head.weight"].match is Match.ONLY_LEFT
    assert rows["lm_head.weight"].note == "repeats the embedding"


@pytest.mark.parametrize("scale", [1e-24, 1.0, 1e25, 1e36])
def test_channels_of_very_small_and_large_weights(tmp_path, scale):
    """Their squares are beyond float32."""
    x = np.random.default_rng(1).standard_normal((16, 32))
    y = x.copy()
    y[3] += 0.5
    name = "model.layers.0.mlp.down_proj.weight"
    for folder, values in (("a", x), ("b", y)):
        write_folder(tmp_path / folder, {name: (values * scale).astype(np.float32)})
    with open_checkpoint(tmp_path / "a") as first, open_checkpoint(tmp_path / "b") as second:
        (row,) = rows_of(first, second)
    worst = row.worst[0]
    assert (worst.axis, worst.index) == ("output", 3)
    assert worst.share == pytest.approx(1)
    assert worst.rms_error == pytest.approx(0.5 * scale)
    assert worst.snr_db == pytest.approx(10 * math.log10(np.square(x[3]).sum() / 8), abs=1e-3)
