"""What schemes cost: figures against those of whole runs, and whoever can not be compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_model import FakeModel
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import Cancelled, UserError
from core.kv.compare import FIRST_SPAN, PIECE, compare_schemes, window_exercise
from core.kv.scheme import CacheScheme
from core.progress import CancelToken
from core.runtime.load import LoadedModel, load

COUNT = 2 * FIRST_SPAN + 9
SCHEMES = tuple(CacheScheme.parse(text) for text in ("f16", "q8_0", "q4_0/f16"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path: Path = write_llama(tmp_path_factory.mktemp("cache") / "model")
    with open_checkpoint(path) as checkpoint:
        loaded = load(checkpoint, 256, threads=1)
    yield loaded
    loaded.unload()


def tokens(model: LoadedModel) -> list[int]:
    return [int(i) for i in np.random.default_rng(0).integers(3, model.config.vocab, COUNT)]


def test_figures_are_those_of_whole_runs(model: LoadedModel) -> None:
    ids, shares = tokens(model), list[float]()
    same, eight, four = compare_schemes(model, ids, SCHEMES, progress=shares.append, threads=1)
    assert (same.kl, same.same_top, same.bits) == (0.0, 1.0, 16.0)
    assert 0 < eight.kl < four.kl
    assert (eight.bits, eight.bytes) == (8.5, same.bytes * 8.5 / 16)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    rows = np.arange(COUNT - 1, dtype=np.int32)
    logits = model.engine.run(np.array(ids[:-1], np.int32), np.zeros_like(rows), rows, rows).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    lost = np.log(np.exp(logits).sum(axis=1)) - logits[rows, ids[1:]]
    assert same.perplexity == pytest.approx(np.exp(lost.mean()), rel=1e-3)
    ends = [(span.start, span.stop) for span in four.spans]
    assert ends == [(0, FIRST_SPAN), (FIRST_SPAN, 2 * FIRST_SPAN), (2 * FIRST_SPAN, COUNT - 1)]
    assert sum(s.kl * (s.stop - s.start) for s in four.spans) / (COUNT - 1) == pytest.approx(four.kl)


def test_who_can_not_be_compared(model: LoadedModel) -> None:
    with pytest.raises(UserError, match="1 tokens can not be read"):
        compare_schemes(model, [5], SCHEMES)
    with pytest.raises(UserError, match="processor"):
        compare_schemes(FakeModel(b"ab"), [5, 6, 7], SCHEMES)  # type: ignore[arg-type]
    stopped = CancelToken()

    def stop(share: float) -> None:
        if share > PIECE / COUNT:
            stopped.cancel()

    with pytest.raises(Cancelled):
        compare_schemes(model, tokens(model), SCHEMES, progress=stop, token=stopped, threads=1)


def test_the_exercise_has_each_pair_with_and_without_a_window() -> None:
    schemes = window_exercise()
    assert [s.text for s in schemes[:4]] == ["INT8", "INT8,window=128", "INT8/F16", "INT8/F16,window=128"]
    assert len(set(schemes)) == 12
