"""The plan in which one tensor has another format, to look at what that format would make of it."""

from __future__ import annotations

import re
from dataclasses import replace

from core.assign import quantizable
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.formats import FORMATS
from core.plan import Plan, make_plan
from core.recipe import Recipe, Rule
from core.targets import TARGETS


def plan_in_format(checkpoint: Checkpoint, plan: Plan, number: int, format_name: str) -> tuple[Plan, int]:
    """The plan that gives tensor `number` this format, and the tensor's number in it. '' is the plan itself.

    A format of the other container is looked at in the output of its own target. Raises UserError.
    """
    tensor = plan.tensors[number]
    if not format_name or format_name == tensor.format_name:
        return plan, number
    if not quantizable(tensor.source, plan.target):
        raise UserError(f"{tensor.name} stays in {tensor.format_name}: {tensor.reason}.", "Choose a weight matrix.")
    containers = {f.container for f in FORMATS if f.name == format_name}
    if plan.target.container in containers:
        other = make_plan(checkpoint, recipe_with(plan.recipe, tensor.name, format_name))
    else:
        target = next((t for t in TARGETS if t.container in containers and t.base == format_name), None)
        if target is None:
            raise UserError(f"No output of Bitsmith has {format_name} for this tensor.", "Choose another format.")
        other = make_plan(checkpoint, Recipe(target=target.name, method=plan.recipe.method))
    wanted = {s.name for s in tensor.source.sources}
    found = next((i for i, t in enumerate(other.tensors) if wanted & {s.name for s in t.source.sources}), None)
    if found is None:
        raise UserError(f"{tensor.name} is not in an output of {format_name}.", "Choose another format.")
    return other, found


def recipe_with(recipe: Recipe, name: str, format_name: str, reason: str = "") -> Recipe:
    """The recipe with that format for that tensor alone, before all other rules: to look at another format's group."""
    return replace(recipe, rules=(Rule(f"^{re.escape(name)}$", format_name, reason), *recipe.rules))
