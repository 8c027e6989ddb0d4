"""The threads of PyTorch's products sleep soon, unless the user has chosen otherwise."""

import os
import subprocess
import sys

import pytest

from core.openmp import SPINS, spin_little


@pytest.mark.parametrize(
    ("chosen", "found"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_the_users_choice_goes_first(monkeypatch, chosen, found):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    spin_little()
    assert os.environ.get("GOMP_SPINCOUNT") == found
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU's library counts")
@pytest.mark.parametrize("entry", ["core.cli", "app.__main__"])
def test_each_way_in_sets_it_before_pytorch_is_loaded(entry):
    """What the library itself says it took over when PyTorch brought it in."""
    code = f"""
from {entry} import main
import sys
try:
    main(["--version"])
except SystemExit:
    pass
assert "torch" not in sys.modules
import torch
"""
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("needs a PyTorch with GNU's OpenMP")
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in done.stderr
