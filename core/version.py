"""Which Bitsmith this is."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """The installed one, or 'unknown' for a tree that is not installed."""
    try:
        return importlib.metadata.version("bitsmith")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
