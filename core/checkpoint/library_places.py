"""Where other programs keep models, as their variables, their settings and each system say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

MAX_SETTINGS = 1 << 20
# Ollama as a Linux service, and as the packages of Arch and of snap have it.
_OLLAMA_SYSTEM = (
    "/usr/share/ollama/.ollama/models",
    "/var/lib/ollama/models",
    "/var/lib/ollama",
    "/var/lib/ollama/.ollama/models",
    "/var/snap/ollama/common/models",
)
_OLLAMA_UNITS = ("/etc/systemd/system/ollama.service", "/etc/systemd/system/ollama.service.d/override.conf")


def _path(text: str, home: Path) -> Path:
    """A path from a variable, where '~' stands for the home folder."""
    text = os.path.expandvars(text.strip())
    return home / text[2:] if text[:2] in ("~/", "~\\") else Path(text)


def _cache(environ: Mapping[str, str], home: Path) -> Path:
    return _path(environ["XDG_CACHE_HOME"], home) if environ.get("XDG_CACHE_HOME") else home / ".cache"


def hub_folders(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Hugging Face's cache. The first variable that is set decides, as in its own library."""
    for key, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if environ.get(key, "").strip():
            return (_path(environ[key], home) / below,)
    return (_cache(environ, home) / "huggingface" / "hub",)


def lm_studio_folders(home: Path) -> tuple[Path, ...]:
    """LM Studio's folders of models: chosen ones, moved ones, and the two that it has used by itself."""
    roots = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    pointer = home / ".lmstudio-home-pointer"  # LM Studio notes here where its files were moved to
    with contextlib.suppress(OSError, ValueError):
        roots.insert(0, Path(pointer.read_text(encoding="utf-8")[:4096].strip()))
    folders = []
    for root in roots:
        chosen = _settings(root / "settings.json").get("downloadsFolder")
        if isinstance(chosen, str) and chosen.strip():
            folders.append(_path(chosen, home))
        folders.append(root / "models")
    return tuple(dict.fromkeys(folders))


def ollama_folders(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Ollama's, and those of its service, whose settings a user's environment does not have."""
    if environ.get("OLLAMA_MODELS", "").strip():
        return (_path(environ["OLLAMA_MODELS"], home),)
    folders = [home / ".ollama" / "models", home / "snap" / "ollama" / "common" / "models"]
    if sys.platform.startswith("linux"):
        folders += [*map(Path, _OLLAMA_SYSTEM), *(found for unit in _OLLAMA_UNITS for found in _of_unit(Path(unit)))]
    return tuple(folders)


def llama_cpp_folders(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where llama.cpp's own downloads went before it took Hugging Face's cache."""
    if environ.get("LLAMA_CACHE", "").strip():
        return (_path(environ["LLAMA_CACHE"], home),)
    if sys.platform == "win32" and environ.get("LOCALAPPDATA"):
        return (Path(environ["LOCALAPPDATA"]) / "llama.cpp",)
    if sys.platform == "darwin":
        return (home / "Library" / "Caches" / "llama.cpp",)
    return (_cache(environ, home) / "llama.cpp",)


def _settings(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes()[:MAX_SETTINGS])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_unit(path: Path) -> list[Path]:
    """Environment="OLLAMA_MODELS=/data/models" in a service's description."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:MAX_SETTINGS]
    except OSError:
        return []
    return [
        Path(found.strip()) for found in re.findall(r'^\s*Environment=.*?OLLAMA_MODELS=([^"\s]+)', text, re.MULTILINE)
    ]
