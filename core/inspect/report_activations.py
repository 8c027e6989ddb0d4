"""Activations in a page: channels across depth, inputs that int8 breaks, weights beside activations."""

from __future__ import annotations

from html import escape

import numpy as np

from core.inspect.activations import BREAK_DB, ActivationLayer, Activations, Place
from core.inspect.figures import Curve, Mark, heat_map, number, profile
from core.inspect.html_parts import ROWS, cut, figure, heat_figure, table
from core.units import format_count, format_decibels, format_number, format_percent

CLOSELY = 3  # inputs whose weights are shown beside them
_COLUMNS = 512  # of a picture; wider ones are pooled, the largest counts. A page never shows it narrower
_DARKEST = 0.02


def activations_section(found: Activations, threshold: float) -> str:
    tokens = f"{format_count(len(found.tokens))} tokens{', the first of the text' if found.cut else ''}"
    above = format_percent(found.share_above(threshold), 2)
    breaking = found.breaking()
    total = sum(1 for a in found.layers if a.tokens)
    summary = (
        f"<p>Inputs of every linear layer over {tokens}. {above} of all channels reach {number(threshold)} in some "
        f"token. One int8 scale for all tokens breaks {format_count(len(breaking))} of {format_count(total)} "
        f"inputs: the SNR of the median "
        f"token is below {BREAK_DB:.0f} dB.</p>"
    )
    parts = [summary, *(_depth(found, place, threshold) for place in found.places if place is not Place.HEAD)]
    parts += [_side_by_side(a) for a in _striking(found)]
    parts.append(_inputs(found, threshold))
    return "".join(parts)


def _striking(found: Activations) -> list[ActivationLayer]:
    """The input that int8 breaks worst of each place, worst first."""
    worst: dict[Place, ActivationLayer] = {}
    for a in sorted((a for a in found.layers if a.tokens), key=lambda a: a.tensor_snr_db):
        worst.setdefault(a.place, a)
    return list(worst.values())[:CLOSELY]


def _depth(found: Activations, place: Place, threshold: float) -> str:
    depth = found.depth_map(place)
    if not depth.values.size:
        return ""
    step = -(-depth.values.shape[1] // _COLUMNS)
    starts = np.arange(0, depth.values.shape[1], step)
    pooled = np.fmax.reduceat(depth.values, starts, axis=1)
    title = place.value[0].upper() + place.value[1:]
    ranked = depth.outliers(5, threshold)
    parts = [
        f"<h3>{escape(title)}</h3>",
        heat_figure(
            heat_map(pooled, _DARKEST),
            f"Largest magnitude by layer and channel at the {place.value}",
            f"Layers from top to bottom, {format_count(depth.values.shape[1])} channels from left to right: the "
            f"largest |x| over "
            "all tokens.",
            "",
        ),
    ]
    rows = [
        (
            format_count(c.index),
            number(c.max),
            str(c.layer),
            f"{number(c.ratio)} ×",
            f"{c.layers_above} of {len(depth.layers)}",
        )
        for c in ranked
    ]
    head = (
        "Channel",
        "Largest |x|",
        "In layer",
        "Times the median channel",
        f"Layers where it reaches {format_number(threshold)}",
    )
    return "".join(parts) + table(head, rows, "Channels that stand out most", (0, 1, 2, 3, 4))


def _side_by_side(a: ActivationLayer) -> str:
    top = np.argsort(-a.max, kind="stable")[:4]
    marks = [
        Mark(
            int(c),
            float(a.max[c]),
            f"channel {format_count(c)}: |x| up to {number(a.max[c])}, |w| up to {number(a.weight_max[c])}",
        )
        for c in top
    ]
    curves = [
        Curve("largest |x|", a.max, 1),
        Curve("RMS of x", a.rms, 0),
        Curve("largest |w| of the same channel", a.weight_max, 2),
    ]
    picture = profile(f"Activations and weights of {a.name} by input channel", curves, marks)
    text = "Activation and weight range of the same input channel: what SmoothQuant and AWQ move from one to the other."
    return f"<h3>{escape(a.name)}</h3>" + figure(picture, text)


def _inputs(found: Activations, threshold: float) -> str:
    shown = sorted((a for a in found.layers if a.tokens), key=lambda a: a.tensor_snr_db)
    rows = [
        (
            escape(a.name),
            escape(a.place.value),
            format_count(a.tokens),
            number(a.amax),
            f"{number(a.ratio)} ×",
            format_percent(a.share_above(threshold), 2),
            f'<span class="bad">{format_decibels(a.tensor_snr_db)}, breaks</span>'
            if a.breaks
            else format_decibels(a.tensor_snr_db),
            format_decibels(a.token_snr_db),
        )
        for a in shown
    ]
    head = (
        "Input of",
        "Place",
        "Tokens",
        "Largest |x|",
        "Times the median channel",
        f"Columns from {format_number(threshold)} on",
        "INT8 by tensor",
        "INT8 by token",
    )
    inner = table(head, rows[:ROWS], cut(rows), (2, 3, 4, 5, 6, 7))
    return f"<details open><summary>{format_count(len(rows))} inputs, worst first</summary>{inner}</details>"
