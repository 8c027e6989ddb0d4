"""What the user wants: a target, a method, and which tensors are treated differently. JSON in and out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from core.errors import UserError
from core.formats import Method
from core.methods.choice import Calibrated
from core.patterns import why_slow

SCHEMA_VERSION = 1
CACHES = ("", "fp8")  # a key-value cache in 16 bits, and in 8-bit floats with scales from the file


class Misfit(Enum):
    """What becomes of a tensor whose rows the chosen format's blocks do not divide. Chosen before the run."""

    SMALLER = "smaller-block"  # the next format with a smaller block or group
    KEEP = "keep-16-bit"
    STOP = "stop"


class KeepGroup(Enum):
    """Groups of tensors that can be kept in 16 bits with one switch."""

    EMBEDDING = "embedding"
    HEAD = "head"
    ROUTER = "router"
    ATTENTION = "attention"
    FFN_DOWN = "ffn-down"


@dataclass(frozen=True)
class Rule:
    """Tensors whose name `pattern` finds (a regular expression, `re.search`) get `format`; 'keep' keeps 16 bits.

    reason: one clause on why, which the plan then gives for these tensors; '' when nobody said.
    """

    pattern: str
    format: str
    reason: str = ""

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as e:
            raise UserError(
                f"'{self.pattern}' is not a valid pattern: {e}.",
                "Write a regular expression such as 'blk\\.0\\.' or 'down_proj'.",
            ) from None
        if why := why_slow(self.pattern):
            raise UserError(
                f"'{self.pattern}' could take forever: {why}.", "Write it with fewer repeats; several rules also do."
            )

    def matches(self, *names: str) -> bool:
        return any(re.search(self.pattern, n) for n in names)

    @property
    def why(self) -> str:
        """What the plan says of the tensors that this rule decides."""
        return self.reason or f"your rule '{self.pattern}'"

    def to_dict(self) -> dict[str, str]:
        """As it stands in a recipe; without a reason there is no such key, which readers before it did not know."""
        plain = {"pattern": self.pattern, "format": self.format}
        return plain | {"reason": self.reason} if self.reason else plain


KEEP = "keep"


@dataclass(frozen=True)
class Recipe:
    """target: a name of `core.targets` ('Q4_K_M', 'w4a16-g128'). rules: the first that matches decides.

    keep: groups kept in 16 bits. keep_first, keep_last: decoder layers kept in 16 bits at either end.
    cache: 'fp8' where scales of a key-value cache in 8-bit floats go along, else ''.
    calibrated: what is chosen from data; `method` then serves the tensors for which that has nothing to say.
    """

    target: str = "Q4_K_M"
    method: Method = Method.SEARCH
    rules: tuple[Rule, ...] = ()
    keep: frozenset[KeepGroup] = frozenset()
    keep_first: int = 0
    keep_last: int = 0
    misfit: Misfit = Misfit.SMALLER
    calibrated: Calibrated | None = None
    cache: str = ""

    @property
    def online(self) -> bool:
        """Whether something is rotated while the model runs."""
        return self.calibrated is not None and self.calibrated.online

    def to_json(self) -> str:
        """One JSON object with its schema version; `from_json` gives the same recipe back.

        Without calibration, or without a cache in 8 bits, there is no such key, which readers before it did not know.
        """
        calibrated = {} if self.calibrated is None else {"calibrated": self.calibrated.to_dict()}
        return json.dumps(
            {
                "schema": SCHEMA_VERSION,
                "target": self.target,
                "method": self.method.value,
                "rules": [r.to_dict() for r in self.rules],
                "keep": sorted(k.value for k in self.keep),
                "keep_first": self.keep_first,
                "keep_last": self.keep_last,
                "misfit": self.misfit.value,
                **calibrated,
                **({"cache": self.cache} if self.cache else {}),
            },
            indent=2,
        )

    @staticmethod
    def from_json(text: str) -> Recipe:
        """Raises UserError for text that is no recipe, an unknown field, or a newer schema."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise UserError("This recipe is not valid JSON.", "Save it again from the Recipe page.") from None
        if not isinstance(data, Mapping):
            raise UserError("This recipe is not a JSON object.", "Save it again from the Recipe page.")
        return _parse(data)

    def with_rule(self, rule: Rule) -> Recipe:
        return replace(self, rules=(*self.rules, rule))


def _parse(data: Mapping[str, Any]) -> Recipe:
    version = data.get("schema")
    if version is None:
        raise UserError("This file is no recipe.", "Choose one that was saved here, with a field 'schema'.")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        hint = "Update Bitsmith." if isinstance(version, int) and version > SCHEMA_VERSION else "Save it again."
        raise UserError(f"This recipe has schema {version!r}; this program reads {SCHEMA_VERSION}.", hint)
    known = {"schema", "target", "method", "rules", "keep", "keep_first", "keep_last", "misfit", "calibrated", "cache"}
    if unknown := sorted(set(data) - known):
        raise UserError(
            f"This recipe has an unknown field '{unknown[0]}'.", f"Known fields: {', '.join(sorted(known))}."
        )
    try:
        recipe = Recipe(
            target=_typed(data.get("target", ""), str),
            method=Method(data.get("method", Method.SEARCH.value)),
            rules=tuple(_rule(r) for r in data.get("rules", ())),
            keep=frozenset(KeepGroup(k) for k in data.get("keep", ())),
            keep_first=_count(data.get("keep_first", 0)),
            keep_last=_count(data.get("keep_last", 0)),
            misfit=Misfit(data.get("misfit", Misfit.SMALLER.value)),
            calibrated=Calibrated.from_dict(data["calibrated"]) if data.get("calibrated") is not None else None,
            cache=_cache(data.get("cache", "")),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise UserError(f"This recipe has a wrong value: {e}.", "Save it again from the Recipe page.") from None
    return recipe


def _rule(data: Mapping[str, Any]) -> Rule:
    return Rule(*(_typed(value, str) for value in (data["pattern"], data["format"], data.get("reason", ""))))


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} should be a {kind.__name__}")
    return value


def _cache(value: Any) -> str:
    if value not in CACHES:
        raise ValueError(f"{value!r} is no type of a cache; there is 'fp8'")
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} should be a whole number, 0 or more")
    return int(value)
