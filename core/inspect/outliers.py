"""Channels whose largest |x| stands out among the channels of the same axis."""

from __future__ import annotations

from dataclasses import dataclass

from core.inspect.statistics import ChannelStats, TensorStatistics

# A channel is an outlier when its largest |x| is at least this many times the median of the channels' largest |x|.
THRESHOLD = 6.0


@dataclass(frozen=True)
class OutlierChannel:
    """axis: 'output' or 'input'. max, rms: of the channel, in weight units. ratio: max / median of all channels' max."""

    axis: str
    index: int
    max: float
    rms: float
    ratio: float


def rank_channels(stats: ChannelStats, count: int = 50) -> tuple[OutlierChannel, ...]:
    """The `count` channels of largest ratio, largest first; equal ones by index."""
    raise NotImplementedError


def outlier_channels(stats: TensorStatistics, threshold: float = THRESHOLD) -> tuple[OutlierChannel, ...]:
    """Channels of both axes whose ratio is at least the threshold, largest first."""
    raise NotImplementedError
