"""Which implementation of an operation runs, and why.

A backend is 'reference' (numpy, the definition) or 'cpu:<instruction set>' (compiled). All give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Implementation:
    """usable(variant): '' when it can run (variant: a block type, or ''), else one plain clause that says why not."""

    op: str
    backend: str
    function: Callable[..., Any]
    usable: Callable[[str], str]
    priority: int


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


def _always(_variant: str) -> str:
    return ""


def register(
    op: str,
    backend: str,
    function: Callable[..., Any],
    usable: Callable[[str], str] = _always,
    priority: int = 0,
    variants: tuple[str, ...] = (),
) -> None:
    """Add an implementation. The usable one of highest priority runs. variants: what `report` lists one by one."""
    entries = _implementations.setdefault(op, [])
    entries.append(Implementation(op, backend, function, usable, priority))
    entries.sort(key=lambda entry: -entry.priority)
    if variants:
        _variants[op] = variants


def _matches(backend: str, wanted: str) -> bool:
    return backend == wanted or backend.startswith(wanted + ":")


def _choose(op: str, variant: str) -> tuple[Implementation, str]:
    passed_over: list[str] = []
    for entry in _implementations[op]:
        if _forced and not _matches(entry.backend, _forced[-1]):
            reason = f"only {_forced[-1]} was asked for"
        else:
            reason = entry.usable(variant)
        if not reason:
            return entry, "; ".join(passed_over)
        passed_over.append(f"{entry.backend}: {reason}")
    raise RuntimeError(f"nothing can run {op} {variant}".rstrip() + f" ({'; '.join(passed_over)})")


def find(op: str, variant: str = "") -> Implementation:
    """The implementation that runs now. Raises RuntimeError when the backend that was asked for can not."""
    return _choose(op, variant)[0]


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
    return tuple(entry.backend for entry in _implementations.get(op, ()))


def report() -> tuple[Choice, ...]:
    """For every operation (and block type), the backend that runs and why not a better one."""
    lines = []
    for op in _implementations:
        for variant in _variants.get(op, ("",)):
            entry, reason = _choose(op, variant)
            lines.append(Choice(op, variant, entry.backend, reason))
    return tuple(lines)
