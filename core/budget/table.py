"""What was measured: for each unit and format the bytes and the predicted KL. JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

VERSION = 3  # of what is measured: another one is measured anew


@dataclass(frozen=True)
class Option:
    """One format for a unit. error: Σ(y − ŷ)² / Σy² of its outputs, where it alone is quantized. kl: nats a token of
    the final distributions against the source, predicted from that error and the unit's slope."""

    format: str
    bytes: int
    error: float
    kl: float


@dataclass(frozen=True)
class UnitSensitivity:
    """tensors: names in the output. slope: KL for each unit of error, measured. probe: the format it was measured with.
    options: the last is 'keep', 16 bits."""

    tensors: tuple[str, ...]
    layer: int | None
    values: int
    slope: float
    probe: str
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        return self.tensors[0]


@dataclass(frozen=True)
class Sensitivities:
    """A table for one checkpoint and output. recipe: JSON of the recipe without rules that points start from.

    other_bytes: of the output besides the units. tokens: that KL was measured on. cpu_seconds: that it took. notes:
    what came up while it was measured, which is not kept.
    """

    recipe: str
    units: tuple[UnitSensitivity, ...]
    other_bytes: int
    source_bytes: int
    tokens: int
    cpu_seconds: float
    version: int = VERSION
    notes: tuple[str, ...] = ()

    @property
    def smallest(self) -> int:
        """Bytes of the smallest output there is."""
        return self.other_bytes + sum(min(o.bytes for o in u.options) for u in self.units)

    @property
    def largest(self) -> int:
        """Bytes with 16 bits everywhere."""
        return self.other_bytes + sum(u.options[-1].bytes for u in self.units)

    def to_json(self) -> str:
        """`from_json` gives the same back."""
        return json.dumps(asdict(replace(self, notes=())))

    @staticmethod
    def from_json(text: str) -> Sensitivities:
        """Raises ValueError for anything else than what `to_json` of this version wrote."""
        data = json.loads(text)
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ValueError("another version")
        try:
            units = tuple(_unit(u) for u in data["units"])
            return Sensitivities(**{**data, "units": units, "notes": ()})
        except (KeyError, TypeError) as e:
            raise ValueError(f"not sensitivities: {e}") from None


def _unit(data: Mapping[str, Any]) -> UnitSensitivity:
    options = tuple(Option(**o) for o in data["options"])
    return UnitSensitivity(**{**data, "tensors": tuple(data["tensors"]), "options": options})
