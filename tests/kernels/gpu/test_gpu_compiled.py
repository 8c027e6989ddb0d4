"""Kernels compiled for cards that are not there: no spills, shared memory that fits, matrix instructions, wide loads.

A few of them; `make gpu-compile` does all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.triton

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}


def _report(folder: Path, *arguments: str, fails: bool = False) -> str:
    command = [sys.executable, "-m", "kernels.gpu.compile", *arguments]
    environment = {**ENVIRONMENT, "TRITON_CACHE_DIR": str(folder)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == (1 if fails else 0), run.stdout[-3000:] + run.stderr[-3000:]
    return run.stdout


def _asked(code: str) -> Any:
    run = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return json.loads(run.stdout)


def test_a_few_products_on_a_few_cards(tmp_path) -> None:
    told = _report(tmp_path, "--kernels", "int4 g128", "--cards", "sm_80,gfx942", "--tokens", "1,16")
    told += _report(tmp_path, "--kernels", "Q6_K", "--cards", "sm_100,gfx1201", "--tokens", "16")
    assert told.count(", 16 / ") == 4
    assert "4 kernels, 4 programs compiled" in told
    for card, instruction in (
        ("sm_80", "HMMA"),
        ("gfx942", "mfma f16"),
        ("sm_100", "UTCHMMA"),
        ("gfx1201", "wmma f16"),
    ):
        line = next(line for line in told.splitlines() if f", 16 / {card}: " in line)
        assert line.endswith(f", {instruction}")


def test_a_few_launchers_on_a_few_cards(tmp_path) -> None:
    told = _report(tmp_path, "--kernels", "int8, both, 16;RMSNorm to int8", "--cards", "sm_80")
    told += _report(
        tmp_path, "--kernels", "mxfp4, both, 16;encode Q4_0;attention, token, heads of 64", "--cards", "sm_120"
    )
    assert told.count(" r, ") == 5
    assert told.count("0 with problems") == 2
    for name, instruction in (
        ("int8, both, 16 / sm_80", "IMMA"),
        ("mxfp4, both, 16 / sm_120", "OMMA"),
        ("attention, token, heads of 64 / sm_120", "HMMA"),
    ):
        assert next(line for line in told.splitlines() if line.startswith(name)).endswith(f", {instruction}")


def test_one_program_is_compiled_once_and_kept(tmp_path) -> None:
    """On a card without matrix instructions 16 tokens run what 512 run; a second time, nothing is compiled."""
    asked = ("--kernels", "int8, both, 16;int8, both, 512", "--cards", "sm_75")
    assert "2 kernels, 1 programs compiled" in _report(tmp_path, *asked)
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    assert "2 kernels, 1 programs compiled" in _report(tmp_path, *asked)
    assert kept == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}


def test_what_is_alike_on_two_cards_is_compiled_for_one(tmp_path) -> None:
    """sm_86 and sm_89, where neither the program nor its machine code differs."""
    asked = ("--kernels", "int4 g128", "--tokens", "16", "--cards")
    both = _report(tmp_path, *asked, "sm_86,sm_89")
    assert "2 kernels, 1 programs compiled" in both
    alone = _report(tmp_path, *asked, "sm_89")
    assert "1 kernels, 1 programs compiled" in alone
    assert alone.splitlines()[0] in both.splitlines()


def test_the_document_has_a_cell_for_each_kernel_and_card() -> None:
    """All of one run: rows and cards are those that are compiled, in their order, and no cell is empty."""
    found = _asked(
        "import json\nfrom pathlib import Path\nfrom kernels.gpu.compile.report import other_cases, rows_in\n"
        "from kernels.gpu.compile.assembled import CARDS\nfrom kernels.gpu.compile.weights import product_cases\n"
        "text = Path('docs/gpu.md').read_text(encoding='utf-8')\n"
        "print(json.dumps([rows_in(text, 'compiled'), rows_in(text, 'others'), list(CARDS), list(other_cases()),"
        " [[one.format, one.kernel] for one in product_cases()], text]))"
    )
    (cards, products), (other_cards, others), every, names, expected, text = found
    assert cards == other_cards == every
    assert [row[:2] for row in products] == expected
    assert [row[0] for row in others] == names
    cells = [row[2:] for row in products] + [row[1:] for row in others]
    assert {len(row) for row in cells} == {len(every)}
    assert not [cell for row in cells for cell in row if not re.match(r"\d+ r, [\d.]+ K", cell)]
    assert f"in {len(cells) * len(every)} cells." in text


def test_what_is_wrong_is_said() -> None:
    found = _asked(
        "import json\nfrom dataclasses import replace\nfrom kernels.gpu.compile.assembled import Compiled\n"
        "fine = Compiled('sm_86', 'tile_product', 96, 0, 4096, 'HMMA', 'half', 4, 4, 'half')\n"
        "wrong = ({}, {'spilled': 8}, {'shared': 102400}, {'wide': 3}, {'multiplies': '', 'matrix': ''}, "
        "{'wanted': 'int8'})\n"
        "print(json.dumps([replace(fine, **one).problems() for one in wrong]))"
    )
    assert found == [
        [],
        ["8 bytes spilled"],
        ["102400 bytes of shared memory, the card has 101376"],
        ["3 loads of 16 bytes, a thread needs 4"],
        ["matrix instructions for half are expected, not ''"],
        ["matrix instructions for int8 are expected, not 'half'"],
    ]


def test_a_kernel_that_spills_is_found(tmp_path) -> None:
    """In a configuration that nobody would take: all rows in one warp."""
    found = _asked(
        f"import json, os\nos.environ['TRITON_CACHE_DIR'] = {str(tmp_path)!r}\n"
        "from dataclasses import replace\nfrom kernels.gpu.compile.assembled import compile_launch\n"
        "from kernels.gpu.compile.report import every_case, unexplained\n"
        "(launch,) = every_case()['int4 g128, 4'].launches('sm_80')\n"
        "many = {**launch.constants, 'ROWS': 64}\n"
        "spills = compile_launch('sm_80', replace(launch, warps=1, constants=many))\n"
        "print(json.dumps(unexplained('int4 g128, 4', 'sm_80', spills)))"
    )
    assert len(found) == 1
    assert "bytes spilled" in found[0]


def test_it_is_known_how_many_wide_loads_each_kernel_needs() -> None:
    """Of products, attention, norms and encoders; the report counts them, and says where there are fewer."""
    loads = _asked(
        "import json\nfrom kernels.gpu.compile.report import every_case\n"
        "from kernels.gpu.compile.assembled import needed\n"
        "print(json.dumps({name: [needed(card, case.launches(card)[0]) for card in ('sm_80', 'gfx942')]"
        " for name, case in every_case().items()}))"
    )
    assert loads["int8, both, 512"] == [4, 2]  # 128 rows of 128 bytes
    assert loads["int4 g128, 1"] == [2, 2]  # 32 rows of 128 bytes, 4 or 2 warps
    assert loads["encode Q4_0"] == [4, 2]
    free = {name for name, counts in loads.items() if not counts[0]}
    assert free <= {
        *("rotary, halves", "rotary, pairs", "columns of outliers", "attention, parts", "to the cache"),
        *("GPTQ, a block", "GPTQ, what follows", "turn heads"),
        # Codes of few positions are less than 16 bytes a thread.
        *(name for name in free if name.startswith(("to a cache of", "attention over"))),
    }
    assert all(loads[f"attention over {kind}, token, heads of 128"][0] for kind in ("Q8_0", "Q4_0", "FP8", "INT4"))
