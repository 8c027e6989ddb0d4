"""What an output may never do to other files, and what becomes of it when the disk refuses."""

import os
import shutil

import numpy as np
import pytest
from checkpoint_files import write_folder, write_safetensors
from job_help import convert, digest, interrupt, names
from safetensors import safe_open
from tiny_models import write_llama

from core.errors import UserError
from core.export.layout import Layout, OutputFile, PlacedPart
from core.journal import journal_path, partial_path
from core.output import OutputFiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("source") / "tiny", layers=1)


@pytest.mark.parametrize("target", ["Q8_0", "w4a16-g64"])
def test_a_source_where_the_partial_output_goes_is_not_deleted(folder, tmp_path, target):
    source = tmp_path / "model.partial"
    shutil.copytree(folder, source)
    shutil.copytree(folder, source / "inside")
    before = digest(source)
    for opened in (source, source / "inside"):
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match="same"):
                convert(opened, target, tmp_path / "model", **options)
    assert digest(source) == before
    assert names(tmp_path) == ["model.partial"]


def test_a_source_where_the_journal_goes_is_not_cleared(folder, tmp_path):
    source = tmp_path / "out.partial.journal"
    shutil.copyfile(folder / "model.safetensors", source)
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    shutil.copyfile(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    before = source.read_bytes()
    with pytest.raises(UserError, match="same"):
        convert(source, "Q8_0", tmp_path / "out")
    assert source.read_bytes() == before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "README.md", "model.safetensors.index.json"])
def test_no_file_of_the_source_is_replaced(tmp_path, name):
    source = write_llama(tmp_path / "source", layers=2, shards=2)
    before = digest(source)
    with pytest.raises(UserError, match="same"):
        convert(source, "Q8_0", source / name, overwrite=True)
    assert digest(source) == before


def test_hard_and_symbolic_links_to_the_source(folder, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    before = digest(source)
    os.link(source / "model.safetensors", tmp_path / "hard.gguf")
    (tmp_path / "soft.gguf").symlink_to(source / "model.safetensors")
    for name in ("hard.gguf", "soft.gguf"):
        with pytest.raises(UserError, match="same"):
            convert(source, "Q8_0", tmp_path / name, overwrite=True)
    assert digest(source) == before


@pytest.mark.parametrize("target", ["Q8_0", "w4a16-g64"])
def test_a_partial_without_a_journal_belongs_to_someone_else(folder, tmp_path, target):
    theirs = tmp_path / "out.partial"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("precious")
    for resume in (False, True):
        with pytest.raises(UserError, match=r"out\.partial lies where"):
            convert(folder, target, tmp_path / "out", resume=resume)
    assert (theirs / "thesis.txt").read_text() == "precious"
    assert names(tmp_path) == ["out.partial"]


def test_places_that_can_not_become_an_output(folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    link = tmp_path / "link"
    link.symlink_to(empty)
    with pytest.raises(UserError, match="can not be replaced"):
        convert(folder, "w4a16-g64", link)
    with pytest.raises(UserError, match="no name"):
        convert(folder, "w4a16-g64", tmp_path.root)
    with pytest.raises(UserError, match="too long"):
        convert(folder, "Q8_0", tmp_path / ("x" * 250))
    with pytest.raises(UserError, match="too long"):
        convert(folder, "Q8_0", tmp_path / ("x" * 300))
    convert(folder, "w4a16-g64", empty)
    assert names(tmp_path) == ["empty", "link"]


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such files")
def test_only_files_are_replaced(folder, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="only files are replaced"):
        convert(folder, "Q8_0", pipe, overwrite=True)
    assert pipe.is_fifo()


@pytest.mark.parametrize("target", ["Q8_0", "w4a16-g64"])
def test_a_name_that_was_taken_during_the_run_is_left_alone(folder, tmp_path, target, monkeypatch):
    output = tmp_path / "out"
    real = OutputFiles.finish

    def finish(self, overwrite):
        if target == "Q8_0":
            output.write_bytes(b"precious")
        else:
            output.mkdir()
            (output / "precious").touch()
        real(self, overwrite)

    with monkeypatch.context() as patch:
        patch.setattr(OutputFiles, "finish", finish)
        with pytest.raises(UserError, match="exists by now"):
            convert(folder, target, output)
    if target == "Q8_0":
        assert output.read_bytes() == b"precious"
        output.unlink()
    else:
        assert names(output) == ["precious"]
        shutil.rmtree(output)
    convert(folder, target, output, resume=True)
    assert names(tmp_path) == ["out"]


def test_a_side_file_that_changes_or_goes_is_said_before_the_output_has_its_name(tmp_path, monkeypatch):
    source = write_llama(tmp_path / "source", layers=1)
    output = tmp_path / "out"
    real = OutputFiles.finish
    readme = source / "README.md"

    def grow(self, overwrite):
        readme.write_text("longer than before, by far\n")
        real(self, overwrite)

    def remove(self, overwrite):
        readme.unlink()
        real(self, overwrite)

    for change, says in ((grow, "were planned"), (remove, r"README\.md is not there")):
        with monkeypatch.context() as patch:
            patch.setattr(OutputFiles, "finish", change)
            with pytest.raises(UserError, match=says):
                convert(source, "w4a16-g64", output, resume=True)
        assert not output.exists()
    convert(source, "w4a16-g64", output, resume=True)  # the README of the earlier attempt must not stay
    convert(source, "w4a16-g64", tmp_path / "whole")
    assert digest(output) == digest(tmp_path / "whole")


def test_gaps_are_what_no_header_and_no_part_covers():
    parts = (
        PlacedPart(0, 0, 0, 32, 40),
        PlacedPart(1, 0, 0, 96, 0),  # an array without values lies where the next one starts
        PlacedPart(2, 0, 0, 96, 32),
        PlacedPart(3, 0, 1, 8, 8),
    )
    layout = Layout((OutputFile("a", bytes(20), 160), OutputFile("b", bytes(8), 16)), parts)
    assert list(layout.gaps(0)) == [(20, 12), (72, 24), (128, 32)]
    assert list(layout.gaps(1)) == []


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.norm.weight": (0,), "model.layers.0.mlp.down_proj.weight": (32, 64)},
        {"model.layers.0.mlp.down_proj.weight": (0, 64), "model.norm.weight": (64,)},
        {"model.layers.0.mlp.down_proj.weight": (64, 0), "scale": ()},
    ],
)
def test_tensors_without_values_or_axes(tmp_path, tensors):
    arrays = {name: np.full(shape, 0.5, np.float32) for name, shape in tensors.items()}
    source = write_folder(tmp_path / "source", {})
    write_safetensors(source / "model.safetensors", arrays)
    _, result = convert(source, "w4a16-g32", tmp_path / "out")
    assert len(result.tensors) == len(arrays)
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as kept:
        for name in set(arrays) & set(kept.keys()):
            assert kept.get_tensor(name).shape == arrays[name].shape
            assert (kept.get_tensor(name) == arrays[name]).all()
    interrupt(source, "w4a16-g32", tmp_path / "two", 1)
    convert(source, "w4a16-g32", tmp_path / "two", resume=True)
    assert digest(tmp_path / "two") == digest(tmp_path / "out")
    assert not partial_path(tmp_path / "two").exists()
    assert not journal_path(tmp_path / "two").exists()
