"""Kill −9 at every change of the disk, and small disks of their own that fill up, are read-only, or go away.

Each is a program of its own: kill_points.py and disk_trials.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import write_llama

ROOT = Path(__file__).parents[2]


def program(name: str, *words: object, before: tuple[str, ...] = ()) -> str:
    command = [*before, sys.executable, str(Path(__file__).with_name(name)), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks; macOS minds that, and Windows can not")
@pytest.mark.parametrize("target", ["Q8_0", "w4a16-g64"])
def test_killed_anywhere_then_resumed_gives_the_same_bytes(tmp_path, target):
    source = write_llama(tmp_path / "source", layers=1)
    place = tmp_path / "place"
    place.mkdir()
    assert "points" in program("kill_points.py", source, place, target)


def _alone() -> tuple[str, ...] | None:
    """What runs a command in a mount namespace of its own; None where the system allows that to nobody."""
    own = ("unshare", "--mount", "--propagation", "private", *(() if os.geteuid() == 0 else ("-U", "-r")))
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return None
    trial = [*own, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return own if subprocess.run(trial, capture_output=True, check=False).returncode == 0 else None


ALONE = _alone() if os.name == "posix" else None


@pytest.mark.skipif(ALONE is None, reason="a disk of its own is mounted, which this system allows to nobody here")
def test_disks_that_are_full_or_read_only_or_go_away(tmp_path):
    source = write_llama(tmp_path / "source", layers=1)
    disk = tmp_path / "disk"
    disk.mkdir()
    told = program("disk_trials.py", source, disk, before=ALONE)
    for kind in ("full after", "read-only:", "gone:"):
        assert kind in told
