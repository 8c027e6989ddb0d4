"""From a Session to the numbers of the memory bar. The arithmetic is `core.memory`'s."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from core.contract import ByteCount
from core.tensor_info import Role

if TYPE_CHECKING:
    from app.devices import DeviceChoice
    from app.session import Session
    from core.checkpoint.base import Checkpoint
    from core.memory import MemoryEstimate
    from core.plan import Plan

CACHE_BITS = {"": 16, "fp8": 8}  # by the recipe's type of key-value cache


def estimate_for(session: Session) -> MemoryEstimate | None:
    """Memory of the planned result, or of the opened model as it is while there is no plan. None without a model."""
    if session.checkpoint is None:
        return None
    from core.memory import estimate  # loads numpy, which the first picture does not wait for

    if session.plan is not None:
        parts = _planned(session.plan)
    else:
        parts = _opened(session.checkpoint)
    weights, kept, embedding, experts = parts
    device: DeviceChoice | None = session.device
    return estimate(
        weights,
        kept,
        session.shape,
        session.context,
        session.batch,
        CACHE_BITS[session.plan.recipe.cache if session.plan is not None else ""],
        capacity=device.capacity if device else None,
        bandwidth=device.bandwidth if device else None,
        embedding=0 if session.shape is not None and session.shape.tied else embedding,
        experts=experts,
    )


Parts = tuple[ByteCount, int, int, int]  # quantized tensors, kept bytes, embedding bytes, routed experts' bytes
# A change of context or device must not walk ten thousand tensors again, nor must judging several plans in turn.
_known: deque[tuple[weakref.ref[Any], Parts]] = deque(maxlen=8)


def _recall(what: Plan | Checkpoint) -> Parts | None:
    # A copy of the list: background jobs judge plans too.
    return next((parts for ref, parts in tuple(_known) if ref() is what), None)


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
