"""AMX and AVX-VNNI on processors that lack them, in a build of the engine that expresses them in what there is.

The sources are those that ship; what differs are the instructions (`tests/cross`): AMX's tiles are plain C++, and
AVX-VNNI's dot product is AVX-512's. The build is made here, in the build tree from which the installed engine came.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels import cpu

ROOT = Path(__file__).resolve().parents[2]
TARGET = "_engine_emulated"

pytestmark = pytest.mark.slow  # compiles for a minute, once


def _build_tree() -> Path | None:
    """The newest of build/*/CMakeCache.txt that configures this tree."""
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}"
    found = [cache for cache in ROOT.glob("build/*/CMakeCache.txt") if home in cache.read_text(encoding="utf-8")]
    return max(found, key=lambda cache: cache.stat().st_mtime).parent if found else None


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated engine's file, made or brought up to date."""
    tree, cmake = _build_tree(), shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if cpu.engine is None or platform.machine().casefold() not in ("x86_64", "amd64"):
        pytest.skip("about the compiled engine on x86")
    if tree is None or cmake is None:
        pytest.skip("the engine was not built in this tree, so that there is nothing to build its test variant with")
    with (tree / "emulated.lock").open("w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [cmake, "--build", str(tree), "--target", TARGET, "--config", "Release"], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next((tree / "emulated").rglob("_engine*.[sp][oy]*"))


def _run(emulated: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "cross")))
    environment = {**os.environ, "BITSMITH_EMULATED_ENGINE": str(emulated), "PYTHONPATH": paths, "BITSMITH_ISA": ""}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.parametrize("tests", ["test_matrix.py", "test_engine_steps.py"])
def test_other_tests_pass_with_emulated_sets(emulated: Path, tests: str) -> None:
    done = _run(emulated, "-m", "pytest", "-p", "emulated_engine", "-p", "no:cacheprovider", f"tests/kernels/{tests}")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


SURVEY = """
import emulated_engine
from kernels import cpu, dispatch, engine
print(*emulated_engine.usable)
for pair in cpu.engine_refused.items():
    print(*pair, sep=": ")
print(dispatch.reason("program"))
try:
    cpu.engine_set("cpu:faulty")
except RuntimeError as error:
    print(error)
"""
FAULTY = "the CPU lists a test, but executing it ends with SIGILL, as in some virtual machines"
WRONG = "its products are wrong on this processor"


def test_a_set_that_fails_its_trial_is_left_out_with_a_reason(emulated: Path) -> None:
    done = _run(emulated, "-c", SURVEY)
    assert done.returncode == 0, done.stderr
    usable, *lines = done.stdout.splitlines()
    assert usable.split()[-1] == "portable"
    assert not {"faulty", "wrong"} & set(usable.split())
    assert lines == [
        f"faulty: {FAULTY}",
        f"wrong: {WRONG}",
        f"cpu:faulty: {FAULTY}; cpu:wrong: {WRONG}",
        f"cpu:faulty can not run products: {FAULTY}",
    ]
    assert done.stderr == ""  # the fault was in a child, which said nothing
