"""What --help and the README tell a newcomer to type is what the program understands."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from core import cli
from core.cli_help import EXAMPLES, FIRST_STEPS

ROOT = Path(__file__).resolve().parents[2]
PARSER = cli._parser()
README = (ROOT / "README.md").read_text(encoding="utf-8")
IN_README = re.findall(r"^    (bitsmith .+)$", README, re.MULTILINE)


@pytest.mark.parametrize("line", [line for part in (FIRST_STEPS, *EXAMPLES.values()) for _, line in part])
def test_examples_are_understood(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "bitsmith"
    assert PARSER.parse_args(words[1:]).command in PARSER.commands


@pytest.mark.parametrize("line", IN_README)
def test_commands_of_the_readme_are_understood(line: str) -> None:
    for words in [shlex.split(line, comments=True)]:
        if "|" in words:  # 'bitsmith formats | devices | check': each of them
            assert {w for w in words[1:] if w != "|"} <= set(PARSER.commands)
        else:
            assert PARSER.parse_args(words[1:]).command == words[1]


def test_the_readme_has_commands() -> None:
    assert len(IN_README) > 12


@pytest.mark.parametrize("name", sorted(PARSER.commands))
def test_everything_that_can_be_given_is_explained(name: str) -> None:
    for action in PARSER.commands[name]._actions:
        assert action.help, f"{name}: {action.option_strings or action.metavar}"


def test_help_names_the_first_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        PARSER.parse_args(["--help"])
    assert "bitsmith convert MODEL --to Q4_K_M -o out.gguf" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        PARSER.parse_args(["convert", "--help"])
    shown = capsys.readouterr().out
    assert "how the numbers are chosen:" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert isinstance(PARSER.commands["convert"], argparse.ArgumentParser)
