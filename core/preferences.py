"""What a person has set for the window and the commands alike: a small JSON file in the platform's own place.

Options of a command come first, then variables of the environment, then this file. A file that can not be read is moved
aside and costs what was in it, never a start; values of the wrong kind are as if they were not there.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
NAME = "preferences.json"
DAMAGED = ".damaged"  # is added to the name of a file that can not be read
MOST_THREADS = 1024


class Sizes(Enum):
    """In which units sizes are shown."""

    BOTH = "both"
    DECIMAL = "decimal"
    BINARY = "binary"


@dataclass(frozen=True)
class Preferences:
    """models, results, scratch: folders, '' for the usual place. threads: 0 for all cores. memory: bytes that a
    conversion may take, 0 for no limit. endpoint: a mirror's address, '' for the hub. offline: ask no server."""

    models: str = ""
    results: str = ""
    scratch: str = ""
    threads: int = 0
    memory: int = 0
    sizes: str = Sizes.BOTH.value
    endpoint: str = ""
    offline: bool = False


def config_folder() -> Path:
    """Where the platform wants settings."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Preferences"
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return base / "bitsmith"


def load(path: Path) -> tuple[Preferences, str]:
    """What a file says, and '' or the name that a damaged one was given. Never raises."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no object")
    except FileNotFoundError:
        return Preferences(), ""
    except OSError as error:
        log.warning("The settings can not be read (%s)", error.strerror)
        return Preferences(), ""
    except ValueError:
        return Preferences(), _move_aside(path)
    return _sound(found), ""


def save(preferences: Preferences, path: Path) -> bool:
    """Write a file as a whole. False where nothing can be written, which costs the memory of it and nothing else."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(preferences), indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        log.warning("The settings can not be written (%s)", error.strerror)
        return False
    return True


def _move_aside(path: Path) -> str:
    aside = path.with_name(path.name + DAMAGED)
    try:
        path.replace(aside)
    except OSError:
        return path.name
    log.warning("The settings were damaged; the old file is now %s", aside.name)
    return aside.name


def _sound(found: dict[str, Any]) -> Preferences:
    """The values that are of their field's kind and within its bounds."""
    plain = Preferences()
    kept = {
        f.name: found[f.name]
        for f in fields(Preferences)
        if f.name in found and type(found[f.name]) is type(getattr(plain, f.name))
    }
    if kept.get("sizes") not in {s.value for s in Sizes}:
        kept.pop("sizes", None)
    if not 0 <= kept.get("threads", 0) <= MOST_THREADS:
        kept.pop("threads")
    if not 0 <= kept.get("memory", 0) <= 1 << 60:
        kept.pop("memory")
    for name in ("models", "results", "scratch"):
        if "\0" in kept.get(name, "") or not os.path.isabs(kept.get(name, "/")):  # noqa: PTH117 - of a text
            kept.pop(name)
    return Preferences(**kept)


_known: dict[Path, Preferences] = {}
_path: Path | None = None


def path() -> Path:
    """The file that is in force: the window's, that of BITSMITH_SETTINGS, or the platform's."""
    given = os.environ.get("BITSMITH_SETTINGS", "")
    return _path or (Path(given) if given else config_folder() / NAME)


def use(file: Path) -> str:
    """From now on this file is in force in this program; '' or the name that a damaged one was given."""
    global _path
    _path = file
    _known[file], aside = load(file)
    return aside


def current() -> Preferences:
    """What is set. Read once a program, and again when the window changes it."""
    file = path()
    if file not in _known:
        _known[file], _ = load(file)
    return _known[file]


def change(preferences: Preferences) -> bool:
    """Put others in force and write them down; False when that could not be done."""
    file = path()
    _known[file] = preferences
    return save(preferences, file)


def scratch_folder() -> Path | None:
    """Where unfinished blocks go: BITSMITH_SCRATCH, else what is set; None for beside the output."""
    chosen = os.environ.get("BITSMITH_SCRATCH", "") or current().scratch
    return Path(chosen).absolute() if chosen else None


def results_folder() -> Path | None:
    """Where results go when nobody says otherwise; None for beside the source."""
    return Path(current().results) if current().results else None
