"""Before and after quantization against a whole round trip, and the levels against what is read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.formats import EncodeOptions
from core.inspect.requantized import group_levels, magnitude_counts, requantized
from core.inspect.statistics import magnitude_edges
from core.models.read_mapped import read_mapped
from core.plan import make_plan
from core.preview import round_trip
from core.progress import CancelToken
from core.recipe import Recipe

NAME = "model.layers.0.mlp.down_proj.weight"


def planned(folder: Path, target: str):  # type: ignore[no-untyped-def]
    checkpoint = open_checkpoint(folder)
    plan = make_plan(checkpoint, Recipe(target=target))
    index = next(i for i, t in enumerate(plan.tensors) if any(s.name == NAME for s in t.source.sources))
    return checkpoint, plan, index


def test_counts_are_those_of_numpy() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(0, 1, 5000), [0.0, -0.0, np.nan, np.inf, 2.0**-60, 2.0**60]]).astype(np.float32)
    expected, _ = np.histogram(np.abs(values[:5000].astype(np.float64)), magnitude_edges())
    found = magnitude_counts(values)
    assert found.sum() == 5000
    assert np.abs(np.cumsum(found - expected)).max() <= 2, "only values on an edge may fall to its other side"


@pytest.mark.parametrize("target", ["Q4_0", "Q8_0", "w4a16-g32"])
def test_all_of_a_small_tensor_is_looked_at(tmp_path: Path, target: str) -> None:
    checkpoint, plan, index = planned(write_llama(tmp_path / "m"), target)
    tensor = plan.tensors[index]
    found = requantized(checkpoint, plan, index, CancelToken())
    source = read_mapped(checkpoint, tensor.source)
    options = EncodeOptions(method=plan.recipe.method, amax=float(np.abs(source).max()))
    decoded = round_trip(tensor, source, options)
    assert found.share == 1.0
    assert found.seen == source.size
    assert (found.after == magnitude_counts(decoded)).all()
    assert found.zeros_after == int((decoded == 0).sum())


def test_a_sample_tells_what_share_it_is(tmp_path: Path) -> None:
    checkpoint, plan, index = planned(write_llama(tmp_path / "m"), "Q8_0")
    found = requantized(checkpoint, plan, index, CancelToken(), max_values=20_000)
    assert 0.05 < found.share < 0.5
    assert found.after.sum() + found.zeros_after == found.seen
    some = requantized(checkpoint, plan, index, CancelToken(), (64, 96))
    rows = read_mapped(checkpoint, plan.tensors[index].source, 64, 96)
    assert some.seen == rows.size
    assert some.share == 1.0


@pytest.mark.parametrize("target", ["Q4_0", "Q4_K", "IQ4_NL", "w4a16-g32"])
def test_every_value_read_back_is_one_of_the_levels(tmp_path: Path, target: str) -> None:
    checkpoint, plan, index = planned(write_llama(tmp_path / "m"), target)
    tensor = plan.tensors[index]
    source = read_mapped(checkpoint, tensor.source, 5, 6)
    decoded = round_trip(tensor, source, EncodeOptions(method=plan.recipe.method, amax=float(np.abs(source).max())))
    levels = group_levels(checkpoint, plan, index, 5, 40)
    group = np.abs(decoded[0, 32:64])
    distance = np.abs(group[:, None] - levels.levels[None]).min(axis=1)
    assert distance.max() <= 1e-6
    used = levels.levels[levels.used]
    assert np.abs(used[:, None] - group[None]).min(axis=1).max() <= 1e-6
    assert levels.amax == pytest.approx(np.abs(source[0, 32:64]).max())


def test_values_that_are_kept_have_no_levels(tmp_path: Path) -> None:
    checkpoint, plan, _ = planned(write_llama(tmp_path / "m"), "Q8_0")
    index = next(i for i, t in enumerate(plan.tensors) if len(t.shape) == 1)
    assert not len(group_levels(checkpoint, plan, index, 0, 0).levels)
