"""From a Session to the numbers of the memory bar. The arithmetic is `core.memory`'s."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from core import units
from core.contract import ByteCount
from core.tensor_info import Role

if TYPE_CHECKING:
    from app.devices import DeviceChoice
    from app.session import Session
    from core.checkpoint.base import Checkpoint
    from core.kv.planning import PlannedCache
    from core.kv.scheme import CacheScheme
    from core.memory import MemoryEstimate
    from core.plan import Plan

RECIPES_CACHE = {"": "F16", "fp8": "FP8"}  # by the recipe's type of key-value cache


def known_cache(text: str) -> str:
    """A scheme's text as it was remembered; '' where it means nothing any more."""
    from core.errors import UserError
    from core.kv.scheme import CacheScheme

    try:
        return CacheScheme.parse(text).text if text else ""
    except UserError:
        return ""


def cache_of_recipe(session: Session) -> CacheScheme:
    """What programs keep keys and values in when they follow the planned file alone."""
    from core.kv.scheme import CacheScheme

    return CacheScheme(RECIPES_CACHE[session.plan.recipe.cache if session.plan is not None else ""])


def cache_of(session: Session) -> CacheScheme:
    """What keys and values are kept in: as was chosen, else by the recipe."""
    from core.kv.scheme import CacheScheme

    return CacheScheme.parse(session.cache) if session.cache else cache_of_recipe(session)


def estimate_for(session: Session) -> MemoryEstimate | None:
    """Memory of the planned result, or of the opened model as it is while there is no plan. None without a model."""
    if session.checkpoint is None:
        return None
    from core.memory import estimate  # loads numpy, which the first picture does not wait for

    weights, kept, embedding, experts = _parts(session)
    device: DeviceChoice | None = session.device
    return estimate(
        weights,
        kept,
        session.shape,
        session.context,
        session.batch,
        cache_of(session),
        capacity=device.capacity if device else None,
        bandwidth=device.bandwidth if device else None,
        embedding=0 if session.shape is not None and session.shape.tied else embedding,
        experts=experts,
    )


def plan_caches(session: Session, schemes: Iterable[CacheScheme]) -> list[PlannedCache]:
    """What the cache takes in each scheme, and what fits beside the weights. Empty without a model of known shape."""
    if session.checkpoint is None or session.shape is None or not session.shape.layers:
        return []
    from core.kv.planning import plan_cache

    weights, kept, _, _ = _parts(session)
    capacity = session.device.capacity if session.device is not None else None
    room = None if capacity is None else capacity - weights.total - kept
    return plan_cache(session.shape, schemes, session.context, session.batch, room)


def room_text(planned: PlannedCache, context: int) -> str:
    """'Q8_0: 8.5 bits a value, 12.24 kB a token · room for 1 081 344 tokens, or 132 sequences of 8 192'."""
    bits = f"{planned.scheme.text}: {units.format_number(planned.bits, 4)} bits a value"
    words = f"{bits}, {units.format_decimal(planned.bytes_per_token)} a token"
    if planned.room is None:
        return words
    if planned.tokens is None:
        return f"{words} · room for any number of tokens"
    fit = f"{words} · room for {units.format_count(planned.tokens)} token{'' if planned.tokens == 1 else 's'}"
    if planned.sequences is None:
        return fit
    each = f"{units.format_count(planned.sequences)} sequence{'' if planned.sequences == 1 else 's'}"
    return f"{fit}, or {each} of {units.format_count(context)}"


Parts = tuple[ByteCount, int, int, int]  # quantized tensors, kept bytes, embedding bytes, routed experts' bytes
# A change of context or device must not walk ten thousand tensors again, nor must judging several plans in turn.
_known: deque[tuple[weakref.ref[Any], Parts]] = deque(maxlen=8)


def _recall(what: Plan | Checkpoint) -> Parts | None:
    # A copy of the list: background jobs judge plans too.
    return next((parts for ref, parts in tuple(_known) if ref() is what), None)


def _parts(session: Session) -> Parts:
    """Of the plan; without one, of the opened model, which must be there."""
    if session.plan is not None:
        return _planned(session.plan)
    assert session.checkpoint is not None
    return _opened(session.checkpoint)


def _planned(plan: Plan) -> Parts:
    if (known := _recall(plan)) is not None:
        return known
    from core.assign import FLOAT_DTYPES
    from core.plan import Action

    counts: list[ByteCount] = []
    kept = embedding = experts = 0
    for tensor in plan.tensors:
        copied_float = tensor.action is Action.COPY and tensor.format_name in FLOAT_DTYPES
        if tensor.action is Action.KEEP or copied_float:
            kept += tensor.bytes.total
        else:
            counts.append(tensor.bytes)
        if tensor.role is Role.EMBED:
            embedding += tensor.bytes.total
        if any(source.experts or source.expert is not None for source in tensor.source.sources):
            experts += tensor.bytes.total
    quantized = ByteCount.sum(counts)
    side_files = plan.layout.extra_bytes
    header = plan.bytes_total - side_files - quantized.total - kept
    parts = (quantized + ByteCount(header=max(header, 0)), kept, embedding, experts)
    _known.append((weakref.ref(plan), parts))
    return parts


def _opened(checkpoint: Checkpoint) -> Parts:
    if (known := _recall(checkpoint)) is not None:
        return known
    embedding = experts = 0
    for tensor in checkpoint.tensors:
        if tensor.role is Role.EMBED and not tensor.tied_to:
            embedding += tensor.nbytes
        if tensor.experts or tensor.expert is not None:
            experts += tensor.nbytes
    parts = (ByteCount(payload=checkpoint.total_bytes), 0, embedding, experts)
    _known.append((weakref.ref(checkpoint), parts))
    return parts
