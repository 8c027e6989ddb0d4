"""What is odd about a calibration text is said before anything is run on it, and once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_llama

from core.cli import main

RUSSIAN = "\u0412\u0441\u0435 \u0441\u0435\u043c\u044c\u0438 \u043f\u043e\u0445\u043e\u0436\u0438. "
TEXT = ("--samples", "2", "--length", "64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("source") / "tiny", layers=1))


@pytest.fixture
def russian(tmp_path: Path) -> str:
    (tmp_path / "r.txt").write_text(RUSSIAN * 200, encoding="utf-8")
    return str(tmp_path / "r.txt")


@pytest.mark.parametrize("command", ["convert", "imatrix"])
def test_remarks_on_the_text_come_before_the_run_and_once(  # type: ignore[no-untyped-def]
    command: str, folder: str, russian: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    from core.methods import importance

    so_far: list[str] = []
    measure = importance.measured

    def seen(*arguments):  # type: ignore[no-untyped-def]
        so_far.append(capsys.readouterr().err)
        return measure(*arguments)

    monkeypatch.setattr(importance, "measured", seen)
    output = ("-o", str(tmp_path / "out.gguf"), "--calibration-text", russian, *TEXT)
    more = ("--to", "q4_0", "--method", "importance") if command == "convert" else ()
    assert main([command, folder, *output, *more]) == 0
    assert "% of the tokens are parts of letters that the model's vocabulary does not have" in so_far[0]
    assert "Cyrillic" in so_far[0]
    after = capsys.readouterr()
    assert "parts of letters" not in after.out + after.err


def test_json_has_the_remarks(folder: str, russian: str, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    words = ("imatrix", folder, "-o", str(tmp_path / "m.gguf"), "--calibration-text", russian, *TEXT, "--json")
    assert main(list(words)) == 0
    said = capsys.readouterr()
    assert any("Cyrillic" in note for note in json.loads(said.out)["notes"])
    assert "warning" not in said.err
