"""What the reads of one load share: how far it is, whether it was cancelled, and what could not stay as it is."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from core.errors import Cancelled
from core.progress import CancelToken


class NoLayout(ValueError):
    """The engine has no layout for a format."""


@dataclass(frozen=True)
class Conversion:
    """A matrix that is not kept in its file's format, and why."""

    name: str
    stored: str
    kept: str
    reason: str


class Reading:
    """What all reads of one load share. Every piece asks whether the load was cancelled; thread-safe."""

    def __init__(self, token: CancelToken) -> None:
        self.bytes_done = 0
        self.conversions: list[Conversion] = []
        self._token = token
        self._given_up = False
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """Nobody waits for the result: reads end as if they were cancelled."""
        self._given_up = True

    def took(self, nbytes: int) -> None:
        """Count bytes that were read. Raises Cancelled."""
        self._token.check()
        if self._given_up:
            raise Cancelled
        with self._lock:
            self.bytes_done += nbytes

    def converted(self, conversion: Conversion) -> None:
        with self._lock:
            self.conversions.append(conversion)
