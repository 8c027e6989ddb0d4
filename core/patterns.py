"""Whether a user's regular expression can take forever.

Python's `re` tries every way to share a text among repeats, and holds the interpreter meanwhile: nothing could stop it.
"""

from __future__ import annotations

import re
from typing import Any

MOST_REPEATS = 4  # without an upper end, one after another: a name of 64 letters then takes milliseconds


def why_slow(pattern: str) -> str:
    """One clause that says why a valid pattern may take forever; '' when it does not."""
    parser: Any = getattr(re, "_parser", None)  # what `re` itself parses with
    if parser is None:
        return ""
    parsed = parser.parse(pattern)
    if _nested(parsed, False):
        return "a part that repeats has a repeat or an alternative inside"
    if _endless(parsed) > MOST_REPEATS:
        return f"it has more than {MOST_REPEATS} repeats without an upper end"
    return ""


def _nested(items: Any, repeated: bool) -> bool:
    for operator, argument in items:
        name = str(operator)
        if name == "BRANCH" and repeated:
            return True
        if name.endswith("_REPEAT"):
            low, high, body = argument
            if (repeated and low != high) or _nested(body, repeated or high > 1):
                return True
        elif any(_nested(body, repeated) for body in _bodies(name, argument)):
            return True
    return False


def _endless(items: Any) -> int:
    found = 0
    for operator, argument in items:
        name = str(operator)
        if name.endswith("_REPEAT"):
            found += argument[1] >= 16
            found += _endless(argument[2])
        else:
            found += sum(_endless(body) for body in _bodies(name, argument))
    return found


def _bodies(name: str, argument: Any) -> list[Any]:
    """What is inside a group, an alternative or a look-around."""
    if name == "SUBPATTERN":
        return [argument[-1]]
    if name == "BRANCH":
        return list(argument[1])
    if name in ("ASSERT", "ASSERT_NOT"):
        return [argument[1]]
    if name == "ATOMIC_GROUP":
        return [argument]
    if name == "GROUPREF_EXISTS":
        return [body for body in argument[1:] if body is not None]
    return []
