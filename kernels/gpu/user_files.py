"""What is kept between two runs for the GPU: results of self-tests and tuned configurations. It may be deleted."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def folder() -> Path:
    """In the user's cache folder of this program; it need not exist yet. Linux: XDG_CACHE_HOME."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return base / "bitsmith" / "cache" / "gpu"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bitsmith" / "gpu"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitsmith" / "gpu"


def read(name: str) -> dict[str, Any]:
    """A file's values; {} where there is none, or where it is damaged."""
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: nobody's home is known
        found = json.loads((folder() / name).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def write(name: str, values: dict[str, Any]) -> bool:
    """Whole or not at all. False where the folder can not be written to, which is no error."""
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".partial-", dir=place)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, ensure_ascii=False, indent=1, sort_keys=True)
            Path(partial).replace(place / name)
        finally:
            Path(partial).unlink(missing_ok=True)
    except (OSError, RuntimeError):
        return False
    return True
