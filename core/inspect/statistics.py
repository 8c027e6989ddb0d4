"""Statistics of one tensor, gathered in one streaming pass. All are over the finite values; NaN and Inf are counted.

Values are in weight units. A tensor of shape (…, K) is rows × K: a row is one output channel, a column one input
channel of a linear layer. Of a stack of experts, either all rows together or those of one expert.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.inspect.matrix import Matrix, to_values
from core.inspect.picture import PictureParts, Pyramid
from core.progress import CancelToken
from core.tensor_info import TensorInfo
from core.threads import in_parallel, worker_count
from core.units import format_number
from kernels import ops

Block = tuple[int, int, Columns]  # first row, last row, columns
Medians = tuple[np.ndarray, float]  # float32 [n], and the share of each channel's values that they are of

SAMPLE_BYTES = 64 << 20  # of the evenly spaced rows that column medians come from, of a tensor that is not held
LONG_ROW_SAMPLE = 1 << 20  # evenly spaced values that the median of a row comes from that is read in pieces
COLUMN_SAMPLE = 1 << 22  # evenly spaced values, at most, that the median of a column comes from
MOST_ROWS = 1 << 23  # that are channels
_ZEROS = np.array([0, 1 << 15])  # patterns of +0 and −0

STEPS_PER_OCTAVE = 8
LOWEST_OCTAVE, HIGHEST_OCTAVE = -40, 40
MAGNITUDE_BINS = (HIGHEST_OCTAVE - LOWEST_OCTAVE) * STEPS_PER_OCTAVE


@dataclass(frozen=True)
class ChannelStats:
    """Figures of each channel, over its finite values: float32 [n], 0 where a channel has none.

    axis: 'output' (rows) or 'input' (columns). max: of |x|. rms: √mean(x²). median: of |x|, the mean of the middle two
    for an even count. median_share: share of each channel's values that the median was taken from; below 1 only for
    tensors or rows that are too large to be held (`HELD_BYTES`), where it is that of evenly spaced ones. Columns of
    rows of more than 8 M values are no channels, nor are rows where there are more than 8 M: all three are empty.
    """

    axis: str
    max: np.ndarray
    rms: np.ndarray
    median: np.ndarray
    median_share: float = 1.0

    @property
    def median_name(self) -> str:
        """What the medians are called where they are shown: that they are sampled is said."""
        whole = self.median_share in (0.0, 1.0)
        return "median" if whole else f"median of {format_number(100 * self.median_share, 2)} % of the values"


@dataclass(frozen=True)
class ValueStatistics:
    """values = finite + nonfinite. zeros: +0 and −0. min, max: signed; amax: largest |x|; all 0 when nothing is finite.

    mean, std (of the population): in float64. kurtosis: Pearson's m4/m2², 3 for a normal distribution, 1 at least;
    0 for a constant. p999: the 99.9th percentile of |x|, the smallest magnitude that at least 99.9 % of the values do
    not exceed: exact for types of 8 and 16 bits; of others, interpolated between neighbours of 8 significant bits,
    within 2^-7 of the exact one, or 2^-133 where that is below 2^-126 (denormal). outlier_ratio: amax / p999; 1 for a
    tensor of zeros, inf when only p999 is 0.
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
    matrix = Matrix(checkpoint, tensor, expert)
    parts, sums, totals = PictureParts(matrix), ValueSums(matrix.dtype), ChannelTotals(matrix)
    medians = _ChannelMedians(matrix, parts.held)
    blocks = matrix.blocks()
    threads = max(1, worker_count() // max(1, len(blocks)))  # inside a block, when there are few

    def work(block: Block) -> tuple[Block, ops.ChannelSums, ValueSums, np.ndarray]:
        start, stop, columns = block
        stored = matrix.read(start, stop, columns)
        found = ops.channel_sums(stored, matrix.dtype, threads)
        own = ValueSums(matrix.dtype, sums.pivot)
        own.add(stored, threads)
        parts.add(start, columns[0], stored, found.cells)
        return block, found, own, medians.keep(block, stored)

    sums.pivot = find_pivot(matrix)
    for block, found, own, kept in in_parallel(work, blocks, token):
        totals.add(block, found)
        medians.add(block, found, kept)
        sums.merge(own)
    token.check()
    rows, columns = totals.finish(medians.finish())
    values = sums.statistics(tensor.name, matrix.shape)
    return TensorStatistics(**vars(values), rows=rows, columns=columns, expert=expert), parts.pyramid()


class ValueSums:
    """What all values of a tensor add up to, block by block. pivot: F32 only, about which powers are summed."""

    def __init__(self, dtype: str, pivot: float = 0.0) -> None:
        self.dtype, self.pivot = dtype, pivot
        self._counts = np.zeros(1 << 16, np.int64)
        self._powers = np.zeros(4)
        self._low, self._high = math.inf, -math.inf
        self._zeros = 0

    def add(self, stored: np.ndarray, threads: int = 1) -> None:
        """A block as `Matrix.read` gives it."""
        if not stored.size:
            return
        before = int(self._counts[_ZEROS].sum())
        ops.count_patterns(stored, self._counts, threads)
        if self.dtype != "F32":
            return
        if int(self._counts[_ZEROS].sum()) != before:
            self._zeros += stored.size - int(np.count_nonzero(stored))
        ops.add_powers(stored, self.pivot, self._powers, threads)
        found = ops.scan(stored, threads)
        if found.nonfinite < stored.size:
            self._low, self._high = min(self._low, found.min), max(self._high, found.max)

    def merge(self, other: ValueSums) -> None:
        """Add another's, gathered about the same pivot."""
        self._counts += other._counts
        self._powers += other._powers
        self._zeros += other._zeros
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)

    def statistics(self, name: str, shape: tuple[int, ...]) -> ValueStatistics:
        """The figures of everything added."""
        levels, infinity, bins = _levels("BF16" if self.dtype == "F32" else self.dtype)  # F32: of its upper 16 bits
        each = self._counts[: 1 << 15] + self._counts[1 << 15 :]
        seen = np.flatnonzero(each[:infinity])  # rising magnitudes
        magnitudes, each, total = levels[seen], each[seen], int(each.sum())
        finite = int(each.sum())
        exact = self.dtype != "F32"
        values = times = np.zeros(0)
        zeros = self._zeros
        low, high = (self._low, self._high) if finite and not exact else (0.0, 0.0)
        if exact:
            zeros = int(self._counts[_ZEROS].sum())
            positive, negative = self._counts[seen], self._counts[seen + (1 << 15)]
            values, times = np.concatenate([-magnitudes, magnitudes]), np.concatenate([negative, positive])
            some = values[times > 0]
            low, high = (float(some.min()), float(some.max())) if finite else (0.0, 0.0)
        mean, second, fourth = _moments(values, times) if exact else self._central(finite)
        amax = max(-low, high)
        p999 = _percentile(seen, each, finite, amax, levels, exact)
        if len(seen) and seen[0] == 0:
            each[0] -= zeros
        return ValueStatistics(
            name=name,
            shape=shape,
            values=total,
            finite=finite,
            nonfinite=total - finite,
            zeros=zeros,
            min=low + 0.0,
            max=high + 0.0,
            amax=amax,
            mean=mean,
            std=math.sqrt(second),
            kurtosis=fourth / second**2 if second > 0 and low < high else 0.0,
            p999=p999,
            outlier_ratio=amax / p999 if p999 else (math.inf if amax else 1.0),
            histogram=np.bincount(bins[seen], each, MAGNITUDE_BINS + 2).astype(np.int64),
        )

    def _central(self, finite: int) -> tuple[float, float, float]:
        """Mean and the second and fourth central moment from the powers about the pivot."""
        if not finite:
            return 0.0, 0.0, 0.0
        d, square, cube, fourth = (self._powers / finite).tolist()
        second = max(0.0, square - d * d)
        return self.pivot + d, second, max(0.0, fourth - 4 * d * cube + 6 * d * d * square - 3 * d**4)


class ChannelTotals:
    """Largest |x| and RMS of the rows and columns of a matrix, from its blocks in order. Of cut rows, no columns."""

    def __init__(self, matrix: Matrix) -> None:
        rows, columns = _channel_rows(matrix), 0 if matrix.cut else matrix.columns
        self._row_max, self._row_squares = np.zeros(rows, np.float32), np.zeros(rows)
        self._row_finite = np.zeros(rows, np.int64)
        self._max, self._squares = np.zeros(columns, np.float32), np.zeros(columns)
        self._finite = np.full(columns, matrix.rows, np.int64)

    def add(self, block: Block, found: ops.ChannelSums) -> None:
        """What `ops.channel_sums` says of a block."""
        if len(self._row_max):
            r = slice(block[0], block[1])
            np.maximum(self._row_max[r], found.row_max, out=self._row_max[r])
            self._row_squares[r] += found.row_squares
            self._row_finite[r] += found.row_finite
        if len(self._max):
            np.maximum(self._max, found.column_max, out=self._max)
            self._squares += found.column_squares
            self._finite -= found.column_nonfinite

    def finish(self, medians: tuple[Medians, Medians] | None = None) -> tuple[ChannelStats, ChannelStats]:
        """The rows and the columns; without medians, those are NaN."""
        of_rows, of_columns = medians or tuple((np.full(len(m), np.nan, np.float32), 0.0) for m in self._both)
        return (
            ChannelStats("output", self._row_max, _rms(self._row_squares, self._row_finite), *of_rows),
            ChannelStats("input", self._max, _rms(self._squares, self._finite), *of_columns),
        )

    @property
    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        return self._row_max, self._max


class _ChannelMedians:
    """Medians of rows and columns. Rows have theirs from their block, unless they are cut; columns when all is read."""

    def __init__(self, matrix: Matrix, held: np.ndarray | None) -> None:
        self._matrix, self._held = matrix, held
        self._rows = np.zeros(_channel_rows(matrix), np.float32)
        self._every_row = max(1, -(-matrix.nbytes // SAMPLE_BYTES))
        self._every_column = max(1, -(-matrix.columns // LONG_ROW_SAMPLE))
        self._samples: list[np.ndarray] = []
        self._pieces: list[np.ndarray] = []

    def keep(self, block: Block, stored: np.ndarray) -> np.ndarray:
        """What is kept of a block for medians that need more than one: evenly spaced rows, or columns of cut rows."""
        start, _, (left, _) = block
        if self._matrix.cut:
            return stored[:, -left % self._every_column :: self._every_column].copy()
        return stored[:0] if self._held is not None else stored[-start % self._every_row :: self._every_row].copy()

    def add(self, block: Block, found: ops.ChannelSums, kept: np.ndarray) -> None:
        start, stop, (_, right) = block
        if not self._matrix.cut:
            if len(self._rows):
                self._rows[start:stop] = found.row_median
            if len(kept):
                self._samples.append(kept)
            return
        self._pieces.append(kept)
        if right == self._matrix.columns:
            whole = np.concatenate(self._pieces, axis=1)
            self._rows[start:stop] = ops.channel_sums(whole, self._matrix.dtype, worker_count()).row_median
            self._pieces = []

    def finish(self) -> tuple[Medians, Medians]:
        """Of the rows and of the columns, each with the share of the values that they are of."""
        m = self._matrix
        if m.cut:
            share = -(-m.columns // self._every_column) / m.columns
            return (self._rows, share), (np.zeros(0, np.float32), 0.0)
        sampled = np.concatenate(self._samples) if self._samples else self._held
        if sampled is None:
            return (self._rows, 1.0), (np.zeros(m.columns, np.float32), 1.0)
        sampled = sampled[:: -(-len(sampled) // COLUMN_SAMPLE) or 1]  # the kernel sorts copies of several columns
        medians = ops.column_medians(sampled, m.dtype, worker_count())
        return (self._rows, 1.0), (medians, len(sampled) / m.rows if m.rows else 1.0)


def _channel_rows(matrix: Matrix) -> int:
    return matrix.rows if matrix.rows <= MOST_ROWS else 0


def _rms(squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.sqrt(squares / np.maximum(counts, 1)).astype(np.float32)


def find_pivot(matrix: Matrix) -> float:
    """About which the powers of F32 values are summed: the mean of the first row, or of its beginning."""
    if matrix.dtype != "F32" or not matrix.rows or not matrix.columns:
        return 0.0
    row = matrix.read(0, 1, matrix.blocks()[0][2])
    real = row[np.isfinite(row)]
    return float(real.mean(dtype=np.float64)) if real.size else 0.0


@cache
def _levels(dtype: str) -> tuple[np.ndarray, int, np.ndarray]:
    """Of the magnitudes of a 16-bit type, in the order of their bits: values, float64 [32768]; the number of Inf, after
    which come NaN only; the bins they are counted in."""
    with np.errstate(invalid="ignore"):  # of NaN
        levels = to_values(np.arange(1 << 15, dtype=np.uint16)[None], dtype)[0].astype(np.float64)
    return levels, int(np.flatnonzero(np.isinf(levels))[0]), np.searchsorted(magnitude_edges(), levels, side="right")


def _moments(values: np.ndarray, times: np.ndarray) -> tuple[float, float, float]:
    """Mean, second and fourth central moment of values that occur so many times."""
    total = times.sum()
    if not total:
        return 0.0, 0.0, 0.0
    mean = float((values * times).sum() / total)
    square = (values - mean) ** 2
    return mean, float((square * times).sum() / total), float((square * square * times).sum() / total)


def _percentile(
    seen: np.ndarray, counts: np.ndarray, finite: int, amax: float, levels: np.ndarray, exact: bool
) -> float:
    """The 99.9th percentile of |x|. seen: numbers of the magnitudes that occur, rising; counts: how often."""
    if not finite:
        return 0.0
    rank = (999 * finite + 999) // 1000
    below = np.cumsum(counts)
    at = int(np.searchsorted(below, rank))
    low, high = float(levels[seen[at]]), float(levels[seen[at] + 1])
    if exact:
        return low
    into = (rank - (below[at] - counts[at])) / counts[at]
    return min(amax, low + (min(high, amax) - low) * float(into))
