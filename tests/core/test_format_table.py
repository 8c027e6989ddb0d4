"""The README's table of formats is the one that the registry gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.catalog import base_of, family_rows
from core.cli import main
from core.format_table import BEGIN, END, format_table, in_readme

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_has_the_table_of_the_registry() -> None:
    there = in_readme(README.read_text(encoding="utf-8"))
    assert there == format_table(), "replace the README's table by what 'bitsmith formats --markdown' prints"


def test_every_row_has_its_bits_and_sources() -> None:
    lines = format_table().splitlines()[2:]
    assert len(lines) == len(family_rows())
    asymmetric = next(line for line in lines if line.startswith("| w4a16, asymmetric |"))
    assert "w4a16" in asymmetric.split("|")[5]
    for line, row in zip(lines, family_rows(), strict=True):
        least = min(base_of(t).contract.effective_bits for t in row.targets)
        assert f"| {least:.4g}" in line


def test_marks() -> None:
    assert in_readme("no table") == ""
    assert in_readme(f"a{BEGIN}table{END}b") == "table"


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats", "--markdown"]) == 0
    assert capsys.readouterr().out == format_table()
