"""Data that ships with the program, read as package resources so that any kind of installation works."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


def read_text(name: str) -> str:
    """A UTF-8 resource by its path below resources/, such as 'glossary.json'. Raises FileNotFoundError."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def read_json(name: str) -> Any:
    """A JSON resource, parsed. Raises FileNotFoundError."""
    return json.loads(read_text(name))


@cache
def glossary() -> dict[str, str]:
    """Every technical term that is shown → what it means, in 25 words at most. Callers do not change it."""
    terms: dict[str, str] = read_json("glossary.json")["terms"]
    return terms


@cache
def _by_casefold() -> dict[str, str]:
    return {term.casefold(): text for term, text in glossary().items()}


def meaning(term: str) -> str:
    """What the glossary says about a term, in any case; '' when it has no entry.

    A format of a hundred has no entry of its own: 'w4a16-g128-asym' means what 'w4a16-g128' or else 'w4a16' does.
    """
    known, word = _by_casefold(), term.casefold()
    while word not in known and "-" in word and any(c.isdigit() for c in term):
        word = word.rpartition("-")[0]
    return known.get(word, "")
