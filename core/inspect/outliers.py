"""Channels whose largest |x| stands out among the channels of the same axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from core.inspect.statistics import ChannelStats, TensorStatistics

# A channel is an outlier when its largest |x| is at least this many times the median of the channels' largest |x|. The
# largest of n normal values grows but slowly with n, so channels without outliers lie within a factor of about 1.5 of
# each other, however long they are. LLM.int8() (Dettmers et al. 2022, section 3) takes a fixed magnitude of 6.0 for
# activations, whose bulk lies near 1; for weights, whose scale differs from tensor to tensor, only a ratio is the same
# thing everywhere, and SmoothQuant (Xiao et al. 2023, section 3) speaks of channels in such multiples of the others.
THRESHOLD = 6.0


@dataclass(frozen=True)
class OutlierChannel:
    """axis: 'output' or 'input'. max, rms: of the channel, in weight units. ratio: max / median of all channels' max,
    1 where both are 0, inf where only the median is."""

    axis: str
    index: int
    max: float
    rms: float
    ratio: float


def channel_ratios(stats: ChannelStats) -> np.ndarray:
    """float64 [n]: each channel's largest |x| over the median of all channels' largest |x|."""
    largest = stats.max.astype(np.float64)
    if not len(largest):
        return largest
    middle = float(np.median(largest))
    if middle > 0:
        return largest / middle
    return np.where(largest > 0, np.inf, 1.0)


def rank_channels(stats: ChannelStats, count: int = 50) -> tuple[OutlierChannel, ...]:
    """The `count` channels of largest |x|, and so of largest ratio, largest first; equal ones by index."""
    ratios = channel_ratios(stats)
    if count == 1 and len(ratios):
        return (_channel(stats, ratios, int(np.argmax(stats.max))),)
    order = np.argsort(-stats.max, kind="stable")[:count]
    return tuple(_channel(stats, ratios, int(i)) for i in order)


def rank_both(stats: TensorStatistics, count: int) -> tuple[OutlierChannel, ...]:
    """`rank_channels` of both axes, by ratio, largest first."""
    both = (*rank_channels(stats.rows, count), *rank_channels(stats.columns, count))
    return tuple(sorted(both, key=lambda channel: -channel.ratio))


def outlier_channels(stats: TensorStatistics, threshold: float = THRESHOLD) -> tuple[OutlierChannel, ...]:
    """Channels of both axes whose ratio is at least the threshold, largest first."""
    found = [
        _channel(s, ratios, int(i))
        for s in (stats.rows, stats.columns)
        for ratios in [channel_ratios(s)]
        for i in np.flatnonzero(ratios >= threshold)
    ]
    return tuple(
        sorted(found, key=lambda c: (-c.ratio if math.isfinite(c.ratio) else -math.inf, -c.max, c.axis, c.index))
    )


def _channel(stats: ChannelStats, ratios: np.ndarray, i: int) -> OutlierChannel:
    return OutlierChannel(stats.axis, i, float(stats.max[i]), float(stats.rms[i]), float(ratios[i]))
