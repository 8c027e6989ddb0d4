"""Which weights a scale goes into, and how gains are rounded."""

from __future__ import annotations

import numpy as np
import pytest
from block_models import bfloat16

from core.methods.folding import Fold
from core.methods.transform import BlockWeights
from core.progress import CancelToken


def block(gain: np.ndarray) -> BlockWeights:
    rng = np.random.default_rng(0)
    return BlockWeights({"w": rng.standard_normal((5, len(gain))).astype(np.float32)}, {"g": gain})


@pytest.mark.parametrize("less_one", [False, True])
def test_gain_times_columns_is_kept_and_the_gain_fits_16_bits(less_one: bool) -> None:
    rng = np.random.default_rng(2)
    less = np.float32(less_one)
    gain = bfloat16(rng.standard_normal(256).astype(np.float32)) + less
    before = block(gain)
    after = before.copy()
    Fold(("w",), "g", True, less_one).apply(after, np.exp(rng.uniform(-3, 3, 256)).astype(np.float32), CancelToken())
    product = after.matrices["w"].astype(np.float64) * after.vectors["g"]
    np.testing.assert_allclose(product, before.matrices["w"].astype(np.float64) * gain, rtol=3e-7)
    stored = after.vectors["g"] - less
    np.testing.assert_array_equal(bfloat16(stored) + less, after.vectors["g"])
    if not less_one:
        np.testing.assert_array_equal(stored.astype(np.float16).astype(np.float32), stored)
    assert np.mean(after.vectors["g"] != gain) > 0.9
    assert before.vectors["g"] is gain


@pytest.mark.parametrize("gain", [0.0, 2.0**-14, 60000.0])
def test_a_gain_that_leaves_the_range_stays(gain: float) -> None:
    before = block(np.full(4, gain, np.float32))
    after = before.copy()
    wide = Fold(("w",), "g", True).apply(after, np.array([0.01, 0.01, 4096, 4096], np.float32), CancelToken())
    product = after.matrices["w"].astype(np.float64) * after.vectors["g"]
    np.testing.assert_allclose(product, before.matrices["w"].astype(np.float64) * gain, rtol=3e-7)
    assert np.isfinite(wide).all()
    assert (np.abs(after.vectors["g"]) <= 65504).all()


def test_values_of_a_head_that_queries_share() -> None:
    """Two heads of three channels, each read by two query heads."""
    rng = np.random.default_rng(3)
    v, o = rng.standard_normal((6, 7)).astype(np.float32), rng.standard_normal((4, 12)).astype(np.float32)
    weights = BlockWeights({"attn_v.weight": v, "o": o}, {"attn_v.bias": np.ones(6, np.float32)})
    fold = Fold(("o",), "attn_v.weight", False, share=2, head=3)
    scale = np.array([1, 2, 4, 8, 16, 32], np.float32)
    wide = fold.apply(weights, scale, CancelToken())
    np.testing.assert_array_equal(wide, [1, 2, 4, 1, 2, 4, 8, 16, 32, 8, 16, 32])
    np.testing.assert_array_equal(weights.matrices["attn_v.weight"], v / scale[:, None])
    np.testing.assert_array_equal(weights.vectors["attn_v.bias"], 1 / scale)
    x = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(fold.channels(x), [1.5, 2.5, 3.5, 7.5, 8.5, 9.5])
    np.testing.assert_array_equal(fold.channels(x, largest=True), [3, 4, 5, 9, 10, 11])
