"""Whether a number that stands far back in a text is still found, with the cache in each of several schemes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from core.errors import UserError
from core.kv.compare import BASE, Held
from core.kv.layout import with_scheme
from core.kv.scheme import CacheScheme
from core.progress import CancelToken
from core.runtime.model import Model
from core.threads import worker_count
from core.verdict.choices import likelihoods
from core.verdict.needle import LENGTHS, needle_items, needle_lengths
from kernels.engine import Engine


@dataclass(frozen=True)
class SchemeNeedles:
    """margins: for each place, ln P of the right number less that of the likeliest wrong one. Above 0: found."""

    scheme: CacheScheme
    margins: tuple[float, ...]

    @property
    def found(self) -> int:
        return sum(margin > 0 for margin in self.margins)


@dataclass(frozen=True)
class NeedleTable:
    """places: (tokens of the text, depth from its start, 0 to 1). rows: 16 bits first."""

    places: tuple[tuple[int, float], ...]
    rows: tuple[SchemeNeedles, ...]

    def lost(self, row: SchemeNeedles) -> int:
        """Places at which 16 bits find the number and this scheme does not."""
        return sum(a > 0 >= b for a, b in zip(self.rows[0].margins, row.margins, strict=True))


def find_needles(
    model: Model,
    filler: str,
    schemes: Sequence[CacheScheme],
    lengths: Sequence[int] = LENGTHS,
    *,
    progress: Callable[[float], None] | None = None,
    token: CancelToken | None = None,
    threads: int | None = None,
) -> NeedleTable:
    """The same numbers in the same texts for all, one scheme after the other, 16 bits first.

    filler: prose around the numbers. lengths: in tokens; those that the model's capacity does not hold are left out.
    progress: told the share that is done. Raises UserError for a model that the processor's engine does not run and
    schemes that can not be kept with it; Cancelled.
    """
    token, tell = token or CancelToken(), progress or (lambda _: None)
    if not isinstance(model.engine, Engine):
        raise UserError("Caches are compared on the processor's engine.", "Load the model there (cpu).")
    items = needle_items(model.text, filler, needle_lengths(lengths, model.capacity))
    items = tuple(item for item in items if item[2].length <= model.capacity)
    if not items:
        raise UserError("The model's context holds no text with a number in it.", "Choose a longer one.")
    capacity, whole = max(item.length for *_, item in items), sum(item.length for *_, item in items)
    programs = [
        with_scheme(model.program, capacity, 1, scheme, model.file_scales.of(scheme)) for scheme in (BASE, *schemes)
    ]
    rows, done = [], 0
    for scheme, program in zip((BASE, *schemes), programs, strict=True):
        margins = []
        with closing(Engine(program, threads or worker_count())) as engine:
            for _, _, item in items:
                scores = likelihoods(Held(engine), item, token)
                margins.append(float(scores[item.answer] - np.delete(scores, item.answer).max()))
                done += item.length
                tell(done / (whole * len(programs)))
        rows.append(SchemeNeedles(scheme, tuple(margins)))
    return NeedleTable(tuple((length, depth) for length, depth, _ in items), tuple(rows))
