"""The three presets, sized for the open model and judged for the target device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.jobs.plan import PlanReply, reply_for
from app.jobs.runner import Work
from app.memory_view import estimate_for
from core import units
from core.errors import UserError
from core.memory import MemoryEstimate
from core.plan import FALLBACK_WARNING, Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe

if TYPE_CHECKING:
    from app.session import Session
    from core.checkpoint.base import Checkpoint

PRESETS_KEY = "presets"
ROOMY = 0.25  # of the device's memory: a model that takes less in 8 bits has room for them
READING_SPEED = 15.0  # tokens/s: two to three times as fast as a person reads


@dataclass(frozen=True)
class Preset:
    """key: stable name. targets: tried in this order; the first whose blocks fit the model's rows is taken."""

    key: str
    title: str
    sentence: str
    targets: tuple[str, ...]


# The second of each pair has blocks of 32, for models whose rows 256 does not divide.
PRESETS = (
    Preset("smaller", "Smaller", "Some detail is lost; answers stay good.", ("IQ4_XS", "IQ4_NL")),
    Preset("balanced", "Balanced", "Hard to tell from the original in use.", ("Q4_K_M", "Q5_0")),
    Preset("closest", "Closest", "As good as the original.", ("Q8_0",)),
)


@dataclass(frozen=True)
class Offer:
    """A preset worked out for one model and device. plan None: it can not be made, and `problem` says why.

    fits: whether weights, cache and workspace fit the device; None while the device's memory is not known.
    tokens_per_second: the most that reading memory allows, None when unknown.
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


def presets_work(session: Session) -> Work:
    """Work that returns the three Offers for the session's model, device and context; one of them is recommended."""

    def work(token: CancelToken) -> tuple[Offer, ...]:
        offers = []
        for preset in PRESETS:
            token.check()
            offers.append(_offer(session, preset))
        return recommend(offers, device_label(session), already_quantized(session.checkpoint))

    return work


def rejudged(offers: Sequence[Offer], session: Session) -> tuple[Offer, ...]:
    """The same plans judged for the session's present device and context: arithmetic only, for the GUI thread."""
    judged = [_judged(replace(o, recommended=False), session) for o in offers]
    return recommend(judged, device_label(session), already_quantized(session.checkpoint))


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
    recipe = Recipe(target=preset.targets[0])
    for target in preset.targets:
        candidate = Recipe(target=target)
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
    return replace(
        offer,
        fits=memory.fits,
        used=memory.used,
        capacity=memory.capacity,
        tokens_per_second=memory.decode.tokens_per_second if memory.decode else None,
        reason=_fit_sentence(memory, device_label(session), session.context, session.shape is not None),
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


def recommend(offers: Sequence[Offer], device_name: str, quantized: bool) -> tuple[Offer, ...]:
    """Mark one offer as recommended and say why, for somebody who knows none of the formats.

    Of those that fit the device and are smaller than the source: Closest where memory is roomy and speed suffices,
    else Balanced, else the smallest. From a quantized source the one that loses least: the largest that is smaller.
    """
    possible = [o for o in offers if o.plan is not None]
    if not possible:
        return tuple(offers)
    useful = [o for o in possible if o.plan is not None and o.plan.change < 0] or possible[:1]
    fitting = [o for o in useful if o.fits is not False]
    if not fitting:
        chosen, why = useful[0], f"nothing fits on {device_name} with this context; this is the smallest"
    elif quantized:
        chosen, why = fitting[-1], "the model is already quantized; of the sizes below its own, this loses least"
    else:
        by_key = {o.preset.key: o for o in fitting}
        closest = by_key.get("closest")
        if closest is not None and _roomy(closest):
            chosen, why = closest, "there is room and speed enough for 8 bits, so nothing needs to be given up"
        elif "balanced" in by_key:
            chosen, why = by_key["balanced"], "the best quality for its size that suits this device"
        else:
            chosen, why = fitting[-1], "the closest to the original that fits"
    return tuple(
        replace(o, recommended=True, reason=f"{o.reason} Recommended: {why}.") if o is chosen else o for o in offers
    )


def _roomy(offer: Offer) -> bool:
    if offer.capacity is None or offer.used > ROOMY * offer.capacity:
        return False
    return offer.tokens_per_second is None or offer.tokens_per_second >= READING_SPEED
