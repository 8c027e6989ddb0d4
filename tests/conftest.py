"""What every test runs under: no screen, no network, repeatable examples, no thread left over."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kernels import gpu

# Before anything imports Qt or a library that asks a hub for files.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["BITSMITH_SETTINGS"] = os.devnull + "-bitsmith"  # no file: what is set on this computer is not tested

pytest_plugins = ["real_models"]

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests are left out, not skipped, where what they need is not there; the counts stay honest.

    Long programs come first.
    """
    missing = set()
    if not gpu.state().ready:
        missing.add("gpu")
    if importlib.util.find_spec("triton") is None:
        missing.add("triton")
    # By marker: a folder's name is among the keywords of its tests.
    left_out = [item for item in items if missing & {marker.name for marker in item.iter_markers()}]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # A file of these is one program of minutes: last, it would leave the other worker without work.
    items.sort(key=lambda item: item.get_closest_marker("triton") is None)


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test sets holds for no other."""
    monkeypatch.setattr("core.preferences._path", None)


@pytest.fixture(autouse=True)
def no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anywhere but this machine fails the test: nothing needs a download in order to convert."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"This test opened a connection to {address[0]}.")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(autouse=True)
def no_thread_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail when a test leaves a non-daemon thread running: it would hold the program open."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 3
    # A module may keep a pool for the whole run; the interpreter ends its idle threads itself.
    while left := [
        t.name
        for t in threading.enumerate()
        if t not in before and t.is_alive() and not t.daemon and not t.name.startswith("ThreadPoolExecutor")
    ]:
        if time.monotonic() > until:
            pytest.fail(f"threads left running: {', '.join(left)}")
        time.sleep(0.01)
