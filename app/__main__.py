"""The program `bitsmith`: a command runs headless, a path or nothing opens the window."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.openmp import spin_little


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    spin_little()
    words = list(sys.argv[1:] if argv is None else argv)
    # The commands import all of core, half a second that the window's first picture shall not wait for; only what
    # can be a command or an option is looked up there.
    if words and (words[0].startswith("-") or words[0].isalpha()):
        from core import cli

        if words[0].startswith("-") or cli.is_command(words[0]):
            return cli.main(words)
    from app.bootstrap import main as window

    return window(words)


if __name__ == "__main__":
    sys.exit(main())
