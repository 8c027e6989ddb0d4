"""Which implementation of an operation runs, and why.

A backend is 'reference' (numpy, the definition), 'cpu:<instruction set>' (compiled) or 'gpu:triton'. All give the same
bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class Implementation:
    """usable(variant): '' when it can run (variant: a block type, or ''), else one plain clause that says why not.

    least: values of a call from which on it is worth its way; 0: always.
    """

    op: str
    backend: str
    function: Callable[..., Any]
    usable: Callable[[str], str]
    priority: int
    least: int = 0


class Declined(Exception):
    """What an implementation raises to leave one call to the next; its text says why, in one clause.

    said: whether it is counted; not what it never does.
    """

    def __init__(self, why: str, said: bool = True) -> None:
        super().__init__(why)
        self.said = said


@dataclass
class Tally:
    """What ran while it was kept. values: of calls by `run`, by backend; declined: calls, by backend and reason."""

    values: Counter[str] = field(default_factory=Counter)
    declined: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True)
class Choice:
    """One line of `report`: what runs for an operation, and why nothing of higher priority does."""

    op: str
    variant: str
    backend: str
    reason: str


_implementations: dict[str, list[Implementation]] = {}
_variants: dict[str, tuple[str, ...]] = {}
_forced: list[str] = []
_tallies: list[Tally] = []
_lock = Lock()


def _always(_variant: str) -> str:
    return ""


def register(
    op: str,
    backend: str,
    function: Callable[..., Any],
    usable: Callable[[str], str] = _always,
    priority: int = 0,
    variants: tuple[str, ...] = (),
    least: int = 0,
) -> None:
    """Add an implementation. The usable one of highest priority runs. variants: what `report` lists one by one.

    least: values from which on `run` takes it; `find`, which knows of no values, takes it only if it is asked for.
    """
    entries = _implementations.setdefault(op, [])
    entries.append(Implementation(op, backend, function, usable, priority, least))
    entries.sort(key=lambda entry: -entry.priority)
    if variants:
        _variants[op] = variants


def _matches(backend: str, wanted: str) -> bool:
    return backend == wanted or backend.startswith(wanted + ":")


def _choose(op: str, variant: str, size: int = 0, after: int = 0) -> tuple[Implementation, str]:
    """after: so many of the best are left out."""
    passed_over: list[str] = []
    for entry in _implementations[op][after:]:
        if _forced and not _matches(entry.backend, _forced[-1]):
            reason = f"only {_forced[-1]} was asked for"
        else:
            reason = _too_little(entry) if 0 < size < entry.least and not _forced else entry.usable(variant)
            if not reason and not size and entry.least and not _forced:
                reason = _too_little(entry)
        if not reason:
            return entry, "; ".join(passed_over)
        passed_over.append(f"{entry.backend}: {reason}")
    raise RuntimeError(f"nothing can run {op} {variant}".rstrip() + f" ({'; '.join(passed_over)})")


def _too_little(entry: Implementation) -> str:
    return f"takes {entry.least:,} values and more".replace(",", " ")


def find(op: str, variant: str = "") -> Implementation:
    """The implementation that runs now. Raises RuntimeError when the backend that was asked for can not."""
    return _choose(op, variant)[0]


def run(op: str, variant: str, size: int, *arguments: Any) -> Any:
    """Calls the best implementation for `size` values, and the next one after each that declines; see `tally`."""
    after = 0
    while True:
        entry = _choose(op, variant, size, after)[0]
        try:
            found = entry.function(*arguments)
        except Declined as why:
            after = _implementations[op].index(entry) + 1
            with _lock:
                for one in _tallies if why.said else ():
                    one.declined[entry.backend, str(why)] += 1
            continue
        if _tallies:
            with _lock:
                for one in _tallies:
                    one.values[entry.backend] += size
        return found


@contextmanager
def tally() -> Iterator[Tally]:
    """Counts what `run` runs, in all threads of the process, until it ends."""
    one = Tally()
    with _lock:
        _tallies.append(one)
    try:
        yield one
    finally:
        with _lock:
            _tallies[:] = [kept for kept in _tallies if kept is not one]


def reason(op: str, variant: str = "") -> str:
    """Why nothing of higher priority than `find` gives now; '' when that is the best."""
    return _choose(op, variant)[1]


@contextmanager
def only(backend: str) -> Iterator[None]:
    """Force 'reference', 'cpu' or one instruction set, such as 'cpu:avx2', in the whole process until it ends."""
    _forced.append(backend)
    try:
        yield
    finally:
        _forced.pop()


def forced() -> str:
    """What `only` asks for now; '' when it asks for nothing."""
    return _forced[-1] if _forced else ""


def backends(op: str = "scan") -> tuple[str, ...]:
    """Every backend that `op` has on this machine, best first. All conversions have the same ones as `scan`."""
    entries = _implementations.get(op, ())
    return tuple(entry.backend for entry in entries if not entry.least or not entry.usable(""))


def report() -> tuple[Choice, ...]:
    """For every operation (and block type), the backend that runs and why not a better one."""
    lines = []
    for op in _implementations:
        for variant in _variants.get(op, ("",)):
            entry, reason = _choose(op, variant)
            lines.append(Choice(op, variant, entry.backend, reason))
    return tuple(lines)
