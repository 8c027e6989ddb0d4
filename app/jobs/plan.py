"""Plans made in the background: the newest recipe wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.jobs.runner import Work
from app.memory_view import estimate_for
from core.progress import CancelToken

if TYPE_CHECKING:
    from app.session import Session
    from core.checkpoint.base import Checkpoint
    from core.plan import Plan
    from core.recipe import Misfit, Recipe

PLAN_KEY = "plan"
COSTS_KEY = "misfit-costs"


@dataclass(frozen=True)
class RuleMatch:
    """How many tensors a rule decides. error: why it can not be used, '' when it can. reason: why it was made."""

    pattern: str
    format: str
    count: int
    error: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PlanReply:
    """A plan, what each of its recipe's rules decides, and figures that are sums over all of its tensors."""

    plan: Plan
    rules: tuple[RuleMatch, ...]
    quantized: int
    bits_per_weight: float


def reply_for(plan: Plan) -> PlanReply:
    """Everything about a plan that takes a walk over its tensors; for a background job."""
    from core.plan import Action

    quantized = sum(t.action is Action.QUANTIZE for t in plan.tensors)
    return PlanReply(plan, match_rules(plan.recipe, plan), quantized, plan.bits_per_weight)


def plan_work(session: Session, recipe: Recipe) -> Work:
    """Make the plan of the session's model and this recipe. The result is a PlanReply; raises UserError."""

    def work(token: CancelToken) -> PlanReply:
        from core.plan import make_plan

        token.check()
        plan = make_plan(session.checkpoint, recipe)
        token.check()
        estimate_for(replace(session, plan=plan))  # sums up the tensors here, so that the memory bar need not
        return reply_for(plan)

    return work


def reply_work(plan: Plan) -> Work:
    """What the Recipe page shows of a plan that another page has made. The result is a PlanReply."""

    def work(token: CancelToken) -> PlanReply:
        token.check()
        return reply_for(plan)

    return work


def with_target(recipe: Recipe, name: str) -> Recipe:
    """The recipe for another target. What its file or folder can not hold is left out: rules for other formats, and
    scales of a cache. Methods that it does not know give way to the usual one, or to importance where needed."""
    from app.jobs.calibration import for_format, with_importance
    from core.export.cache_scales import why_no_cache
    from core.formats import FORMATS, Method, find_format
    from core.recipe import KEEP
    from core.targets import find_target

    target = find_target(name)
    able = (f for f in FORMATS if f.container == target.container and f.ecosystem in ("", target.ecosystem))
    known = {f.name for f in able} | {KEEP}
    base = find_format(target.base, target.container)
    calibrated = for_format(recipe.calibrated, base)
    return replace(
        recipe,
        target=name,
        method=recipe.method if recipe.method in base.methods else Method.SEARCH,
        rules=tuple(r for r in recipe.rules if r.format in known),
        calibrated=with_importance(calibrated) if target.needs_importance else calibrated,
        cache="" if why_no_cache(target) else recipe.cache,
    )


def costs_work(checkpoint: Checkpoint, recipe: Recipe) -> Work:
    """Output bytes under each misfit policy; None where the run would stop."""

    def work(token: CancelToken) -> dict[Misfit, int | None]:
        from core.plan import misfit_costs

        token.check()
        return misfit_costs(checkpoint, recipe)

    return work


def match_rules(recipe: Recipe, plan: Plan) -> tuple[RuleMatch, ...]:
    """For each rule, how many of the plan's tensors it is the first to match, by their own or their source's name."""
    counts = [0] * len(recipe.rules)
    # Vectors, and what must stay F32, are decided before any rule is asked.
    for t in (t for t in plan.tensors if recipe.rules and len(t.shape) > 1 and not t.source.keep):
        names = (t.name, *(s.name for s in t.source.sources))
        first = next((i for i, rule in enumerate(recipe.rules) if rule.matches(*names)), None)
        if first is not None:
            counts[first] += 1
    return tuple(
        RuleMatch(r.pattern, r.format, n, "" if n else "earlier rules take them all", r.reason)
        for r, n in zip(recipe.rules, counts, strict=True)
    )
