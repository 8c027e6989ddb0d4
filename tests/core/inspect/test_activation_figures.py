"""What is derived from measured inputs: outlier channels, int8's error, LLM.int8()'s columns, SmoothQuant's factors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.inspect.activations import Activations, Place
from core.inspect.layerwise import TOKENS, bundled_text
from core.inspect.tap import Tap, int8_snr


def tapped(x: np.ndarray, layer: int = 0, place: Place = Place.ATTENTION, weight: np.ndarray | None = None):
    tap = Tap(f"blk.{layer}.attn_q", layer, place, None, (f"t{layer}",), x.shape[1])
    tap.measure(x)
    if weight is not None:
        for row in weight:  # piece by piece
            tap.weigh(row[None])
    return tap.result()


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(5).normal(0, 1, (40, 64)).astype(np.float32)


def test_figures_of_an_input(x: np.ndarray) -> None:
    x[7, 3] = -90.0
    weight = np.random.default_rng(6).normal(0, 1, (10, 64)).astype(np.float32)
    found = tapped(x, weight=weight)
    np.testing.assert_array_equal(found.max, np.abs(x).max(0))
    np.testing.assert_array_equal(found.token_max, np.abs(x).max(1))
    np.testing.assert_array_equal(found.weight_max, np.abs(weight).max(0))
    np.testing.assert_allclose(found.rms, np.sqrt((x.astype(np.float64) ** 2).mean(0)), rtol=1e-6)
    assert found.amax == 90
    assert found.ratio == pytest.approx(90 / np.median(np.abs(x).max(0)))


def test_shared_inputs_count_once(x: np.ndarray) -> None:
    tap = Tap("q+k", 0, Place.ATTENTION, None, ("q", "k"), 64)
    tap.measure(x)
    tap.measure(x * 2)
    assert tap.result().amax == np.abs(x).max()


def by_hand(x: np.ndarray, amax: np.ndarray) -> float:
    found = []
    for row, largest in zip(x.astype(np.float64), amax, strict=True):
        step = float(largest) / 127
        if not row.any():
            continue
        back = [round(v / step) * step for v in row]  # ties to even, as numpy
        noise = sum((v - b) ** 2 for v, b in zip(row, back, strict=True))
        found.append(10 * math.log10(sum(v * v for v in row) / noise))
    return float(np.median(found))


def test_int8_snr_is_the_median_tokens(x: np.ndarray) -> None:
    x[0] *= 500  # one token as models have at the start of a text
    x[1] = 0
    found = tapped(x)
    each = np.abs(x).max(1)
    assert found.token_snr_db == pytest.approx(by_hand(x, each), abs=1e-3)
    assert found.tensor_snr_db == pytest.approx(by_hand(x, np.full(40, each.max())), abs=1e-3)
    assert found.tensor_snr_db < 1 < 35 < found.token_snr_db
    assert found.breaks
    assert not tapped(x[2:]).breaks


def test_int8_snr_at_its_ends() -> None:
    whole = np.array([[127.0, -3, 64, 0]], np.float32)
    assert int8_snr(whole, np.array([127.0])) == math.inf
    assert math.isnan(int8_snr(np.zeros((2, 4), np.float32), np.zeros(2)))
    assert math.isnan(int8_snr(np.zeros((0, 4), np.float32), np.zeros(0)))


def test_a_planted_channel_is_found_across_depth(x: np.ndarray) -> None:
    layers = []
    for i in range(5):
        here = x.copy()
        if i >= 2:
            here[:, 19] *= 10.0 * i
        layers.append(tapped(here, i))
    layers.append(tapped(x, 1, Place.FFN))
    found = Activations(tuple(layers), (1, 2))
    depth = found.depth_map(Place.ATTENTION)
    assert depth.layers == (0, 1, 2, 3, 4)
    assert depth.values.shape == (5, 64)
    first, second = depth.outliers(2)
    assert (first.index, first.layer, first.layers_above) == (19, 4, 3)
    assert first.max == pytest.approx(40 * np.abs(x[:, 19]).max())
    assert first.ratio > 5 * second.ratio
    assert found.depth_map(Place.FFN).layers == (1,)
    assert found.depth_map(Place.HEAD).outliers() == ()
    assert found.places == (Place.ATTENTION, Place.FFN)


def test_experts_are_one_row_of_the_picture(x: np.ndarray) -> None:
    taps = []
    for e in range(3):
        tap = Tap(f"blk.0.ffn_gate.{e}", 0, Place.FFN, e, ("stack",), 64)
        if e < 2:  # no token reaches the last
            tap.measure(x * (e + 1))
        taps.append(tap.result())
    found = Activations(tuple(taps), (1,))
    np.testing.assert_array_equal(found.depth_map(Place.FFN).values, [2 * np.abs(x).max(0)])
    assert taps[2].tokens == taps[2].amax == 0
    assert not taps[2].breaks


def test_share_above_is_for_any_threshold(x: np.ndarray) -> None:
    x[3, :8] = np.arange(8)  # one token is enough
    x[:, 8:] = np.clip(x[:, 8:], -0.5, 0.5)
    x[:, :8] = np.minimum(np.abs(x[:, :8]), np.arange(8))
    found = tapped(x)
    assert found.share_above() == 2 / 64  # 6 and 7: from the threshold on
    assert found.share_above(7.5) == 0
    assert found.share_above(0.0) == 1
    both = Activations((found, tapped(x * 0, 1)), (1,))
    assert both.share_above(6.0) == 1 / 64


def test_breaking_layers_come_worst_first(x: np.ndarray) -> None:
    layers = []
    for i, factor in enumerate((1, 200, 2000)):
        here = x.copy()
        here[0] *= factor
        layers.append(tapped(here, i))
    found = Activations(tuple(layers), (1,))
    assert [a.layer for a in found.breaking()] == [2, 1]
    assert [a.layer for a in found.breaking(100.0)] == [2, 1, 0]


def test_the_bundled_text_suffices() -> None:
    assert len(bundled_text().split()) > TOKENS * 0.7
    assert "\t" not in bundled_text()
