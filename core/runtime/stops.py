"""Stop strings that may begin in one token and end in another."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Lets text through up to the first stop string; what could be the start of one waits for what follows."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that is certain not to belong to a stop string. After a hit: '' always."""
        if self.hit:
            return ""
        if not self._stops:
            return text
        self._held += text
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.hit = True
            released, self._held = self._held[: min(places)], ""
            return released
        keep = max(self._overlap(stop) for stop in self._stops)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def finish(self) -> str:
        """What was still waiting when the text ended."""
        released, self._held = self._held, ""
        return released

    def _overlap(self, stop: str) -> int:
        """Letters at the end of the held text that are the start of `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
