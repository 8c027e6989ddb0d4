"""A conversion goes on after a stop at any moment, and never trusts what is damaged."""

import os
from dataclasses import replace

import numpy as np
import pytest
from job_help import convert, digest, drive, interrupt, names
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.journal import Entry, Journal, WrittenBlock, has_begun, journal_path, partial_path, read
from core.output import OutputFiles
from core.parts import Run
from core.plan import make_plan
from core.progress import CancelToken, ErrorStats
from core.recipe import Recipe
from core.run import job_id, run, unfinished

ENTRIES = [
    Entry(3, (WrittenBlock(0, 64, 10, 77), WrittenBlock(1, 0, 5, 78)), None),
    Entry(1, (WrittenBlock(0, 0, 64, 79),), ErrorStats(4, float("inf"), 0.0, 0.5, 1, (-1.0, 0.0, 1.0), (2, 2))),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("source") / "tiny", layers=2)


@pytest.fixture(scope="module", params=["Q8_0", "w4a16-g64-asym"])
def case(request, folder, tmp_path_factory):
    """Target, and the digest of an uninterrupted conversion to it."""
    whole = tmp_path_factory.mktemp("whole") / "out"
    convert(folder, request.param, whole)
    return request.param, digest(whole)


def written(path, entries=ENTRIES):
    journal = Journal(path)
    journal.begin("job")
    journal.append(entries)
    journal.close()
    return path.read_bytes()


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "j"
    written(path)
    assert read(path, "job") == ENTRIES
    assert read(path, "other") is None
    assert read(tmp_path / "none", "job") is None


def test_any_cut_or_changed_byte_costs_only_what_follows(tmp_path):
    path = tmp_path / "j"
    raw = written(path)
    ends = [i for i, byte in enumerate(raw) if byte == 10]
    for cut in range(len(raw)):
        path.write_bytes(raw[:cut])
        whole = sum(end < cut for end in ends)
        assert read(path, "job") == (ENTRIES[: whole - 1] if whole else None)
        assert has_begun(path) == (whole > 0)
    for place in range(0, len(raw), 7):
        damaged = bytearray(raw)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        line = sum(end < place for end in ends)
        assert read(path, "job") == (ENTRIES[: line - 1] if line else None)


def test_a_forgotten_tensor_is_unfinished_until_it_is_written_again(tmp_path):
    path = tmp_path / "j"
    written(path)
    journal = Journal(path)
    journal.forget([3])
    assert read(path, "job") == ENTRIES[1:]
    again = replace(ENTRIES[0], blocks=())
    journal.append([again])
    journal.close()
    assert read(path, "job") == [ENTRIES[1], again]


def test_going_on_cuts_off_a_torn_line(tmp_path):
    path = tmp_path / "j"
    raw = written(path)
    path.write_bytes(raw[:-3])
    journal = Journal(path)
    journal.go_on()
    journal.append(ENTRIES[1:])
    journal.close()
    assert path.read_bytes() == raw


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "j"
    raw = written(path)
    journal = Journal(path)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(ENTRIES)
    journal.close()
    assert path.read_bytes() == raw


@pytest.mark.skipif(os.name != "posix", reason="Windows keeps an open file at its place")
def test_a_lock_on_a_file_that_was_removed_is_worth_nothing(tmp_path, monkeypatch):
    path = tmp_path / "j"
    taken = []

    def finish_first(fd, position):
        if not taken:
            taken.append(position)
            path.unlink()
        return True

    monkeypatch.setattr("core.disk.lock", finish_first)
    journal = Journal(path)
    journal.begin("job")
    assert read(path, "job") == []
    journal.close()


STOPS = ["begin", "discard", "open files", "name", "remove journal"]


@pytest.mark.parametrize("stop", STOPS)
def test_stopped_between_any_two_steps(case, folder, tmp_path, monkeypatch, stop):
    target, right = case
    output = tmp_path / "out"

    def die(*_args, **_options):
        raise KeyboardInterrupt

    places = {
        "begin": ("core.journal.Journal._write", die),
        "discard": ("core.run.discard", die),
        "open files": ("core.output.OutputFiles.__init__", die),
        "name": ("core.output.OutputFiles.finish", die),
        "remove journal": ("core.journal.Journal.close", lambda self, done=False: self._file.close()),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*places[stop])
        if stop == "remove journal":
            convert(folder, target, output)
            assert journal_path(output).exists()
        else:
            with pytest.raises(KeyboardInterrupt):
                convert(folder, target, output)
            assert not output.exists()
    _, result = convert(folder, target, output, resume=True)
    assert digest(output) == right
    assert names(tmp_path) == ["out"]
    with open_checkpoint(folder) as checkpoint:
        assert [t.name for t in result.tensors] == [t.name for t in make_plan(checkpoint, Recipe(target)).tensors]


def test_a_resumed_run_that_is_killed_at_once_loses_nothing(case, folder, tmp_path, monkeypatch):
    target, right = case
    output = tmp_path / "out"
    interrupt(folder, target, output, 9)
    before = journal_path(output).read_bytes()
    for place in ("core.journal.Journal.go_on", "core.output.OutputFiles.__init__"):
        with monkeypatch.context() as patch:
            patch.setattr(place, lambda *_args, **_options: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                convert(folder, target, output, resume=True)
        assert journal_path(output).read_bytes() == before
    seen, _ = convert(folder, target, output, resume=True)
    assert digest(output) == right
    assert seen[0].bytes_done > 0


def test_an_altered_tensor_is_found_and_only_it_is_written_again(case, folder, tmp_path):
    target, right = case
    output = tmp_path / "out"
    interrupt(folder, target, output, 12)
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
        entries = read(journal_path(output), job_id(plan))
        victim = entries[2]
        block = victim.blocks[0]
        partial = partial_path(output)
        file = partial / plan.layout.files[block.file].name if plan.layout.folder else partial
        with file.open("r+b") as f:
            f.seek(block.offset)
            f.write(b"\xff\x00\xff")
        with pytest.raises(UserError, match="reads back differently") as e:
            drive(run(plan, checkpoint, output, CancelToken(), resume=True))
        assert f"'{plan.tensors[victim.tensor].name}'" in e.value.message
        assert "Resume" in e.value.hint
        assert not output.exists()
        seen, _ = drive(run(plan, checkpoint, output, CancelToken(), resume=True))
    assert {p.tensor for p in seen if p.phase == "writing"} == {plan.tensors[victim.tensor].name}
    assert digest(output) == right


def test_altered_header_and_padding_are_mended_by_resuming(folder, tmp_path):
    output = tmp_path / "out"
    convert(folder, "Q8_0", tmp_path / "whole")
    interrupt(folder, "Q8_0", output, 9)
    with open_checkpoint(folder) as checkpoint:
        layout = make_plan(checkpoint, Recipe("Q8_0", rules=())).layout
    with partial_path(output).open("r+b") as f:
        f.write(b"ruin")
    convert(folder, "Q8_0", output, resume=True)
    assert digest(output) == digest(tmp_path / "whole")
    files = OutputFiles(tmp_path / "other", layout, keep=False)
    assert files.plain_bytes_intact()
    files.write(0, Run(8, 1), np.array([1], np.uint8))
    assert not files.plain_bytes_intact()
    files.close()


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_partial_that_is_not_whole_starts_anew(case, folder, tmp_path, damage):
    target, right = case
    output = tmp_path / "out"
    interrupt(folder, target, output, 9)
    partial = partial_path(output)
    file = partial / "model.safetensors" if partial.is_dir() else partial
    if damage == "truncate":
        os.truncate(file, 100)
    else:
        file.unlink()
    convert(folder, target, output, resume=True)
    assert digest(output) == right


@pytest.mark.parametrize(
    "text", [b"", b'{"version": 99', b'0badc0de {"version": 99, "job": "x"}\n', b"\x00" * 300 + b"\n"]
)
def test_a_journal_that_says_nothing_of_this_job(folder, tmp_path, text):
    output = tmp_path / "out"
    interrupt(folder, "Q8_0", output, 9)
    journal_path(output).write_bytes(text)
    with open_checkpoint(folder) as checkpoint:
        assert not unfinished(output, make_plan(checkpoint, Recipe("Q8_0")))
    if b"\n" in text:  # it may be another's
        with pytest.raises(UserError, match="another source, recipe or version"):
            convert(folder, "Q8_0", output, resume=True)
        convert(folder, "Q8_0", output)
    else:
        convert(folder, "Q8_0", output, resume=True)
    assert names(tmp_path) == ["out"]


def test_a_stale_journal_alone_does_no_harm(case, folder, tmp_path):
    target, right = case
    output = tmp_path / "out"
    interrupt(folder, target, output, 9)
    journal = journal_path(output).read_bytes()
    convert(folder, target, output, resume=True)
    journal_path(output).write_bytes(journal)  # of few tensors: not what a finished run leaves
    with pytest.raises(UserError, match="exists already"):
        convert(folder, target, output, resume=True)
    assert digest(output) == right
