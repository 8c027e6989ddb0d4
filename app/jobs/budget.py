"""Mixed formats by size, in the background: what measuring takes, the measurement, and the curve with what fits."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.jobs.runner import Work
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod
from core.progress import CancelToken
from core.targets import Target, find_target

if TYPE_CHECKING:
    from core.budget.recipes import Point
    from core.budget.sensitivity import SensitivityProgress
    from core.budget.table import Sensitivities
    from core.budget.wish import Wish
    from core.checkpoint.base import Checkpoint
    from core.recipe import Recipe

OUTLOOK_KEY = "budget-outlook"
MEASURE_KEY = "budget-measure"
CURVE_KEY = "budget-curve"


@dataclass(frozen=True)
class Outlook:
    """What measuring would take: seconds and bytes. problem: why it can not be done, '' when it can; hint: what to do
    then. known: what has been measured before."""

    wish: Wish | None = None
    seconds: float = 0.0
    memory: int = 0
    problem: str = ""
    hint: str = ""
    known: Sensitivities | None = None


@dataclass(frozen=True)
class Room:
    """Where the result shall run. capacity: bytes of the device; context: tokens; batch: sequences."""

    device: str
    capacity: int
    context: int
    batch: int


@dataclass(frozen=True)
class SizeCurve:
    """points: by rising size, `fit` among them. limit: bytes that the device leaves for the file, None where that is
    not known. fit: the best point within it; else problem says why there is none.

    units: weights that are chosen for; values: of all of them; other_bytes: of the file besides them; tokens: that were
    measured on. notes: what came up.
    """

    points: tuple[Point, ...]
    own: tuple[Point, ...]
    units: int
    values: int
    other_bytes: int
    tokens: int
    limit: int | None = None
    fit: Point | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()

    def bits(self, point: Point) -> float:
        """Bits for each of the weights that are chosen for."""
        return 8 * (point.bytes - self.other_bytes) / self.values


def importance_for(recipe: Recipe) -> Calibrated:
    """The importance that is measured with: the recipe's own, or by its text."""
    chosen = recipe.calibrated
    if chosen is None:
        return Calibrated(DataMethod.IMPORTANCE)
    if chosen.method is DataMethod.IMPORTANCE and not chosen.transforms:
        return chosen
    return Calibrated(DataMethod.IMPORTANCE, text=chosen.text)


def outlook_work(checkpoint: Checkpoint, recipe: Recipe) -> Work:
    """What measuring for the recipe's kind of output takes, or why it can not be. The result is an Outlook."""

    def work(token: CancelToken) -> Outlook:
        from core.budget.sensitivity import cost, known
        from core.budget.wish import Wish

        token.check()
        try:
            wish = Wish(_container(find_target(recipe.target)), calibrated=importance_for(recipe))
            taken = cost(checkpoint, wish)
            token.check()
            return Outlook(wish, taken.seconds, taken.memory, known=known(checkpoint, wish))
        except UserError as error:
            return Outlook(problem=error.message, hint=error.hint)

    return work


def _container(target: Target) -> str:
    """The name under which `core.budget` knows this kind of output. Raises UserError."""
    from core.budget.wish import CONTAINERS

    for name, (usual, _) in CONTAINERS.items():
        other = find_target(usual)
        if (other.container, other.ecosystem) == (target.container, target.ecosystem):
            return name
    raise UserError(
        f"Formats can not be mixed by size in an output such as {target.name}.",
        f"Choose a target of another kind under Formats: {', '.join(CONTAINERS)}.",
    )


def measure_work(checkpoint: Checkpoint, wish: Wish) -> Work:
    """Yields SensitivityProgress. The result is a Sensitivities; raises UserError."""

    def work(token: CancelToken) -> Generator[SensitivityProgress, None, Sensitivities]:
        from core.budget.sensitivity import sensitivities

        found = yield from sensitivities(checkpoint, wish, token)
        return found

    return work


def curve_work(checkpoint: Checkpoint, found: Sensitivities, room: Room | None, points: tuple[Point, ...] = ()) -> Work:
    """The curve, and the best that fits. points: those that are known already. The result is a SizeCurve."""

    def work(token: CancelToken) -> SizeCurve:
        from core.budget.device import budget_of
        from core.budget.recipes import best, curve

        token.check()
        own = points or curve(found)
        token.check()
        limit, fit, problem = None, None, ""
        if room is None:
            problem = "Choose a device in the bar below to see what fits."
        else:
            try:
                limit = budget_of(checkpoint, room.capacity, room.context, room.batch)
                fit = own[-1] if limit >= found.largest else best(found, limit, checkpoint)
            except UserError as error:
                problem = f"{error.message} {error.hint}"
        shown = own
        if fit is not None and fit not in own:
            # Of a folder the curve's bytes are not exact: one of the same mix gives way to what fits.
            others = [p for p in own if p.recipe != fit.recipe and p.bytes != fit.bytes]
            shown = tuple(sorted((*others, fit), key=lambda p: p.bytes))
        values = sum(u.values for u in found.units)
        size = len(found.units), values, found.other_bytes
        return SizeCurve(shown, own, *size, found.tokens, limit, fit, problem, found.notes)

    return work
