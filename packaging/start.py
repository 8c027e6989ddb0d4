"""What the installed program runs first."""

import os
import sys


def main() -> int:
    # PyInstaller's starter points this at the program's own libraries. They are found by now, and programs that are
    # started from here (nvidia-smi, a browser) must not get them.
    for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        before = os.environ.pop(f"{name}_ORIG", None)
        if before is not None:
            os.environ[name] = before
        else:
            os.environ.pop(name, None)
    from app.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
