"""A table of schemes for one model: what the cache takes in each, and how much of it fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core import memory
from core.kv.scheme import CacheScheme
from core.kv.size import effective_bits
from core.models.shape import ModelShape
from kernels.kv import CACHE_FORMATS


@dataclass(frozen=True)
class PlannedCache:
    """bits: a value, with scales and what is kept in 16 bits. bytes_per_token: that one more token adds.
    bytes: all of it, of so many sequences and tokens as were asked for.

    room: bytes that there are for it, None: not known. tokens, sequences: that fit into it; None with a known room: as
    many as one likes.
    """

    scheme: CacheScheme
    bits: float
    bytes_per_token: int
    bytes: int
    room: int | None = None
    tokens: int | None = None
    sequences: int | None = None


# Groups of 32 in 4 bits lose less than Q4_0 in as many bits once they are turned, with heads of 64 and of 256; in 8
# bits a rotation takes four fifths of what is lost (docs/quality.md).
TURNED = ("INT8-g64", "INT4-g64", "INT4-g32")


def offered() -> tuple[CacheScheme, ...]:
    """Each format for both, as it is best: rotated where it needs or wants it; those of channels have a format of
    values beside them."""
    made = []
    for form in CACHE_FORMATS.values():
        scheme = CacheScheme(form.name, f"U{form.bits}-g32" if form.channels else "")
        turned = form.rotated or form.name in TURNED
        made.append(replace(scheme, rotate_keys=turned, rotate_values=turned))
    return tuple(made)


def plan_cache(
    shape: ModelShape, schemes: Iterable[CacheScheme], context: int, sequences: int = 1, room: int | None = None
) -> list[PlannedCache]:
    """One for each scheme. room: bytes that weights leave on the device; the workspace is taken from it here."""
    return [_planned(shape, scheme, context, sequences, room) for scheme in schemes]


def _planned(shape: ModelShape, scheme: CacheScheme, context: int, sequences: int, room: int | None) -> PlannedCache:
    sizes = (
        effective_bits(shape, scheme, context),
        memory.kv_bytes_per_token(shape, scheme),
        memory.kv_bytes(shape, context, sequences, scheme),
    )
    if room is None:
        return PlannedCache(scheme, *sizes)
    left = max(room - memory.workspace_bytes(shape, context, sequences, scheme), 0)
    return PlannedCache(
        scheme,
        *sizes,
        room=left,
        tokens=memory.tokens_that_fit(shape, left, scheme),
        sequences=memory.sequences_that_fit(shape, left, context, scheme),
    )
