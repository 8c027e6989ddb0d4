"""Error by output and by input channel, gathered block by block: of a quantized tensor and of two files alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from core.metrics.error import ErrorSum, measure, squares

Place = slice | np.ndarray


@dataclass(frozen=True)
class AxisSums:
    """One number a channel. largest: float32, of |x−x̂|. squares: Σ(x−x̂)², signal: Σx², counts: of the values of x that
    are finite, the only ones that count; float64."""

    largest: np.ndarray
    squares: np.ndarray
    signal: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class BlockErrors:
    """What a block of R rows and C columns adds. axes: of its rows, of its columns."""

    axes: tuple[AxisSums, AxisSums]
    error: ErrorSum


def block_errors(
    source: np.ndarray, other: np.ndarray, *, signal: bool = False, into: np.ndarray | None = None
) -> tuple[BlockErrors, np.ndarray]:
    """Of float32 [R, C] x and x̂, and |x−x̂| itself. signal: sum x², too. into: where |x−x̂| goes, such as x̂'s own array.

    |x−x̂| is 0 where x is not finite, and Inf where only x̂ is not a number.
    """
    total = measure(source, other)
    with np.errstate(invalid="ignore", over="ignore"):  # Inf less Inf
        error = np.subtract(other, source, out=into)
        np.abs(error, out=error)
    counts = [np.full(n, float(m)) for n, m in (error.shape, error.shape[::-1])]
    if total.nonfinite:
        finite = np.isfinite(source)
        error[~finite] = 0
        source = np.where(finite, source, np.float32(0)) if signal else source
        counts = [finite.sum(axis=axis, dtype=np.float64) for axis in (1, 0)]
    np.copyto(error, np.inf, where=np.isnan(error))
    noise = squares(error)
    loud = squares(source) if signal else None
    axes = [
        AxisSums(
            error.max(axis=axis, initial=0),
            noise.sum(axis=axis, dtype=np.float64),
            np.zeros(len(counts[1 - axis])) if loud is None else loud.sum(axis=axis, dtype=np.float64),
            counts[1 - axis],
        )
        for axis in (1, 0)
    ]
    return BlockErrors((axes[0], axes[1]), total), error


class ChannelErrors:
    """Everything gathered so far of a matrix of rows × columns. axes: output channels (rows), then input channels;
    `largest` is NaN where no value was looked at yet. values: how many were."""

    def __init__(self, rows: int, columns: int) -> None:
        self.axes = tuple(
            AxisSums(np.full(n, np.nan, np.float32), np.zeros(n), np.zeros(n), np.zeros(n)) for n in (rows, columns)
        )
        self.error = ErrorSum()
        self.values = 0

    def add(self, block: BlockErrors, rows: Place, columns: Place) -> None:
        """A block of these rows and columns, each of them once."""
        for mine, theirs, at in zip(self.axes, block.axes, (rows, columns), strict=True):
            mine.largest[at] = np.fmax(mine.largest[at], theirs.largest)
            mine.squares[at] += theirs.squares
            mine.signal[at] += theirs.signal
            mine.counts[at] += theirs.counts
        self.error.add(block.error)
        self.values += len(block.axes[0].largest) * len(block.axes[1].largest)

    def set_exact(self, values: int) -> None:
        """No error anywhere, every value looked at."""
        for axis, other in zip(self.axes, self.axes[::-1], strict=True):
            axis.largest[:] = 0
            axis.counts[:] = len(other.largest)
        self.error, self.values = ErrorSum(values=values), values

    def rms(self, axis: int) -> np.ndarray:
        """float64, of |x−x̂| by channel; NaN where there is no value."""
        sums = self.axes[axis]
        with np.errstate(all="ignore"):
            return np.where(sums.counts > 0, np.sqrt(sums.squares / sums.counts), np.nan)

    def shares(self, axis: int) -> np.ndarray:
        """float64, of the squared error by channel; they sum to 1, or are all 0 where there is none."""
        sums = self.axes[axis].squares
        with np.errstate(all="ignore"):
            return sums / sums.sum() if sums.sum() else sums.copy()

    def most(self, axis: int, count: int) -> Iterable[int]:
        """The channels with most of the squared error, most first; none without any."""
        sums = self.axes[axis].squares
        return (int(i) for i in np.argsort(-sums, kind="stable")[:count] if sums[i])
