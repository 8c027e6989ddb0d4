"""Measurements of a model whose steps take a known time."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel, Use

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime import speed
from core.runtime.generate import percentile
from core.runtime.speed import BenchSettings, SpeedResult, against, measure, speed_data, why_slower
from core.runtime.usage import EnergyMeter, peak_rss, reset_peak


def drive(job: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    seen = []
    while True:
        try:
            seen.append(next(job))
        except StopIteration as stop:
            return seen, stop.value


@pytest.fixture(autouse=True)
def bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([1e6, 2e6, 1.5e6] * 10)
    monkeypatch.setattr(speed, "_bandwidth", lambda: next(rates))


def model(pause: float = 0.0, per_token: float = 0.0, capacity: int = 128) -> FakeModel:
    made = FakeModel(lambda token: 97, capacity=capacity)
    made.engine.pause, made.engine.pause_per_token = pause, per_token
    return made


def test_rates_and_times() -> None:
    fake = model(pause=0.004, per_token=0.001)
    steps, (result,) = drive(measure([fake], BenchSettings(40, 6, runs=3)))
    assert [s.share for s in steps] == pytest.approx([1 / 3, 2 / 3, 1])
    # 44 ms for the prompt and 5 ms a token, never less
    assert 40 / 0.15 < result.prompt_tokens_per_s <= 40 / 0.044
    assert 1 / 0.05 < result.decode_tokens_per_s <= 1 / 0.005
    assert 5 <= result.itl_p50_ms <= result.itl_p95_ms
    assert result.ttft_ms >= 44
    assert result.bandwidth == 2e6
    assert result.bound_fraction == pytest.approx(1000 * result.decode_tokens_per_s / 2e6)
    assert result.weight_bytes == 2000
    assert result.peak_rss_bytes > 1e6
    assert len(result.decode_runs) == 3
    # warm-up: 32 tokens and 2 steps; then 3 runs of one batch and 6 steps
    assert fake.engine.batches == [32, 1, 1, *[40, 1, 1, 1, 1, 1, 1] * 3]


def test_context_beyond_and_before_the_prompt() -> None:
    fake = model(capacity=600)
    drive(measure([fake], BenchSettings(16, 2, context=400, runs=1)))
    assert fake.engine.batches == [16, 1, 1, 16, 256, 128, 1, 1]
    assert len(fake.engine.kept[0]) == 402
    drive(measure([fake], BenchSettings(16, 2, context=4, runs=1)))
    assert len(fake.engine.kept[0]) == 6


def test_a_full_cache_and_one_place_less() -> None:
    drive(measure([model(capacity=12)], BenchSettings(8, 4, runs=1)))
    with pytest.raises(UserError, match="takes 12 places, but the cache holds 11"):
        drive(measure([model(capacity=11)], BenchSettings(8, 4, runs=1)))
    for bad in (BenchSettings(0), BenchSettings(1, 1), BenchSettings(runs=0), BenchSettings(context=0)):
        with pytest.raises(UserError, match="needs"):
            bad.check()


def test_two_in_alternation() -> None:
    order = []
    slow, fast = model(per_token=0.004), model(per_token=0.002)
    steps, (a, b) = drive(measure([slow, fast], BenchSettings(8, 4, runs=3)))
    order = [(s.side, s.run) for s in steps]
    assert order == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
    found = against(a, b)
    assert found.decode_ratio == a.decode_tokens_per_s / b.decode_tokens_per_s
    assert 0.2 < found.decode_ratio < 0.9
    assert found.why.startswith("A token takes")


def test_the_array_that_measures_bandwidth_is_not_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    def large() -> float:
        return float(np.ones(200 << 20, np.uint8)[-1])

    monkeypatch.setattr(speed, "_bandwidth", large)
    _, (found,) = drive(measure([model()], BenchSettings(8, 4, runs=2)))
    reset_peak()
    assert found.peak_rss_bytes < peak_rss() + (100 << 20)


def test_cancelled_inside_a_run() -> None:
    token = CancelToken()
    job = measure([model()], BenchSettings(8, 4, runs=3), token)
    next(job)
    token.cancel()
    with pytest.raises(Cancelled):
        next(job)


SLOW = Use(isa="portable", kernel="rows", reason="no AVX2")


def result(**changes: Any) -> SpeedResult:
    base = SpeedResult(
        BenchSettings(),
        1000.0,
        100.0,
        512.0,
        10.0,
        12.0,
        10**8,
        10**8,
        10**8,
        2e10,
        0.5,
        None,
        "No counters.",
        (Use(),),
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("slower", "baseline", "words"),
    [
        ({"itl_p50_ms": 10.1}, {}, ""),
        ({"itl_p50_ms": 5.0}, {}, ""),
        ({"kernels": (SLOW,)}, {}, r"rows for linear has no fast form here \(no AVX2\)"),
        ({"bytes_per_token": 2 * 10**8}, {}, "reads no less memory for a token: 200.00 MB"),
        ({"bytes_per_token": 10**6}, {"bytes_per_token": 2 * 10**6}, "baseline's weights fit the processor's cache"),
        ({"bytes_per_token": 5 * 10**7, "bound_fraction": 0.3}, {}, "30 % of its bandwidth bound, the baseline 50 %"),
        ({"bytes_per_token": 5 * 10**7, "bound_fraction": None}, {}, "may have disturbed"),
    ],
)  # fmt: skip
def test_why_it_is_slower(slower: dict[str, Any], baseline: dict[str, Any], words: str) -> None:
    found = why_slower(result(**({"itl_p50_ms": 20.0} | slower)), result(**baseline), cache=32 * 2**20)
    if not words:
        assert found == ""
        return
    assert found.startswith("A token takes 2.00 times as long as with the baseline")
    assert re.search(words.replace(" ", "[ \u202f\u00a0]"), found), found
    assert found.endswith(".")


def test_json_is_what_the_documentation_lists() -> None:
    a, b = result(), result(decode_tokens_per_s=50.0)
    data = speed_data(a, against(a, b))
    listed = [
        "prompt_tokens_per_s",
        "decode_tokens_per_s",
        "ttft_ms",
        "itl_ms",
        "peak_rss_bytes",
        "weight_bytes",
        "bound_fraction",
        "kernels",
    ]
    assert [key for key in data if key in listed] == listed
    assert set(data["itl_ms"]) == {"p50", "p95"}
    assert set(data["kernels"][0]) == {"op", "shape", "kernel", "isa", "reason"}
    assert data["ratio"] == {"decode": 2.0, "prompt": 1.0}
    assert data["energy_reason"] == "No counters."
    assert "baseline" not in speed_data(a)


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 50) == 3
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 95) == pytest.approx(4.8)
    assert percentile([], 50) is None


def zone(root: Path, name: str, label: str, energy: int, most: int = 1000) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "name").write_text(f"{label}\n", encoding="ascii")
    (folder / "energy_uj").write_text(f"{energy}\n", encoding="ascii")
    (folder / "max_energy_range_uj").write_text(f"{most}\n", encoding="ascii")
    return folder


def test_energy_of_the_packages(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 900)
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    zone(tmp_path, "intel-rapl:2", "psys", 5)
    meter = EnergyMeter(tmp_path)
    meter.start()
    (first / "energy_uj").write_text("350", encoding="ascii")
    (second / "energy_uj").write_text("50", encoding="ascii")  # has begun anew after 1000
    assert meter.stop().joules == pytest.approx((250 + 150) / 1e6)


def test_why_there_is_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = EnergyMeter(tmp_path / "none")
    meter.start()
    assert meter.stop().joules is None
    assert "no energy counters" in meter.stop().reason
    zone(tmp_path, "intel-rapl:0", "package-0", 100)
    still = EnergyMeter(tmp_path)
    assert "not started" in still.stop().reason
    still.start()
    assert "stand still" in still.stop().reason

    def refuse(self: Path, *args: Any, **kwargs: Any) -> str:
        raise PermissionError

    closed = EnergyMeter(tmp_path)
    monkeypatch.setattr(Path, "read_text", refuse)
    closed.start()
    assert "administrator" in closed.stop().reason


def test_peak_memory_starts_anew() -> None:
    import numpy as np

    block = np.ones(40_000_000, np.uint8)
    before = peak_rss()
    del block
    reset_peak()
    assert 0 < peak_rss() <= before
