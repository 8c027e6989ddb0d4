"""A program that is killed while it keeps what it measured, or writes a report: nothing half-written is ever used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import write_llama

from core.checkpoint.opening import open_checkpoint
from core.cli import main
from core.inspect import cache as cache_module
from core.inspect.survey import SurveyRow, survey
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe

ROOT = Path(__file__).resolve().parents[3]
# Kills its own process as soon as the file number NUMBER that is to appear whole has half of its bytes.
KILLED = """
import os, signal, sys
from pathlib import Path
number, plain = int(sys.argv[1]), Path.replace
def replace(self, target):
    global number
    number -= 1
    if number:
        return plain(self, target)
    os.truncate(self, self.stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)
Path.replace = replace
"""
SURVEY = """
from core.checkpoint.opening import open_checkpoint
from core.inspect.survey import survey
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
with open_checkpoint(Path(sys.argv[2])) as checkpoint:
    list(survey(checkpoint, make_plan(checkpoint, Recipe("Q4_0")), CancelToken(), Path(sys.argv[3])))
"""
REPORT = """
from core.cli import main
main(["inspect", sys.argv[2], "--to", "Q4_0", "--html", "-o", sys.argv[3], "--overwrite"])
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


def killed(what: str, number: int, *arguments: Path, home: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED + what, str(number), *map(str, arguments)], env=environment, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


def surveyed(model: Path, cache: Path) -> list[SurveyRow]:
    with open_checkpoint(model) as checkpoint:
        return list(survey(checkpoint, make_plan(checkpoint, Recipe("Q4_0")), CancelToken(), cache))


@pytest.mark.parametrize("number", [1, 2])
def test_a_survey_killed_while_it_keeps_its_figures(number: int, tmp_path: Path) -> None:
    model, cache = write_llama(tmp_path / "model"), tmp_path / "cache"
    want = surveyed(model, tmp_path / "other")
    killed(SURVEY, number, model, cache, home=tmp_path)
    left = {f.name for f in cache.iterdir()}
    assert sum(name.startswith(cache_module.PARTIAL) for name in left) == 1
    assert len(left) == number, "the file before is whole, the one that was written has not got its name"
    found = surveyed(model, cache)
    assert [(r.name, r.predicted, r.worst) for r in found] == [(r.name, r.predicted, r.worst) for r in want]
    assert [r.statistics.p999 for r in found if r.statistics] == [r.statistics.p999 for r in want if r.statistics]
    assert all(r.cached for r in surveyed(model, cache))


def test_what_was_kept_before_stays_when_its_successor_is_killed(tmp_path: Path) -> None:
    model, cache = write_llama(tmp_path / "model"), tmp_path / "cache"
    surveyed(model, cache)
    facts = next(cache.glob("*-facts.npz"))
    before = facts.read_bytes()
    for file in cache.glob("*-errors.json"):
        file.unlink()
    killed(SURVEY, 1, model, cache, home=tmp_path)
    assert facts.read_bytes() == before
    assert all(r.cached for r in surveyed(model, cache) if r.predicted is None)


def test_what_a_killed_program_left_goes_after_a_while(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    old, new = cache / ".partial-old", cache / ".partial-new"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    cache_module.keep(cache / "whole", lambda file: file.write(b"all of it"))
    assert sorted(f.name for f in cache.iterdir()) == [".partial-new", "whole"]


def test_a_report_killed_while_it_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    model, page = write_llama(tmp_path / "model"), tmp_path / "page.html"
    page.write_text("the one before", encoding="utf-8")
    for number in (1, 2, 3):  # the survey's two files appear before it
        killed(REPORT, number, model, page, home=tmp_path / f"home{number}")
        assert page.read_text(encoding="utf-8") == "the one before"
    assert main(["inspect", str(model), "--to", "Q4_0", "--html", "-o", str(page), "--overwrite"]) == 0
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
