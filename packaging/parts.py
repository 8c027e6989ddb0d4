"""The Python distributions that a build is made of: what the program requires, and what those require."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import Requirement

# Requirements of requirements that only serve a command line or a build, with the modules left out as well.
NOT_TAKEN = frozenset(("setuptools", "pip", "wheel"))


def canonical(name: str) -> str:
    """'PySide6_Essentials' → 'pyside6-essentials', as the package index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(top: str = "bitsmith", leave_out: tuple[str, ...] = ()) -> list[importlib.metadata.Distribution]:
    """`top` and everything that it needs, sorted by name; what is not installed here is not needed here."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [top]
    while waiting:
        name = canonical(waiting.pop())
        if name in found or name in NOT_TAKEN or name in leave_out:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution
        for line in distribution.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return [found[name] for name in sorted(found)]
