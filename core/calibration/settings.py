"""Which text calibrates, and how much of it. JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from core.errors import UserError

MAX_SAMPLES = 100_000
MAX_LENGTH = 1 << 20
_FIELDS = ("path", "domains", "samples", "length", "seed", "chat")


class Domain(Enum):
    """Parts of the bundled text, one file of resources/text each."""

    PROSE = "prose"
    ENCYCLOPAEDIC = "encyclopaedic"
    CODE = "code"
    CHAT = "chat"


@dataclass(frozen=True)
class CalibrationText:
    """path: a file or folder of the user's own; '' takes the bundled text.

    domains: of the bundled text; () takes all of them. samples: windows of `length` tokens each. seed: of the choice
    of passages and of their order. chat: wrap the text in the model's chat template.
    Raises UserError for a number out of range, and for domains beside a path.
    """

    path: str = ""
    domains: tuple[Domain, ...] = ()
    samples: int = 64
    length: int = 512
    seed: int = 0
    chat: bool = False

    def __post_init__(self) -> None:
        numbers: tuple[tuple[str, object, int, int], ...] = (
            ("samples", self.samples, 1, MAX_SAMPLES),
            ("length", self.length, 2, MAX_LENGTH),
            ("seed", self.seed, 0, (1 << 63) - 1),
        )
        for name, value, low, high in numbers:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise UserError(
                    f"The calibration's {name} is {value!r}.", f"Choose a whole number from {low} to {high}."
                )
        if self.path and self.domains:
            raise UserError(
                "The calibration names a text of your own and domains of the bundled one.", "Leave one of the two out."
            )

    @property
    def tokens(self) -> int:
        """How many tokens are asked for."""
        return self.samples * self.length

    def to_dict(self) -> dict[str, Any]:
        """All fields, of JSON's own types; `from_dict` gives the same settings back."""
        return {
            "path": self.path,
            "domains": [d.value for d in self.domains],
            "samples": self.samples,
            "length": self.length,
            "seed": self.seed,
            "chat": self.chat,
        }

    @staticmethod
    def from_dict(data: object) -> CalibrationText:
        """Fields that are left out have their defaults. Raises UserError for an unknown field or a wrong value."""
        if not isinstance(data, Mapping):
            raise UserError("The calibration is not a JSON object.", f"Its fields are {', '.join(_FIELDS)}.")
        if unknown := sorted(str(k) for k in set(data) - set(_FIELDS)):
            raise UserError(
                f"The calibration has an unknown field '{unknown[0]}'.", f"Known fields: {', '.join(_FIELDS)}."
            )
        default = CalibrationText()
        path, chat = data.get("path", ""), data.get("chat", False)
        if not isinstance(path, str):
            raise UserError(f"The calibration's path is {path!r}.", "Write a file's or a folder's path, in quotes.")
        if not isinstance(chat, bool):
            raise UserError(f"The calibration's chat is {chat!r}.", "Write true or false.")
        return CalibrationText(
            path=path,
            domains=_domains(data.get("domains", ())),
            samples=data.get("samples", default.samples),
            length=data.get("length", default.length),
            seed=data.get("seed", default.seed),
            chat=chat,
        )


def _domains(values: object) -> tuple[Domain, ...]:
    known = {d.value: d for d in Domain}
    if not isinstance(values, list | tuple):
        raise UserError(f"The calibration's domains are {values!r}.", f"Write a list of {', '.join(known)}.")
    for value in values:
        if not isinstance(value, str) or value not in known:
            raise UserError(f"There is no bundled text '{value}'.", f"Choose from {', '.join(known)}.")
    return tuple(d for name, d in known.items() if name in values)  # in one order, so that one choice has one JSON
