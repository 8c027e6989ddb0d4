"""Statistics of one tensor, gathered in one streaming pass. All are over the finite values; NaN and Inf are counted.

Values are in weight units. A tensor of shape (…, K) is rows × K: a row is one output channel, a column one input
channel of a linear layer. Of a stack of experts, either all rows together or those of one expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from core.checkpoint.base import Checkpoint
from core.progress import CancelToken
from core.tensor_info import TensorInfo

if TYPE_CHECKING:
    from core.inspect.picture import Pyramid

STEPS_PER_OCTAVE = 8
LOWEST_OCTAVE, HIGHEST_OCTAVE = -40, 40
MAGNITUDE_BINS = (HIGHEST_OCTAVE - LOWEST_OCTAVE) * STEPS_PER_OCTAVE


@dataclass(frozen=True)
class ChannelStats:
    """Figures of each channel, over its finite values: float32 [n], 0 where a channel has none.

    axis: 'output' (rows) or 'input' (columns). max: of |x|. rms: √mean(x²). median: of |x|, the mean of the middle two
    for an even count. median_share: share of each channel's values that the median was taken from; below 1 only for
    tensors or rows that are too large to be held (`HELD_BYTES`), where it is that of evenly spaced ones.
    """

    axis: str
    max: np.ndarray
    rms: np.ndarray
    median: np.ndarray
    median_share: float = 1.0


@dataclass(frozen=True)
class ValueStatistics:
    """values = finite + nonfinite. zeros: +0 and −0. min, max: signed; amax: largest |x|; all 0 when nothing is finite.

    mean, std (of the population): in float64. kurtosis: Pearson's m4/m2², 3 for a normal distribution, 1 at least;
    0 for a constant. p999: the 99.9th percentile of |x|, the smallest magnitude that at least 99.9 % of the values do
    not exceed: exact for types of 8 and 16 bits; of others, interpolated between neighbours of 8 significant bits, within
    2^-7 of the exact one. outlier_ratio: amax / p999; 1 for a tensor of zeros, inf when p999 is 0 and amax is not.
    histogram: int64 [MAGNITUDE_BINS + 2], of |x| ≠ 0: below 2^-40, then 1/8 octave each up to 2^40, then above. The
    edges are `magnitude_edges()`; each bin holds its lower edge.
    """

    name: str
    shape: tuple[int, ...]
    values: int
    finite: int
    nonfinite: int
    zeros: int
    min: float
    max: float
    amax: float
    mean: float
    std: float
    kurtosis: float
    p999: float
    outlier_ratio: float
    histogram: np.ndarray


@dataclass(frozen=True)
class TensorStatistics(ValueStatistics):
    """The same with the channels. expert: which matrix of a stack, None for all rows of all of them."""

    rows: ChannelStats
    columns: ChannelStats
    expert: int | None = None


def magnitude_edges() -> np.ndarray:
    """Edges of the histogram's inner bins, float64 [MAGNITUDE_BINS + 1]: 2^-40 … 2^40 in steps of 1/8 octave."""
    return 2.0 ** (np.arange(MAGNITUDE_BINS + 1) / STEPS_PER_OCTAVE + LOWEST_OCTAVE)


def tensor_statistics(
    checkpoint: Checkpoint, tensor: TensorInfo, token: CancelToken, expert: int | None = None
) -> TensorStatistics:
    """Statistics of a tensor, or of one expert of a stack. Raises UserError when it can not be read, Cancelled."""
    return inspect_tensor(checkpoint, tensor, token, expert)[0]


def inspect_tensor(
    checkpoint: Checkpoint, tensor: TensorInfo, token: CancelToken, expert: int | None = None
) -> tuple[TensorStatistics, Pyramid]:
    """Statistics and the pooled picture of a tensor in one pass over its bytes, by all physical cores.

    Raises like `tensor_statistics`; IndexError for an expert that there is not.
    """
    raise NotImplementedError
