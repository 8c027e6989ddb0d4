"""Recipes of 2 and 3 bits: which groups, method and transforms lose least there, and how much that is all the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor

from core.calibration.settings import CalibrationText
from core.checkpoint.base import Checkpoint
from core.formats import find_format
from core.formats.coded import Coded
from core.methods.choice import Calibrated, DataMethod, Transform
from core.models.read_shape import model_shape
from core.recipe import Recipe
from core.targets import find_target

MOST_BITS = 3.5  # hqq packs ten codes of 3 bits into 32


@dataclass(frozen=True)
class FewBits:
    """name: what --recipe takes. title: of its card. loses: what was measured of it, in sentences (docs/quality.md).

    tied: what it is for a model whose head is its embedding, where that is something else: rotated, the two differ, and
    the file would get a head of its own in 16 bits, for which codes of one bit more are had.
    """

    name: str
    title: str
    recipe: Recipe
    loses: str
    tied: FewBits | None = None

    def suited(self, checkpoint: Checkpoint | None) -> FewBits:
        """For this model; None: it is not known yet."""
        shape = model_shape(checkpoint) if checkpoint is not None and self.tied is not None else None
        return self.tied if self.tied is not None and shape is not None and shape.tied else self


_ON = "Measured on SmolLM2-135M: KL {}, where 4 bits by GPTQ have 0.23 to 0.26."
FEW_BITS = (
    FewBits(
        "3-bit",
        "3 bits",
        Recipe("w3a16-g64-asym", calibrated=Calibrated(DataMethod.GPTQ, (Transform.ROTATION,))),
        "Answers become visibly worse. " + _ON.format("0.51 to 0.56"),
        FewBits(
            "3-bit",
            "3 bits",
            Recipe("w3a16-g64-asym", calibrated=Calibrated(DataMethod.GPTQ)),
            "Answers become visibly worse. " + _ON.format("0.56 to 0.76"),
        ),
    ),
    FewBits(
        "2-bit",
        "2 bits",
        Recipe("w2a16-g32-asym", calibrated=Calibrated(DataMethod.GPTQ)),
        "Breaks small models; try it on large ones only. " + _ON.format("1.35 to 1.74"),
    ),
)


def find(name: str) -> FewBits | None:
    """The recipe of that name."""
    return next((few for few in FEW_BITS if few.name == name), None)


def warning(recipe: Recipe) -> str:
    """What is said of a plan with integers of so few bits, in any folder and by any method; '' of other plans."""
    bits = _bits(recipe)
    if not bits or bits > MOST_BITS:
        return ""
    few = min((f for f in FEW_BITS if _bits(f.recipe) >= floor(bits)), key=lambda f: _bits(f.recipe))
    assert few.recipe.calibrated is not None
    for own in (few, *([few.tied] if few.tied is not None else [])):
        calibrated = recipe.calibrated
        if calibrated is not None and replace(calibrated, text=CalibrationText()) == own.recipe.calibrated:
            return own.loses
    return (
        f"{bits:g} bits lose much by any method. The recipe '{few.name}' loses least ({few.recipe.target}, "
        f"{few.recipe.calibrated.name}): {few.loses}"
    )


def _bits(recipe: Recipe) -> float:
    """Of a code; 0 where the target is no folder of codes."""
    target = find_target(recipe.target)
    form = find_format(target.base, target.container)
    return form.contract.bits if isinstance(form, Coded) else 0
