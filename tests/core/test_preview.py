"""The preview's figures are those that a conversion reports for the same tensor."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tiny_models import write_llama

from core import preview as preview_module
from core.checkpoint import open_checkpoint
from core.errors import Cancelled
from core.formats import Method
from core.plan import Action, make_plan
from core.preview import preview, sample_model
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with open_checkpoint(write_llama(tmp_path_factory.mktemp("tiny"), layers=1)) as checkpoint:
        yield checkpoint


@pytest.mark.parametrize("target", ["Q4_K_M", "NVFP4", "w4a16-g64-asym", "F16"])
def test_a_whole_tensor_has_the_conversions_figures(tiny, tmp_path, target) -> None:
    plan = make_plan(tiny, Recipe(target))
    job = run(plan, tiny, tmp_path / "out", CancelToken())
    written = {p.result.name: p.result.error for p in job if p.result is not None}
    for t in plan.tensors:
        result = preview(tiny, t, plan.recipe.method, CancelToken())
        assert (result.rows, result.sampled_rows) == (t.rows, t.rows)
        assert sum(result.source_counts) in (0, t.values)
        if t.format is not None:
            assert result.error.counts == written[t.name].counts
            assert result.error.max_error == written[t.name].max_error
            assert result.error.snr_db == pytest.approx(written[t.name].snr_db, abs=1e-9)


def test_a_sample_is_spread_over_the_tensor_and_near_the_whole(tiny, monkeypatch) -> None:
    plan = make_plan(tiny, Recipe("Q4_K_M"))
    t = max(plan.tensors, key=lambda t: t.values)
    read = []
    real = preview_module.read_mapped
    monkeypatch.setattr(preview_module, "read_mapped", lambda c, m, a, b, k: read.append((a, b)) or real(c, m, a, b, k))
    whole = preview(tiny, t, Method.SEARCH, CancelToken())
    read.clear()
    part = preview(tiny, t, Method.SEARCH, CancelToken(), max_values=t.values // 4)
    assert read == sorted(read)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(read))
    assert read[0][0] == 0
    assert read[-1][1] > 0.9 * t.rows
    assert part.sampled_rows == sum(b - a for a, b in read) <= t.rows // 4
    assert part.error.snr_db == pytest.approx(whole.error.snr_db, abs=1)


def test_the_whole_model_is_sampled_tensor_by_tensor(tiny) -> None:
    plan = make_plan(tiny, Recipe("Q4_K_M"))
    results = list(sample_model(tiny, plan, CancelToken()))
    quantized = [t for t in plan.tensors if t.action is Action.QUANTIZE]
    assert [r.name for _, _, r in results] == [t.name for t in quantized]
    assert [(i, n) for i, n, _ in results] == [(i, len(quantized)) for i in range(len(quantized))]
    bits = {r.format: r.effective_bits for _, _, r in results}
    assert bits["Q4_K"] == 4.5
    assert bits["Q6_K"] == 6.5625


def test_a_cancelled_preview_stops(tiny) -> None:
    plan, token = make_plan(tiny, Recipe("Q4_K_M")), CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        preview(tiny, plan.tensors[0], Method.SEARCH, token)
