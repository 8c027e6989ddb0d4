"""Resuming what is finished already."""

import pytest
from job_help import convert, digest
from tiny_models import write_llama

from core.cli import main
from core.errors import UserError


@pytest.mark.parametrize("target", ["Q4_K_M", "NVFP4", "w4a16-g64-asym", "w8a16-channel"])
def test_a_finished_run_is_said_to_be_finished(tmp_path, target, capsys):
    source = write_llama(tmp_path / "source", layers=1)
    convert(source, target, tmp_path / "out")
    before = digest(tmp_path / "out")
    _, result = convert(source, target, tmp_path / "out", resume=True)
    assert result.was_there
    assert result.predicted_bytes == result.actual_bytes
    assert main(["convert", str(source), "--to", target, "-o", str(tmp_path / "out"), "--resume"]) == 0
    assert "finished already" in capsys.readouterr().out
    assert digest(tmp_path / "out") == before


@pytest.mark.parametrize("target", ["Q8_0", "w4a16-g64"])
def test_what_another_run_made_is_not_taken_for_it(tmp_path, target):
    source, other = write_llama(tmp_path / "a", layers=1), write_llama(tmp_path / "b", layers=1, seed=1)
    convert(source, target, tmp_path / "out")
    for path, name in ((other, target), (source, "Q4_0" if target == "Q8_0" else "w8a16-g64")):
        with pytest.raises(UserError, match="exists already"):
            convert(path, name, tmp_path / "out", resume=True)
    with pytest.raises(UserError, match="exists already"):
        convert(source, target, tmp_path / "out")


def test_a_changed_side_file_is_noticed(tmp_path):
    source = write_llama(tmp_path / "a", layers=1)
    convert(source, "w4a16-g64", tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("b made-up model.\n", encoding="utf-8")
    with pytest.raises(UserError, match="exists already"):
        convert(source, "w4a16-g64", tmp_path / "out", resume=True)
