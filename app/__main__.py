"""The program `bitsmith`: a command runs headless, a path or nothing opens the window."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.cli import main as headless
from core.cli_commands import COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and (words[0] in COMMANDS or words[0].startswith("-")):
        return headless(words)
    from app.bootstrap import main as window

    return window(words)


if __name__ == "__main__":
    sys.exit(main())
