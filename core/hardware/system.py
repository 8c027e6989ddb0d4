"""Asking the operating system: small files and short commands, where failing to answer is an answer."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def read(path: Path) -> str:
    """The stripped text of a small system file; '' when there is none or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """The number in a small system file, decimal or 0x; None when there is none."""
    try:
        return int(read(path), 0)
    except ValueError:
        return None


def run(command: Sequence[str], seconds: float = 3.0) -> str:
    """Standard output of a command that is given a moment; '' when it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def sysctl(key: str) -> str:
    """A macOS system value; '' elsewhere and for unknown keys."""
    return run(["/usr/sbin/sysctl", "-n", key])
