"""Error of a reconstruction, gathered block by block and added up exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from core.progress import ErrorStats
from kernels import ops

BINS = 128  # even, so that a histogram can be folded to twice its range without splitting a bin


def snr_db(signal: float, noise: float) -> float:
    """10·log10(Σx² / Σ(x−x̂)²), dB: inf when exact, −inf for zeros that are not."""
    if not noise:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def nrmse(signal: float, noise: float) -> float:
    """√(Σ(x−x̂)² / Σx²): the error's norm as a share of the source's; 0 when exact, inf for zeros that are not."""
    if not noise:
        return 0.0
    return math.sqrt(noise / signal) if signal else math.inf


def squares(values: np.ndarray) -> np.ndarray:
    """x² of float32 values: float64 where float32 would lose the largest, for it ends at 10³⁸ and starts at 10⁻³⁸."""
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    narrow = largest == 0 or 1e-15 < largest < 1e15
    return np.square(values) if narrow else np.square(values, dtype=np.float64)


@dataclass
class ErrorSum:
    """Sums over any number of blocks. The histogram's limit is a power of two, so that blocks add without rounding."""

    values: int = 0
    nonfinite: int = 0
    source_squares: float = 0.0
    error_squares: float = 0.0
    max_error: float = 0.0
    limit: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, other: ErrorSum) -> None:
        """Add another block's sums; the smaller histogram is folded until both have one range."""
        self.values += other.values
        self.nonfinite += other.nonfinite
        self.source_squares += other.source_squares
        self.error_squares += other.error_squares
        self.max_error = max(self.max_error, other.max_error)
        if not other.limit:
            if self.limit:
                self.counts[BINS // 2] += int(other.counts.sum())
            else:
                self.counts = self.counts + other.counts
            return
        if not self.limit:
            exact = int(self.counts.sum())
            self.limit, self.counts = other.limit, other.counts.copy()
            self.counts[BINS // 2] += exact
            return
        mine, theirs = self.counts, other.counts
        low, high = min(self.limit, other.limit), max(self.limit, other.limit)
        times = round(math.log2(high / low))
        if self.limit < other.limit:
            mine = _fold(mine, times)
        else:
            theirs = _fold(theirs, times)
        self.limit, self.counts = high, mine + theirs

    @property
    def nrmse(self) -> float:
        """`nrmse` of these sums."""
        return nrmse(self.source_squares, self.error_squares)

    def stats(self) -> ErrorStats:
        """The figures; the histogram has BINS bins over ±limit, none when the reconstruction is exact."""
        edges: tuple[float, ...] = ()
        counts: tuple[int, ...] = ()
        if self.limit:
            edges = histogram_edges(self.limit)
            counts = tuple(int(c) for c in self.counts)
        return ErrorStats(
            values=self.values,
            snr_db=snr_db(self.source_squares, self.error_squares),
            rms_error=math.sqrt(self.error_squares / self.values) if self.values else 0.0,
            max_error=self.max_error,
            nonfinite=self.nonfinite,
            edges=edges,
            counts=counts,
        )


@lru_cache(maxsize=512)
def histogram_edges(limit: float, bins: int = BINS) -> tuple[float, ...]:
    """Edges of the bins over ±limit; one tuple a limit, since a model may have a hundred thousand tensors."""
    return tuple(float(v) for v in np.linspace(-limit, limit, bins + 1))


def measure(source: np.ndarray, reconstruction: np.ndarray, guess: float = 0.0, every: int = 1) -> ErrorSum:
    """Sums of one block, both float32 [R, K]. Values that are not finite in the source are counted and left out.

    guess: what the histogram's limit may be, a power of two; right, it saves a second look at the values.
    every: the histogram counts one row of so many; all other figures are of all values.
    """
    first = ops.error_stats(source, reconstruction, guess, BINS if guess else 0, every=every)
    total = ErrorSum(
        values=first.finite,
        nonfinite=first.nonfinite,
        source_squares=first.source_squares,
        error_squares=first.error_squares,
        max_error=first.max_error,
    )
    if first.max_error > 0 and math.isfinite(first.max_error):
        total.limit = 2.0 ** math.ceil(math.log2(first.max_error))
        if total.limit != guess:
            first = ops.error_stats(source, reconstruction, total.limit, BINS, every=every)
        total.counts = np.asarray(first.counts, np.int64)
    else:
        total.counts[BINS // 2] = first.finite // every
    return total


def _fold(counts: np.ndarray, times: int) -> np.ndarray:
    """The same histogram over 2^times the range, in the same number of bins."""
    for _ in range(min(times, 64)):
        half = counts.reshape(-1, 2).sum(axis=1)
        counts = np.zeros(BINS, np.int64)
        counts[BINS // 4 : BINS // 4 + BINS // 2] = half
    return counts
