"""The cancel token: pausing holds work, and cancelling ends it, paused or not."""

from __future__ import annotations

import threading

import pytest

from core.errors import Cancelled
from core.progress import CancelToken


def checking(token: CancelToken) -> tuple[threading.Thread, list[str]]:
    """A thread that checks the token once, and what came of it."""
    seen: list[str] = []

    def work() -> None:
        try:
            token.check()
            seen.append("went on")
        except Cancelled:
            seen.append("cancelled")

    thread = threading.Thread(target=work)
    thread.start()
    return thread, seen


@pytest.mark.parametrize(("end", "outcome"), [("resume", "went on"), ("cancel", "cancelled")])
def test_a_paused_token_holds_the_work_until_it_goes_on_or_ends(end, outcome) -> None:
    token = CancelToken()
    token.pause()
    thread, seen = checking(token)
    thread.join(0.1)
    assert thread.is_alive()
    assert not seen
    getattr(token, end)()
    thread.join(5)
    assert seen == [outcome]


def test_a_cancelled_token_stays_so() -> None:
    token = CancelToken()
    token.check()
    token.cancel()
    for _ in range(2):
        with pytest.raises(Cancelled):
            token.check()
