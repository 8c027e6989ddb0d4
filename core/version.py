"""Which Bitsmith this is. The version stands in pyproject.toml alone."""

from __future__ import annotations

import importlib.metadata
import tomllib
from functools import cache
from pathlib import Path


@cache
def version() -> str:
    """Of the tree that this runs from, installed or not; elsewhere of the package that is installed."""
    try:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] == "bitsmith":
            return str(project["version"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no tree
    try:
        return importlib.metadata.version("bitsmith")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
