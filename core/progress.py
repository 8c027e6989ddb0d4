"""What a running job says about itself, and how it is asked to stop. No threads, no windows."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from core.errors import Cancelled


class CancelToken:
    """Set from any thread; work calls `check()` between row blocks. `pause()` holds work at the next check."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._running = threading.Event()
        self._running.set()

    def cancel(self) -> None:
        self._cancelled.set()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def check(self) -> None:
        """Return at once, wait while paused, or raise `Cancelled`."""
        self._running.wait()
        if self._cancelled.is_set():
            raise Cancelled


@dataclass(frozen=True)
class ErrorStats:
    """How far a tensor's reconstruction is from its source, over finite values.

    snr_db: 10·log10(Σx² / Σ(x−x̂)²), inf when the reconstruction is exact. rms_error, max_error: in weight units.
    edges, counts: histogram of x̂−x (len(edges) = len(counts)+1), symmetric about 0; both empty when not asked for.
    A conversion counts one row in four of a tensor of a million values or more; all other figures are of all values.
    nonfinite: values of the source that are NaN or Inf and so are in no other figure.
    """

    values: int
    snr_db: float
    rms_error: float
    max_error: float
    nonfinite: int = 0
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TensorResult:
    """One finished tensor of a run. bytes: what it takes in the output, padding included."""

    name: str
    format: str
    bytes: int
    error: ErrorStats | None = None


@dataclass(frozen=True)
class Progress:
    """A snapshot of a run. `phase` is 'calibrating', 'writing' or 'verifying'; `result` is set when a tensor has just
    finished. While calibrating, tensor_index and tensor_count count layers.

    bytes_done, bytes_total: bytes read so far and in the whole run (source bytes, then the output's for its check).
    share: work done, 0 to 1, weighed by what each format costs. seconds_left: None in the first three seconds.
    """

    phase: str
    tensor: str
    tensor_index: int
    tensor_count: int
    bytes_done: int
    bytes_total: int
    seconds: float
    share: float = 0.0
    seconds_left: float | None = None
    result: TensorResult | None = None
