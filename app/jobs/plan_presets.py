"""The presets, sized for the open model and judged for the target device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.jobs.plan import PlanReply, reply_for
from app.jobs.runner import Work
from app.memory_view import estimate_for
from core import units
from core.errors import UserError
from core.few_bits import FEW_BITS, FewBits
from core.memory import MemoryEstimate
from core.plan import FALLBACK_WARNING, Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe

if TYPE_CHECKING:
    from app.session import Session
    from core.checkpoint.base import Checkpoint
    from core.methods.choice import Calibrated

PRESETS_KEY = "presets"
FEW_KEY = "few-bits"


@dataclass(frozen=True)
class Preset:
    """key: stable name. targets: tried in this order; the first whose blocks fit the model's rows is taken.

    calibrated: what its numbers are chosen from; None: as without data, unless somebody measures first. readers: which
    programs run it, in a sentence, where that is not said otherwise.
    """

    key: str
    title: str
    sentence: str
    targets: tuple[str, ...]
    calibrated: Calibrated | None = None
    readers: str = ""


# The second of each pair has blocks of 32, for models whose rows 256 does not divide.
PRESETS = (
    Preset("smaller", "Smaller", "Some detail is lost; answers stay good.", ("IQ4_XS", "IQ4_NL")),
    Preset("balanced", "Balanced", "Hard to tell from the original in use.", ("Q4_K_M", "Q5_0")),
    Preset("closest", "Closest", "As good as the original.", ("Q8_0",)),
)
# The first card: whichever of these and the three above suits the model and the device best.
BEST = Preset("best", "Best for this computer", "Chosen for its memory and processor, and for this model.", ())


# Shown when somebody asks for them.
def _of_few(few: FewBits) -> Preset:
    return Preset(few.name, few.title, few.loses, (few.recipe.target,), few.recipe.calibrated, "vLLM runs it.")


FEW = tuple(_of_few(few) for few in FEW_BITS)
BETWEEN = (Preset("six", "", "", ("Q6_K",)), Preset("three", "", "", ("Q3_K_M",)))


@dataclass(frozen=True)
class Offer:
    """A preset worked out for one model and device. plan None: it can not be made, and `problem` says why.

    fits: whether weights, cache and workspace fit the device; None while the device's memory is not known.
    tokens_per_second: the most that reading memory allows, None when unknown. ladder: what the best was chosen from.
    title: of its card, where it is not the preset's.
    """

    preset: Preset
    recipe: Recipe
    plan: Plan | None
    reply: PlanReply | None = None  # the plan with its sums; None without a plan
    problem: UserError | None = None
    fits: bool | None = None
    used: int = 0
    capacity: int | None = None
    tokens_per_second: float | None = None
    reason: str = ""
    recommended: bool = False
    ladder: tuple[Offer, ...] = ()
    title: str = ""


def presets_work(session: Session) -> Work:
    """Work that returns an Offer for the best and for each of PRESETS, for the session's model, device and context."""

    def work(token: CancelToken) -> tuple[Offer, ...]:
        ladder = []
        for preset in (*PRESETS, *BETWEEN):
            token.check()
            ladder.append(_offer(session, preset))
        return with_best(ladder, session)

    return work


def few_work(session: Session) -> Work:
    """Work that returns an Offer for each of FEW, as it suits the model."""

    def work(token: CancelToken) -> tuple[Offer, ...]:
        offers = []
        for few in FEW_BITS:
            token.check()
            offers.append(_offer(session, _of_few(few.suited(session.checkpoint))))
        return tuple(offers)

    return work


def rejudged_alone(offers: Sequence[Offer], session: Session) -> tuple[Offer, ...]:
    """`rejudged` for offers of which none is recommended."""
    return tuple(_judged(o, session) for o in offers)


def rejudged(offers: Sequence[Offer], session: Session) -> tuple[Offer, ...]:
    """The same plans judged for the session's present device and context: arithmetic only, for the GUI thread."""
    return with_best([_judged(o, session) for o in offers[0].ladder], session)


def with_best(ladder: Sequence[Offer], session: Session) -> tuple[Offer, ...]:
    """The best of the ladder, which begins with PRESETS, as the first card's offer, and those of PRESETS after it."""
    from app.jobs.plan_best import best_of, runtime_sentence

    chosen, why = best_of(ladder, device_label(session), already_quantized(session.checkpoint))
    title = "" if session.device is None or session.device.own else f"Best for {session.device.label}"
    first = replace(chosen, preset=BEST, ladder=tuple(ladder), title=title)
    if chosen.plan is not None:
        reason = f"{chosen.reason} Recommended: {why}. {runtime_sentence(chosen.recipe.target, session.device)}"
        first = replace(first, reason=reason, recommended=True)
    return (first, *ladder[: len(PRESETS)])


def device_label(session: Session) -> str:
    """What to call the target device in a sentence."""
    return session.device.label if session.device is not None else "this computer"


def already_quantized(checkpoint: Checkpoint | None) -> bool:
    """True when most stored bytes are in a block type or packed codes rather than floats."""
    if checkpoint is None:
        return False
    from core.assign import FLOAT_DTYPES

    stored = sum(t.nbytes for t in checkpoint.tensors)
    return sum(t.nbytes for t in checkpoint.tensors if t.dtype not in FLOAT_DTYPES) > stored / 2


def _offer(session: Session, preset: Preset) -> Offer:
    plan: Plan | None = None
    problem: UserError | None = None
    recipe = Recipe(target=preset.targets[0], calibrated=preset.calibrated)
    for target in preset.targets:
        candidate = replace(recipe, target=target)
        try:
            made = make_plan(session.checkpoint, candidate)
        except UserError as error:
            problem = problem or error
            continue
        if plan is None or made.fallback_share < plan.fallback_share:
            plan, recipe = made, candidate
        if plan.fallback_share <= FALLBACK_WARNING:
            break
    reply = reply_for(plan) if plan is not None else None
    return _judged(Offer(preset, recipe, plan, reply, problem if plan is None else None), session)


def _judged(offer: Offer, session: Session) -> Offer:
    memory = estimate_for(replace(session, plan=offer.plan)) if offer.plan is not None else None
    if memory is None:
        return offer
    fit = _fit_sentence(memory, device_label(session), session.context, session.shape is not None)
    return replace(
        offer,
        fits=memory.fits,
        used=memory.used,
        capacity=memory.capacity,
        tokens_per_second=memory.decode.tokens_per_second if memory.decode else None,
        reason=f"{fit} {offer.preset.readers}".strip(),
    )


def _fit_sentence(memory: MemoryEstimate, device: str, context: int, with_cache: bool) -> str:
    text = context_text(context) if with_cache else ""
    need = units.format_decimal(memory.used)
    if memory.capacity is None:
        return f"Needs {need}{text}; the memory of the target is not known."
    total = units.format_decimal(memory.capacity)
    if memory.fits:
        return f"Fits on {device}: {need} of {total}{text}."
    return f"Does not fit on {device}: needs {need}{text}, there are {total}."


def context_text(context: int) -> str:
    """8192 → ' with 8k context'."""
    short = f"{context // 1024}k" if context >= 1024 and context % 1024 == 0 else units.format_count(context)
    return f" with {short} context"
