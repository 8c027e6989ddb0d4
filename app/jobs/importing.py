"""Modules are imported by one thread at a time.

Python itself has a lock for each module. Of two threads of which one imports a package, and the other a module in it,
each can come to hold what the other one waits for; Python sees that and lets one of the two imports fail (in 3.11 to
3.13 with _DeadlockError, and with an ImportError of a 'partially initialized module' where modules need each other).
It takes a slow disk and a package that nobody has asked for yet, as at the start of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import _bootstrap  # type: ignore[attr-defined]
from typing import Any

OURS = frozenset(("app", "core", "kernels", "resources"))
PATIENCE = 20.0  # seconds after which a turn is not waited for, and all is as Python has it
# Two turns, since PyTorch takes seconds and a dialog shall not wait for it. Who has the first may take the second, and
# never the other way round: no library imports anything of ours.
_ours, _libraries = threading.RLock(), threading.RLock()
_lock = threading.Lock()
_find_and_load: Callable[[str, Any], Any] | None = None  # Python's own


def one_at_a_time() -> None:
    """From now on every import of a module that is not there yet waits for the one that another thread is doing.

    Call it before threads import. `builtins.__import__` would not do: PySide exchanges it for all threads while it
    imports, and `importlib.import_module` does not pass there. Every way leads through the function replaced here; a
    Python without it keeps its own way.
    """
    global _find_and_load
    with _lock:
        if _find_and_load is None:
            _find_and_load = getattr(_bootstrap, "_find_and_load", None)
            if _find_and_load is not None:
                _bootstrap._find_and_load = _in_turn


def _in_turn(name: str, import_: Any) -> Any:
    assert _find_and_load is not None
    turn = _ours if name.partition(".")[0] in OURS else _libraries
    taken = turn.acquire(timeout=PATIENCE)
    try:
        return _find_and_load(name, import_)
    finally:
        if taken:
            turn.release()
