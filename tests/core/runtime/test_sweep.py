"""Sweeps over the batch, and the matrices that they are made with."""

from __future__ import annotations

import csv
import io
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel, fake_program

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime import sweep as sweeping
from core.runtime.layers import decode_flops, layer_shapes, main_format, sample_matrix, step_matrices
from core.runtime.sweep import Sweep, SweepPoint, decode_sweep, layer_sweep, sweep_csv, sweep_data, traffic
from kernels.matrix import Activations, read_rows
from kernels.program import CacheLayout, Experts, Program


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    monkeypatch.setattr(sweeping, "_empty_caches", lambda: None)
    monkeypatch.setattr(sweeping, "measured_bandwidth", lambda: 1e9)
    monkeypatch.setattr(sweeping, "measured_peak", lambda: 5e9)


def drive(job: Generator[Any, None, Any]) -> tuple[list[Any], Any]:
    seen = []
    while True:
        try:
            seen.append(next(job))
        except StopIteration as stop:
            return seen, stop.value


def made(times: dict[int, tuple[float, float]]) -> Sweep:
    points = [SweepPoint(side, b, t[side], 1e6, 2e6 * b) for b, t in times.items() for side in (0, 1)]
    return Sweep("64 × 64", ("BF16", "Q4_0"), tuple(points), bandwidth=1e9, peak=5e9)


@pytest.mark.parametrize(
    ("times", "crossover"),
    [
        ({1: (4, 1), 2: (4, 2), 4: (4, 4), 8: (8, 9)}, 4),
        ({1: (4, 1), 2: (4, 5), 4: (4, 2), 8: (8, 7)}, None),  # a single slow batch is noise
        ({1: (1, 2), 2: (1, 2)}, 1),
        ({1: (2, 1)}, None),
    ],
)
def test_where_compression_stops_helping(times: dict[int, tuple[float, float]], crossover: int | None) -> None:
    found = made(times)
    assert found.crossover == crossover
    assert found.speedups == tuple((b, t[0] / t[1]) for b, t in times.items())


def test_roof_is_the_lower_of_the_two() -> None:
    found = made({1: (1.0, 1.0), 128: (1.0, 1.0)})
    one, many = found.side(0)
    assert found.roof(one) == pytest.approx(2e9)  # 2 operations a byte, 1 GB/s
    assert found.roof(many) == 5e9
    assert one.bandwidth == 1e6
    assert many.rate == pytest.approx(256e6)


def test_a_layer_in_both_forms() -> None:
    plain, packed = sample_matrix("BF16", 64, 64), sample_matrix("Q4_0", 64, 64)
    points, found = drive(layer_sweep(plain, packed, Activations.FAST, 1, batches=(1, 4)))
    assert [(p.side, p.batch) for p in points] == [(0, 1), (1, 1), (0, 4), (1, 4)]
    assert found.title == "64 × 64"
    assert found.names == ("BF16", "Q4_0")
    assert all(p.seconds > 0 for p in points)
    assert points[2].flops == 2 * 64 * 64 * 4
    assert points[2].bytes == plain.nbytes + 4 * 4 * 128
    assert dict(found.traffic)["BF16"] == plain.nbytes + 512
    assert dict(found.traffic)["Q4_0, dequantized into a copy first"] == packed.nbytes + 4 * 64 * 64 + 512
    assert traffic(plain, packed) == found.traffic


def test_a_whole_decode_step() -> None:
    models = tuple(FakeModel(lambda token: 97, capacity=20, sequences=4) for _ in range(2))
    models[0].engine.pause_per_token, models[1].engine.pause_per_token = 0.002, 0.001
    models[1].engine.bytes_per_token = 400
    points, found = drive(decode_sweep(models, context=19, batches=(1, 2, 4, 8)))
    assert [p.batch for p in found.side(0)] == [1, 2, 4]
    assert "over 4 are left out" in found.note
    assert all(len(kept) == 20 for model in models for kept in model.engine.kept)
    assert found.side(1)[2].bytes == 400
    assert found.side(1)[2].flops == 4 * decode_flops(fake_program())
    assert found.speedups[-1][1] > 1
    assert len(points) == 6
    with pytest.raises(UserError, match="20 tokens and one more do not fit the cache of 20"):
        drive(decode_sweep(models, context=20))


def test_cancelled() -> None:
    token = CancelToken()
    plain = sample_matrix("BF16", 16, 32)
    job = layer_sweep(plain, plain, Activations.FAST, 1, cancel=token)
    next(job)
    token.cancel()
    with pytest.raises(Cancelled):
        drive(job)


def test_exports() -> None:
    found = made({1: (4.0, 1.0), 2: (4.0, 4.0)})
    rows = list(csv.DictReader(io.StringIO(sweep_csv(found))))
    assert [(r["side"], r["batch"], float(r["speedup"])) for r in rows] == [
        ("BF16", "1", 1),
        ("BF16", "2", 1),
        ("Q4_0", "1", 4),
        ("Q4_0", "2", 1),
    ]
    data = sweep_data(found)
    assert data["compression_stops_helping_at_batch"] == 2
    assert data["points"][0]["flop_per_s"] == 2e6 / 4
    assert [n.value for n in found.numbers[:2]] == [4, 1]
    without = Sweep("x", ("a", "b"), found.points)
    assert next(csv.DictReader(io.StringIO(sweep_csv(without))))["roof_flop_per_s"] == ""


@pytest.mark.parametrize(
    "name", ["Q4_0", "Q8_0", "Q4_K", "BF16", "F16", "F32", "int4 g128", "int8 per row", "int3 g64"]
)
def test_made_up_matrices_have_the_format_and_no_zeros(name: str) -> None:
    matrix = sample_matrix(name, 40, 256)
    assert (matrix.rows, matrix.columns, matrix.format) == (40, 256, name)
    values = read_rows(matrix, np.arange(40))
    assert 0.01 < values.std() < 0.04
    assert (values[3] == values[19]).all()


def test_formats_that_can_not_be_made_up() -> None:
    for name in ("table4 g64", "Q4_K of tomorrow"):
        with pytest.raises(ValueError, match="no random weights"):
            sample_matrix(name, 16, 256)


def test_layers_of_a_program() -> None:
    program = fake_program(64, 32)
    # twice Q8_0 [64, 32] of some 3 kB, three times BF16 [32, 64] of 4096 bytes
    assert [m.format for m in layer_shapes(program)] == ["BF16", "Q8_0"]
    assert main_format(program) == "BF16"
    assert decode_flops(program) == 5 * 2 * 64 * 32
    experts = tuple(sample_matrix("Q8_0", 32, 32) for _ in range(4))
    mixed = Program((Experts(0, 1, 2, experts, experts, experts, used=2),), (32, 4, 32), 2, CacheLayout((), 8))
    assert [count for _, count in step_matrices(mixed)] == [2, 2, 2]
    assert decode_flops(mixed) == 6 * 2 * 32 * 32
