"""The whole model in one pass: right figures, in file order, cancellable, and kept."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import safetensors_bytes
from tiny_models import write_llama

from core.checkpoint.opening import open_checkpoint
from core.errors import Cancelled
from core.inspect import cache as cache_module
from core.inspect import predicted as predicted_module
from core.inspect import survey as survey_module
from core.inspect.matrix import Matrix
from core.inspect.outliers import rank_channels
from core.inspect.predicted import planned, predict
from core.inspect.statistics import tensor_statistics
from core.inspect.survey import Measure, SurveyRow, survey
from core.plan import Action, make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from kernels import ops


def plant(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][:, 77] *= 30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model", hidden=256, ffn=512, layers=2, shards=2, change=plant)


def run(path: Path, cache: Path, target: str | None = "w4a16-g128") -> list[SurveyRow]:
    with open_checkpoint(path) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target=target)) if target else None
        return list(survey(checkpoint, plan, CancelToken(), cache))


def test_every_tensor_once_and_right(model: Path, tmp_path: Path) -> None:
    rows = run(model, tmp_path / "cache")
    with open_checkpoint(model) as checkpoint:
        assert [r.name for r in rows] == [t.name for t in checkpoint.tensors]
        assert [r.bytes_done for r in rows] == np.cumsum([t.nbytes for t in checkpoint.tensors]).tolist()
        assert rows[-1].bytes_total == rows[-1].bytes_done
        for row, tensor in zip(rows, checkpoint.tensors, strict=True):
            want = tensor_statistics(checkpoint, tensor, CancelToken())
            found = row.statistics
            assert found is not None
            assert (row.role, row.layer, row.shape, row.dtype) == (tensor.role, tensor.layer, tensor.shape, "BF16")
            for name in ("values", "zeros", "min", "max", "amax", "mean", "std", "kurtosis", "p999", "outlier_ratio"):
                assert getattr(found, name) == getattr(want, name), name
            np.testing.assert_array_equal(found.histogram, want.histogram)
            assert row.worst == (*rank_channels(want.rows, 1), *rank_channels(want.columns, 1))
    assert not any(r.cached for r in rows)


def test_the_planted_channel_is_the_worst_of_all(model: Path, tmp_path: Path) -> None:
    rows = run(model, tmp_path / "cache", None)
    worst = max((c.ratio, r.name, c.axis, c.index) for r in rows for c in r.worst if len(r.shape) == 2)
    assert worst[1:] == ("model.layers.1.mlp.up_proj.weight", "input", 77)
    assert 20 < worst[0] < 40
    assert all(r.predicted is None and r.measure(Measure.PREDICTED_ERROR) is None for r in rows)


@pytest.mark.parametrize("target", ["w4a16-g128", "w8a16-channel", "Q4_K_M", "Q8_0", "MXFP4"])
def test_predicted_errors(target: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all values, exactly the measured one."""
    from core.formats import EncodeOptions
    from core.metrics.error import measure
    from core.models.read_mapped import read_mapped
    from core.preview import round_trip

    monkeypatch.setattr(predicted_module, "SMALLEST_SAMPLE", 1 << 20)
    monkeypatch.setattr(predicted_module, "LARGEST_SAMPLE", 1 << 20)
    rows = {r.name: r for r in run(model, tmp_path / "cache", target)}
    with open_checkpoint(model) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target=target))
        seen = 0
        for tensor in plan.tensors:
            predicted = rows[tensor.source.pieces[0].tensor.name].predicted
            assert predicted is not None
            assert (predicted.format, predicted.problem) == (tensor.format_name, "")
            if tensor.action is not Action.QUANTIZE:
                continue
            seen += 1
            source = read_mapped(checkpoint, tensor.source)
            amax = float(np.abs(source).max())
            back = round_trip(tensor, source, EncodeOptions(method=plan.recipe.method, amax=amax))
            assert predicted.snr_db == pytest.approx(measure(source, back).stats().snr_db, abs=1e-6)
            assert predicted.nrmse == pytest.approx(np.linalg.norm(source - back) / np.linalg.norm(source), rel=1e-4)
            assert predicted.sampled == tensor.values
        assert seen >= 14


def test_smaller_groups_gain_where_an_outlier_is(model: Path, tmp_path: Path) -> None:
    rows = {r.name: r for r in run(model, tmp_path / "cache", "w4a16-g128")}
    plain = rows["model.layers.0.mlp.up_proj.weight"].measure(Measure.FINER_GAIN)
    planted = rows["model.layers.1.mlp.up_proj.weight"].measure(Measure.FINER_GAIN)
    assert plain is not None
    assert planted is not None
    assert 1 < plain < 4  # a normal's largest of 128 over its largest of 32: some 2 dB
    assert planted > plain + 1
    assert rows["model.norm.weight"].measure(Measure.FINER_GAIN) is None
    assert rows["model.norm.weight"].measure(Measure.PREDICTED_SNR) == math.inf


def test_a_sample_is_close_and_always_the_same(model: Path) -> None:
    with open_checkpoint(model) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target="Q4_K_M"))
        own = planned(plan)["model.layers.0.mlp.gate_proj.weight"]
        token = CancelToken()
        whole = predict(checkpoint, own, plan.recipe.method, 1 << 20, token)
        part = predict(checkpoint, own, plan.recipe.method, 16_384, token)
        assert part == predict(checkpoint, own, plan.recipe.method, 16_384, token)
        assert part.sampled < whole.sampled
        assert part.nrmse == pytest.approx(whole.nrmse, rel=0.02)


def test_values_that_the_format_refuses(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = math.nan

    rows = {r.name: r for r in run(write_llama(tmp_path / "m", change=damage), tmp_path / "cache")}
    row = rows["model.layers.0.mlp.up_proj.weight"]
    assert row.statistics is not None
    assert row.predicted is not None
    assert row.statistics.nonfinite == 1
    assert "NaN" in row.predicted.problem
    assert row.measure(Measure.PREDICTED_ERROR) is None
    assert row.measure(Measure.KURTOSIS) == pytest.approx(3, abs=0.2)


def test_kept_statistics_and_errors(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(model, tmp_path / "cache")
    read = []
    plain_read = Matrix.read
    monkeypatch.setattr(Matrix, "read", lambda self, *a: read.append(self.tensor.name) or plain_read(self, *a))
    again = run(model, tmp_path / "cache")
    assert not read
    assert all(r.cached for r in again)
    for a, b in zip(first, again, strict=True):
        assert a.statistics is not None
        assert b.statistics is not None
        assert {k: v for k, v in vars(a.statistics).items() if k != "histogram"} == {
            k: v for k, v in vars(b.statistics).items() if k != "histogram"
        }
        np.testing.assert_array_equal(a.statistics.histogram, b.statistics.histogram)
        assert (a.predicted, a.worst) == (b.predicted, b.worst)
    other = run(model, tmp_path / "cache", "Q8_0")
    assert not read  # another format reads samples, and no tensor as a whole
    assert all(r.cached for r in other)
    os.utime(next(iter(sorted(model.glob("*.safetensors")))), ns=(1, 1))
    assert not any(r.cached for r in run(model, tmp_path / "cache"))


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_broken_cache_is_made_again(damage: bytes | None, model: Path, tmp_path: Path) -> None:
    want = run(model, tmp_path / "cache")
    files = sorted((tmp_path / "cache").iterdir())
    assert [f.name.split("-")[1] for f in files] == ["errors.json", "facts.npz"]
    for file in files:
        file.write_bytes(file.read_bytes()[:-40] if damage is None else damage)
    rows = run(model, tmp_path / "cache")
    assert not any(r.cached for r in rows)
    assert [r.predicted for r in rows] == [r.predicted for r in want]
    assert all(r.cached for r in run(model, tmp_path / "cache"))
    lines = files[0].read_text().splitlines()
    files[0].write_text("\n".join(json.dumps([json.loads(line)[0], ["nonsense"]]) for line in lines))
    assert [r.predicted for r in run(model, tmp_path / "cache")] == [r.predicted for r in want]


def test_a_folder_that_can_not_be_written_is_no_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert len(run(model, tmp_path / "file" / "cache")) == 20


def test_the_cache_stays_small(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for i in range(5):
        (cache / f"old{i}").write_bytes(bytes(1000))
        os.utime(cache / f"old{i}", (i, i))
    monkeypatch.setattr(cache_module, "MOST_BYTES", 2500 + 60_000)
    run(model, cache)
    left = sorted(f.name for f in cache.iterdir())
    assert sum(f.stat().st_size for f in cache.iterdir()) <= 62_500
    assert [name for name in left if "-" in name] == [name for name in left if name.endswith((".npz", ".json"))]
    assert "old0" not in left or len(left) == 7
    assert not [name for name in left if name.startswith(".partial")]


def test_what_was_found_before_cancelling_is_kept(model: Path, tmp_path: Path) -> None:
    token = CancelToken()
    with open_checkpoint(model) as checkpoint:
        rows = survey(checkpoint, None, token, tmp_path / "cache")
        got = [next(rows) for _ in range(3)]
        token.cancel()
        start = time.perf_counter()
        with pytest.raises(Cancelled):
            got.extend(rows)
        assert time.perf_counter() - start < 0.2
        kept = [r.name for r in survey(checkpoint, None, CancelToken(), tmp_path / "cache") if r.cached]
    assert kept[:3] == [r.name for r in got[:3]]
    assert len(kept) < 20


def test_large_tensors_come_last(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "LARGE", 200_000)
    names = [r.name for r in run(model, tmp_path / "cache", None)]
    assert len(names) == 20
    assert all("mlp" in n for n in names[-6:])
    assert not any("mlp" in n for n in names[:-6])


def test_experts_vectors_and_what_has_no_decoder(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 8, 64)).astype(np.float32)
    x[2, 5] *= 40
    raw = ops.from_float32(x.reshape(-1, 64), "BF16").tobytes()
    header = {
        "e": {"dtype": "BF16", "shape": [3, 8, 64], "data_offsets": [0, len(raw)]},
        "v": {"dtype": "BF16", "shape": [8], "data_offsets": [len(raw), len(raw) + 16]},
        "f": {"dtype": "F8_E4M3FNUZ", "shape": [2, 8], "data_offsets": [len(raw) + 16, len(raw) + 32]},
        "z": {"dtype": "F32", "shape": [0, 4], "data_offsets": [len(raw) + 32, len(raw) + 32]},
    }
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(header, raw + raw[:16] + bytes(16)))
    rows = {r.name: r for r in run(path, tmp_path / "cache", None)}
    assert (rows["e"].worst[0].axis, rows["e"].worst[0].index) == ("output", 21)
    assert rows["v"].statistics is not None
    assert rows["v"].statistics.values == 8
    assert rows["f"].statistics is None
    assert rows["f"].measure(Measure.RANGE) is None
    assert rows["z"].worst == ()
    assert rows["z"].measure(Measure.RANGE) is None


def test_what_has_no_decoder_is_passed_over_with_a_plan_too(tmp_path: Path) -> None:
    """A folder's plan copies it, and nothing is predicted of it."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.odd.weight"] = torch.zeros(4, 4, dtype=torch.complex64)

    source = write_llama(tmp_path / "model", change=change)
    rows = {r.name: r for r in run(source, tmp_path / "cache")}
    odd = rows["model.layers.0.odd.weight"]
    assert (odd.statistics, odd.predicted) == (None, None)
    assert rows["model.layers.1.mlp.up_proj.weight"].measure(Measure.PREDICTED_SNR) > 10
