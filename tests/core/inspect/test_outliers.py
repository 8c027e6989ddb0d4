"""A planted channel is ranked first; ordinary weights have none."""

from __future__ import annotations

import math

import numpy as np

from core.inspect.outliers import THRESHOLD, rank_channels
from core.inspect.statistics import ChannelStats


def stats(largest: np.ndarray) -> ChannelStats:
    largest = largest.astype(np.float32)
    return ChannelStats("input", largest, largest / 4, largest / 6)


def test_a_planted_channel_is_first() -> None:
    w = np.random.default_rng(0).standard_normal((512, 300))
    w[:, 177] *= 10
    found = rank_channels(stats(np.abs(w).max(axis=0)), 5)
    assert found[0].index == 177
    assert 8 < found[0].ratio < 12
    assert found[1].ratio < 2 < THRESHOLD
    assert [c.ratio for c in found] == sorted((c.ratio for c in found), reverse=True)


def test_ties_zeros_and_nothing() -> None:
    assert [c.index for c in rank_channels(stats(np.ones(4)))] == [0, 1, 2, 3]
    assert rank_channels(stats(np.zeros(0))) == ()
    assert [c.ratio for c in rank_channels(stats(np.zeros(2)))] == [1, 1]
    found = rank_channels(stats(np.array([0, 0, 0, 2, 5])))
    assert [c.index for c in found[:2]] == [4, 3]
    assert found[0].ratio == math.inf
