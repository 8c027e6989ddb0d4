"""The statistics of stored values, compiled without vector types: the same figures as with them, however optimised."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


@lru_cache(maxsize=8)
def figures(folder: Path, *options: str) -> str:
    """What tests/cross/inspect_plain.cpp prints when it is compiled so."""
    program = folder / f"probe{'_'.join(options)}"
    command = [COMPILER or "", "-std=c++17", "-ffp-contract=off", f"-I{ROOT / 'kernels' / 'cpu'}", *options]
    subprocess.run([*command, str(ROOT / "tests" / "cross" / "inspect_plain.cpp"), "-o", str(program)], check=True)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(COMPILER is None or os.name == "nt", reason="there is no compiler with the options of GCC here")
@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3"])
def test_without_vector_types_figures_are_the_same(tmp_path_factory: pytest.TempPathFactory, level: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    with_vectors = figures(folder, "-O2")
    assert len(with_vectors.splitlines()) == 3 * 4 + 3 * 20 + 3
    assert figures(folder, level, "-DBITSMITH_PLAIN") == with_vectors
