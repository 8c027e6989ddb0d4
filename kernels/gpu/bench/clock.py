"""How `kernels.gpu.bench` measures: CUDA events around captured graphs, over buffers that no cache holds, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_ROUNDS, _FEWEST = 25, 5
_PER_MEASURE = 0.4  # seconds that one figure may take, once it is compiled
_COLD = 3  # times the second-level cache that buffers take together
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Of one call. captured: without the time that launching takes, in a graph. rounds: of which it is the median."""

    seconds: float
    captured: bool
    rounds: int


class OutOfTime(Exception):
    """A section's time is over."""


class Clock:
    """device: 'cuda', or 'cpu' under Triton's interpreter, where figures mean nothing."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.cache_bytes = 0
        self._deadline = float("inf")
        if device == "cuda":
            self.cache_bytes = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20))

    @contextmanager
    def section(self, seconds: float) -> Iterator[None]:
        """`check` raises OutOfTime after so long."""
        self._deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = float("inf")

    def check(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime

    def copies(self, nbytes: int) -> int:
        """Of a buffer of so many bytes, so that all together are not in the cache."""
        if self.device != "cuda":
            return 2
        wanted = -(-_COLD * self.cache_bytes // max(nbytes, 1))
        free = torch.cuda.mem_get_info()[0] // 2
        return max(1, min(wanted, 64, free // max(nbytes, 1)))

    def time(self, calls: Sequence[Call]) -> Timing:
        """The median of one of these calls, which do the same on different buffers. Compiles first; see `check`."""
        self.check()
        for call in calls[:2]:
            call()
        if self.device != "cuda":
            start = time.perf_counter()
            for call in calls:
                call()
            return Timing((time.perf_counter() - start) / len(calls), False, 1)
        torch.cuda.synchronize()
        replay, captured = _captured(calls)
        replay()
        torch.cuda.synchronize()
        found: list[float] = []
        end = time.monotonic() + _PER_MEASURE
        while len(found) < _FEWEST or (len(found) < _ROUNDS and time.monotonic() < end):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            replay()
            after.record()
            torch.cuda.synchronize()
            found.append(before.elapsed_time(after) / 1000 / len(calls))
        return Timing(statistics.median(found), captured, len(found))


def _captured(calls: Sequence[Call]) -> tuple[Call, bool]:
    """One call for all of these: a graph, or, where something in them can not be captured, a loop."""

    def loop() -> None:
        for call in calls:
            call()

    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    try:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loop()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            loop()
    except Exception:  # noqa: BLE001  (torch's, the driver's or a library's; the loop raises it again if it stays)
        torch.cuda.synchronize()
        return loop, False
    return graph.replay, True
