"""What a recipe says of methods that take data: which, on which text, with which settings. JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from core.calibration.settings import CalibrationText
from core.errors import UserError


class DataMethod(Enum):
    """How the numbers inside an artifact are chosen from what the weights' inputs look like.

    NONE: as without data. CLIPPING: for each group the range whose output error is smallest. IMPORTANCE: a search whose
    squared errors are weighed by each input channel's mean square. GPTQ: column by column, each later column making up
    for the errors before it. LEARNED: rounding and scales learned on the outputs of a block.
    """

    NONE = "none"
    CLIPPING = "clipping"
    IMPORTANCE = "importance"
    GPTQ = "gptq"
    LEARNED = "learned"


class Transform(Enum):
    """Changes of weights after which the model computes the same, in the order in which they are applied."""

    ROTATION = "rotation"
    SMOOTHQUANT = "smoothquant"
    AWQ = "awq"

    @property
    def label(self) -> str:
        """What a person calls it."""
        return _NAMES[self]


Choice = TypeVar("Choice", bound=Enum)
_FIELDS = ("method", "transforms", "text", "alpha", "imatrix", "aim", "online")


@dataclass(frozen=True)
class Calibrated:
    """alpha: SmoothQuant's, 0 … 1; None: searched for each input. imatrix: a file of llama.cpp's that has the
    importance already, so that no text is needed; '' measures it. aim: GPTQ makes up for what the quantized blocks
    before have lost, too, which takes a second pass of the unchanged model. online: rotation goes on while the model
    runs, for what comes into its down projections."""

    method: DataMethod = DataMethod.GPTQ
    transforms: tuple[Transform, ...] = ()
    text: CalibrationText = field(default_factory=CalibrationText)
    alpha: float | None = None
    imatrix: str = ""
    aim: bool = False
    online: bool = False

    def __post_init__(self) -> None:
        if self.method is DataMethod.NONE and not self.transforms:
            raise UserError(
                "The calibration names neither a method nor a transform.",
                "Choose one of both, or leave the calibration out.",
            )
        ordered = tuple(t for t in Transform if t in self.transforms)
        if ordered != self.transforms:  # in one order, so that one choice has one JSON
            object.__setattr__(self, "transforms", ordered)
        alpha: object = self.alpha
        if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1):
            raise UserError(f"SmoothQuant's alpha is {alpha!r}.", "Choose a number from 0 to 1, or leave it out.")
        if self.aim and self.method is not DataMethod.GPTQ:
            raise UserError("Only GPTQ aims at the unchanged model.", "Choose the method gptq, or leave 'aim' out.")
        if self.online and Transform.ROTATION not in self.transforms:
            raise UserError(
                "A rotation while the model runs is asked for, without the rotation of its weights.",
                "Add the transform rotation, or leave 'online' out.",
            )
        if self.imatrix and self.method is not DataMethod.IMPORTANCE:
            raise UserError(
                "An importance matrix serves the method 'importance' only.",
                "Choose that method, or leave the file out.",
            )
        if self.imatrix and self.transforms:
            raise UserError(
                "An importance matrix of the unchanged model does not hold after a transform, as inputs change.",
                "Leave the file out, and the importance is measured after the transform; or leave out the transform.",
            )

    @property
    def name(self) -> str:
        """'AWQ + GPTQ': what a person calls it."""
        words = [_NAMES[t] for t in self.transforms]
        if self.online:
            words[0] = f"online {words[0]}"  # rotation is the first
        if self.method is not DataMethod.NONE:
            words.append(_NAMES[self.method])
        return " + ".join(words)

    @property
    def chooser(self) -> DataMethod:
        """What chooses codes: AWQ brings its clipping along where nothing else is named."""
        alone = self.method is DataMethod.NONE and Transform.AWQ in self.transforms
        return DataMethod.CLIPPING if alone else self.method

    @property
    def changes_weights(self) -> bool:
        """Whether weights that are not quantized may differ from the source's, too."""
        return bool(self.transforms) or self.method is DataMethod.LEARNED

    @property
    def needs_blocks(self) -> bool:
        """Whether blocks are run and changed one by one; importance alone only needs to be measured."""
        return bool(self.transforms) or self.method not in (DataMethod.NONE, DataMethod.IMPORTANCE)

    def to_dict(self) -> dict[str, Any]:
        """Of JSON's own types; `from_dict` gives the same back. Without a rotation online there is no such key, which
        readers before it did not know."""
        return {
            "method": self.method.value,
            "transforms": [t.value for t in self.transforms],
            "text": self.text.to_dict(),
            "alpha": self.alpha,
            "imatrix": self.imatrix,
            "aim": self.aim,
            **({"online": True} if self.online else {}),
        }

    @staticmethod
    def from_dict(data: object) -> Calibrated:
        """Fields that are left out have their defaults. Raises UserError for an unknown field or a wrong value."""
        if not isinstance(data, Mapping):
            raise UserError("The calibration is not a JSON object.", f"Its fields are {', '.join(_FIELDS)}.")
        if unknown := sorted(str(k) for k in set(data) - set(_FIELDS)):
            raise UserError(
                f"The calibration has an unknown field '{unknown[0]}'.", f"Known fields: {', '.join(_FIELDS)}."
            )
        default = Calibrated()
        aim, online = data.get("aim", False), data.get("online", False)
        for what, value in (("aim", aim), ("online", online)):
            if not isinstance(value, bool):
                raise UserError(f"The calibration's {what} is {value!r}.", "Write true or false.")
        imatrix, names = data.get("imatrix", ""), data.get("transforms", ())
        if not isinstance(imatrix, str):
            raise UserError(f"The calibration's imatrix is {imatrix!r}.", "Write a file's path, in quotes.")
        if not isinstance(names, list | tuple):
            raise UserError(f"The calibration's transforms are {names!r}.", "Write a list.")
        return Calibrated(
            method=_one(DataMethod, data.get("method", default.method.value), "method"),
            transforms=tuple(_one(Transform, name, "transform") for name in names),
            text=CalibrationText.from_dict(data.get("text", {})),
            alpha=data.get("alpha"),
            imatrix=imatrix,
            aim=aim,
            online=online,
        )


_NAMES: dict[Enum, str] = {
    DataMethod.CLIPPING: "clipping",
    DataMethod.IMPORTANCE: "importance",
    DataMethod.GPTQ: "GPTQ",
    DataMethod.LEARNED: "learned rounding",
    Transform.ROTATION: "rotation",
    Transform.SMOOTHQUANT: "SmoothQuant",
    Transform.AWQ: "AWQ",
}


def _one(kind: type[Choice], value: object, what: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(k.value) for k in kind)
        raise UserError(f"There is no {what} '{value}'.", f"Choose from {names}.") from None
