"""Where what was measured is kept between two runs of the program. It may be deleted at any time."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder of this program; it need not exist yet. XDG_CACHE_HOME is respected on Linux."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return base / "bitsmith" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bitsmith"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitsmith"
