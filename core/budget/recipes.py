"""Points of the quality–size curve as recipes, and the best one for a budget."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from core.budget.frontier import Frontier, frontier
from core.budget.table import Option, Sensitivities, UnitSensitivity
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.plan import make_plan
from core.recipe import KEEP, Recipe, Rule
from core.units import format_bytes

CURVE_POINTS = 64
_ROUNDS = 8  # in which a folder's header, which names what is mixed, is brought under the budget
_EXPERTS = re.compile(r"(\\\.experts\\\.)\d+(?=\\\.)")


@dataclass(frozen=True)
class Point:
    """bytes: of the output, all files of a folder; exact for GGUF, and for `best`. kl: predicted, nats a token.

    formats: of each unit, in the order of the table. recipe: what `make_plan` takes.
    """

    bytes: int
    kl: float
    formats: tuple[str, ...]
    recipe: Recipe


def curve(found: Sensitivities, points: int = CURVE_POINTS) -> tuple[Point, ...]:
    """Points from the smallest output there is to 16 bits everywhere, about evenly over bytes; KL falls from each to
    the next."""
    front = _frontier(found)
    wanted = np.linspace(front.bytes[0], front.bytes[-1], max(2, points))
    places = np.unique(np.searchsorted(front.bytes, wanted, side="right") - 1)
    return tuple(_point(found, front, int(i)) for i in places)


def best(found: Sensitivities, budget: int, checkpoint: Checkpoint | None = None) -> Point:
    """The point of the least predicted KL that takes at most `budget` bytes.

    checkpoint: with it the bytes are those that a plan gives, also for a folder, whose header depends on the mix.
    Raises UserError for a budget under the smallest output, or over the largest, which is no budget.
    """
    check_budget(found, budget)
    front = _frontier(found)
    left = budget - found.other_bytes
    for _ in range(_ROUNDS):
        at = front.within(left)
        if at is None:
            break
        point = _point(found, front, at)
        if checkpoint is None:
            return point
        exact = make_plan(checkpoint, point.recipe, forecasts=False).bytes_total
        if exact <= budget:
            return replace(point, bytes=exact)
        left -= exact - budget
    raise _too_small(budget, found.smallest)


def check_budget(found: Sensitivities, budget: int) -> None:
    """Raises UserError, see `best`."""
    check_bytes(budget, found.smallest, found.largest)


def check_bytes(budget: int, smallest: int, largest: int) -> None:
    """The same from what the smallest output takes, and the one in 16 bits."""
    if budget < smallest:
        raise _too_small(budget, smallest)
    if budget >= largest:
        raise UserError(
            f"{format_bytes(budget)} hold the model in 16 bits ({format_bytes(largest)}), so nothing has to be "
            "quantized.",
            "Give a smaller budget, or convert to 16 bits.",
        )


def _too_small(budget: int, smallest: int) -> UserError:
    return UserError(
        f"{format_bytes(budget)} do not hold this model: in the smallest of these formats it takes "
        f"{format_bytes(smallest)}.",
        "Give a larger budget, allow formats of fewer bits, or choose a smaller model.",
    )


@lru_cache(maxsize=4)
def _frontier(found: Sensitivities) -> Frontier:
    return frontier([[(o.bytes, o.kl) for o in u.options] for u in found.units])


def _point(found: Sensitivities, front: Frontier, at: int) -> Point:
    choice = front.choice(at)
    chosen = [u.options[i] for u, i in zip(found.units, choice, strict=True)]
    base = Recipe.from_json(found.recipe)
    recipe = replace(base, rules=rules_for(found.units, choice))
    total = found.other_bytes + sum(o.bytes for o in chosen)
    return Point(total, float(front.cost[at]), tuple(o.format for o in chosen), recipe)


# ------------------------------------------------------------------------------------------------------------- rules


def rules_for(units: Sequence[UnitSensitivity], choice: Sequence[int]) -> tuple[Rule, ...]:
    """Few rules that give each unit its option: for each kind of tensor the layers that differ, then all others.

    Kinds that are alike in everything share a rule. Tensors outside of layers come first.
    """
    kinds: dict[str, dict[int, int]] = {}  # pattern with a hole for the layer → layer → number of the unit
    alone: dict[str, list[int]] = {}
    for number, unit in enumerate(units):
        for name in unit.tensors:
            kind, layer = _kind(name, unit.layer)
            if layer is None:
                alone.setdefault(kind, []).append(number)
            else:
                kinds.setdefault(kind, {})[layer] = number
    rules = []
    for kind, some_units in alone.items():
        form = _option(units, choice, some_units[0]).format
        rules.append(Rule(f"^{kind}$", form, _reason(units, choice, some_units)))
    exceptions: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    usual: dict[str, list[str]] = {}
    for kind, members in kinds.items():
        by_format: dict[str, list[int]] = {}
        for layer, number in sorted(members.items()):
            by_format.setdefault(_option(units, choice, number).format, []).append(layer)
        most = max(by_format, key=lambda f: len(by_format[f]))
        usual.setdefault(most, []).append(kind)
        for form, layers in by_format.items():
            if form != most:
                exceptions.setdefault((form, tuple(layers)), []).append(kind)
    for (form, places), some in exceptions.items():
        numbers = [kinds[k][layer] for k in some for layer in places]
        hole = str(places[0]) if len(places) == 1 else f"(?:{'|'.join(map(str, places))})"
        rules.append(Rule(_either(k.replace(_HOLE, hole) for k in some), form, _reason(units, choice, numbers)))
    for form, some in usual.items():
        numbers = [n for k in some for n in kinds[k].values() if _option(units, choice, n).format == form]
        pattern = _either(k.replace(_HOLE, r"\d+") for k in some)
        rules.append(Rule(pattern, form, _reason(units, choice, numbers)))
    return tuple(rules)


_HOLE = "\0"


def _kind(name: str, layer: int | None) -> tuple[str, int | None]:
    """An escaped pattern for the name, with a hole for the layer's number and any number for an expert's."""
    pattern = _EXPERTS.sub(r"\1\\d+", re.escape(name))
    if layer is not None:
        holed, count = re.subn(rf"(?<=\\\.){layer}(?=\\\.)", _HOLE, pattern, count=1)
        if count:
            return holed, layer
    return pattern, None


def _either(patterns: Iterable[str]) -> str:
    """One pattern for several: what they begin and end with is written once."""
    some = list(dict.fromkeys(patterns))
    if len(some) == 1:
        return f"^{some[0]}$"
    parts = [p.split(r"\.") for p in some]
    start = 0
    while all(len(p) > start + 1 and p[start] == parts[0][start] for p in parts):
        start += 1
    end = 0
    while all(len(p) > start + end + 1 and p[-1 - end] == parts[0][-1 - end] for p in parts):
        end += 1
    middle = "|".join(r"\.".join(p[start : len(p) - end]) for p in parts)
    before = "".join(x + r"\." for x in parts[0][:start])
    after = "".join(r"\." + x for x in parts[0][len(parts[0]) - end :]) if end else ""
    return f"^{before}(?:{middle}){after}$"


def _option(units: Sequence[UnitSensitivity], choice: Sequence[int], number: int) -> Option:
    return units[number].options[choice[number]]


def _reason(units: Sequence[UnitSensitivity], choice: Sequence[int], numbers: Sequence[int]) -> str:
    """What it costs here, and what a MB less would cost: by the cheapest step down that some of them have."""
    numbers = list(dict.fromkeys(numbers))
    total = sum(_option(units, choice, n).kl for n in numbers)
    steps = []
    for n in numbers:
        now = _option(units, choice, n)
        steps += [(o.kl - now.kl) / (now.bytes - o.bytes) * 1e6 for o in units[n].options if o.bytes < now.bytes]
    costs = f"measured: costs KL {total:.2g}" if _option(units, choice, numbers[0]).format != KEEP else "measured"
    if not steps:
        return f"{costs}, and nothing smaller fits"
    return f"{costs}; a MB less would cost {max(0.0, min(steps)):.2g}"
