"""Kernels compiled for cards that are not there: no spills, shared memory that fits, tensor cores, 16-byte loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.triton

ROOT = Path(__file__).resolve().parents[3]


def _report(folder: Path, *arguments: str) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(folder),
    }
    command = [sys.executable, "-m", "kernels.gpu.compile", *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout


def test_a_few_kernels_on_a_few_cards(tmp_path) -> None:
    told = _report(tmp_path, "--formats", "int4 g128", "--cards", "sm_80,gfx942", "--tokens", "1,16")
    told += _report(tmp_path, "--formats", "Q6_K", "--cards", "sm_100,gfx1201", "--tokens", "16")
    assert told.count("16: ") == 4
    assert "int4 g128 / sm_80 / 16: " in told
    for card, instruction in (("sm_80", "mma"), ("gfx942", "mfma"), ("sm_100", "tcgen05"), ("gfx1201", "wmma")):
        line = next(line for line in told.splitlines() if f" {card} / 16: " in line)
        assert instruction in line


def test_a_few_launchers_on_a_few_cards(tmp_path) -> None:
    told = _report(tmp_path, "--formats", "int8, both, 16;RMSNorm to int8", "--cards", "sm_80")
    told += _report(
        tmp_path, "--formats", "mxfp4, both, 16;encode Q4_0;attention, token, heads of 64", "--cards", "sm_120"
    )
    assert told.count(" r, ") == 5
    assert told.count("0 with problems") == 2
    for name in ("int8, both, 16 / sm_80", "mxfp4, both, 16 / sm_120", "attention, token, heads of 64 / sm_120"):
        assert "mma" in next(line for line in told.splitlines() if line.startswith(name))


def test_it_is_known_how_many_wide_loads_each_kernel_needs() -> None:
    """Of products, attention, norms and encoders; the report counts them, and says where there are fewer."""
    code = (
        "import json\nfrom kernels.gpu.compile.cases import cases\nfrom kernels.gpu.compile.assembled import needed\n"
        "print(json.dumps({name: [needed(card, case.launches(card)[0]) for card in ('sm_80', 'gfx942')]"
        " for name, case in cases().items()}))"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loads = json.loads(run.stdout)
    assert loads["int8, both, 512"] == [4, 2]  # 128 rows of 128 bytes, by 256 threads of 16 bytes
    assert loads["encode Q4_0"] == [4, 2]
    free = {name for name, counts in loads.items() if not counts[0]}
    assert free <= {
        *("rotary, halves", "rotary, pairs", "columns of outliers", "attention, parts", "to the cache"),
        *("GPTQ, a block", "GPTQ, what follows", "turn heads"),
        # Codes of few positions are less than 16 bytes a thread.
        *(name for name in free if name.startswith(("to a cache of", "attention over"))),
    }
    assert all(loads[f"attention over {kind}, token, heads of 128"][0] for kind in ("Q8_0", "Q4_0", "FP8", "INT4"))
