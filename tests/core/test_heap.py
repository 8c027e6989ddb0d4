"""Freed arrays are used again, and given back at the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COUNT = """
import resource, sys
import numpy as np
from core import heap
if sys.argv[1] == "keep" and not heap.keep():
    sys.exit(3)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    np.ones(4 << 20, np.uint8)
before = faults()
for _ in range(20):
    np.ones(4 << 20, np.uint8)
    np.ones(9 << 20, np.uint8)
print(faults() - before)
heap.give_back()
"""


def _faults(word: str) -> int:
    done = subprocess.run([sys.executable, "-c", _COUNT, word], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("this C library has no such settings")
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives pages back at once")
def test_freed_arrays_are_used_again() -> None:
    assert _faults("keep") < 9 << 20 >> 12 << 1  # of the 9 MB once or twice, not of 260 MB
