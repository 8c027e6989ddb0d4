"""What is set for window and commands alike: kept, bounded, never in the way, and heeded where it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import write_llama

from core import preferences, threads, units
from core.checkpoint import open_checkpoint
from core.cli import main
from core.cli_commands import default_output
from core.errors import UserError
from core.hub.access import find_access, models_folder
from core.methods.scratch import scratch_path
from core.output import check_memory
from core.plan import make_plan
from core.preferences import Preferences, Sizes, load, save
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A file of settings of the test's own, in force."""
    path = tmp_path / "settings" / preferences.NAME
    preferences.use(path)
    yield path
    preferences._known.pop(path)


def test_what_is_set_stays(file: Path) -> None:
    assert preferences.current() == Preferences()
    wanted = Preferences("/a", "/b", "/c", 3, 4 * 10**9, Sizes.BINARY.value, "http://127.0.0.1:1", True)
    assert preferences.change(wanted)
    assert preferences.current() == wanted
    assert load(file) == (wanted, "")
    assert [p.name for p in file.parent.iterdir()] == [preferences.NAME]


@pytest.mark.parametrize("text", ["", "{", "[]", "\0" * 300, '{"threads": 1', "null"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / preferences.NAME
    path.write_text(text)
    found, aside = load(path)
    assert found == Preferences()
    assert (tmp_path / aside).read_text() == text
    assert not path.exists()
    assert load(path) == (Preferences(), "")


def test_odd_values_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / preferences.NAME
    odd = {
        "models": 3, "results": "not/absolute", "scratch": "/a\0b", "threads": True, "memory": -1, "sizes": "ells",
        "endpoint": None, "offline": "yes", "unknown": 1,
    }  # fmt: skip
    path.write_text(json.dumps(odd))
    assert load(path) == (Preferences(), "")
    path.write_text(json.dumps({"threads": 10**9, "memory": 10, "endpoint": "x"}))
    assert load(path)[0] == Preferences(memory=10, endpoint="x")


def test_a_folder_without_rights_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    assert not save(Preferences(), tmp_path / "a-file" / preferences.NAME)
    assert load(tmp_path / "a-file" / preferences.NAME) == (Preferences(), "")


def test_each_is_heeded(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BITSMITH_THREADS", "BITSMITH_MODELS", "BITSMITH_SCRATCH", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    output = tmp_path / "out.gguf"
    assert scratch_path(output) == tmp_path / "out.gguf.calibrated"
    preferences.change(Preferences(models="/m", scratch="/s", threads=3, endpoint="http://127.0.0.1:9", offline=True))
    assert models_folder() == Path("/m")
    assert threads.worker_count() == 3
    waits = scratch_path(output)
    assert waits.parent == Path("/s")
    assert waits.name.startswith("out.gguf-")
    assert waits != scratch_path(tmp_path / "other" / "out.gguf")
    access = find_access(preferences.current().endpoint, preferences.current().offline)
    assert (access.endpoint, bool(access.offline)) == ("http://127.0.0.1:9", True)
    monkeypatch.setenv("BITSMITH_THREADS", "2")
    monkeypatch.setenv("BITSMITH_MODELS", "/n")
    monkeypatch.setenv("BITSMITH_SCRATCH", "/t")
    assert (threads.worker_count(), models_folder(), scratch_path(output).parent) == (2, Path("/n"), Path("/t"))


def test_commands_heed_the_hub_that_is_set(file: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    preferences.change(Preferences(offline=True))
    assert main(["download", "owner/name"]) == 1
    assert "offline mode is on in the settings" in capsys.readouterr().err


def test_results_go_where_they_shall(file: Path, tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target="Q8_0"))
        assert default_output(checkpoint, plan) == tmp_path / "tiny-Q8_0.gguf"
        preferences.change(Preferences(results=str(tmp_path / "results")))
        assert default_output(checkpoint, plan) == tmp_path / "results" / "tiny-Q8_0.gguf"


def test_a_run_stays_within_the_memory(file: Path, tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target="Q8_0"))
        assert plan.expected_memory <= 2 * 10**9  # the least that can be chosen in the window
        preferences.change(Preferences(memory=plan.expected_memory - 1))
        with pytest.raises(UserError, match="the settings allow") as caught:
            list(run(plan, checkpoint, tmp_path / "out.gguf", CancelToken()))
        assert caught.value.topic == "memory"
        assert [p.name for p in tmp_path.glob("out*")] == []
        preferences.change(Preferences(memory=plan.expected_memory))
        check_memory(plan.expected_memory)


@pytest.mark.parametrize(
    ("sizes", "long", "short"),
    [
        (Sizes.BOTH, "98.36 MB (93.80 MiB)", "98.36 MB"),
        (Sizes.DECIMAL, "98.36 MB", "98.36 MB"),
        (Sizes.BINARY, "93.80 MiB", "93.80 MiB"),
    ],
)
def test_sizes_in_the_units_that_are_wanted(file: Path, sizes: Sizes, long: str, short: str) -> None:
    preferences.change(Preferences(sizes=sizes.value))
    assert (units.format_bytes(98_359_296), units.format_decimal(98_359_296)) == (long, short)
    assert units.format_rate(3.35e12) == "3.35 TB/s"
