"""How fast a conversion goes and how long it still takes, from what has been measured of it."""

from __future__ import annotations

import time
from collections import deque

WINDOW = 5.0  # seconds over which the rate shown is measured
SETTLED = 3.0  # seconds before a time left is worth showing


class RateMeter:
    """`begin` starts the clock; feed it bytes done and the share of the work done. Pauses do not count as time."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._base: tuple[float, float] | None = None  # (seconds, share) from which the mean rate is measured
        self._paused_at: float | None = None
        self._paused = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        self._share = 0.0

    def begin(self, now: float, resumed: bool = False) -> None:
        """Work starts. resumed: a part is done already; how much, the first `take` tells."""
        self._started = now
        self._base = None if resumed else (0.0, 0.0)

    def take(self, bytes_done: int, share: float, now: float) -> None:
        """Note at monotonic time `now` how many bytes and which share (0…1) of all work are done."""
        if self._started is None:
            self.begin(now)
        active = self.elapsed(now)
        if self._base is None:
            self._base = (active, share)
        self._share = share
        self._recent.append((active, bytes_done))
        while len(self._recent) > 2 and active - self._recent[0][0] > WINDOW:
            self._recent.popleft()

    def pause(self, now: float | None = None) -> None:
        if self._paused_at is None:
            self._paused_at = time.monotonic() if now is None else now

    def resume(self, now: float | None = None) -> None:
        if self._paused_at is not None:
            self._paused += (time.monotonic() if now is None else now) - self._paused_at
            self._paused_at = None

    def elapsed(self, now: float | None = None) -> float:
        """Seconds of work so far."""
        if self._started is None:
            return 0.0
        end = self._paused_at if self._paused_at is not None else (time.monotonic() if now is None else now)
        return max(end - self._started - self._paused, 0.0)

    @property
    def rate(self) -> float | None:
        """Source bytes a second over the last few seconds; None before there is anything to measure."""
        if len(self._recent) < 2:
            return None
        (t0, b0), (t1, b1) = self._recent[0], self._recent[-1]
        return (b1 - b0) / (t1 - t0) if t1 > t0 else None

    def time_left(self, now: float | None = None) -> float | None:
        """Seconds at the mean rate so far; None in the first three seconds."""
        seconds = self.elapsed(now)
        if self._base is None or seconds < SETTLED:
            return None
        worked, made = seconds - self._base[0], self._share - self._base[1]
        return (1.0 - self._share) * worked / made if made > 0 else None
