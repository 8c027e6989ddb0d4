"""What was measured of a cache's formats, as rows, lines and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.jobs.testing_cache import WINDOW, CacheFound, CacheMeasure
from app.models.table import Column
from app.plots.length_plot import MOST_LINES, LengthLine
from core import units

if TYPE_CHECKING:
    from core.kv.compare import SchemeCost
    from core.kv.contexts import ContextPoint
    from core.kv.needles import NeedleTable, SchemeNeedles
    from core.kv.scheme import CacheScheme


def kl_text(cost: SchemeCost) -> str:
    """'0.0031 ± 0.0004 nats'."""
    error = "" if cost.kl_error is None else f" ± {units.format_number(cost.kl_error, 2)}"
    return f"{units.format_number(cost.kl, 3)}{error} nats a token"


def cost_columns() -> tuple[Column, ...]:
    """Of quality; rows are `SchemeCost`."""
    return (
        Column("Cache", lambda c: c.scheme.text, mono=True, term="cache format"),
        Column("Bits", lambda c: f"{c.bits:.3f}", lambda c: c.bits, number=True, term="effective bits"),
        Column(
            "KL, nats",
            lambda c: units.format_number(c.kl, 3),
            lambda c: c.kl,
            number=True,
            term="KL divergence",
            tooltip=kl_text,
        ),
        Column("Perplexity", lambda c: f"{c.perplexity:.3f}", lambda c: c.perplexity, number=True, term="perplexity"),
        Column(
            "Same top", lambda c: units.format_percent(c.same_top), lambda c: c.same_top, number=True, term="same top"
        ),
    )


def window_columns() -> tuple[Column, ...]:
    """Of the exercise with keys, values and a window; rows are `SchemeCost`."""
    return (
        Column("Keys", lambda c: c.scheme.keys, mono=True, term="cache format"),
        Column("Values", lambda c: c.scheme.values, mono=True, term="cache format"),
        Column(
            "Window", lambda c: units.format_count(c.scheme.window) if c.scheme.window else "none",
            lambda c: c.scheme.window, number=True, term="recent window",
        ),
        *cost_columns()[1:4],
    )  # fmt: skip


def speed_columns() -> tuple[Column, ...]:
    """Of speed; rows are `ContextPoint`."""
    return (
        Column("Cache", lambda p: p.scheme.text, mono=True, term="cache format"),
        Column("Tokens", lambda p: units.format_count(p.context), lambda p: p.context, number=True, term="context"),
        Column(
            "Tokens/s", lambda p: f"{p.rate:.1f}", lambda p: p.rate, number=True, term="decode",
            tooltip=lambda p: f"A step takes {units.format_duration(p.seconds)}",
        ),
        Column(
            "Attention", lambda p: units.format_percent(p.attention, 0), lambda p: p.attention, number=True,
            tooltip=lambda p: f"{units.format_percent(p.attention)} of a step's time goes to attention",
        ),
    )  # fmt: skip


def needle_columns(table: Callable[[], NeedleTable | None]) -> tuple[Column, ...]:
    """Of numbers in long texts; rows are `SchemeNeedles` of the table that is shown."""

    def lost(row: SchemeNeedles) -> int:
        shown = table()
        return shown.lost(row) if shown is not None else 0

    def least(row: SchemeNeedles) -> float:
        return min(row.margins)

    return (
        Column("Cache", lambda r: r.scheme.text, mono=True, term="cache format"),
        Column(
            "Found", lambda r: f"{r.found} of {len(r.margins)}", lambda r: r.found, number=True,
            term="numbers in long texts",
        ),
        Column(
            "Lost", lambda r: units.format_count(lost(r)), lost, number=True,
            tooltip=lambda r: f"{units.format_count(lost(r))} that are found with 16 bits",
        ),
        Column(
            "Least sure, nats", lambda r: units.format_decimals(least(r), 1), least, number=True,
            tooltip=lambda _r: "How much likelier the right number is than the likeliest wrong one, at its worst place",
        ),
    )  # fmt: skip


def found_rows(found: CacheFound) -> Sequence[SchemeCost | ContextPoint | SchemeNeedles]:
    if found.needles is not None:
        return found.needles.rows
    return found.sweep.points if found.sweep is not None else found.costs


def kl_lines(costs: Sequence[SchemeCost]) -> tuple[LengthLine, ...]:
    """KL by position, of those that keep keys and values alike: a line has its point where a span ends. Spans in which
    nothing is quantized yet, since all of it is in the window, have none."""
    alike = [c for c in costs if c.scheme.keys == c.scheme.values] or list(costs)
    lines = []
    for cost in alike[:MOST_LINES]:
        spans = [span for span in cost.spans if span.stop > cost.scheme.window]
        notes = (
            f"{units.format_number(span.kl, 3)} nats, perplexity {units.format_number(span.perplexity, 4)}"
            for span in spans
        )
        lines.append(LengthLine(cost.scheme.text, tuple((span.stop, span.kl) for span in spans), tuple(notes)))
    return tuple(lines)


def rate_lines(found: CacheFound) -> tuple[LengthLine, ...]:
    """Tokens a second over the context, 16 bits first."""
    sweep = found.sweep
    if sweep is None or not sweep.points:
        return ()
    schemes = tuple(dict.fromkeys(p.scheme for p in sweep.points))
    base = schemes[0]
    return tuple(
        LengthLine(
            scheme.text,
            tuple((p.context, p.rate) for p in sweep.of(scheme)),
            tuple(
                f"{units.format_tokens_per_second(p.rate)}, {units.format_percent(p.attention, 0)} in attention"
                for p in sweep.of(scheme)
            ),
            sweep.crossing(scheme, base) if scheme != base else None,
        )
        for scheme in schemes
    )


def sentence(found: CacheFound) -> str:
    """What the figures mean."""
    if found.sweep is not None:
        return _speed_sentence(found)
    if found.needles is not None:
        return _needle_sentence(found.needles)
    if found.order.measure is CacheMeasure.WINDOW:
        return _window_sentence(found.costs)
    worst = max(found.costs, key=lambda c: c.kl, default=None)
    best = min(found.costs, key=lambda c: c.kl, default=None)
    if worst is None or best is None:
        return ""
    words = (
        f"Over {units.format_count(found.tokens)} tokens {best.scheme.text} loses least, "
        f"{units.format_number(best.kl, 3)} nats a token, and {worst.scheme.text} most, "
        f"{units.format_number(worst.kl, 3)}."
    )
    return f"{words} {_sides_sentence(found.costs)}".rstrip()


def _needle_sentence(table: NeedleTable) -> str:
    """How many 16 bits find, and what the others lose of them."""
    base, count = table.rows[0], units.format_count(len(table.places))
    words = f"With 16 bits the model finds {units.format_count(base.found)} of {count} numbers."
    if not base.found:
        return f"{words} A model that finds none says nothing about caches; take a larger one."
    losing = [f"{row.scheme.text} {units.format_count(n)}" for row in table.rows[1:] if (n := table.lost(row))]
    return f"{words} " + (f"Of these are lost: {', '.join(losing)}." if losing else "No format loses one of these.")


def _sides_sentence(costs: Sequence[SchemeCost]) -> str:
    """Keys against values, of the format that has both alone."""
    by = {(c.scheme.keys, c.scheme.values): c.kl for c in costs if not c.scheme.window}
    for form in ("Q4_0", "Q8_0"):
        keys, values = by.get((form, "F16")), by.get(("F16", form))
        if keys is not None and values is not None:
            return (
                f"{form} for the keys alone loses {units.format_number(keys, 3)}, for the values alone "
                f"{units.format_number(values, 3)}."
            )
    return ""


def _window_sentence(costs: Sequence[SchemeCost]) -> str:
    """What the window saves for keys and for values, of the tokens after the first ones, which it covers whole."""
    by = {(c.scheme.keys, c.scheme.values, c.scheme.window): _past_window(c) for c in costs}
    found = []
    for form in ("INT8", "INT4"):
        sides = []
        for keys, values in ((form, "F16"), ("F16", form)):
            without, kept = by.get((keys, values, 0)), by.get((keys, values, WINDOW))
            if without is None or kept is None:
                return ""
            sides.append((without, kept))
        (keys_without, keys_kept), (values_without, values_kept) = sides
        more = "keys" if keys_without - keys_kept > values_without - values_kept else "values"
        numbers = [units.format_number(n, 3) for n in (keys_without, keys_kept, values_without, values_kept)]
        found.append(
            f"{form}: the {WINDOW} latest tokens in 16 bits lower the KL of keys from {numbers[0]} to {numbers[1]}, of "
            f"values from {numbers[2]} to {numbers[3]}; they save more with {more}."
        )
    return f"{' '.join(found)} All after the first {WINDOW} tokens."


def _past_window(cost: SchemeCost) -> float:
    spans = [span for span in cost.spans if span.start >= WINDOW]
    count = sum(span.stop - span.start for span in spans)
    return sum(span.kl * (span.stop - span.start) for span in spans) / count if count else cost.kl


def _speed_sentence(found: CacheFound) -> str:
    assert found.sweep is not None
    parts = []
    for line in rate_lines(found)[1:]:
        where = "at no context" if line.crossing is None else f"from {units.format_count(line.crossing)} tokens on"
        parts.append(f"{line.name} is faster than 16 bits {where}")
    longest: dict[CacheScheme, float] = {p.scheme: p.attention for p in found.sweep.points}
    share = next(iter(longest.values()), 0.0)
    end = f"With {units.format_count(found.tokens)} tokens {units.format_percent(share, 0)} of a step in 16 bits is "
    return f"{'; '.join(parts)}. {end}attention." if parts else f"{end}attention."
