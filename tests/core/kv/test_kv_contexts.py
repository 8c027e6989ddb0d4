"""Steps over the context: order, shares and crossings; and who is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_model import FakeModel
from job_help import drive
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import Cancelled, UserError
from core.kv.contexts import ContextPoint, ContextSweep, Filling, sweep_contexts
from core.kv.scheme import CacheScheme
from core.progress import CancelToken
from core.runtime.load import load

F16, Q8 = CacheScheme(), CacheScheme("Q8_0")


def sweep(*seconds: tuple[float, float]) -> ContextSweep:
    """Points at 512, 1024 …, of F16 and of Q8_0."""
    return ContextSweep(
        tuple(
            ContextPoint(scheme, 512 << number, taken, 0.5)
            for number, pair in enumerate(seconds)
            for scheme, taken in zip((F16, Q8), pair, strict=True)
        )
    )


def test_the_crossing_is_where_it_stays_faster() -> None:
    assert sweep((1, 2), (2, 2), (4, 3), (8, 5)).crossing(Q8, F16) == 2048
    assert sweep((1, 0.9), (2, 2.1), (4, 3)).crossing(Q8, F16) == 2048, "once faster and then slower is no crossing"
    assert sweep((1, 0.9), (2, 1)).crossing(Q8, F16) == 512
    assert sweep((1, 2), (2, 3)).crossing(Q8, F16) is None
    assert sweep((1, 2)).of(Q8)[0].rate == 0.5


def test_all_schemes_at_all_contexts(tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        model = load(checkpoint, 64, threads=1)
        try:
            seen, found = drive(sweep_contexts(model, (F16, Q8), (16, 48), threads=1))
            assert [(p.scheme, p.context) for p in found.points] == [(F16, 16), (Q8, 16), (F16, 48), (Q8, 48)]
            assert all(p.seconds > 0 and 0 < p.attention < 1 for p in found.points)
            shares = [each.share for each in seen if isinstance(each, Filling)]
            assert shares == sorted(shares)
            assert shares[-1] == 1
            stopped = CancelToken()
            stopped.cancel()
            with pytest.raises(Cancelled):
                drive(sweep_contexts(model, (F16,), (16,), token=stopped))
            with pytest.raises(UserError, match="are free"):
                drive(sweep_contexts(model, (F16,), (1 << 40,)))
        finally:
            model.unload()
    with pytest.raises(UserError, match="processor"):
        drive(sweep_contexts(FakeModel(b"ab"), (F16,), (16,)))  # type: ignore[arg-type]
