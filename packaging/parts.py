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
    """`top` and everything that it needs, sorted by name, with the extras that are asked for. What is not installed
    here is not needed here.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting, seen = [(top, "")], set()  # names with an extra that is asked for, such as httpx2[socks]
    while waiting:
        name, extra = canonical(waiting[-1][0]), waiting.pop()[1]
        if (name, extra) in seen or name in NOT_TAKEN or name in leave_out:
            continue
        seen.add((name, extra))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution
        for line in distribution.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, more) for more in ("", *requirement.extras)]
    return [found[name] for name in sorted(found)]
