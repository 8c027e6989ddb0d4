"""How many threads work gets: what the environment asks for, else the cores that this process may use."""

from __future__ import annotations

import os

import pytest

from core.threads import MAX_THREADS, worker_count


@pytest.mark.parametrize("text", ["", "0", "-2", "many", "²"])
def test_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BITSMITH_THREADS", text)
    assert 1 <= worker_count() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert worker_count() == 1


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSMITH_THREADS", "7")
    assert worker_count() == 7
    monkeypatch.setenv("BITSMITH_THREADS", "99999")
    assert worker_count() == MAX_THREADS
