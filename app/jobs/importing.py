"""Modules are imported by one thread at a time.

Python itself has a lock for each module. Of two threads of which one imports a package, and the other a module in it,
each can come to hold what the other one waits for; Python sees that and lets one of the two imports fail (in 3.11 to
3.13 with _DeadlockError, and with an ImportError of a 'partially initialized module' where modules need each other).
It takes a slow disk and a package that nobody has asked for yet, as at the start of the program.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

OURS = frozenset(("app", "core", "kernels", "resources"))
# Two turns, since PyTorch takes seconds and a dialog shall not wait for it. Who has the first may take the second, and
# never the other way round: no library imports anything of ours.
_ours, _libraries = threading.RLock(), threading.RLock()
_lock = threading.Lock()
_import: Any = None  # what `import` did before


def one_at_a_time() -> None:
    """From now on every `import` of something that is not there yet waits for the one that another thread is doing."""
    global _import
    with _lock:
        if _import is None:
            _import = builtins.__import__
            builtins.__import__ = _in_turn


def load_module(name: str) -> ModuleType:
    """`importlib.import_module` of an absolute name, in turn; it does not go through `import` by itself."""
    if _is_whole(name, ()):
        return sys.modules[name]
    with _turn(name):
        return import_module(name)


def _in_turn(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - as `__import__` is called
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    full = _absolute(name, globals, level) if level else name
    if _is_whole(full, fromlist or ()):
        return _import(name, globals, locals, fromlist, level)
    with _turn(full):
        return _import(name, globals, locals, fromlist, level)


def _turn(name: str) -> threading.RLock:
    return _ours if name.partition(".")[0] in OURS else _libraries


def _absolute(name: str, around: Mapping[str, object] | None, level: int) -> str:
    """What `from ..name import x` means there; `import` itself says what is wrong with it."""
    package = str((around or {}).get("__package__") or "")
    for _ in range(level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{name}" if name else package


def _is_whole(name: str, names: Sequence[str]) -> bool:
    """Whether the module is there, has been run to its end, and has these names: then there is nothing to wait for."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return False
    known = getattr(module, "__dict__", {})
    return all(n in known for n in names)
