"""How the threads of PyTorch's products wait for each other.

GNU's OpenMP lets them spin for milliseconds before they sleep. Beside other programs, the thread that is waited for
often has no processor, and the others take one to spin on: learned rounding took up to seven times its processor time,
and hardly went on. Twenty microseconds of spinning are as quick on an idle machine.
"""

from __future__ import annotations

import os

SPINS = "3000"  # looks at a variable; the library's own choice is 300,000


def spin_little() -> None:
    """For this process and those that it starts, unless the user has chosen. Before PyTorch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
