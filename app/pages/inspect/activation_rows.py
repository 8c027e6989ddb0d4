"""The inputs of all layers as rows of a table, and in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from app.icons import icon
from app.models.table import Column
from core.units import format_count, format_decibels, format_decimals, format_number, format_percent

if TYPE_CHECKING:
    from core.inspect.activations import ActivationLayer, Activations


def layer_name(layer: ActivationLayer) -> str:
    """'Layer 12 · feed-forward down'."""
    parts = [f"Layer {layer.layer}"] if layer.layer is not None else []
    parts.append(layer.place.value)
    if layer.expert is not None:
        parts.append(f"expert {layer.expert}")
    words = " · ".join(parts)
    return words[:1].upper() + words[1:]


def layer_columns(threshold: Callable[[], float]) -> tuple[Column, ...]:
    """Columns of the table of layers, one row an ActivationLayer. threshold: the one in force."""
    return (
        Column("Input", layer_name, lambda a: (a.layer is None, a.layer or 0), tooltip=lambda a: "\n".join(a.tensors)),
        Column(
            "One scale", _verdict, lambda a: (not a.breaks, _key(a.tensor_snr_db)),
            role=lambda a: "error" if a.tokens and a.breaks else "", icon=_verdict_icon,
            tooltip=_verdict_tip,
        ),
        Column(
            "INT8 SNR", lambda a: _decibels(a, a.tensor_snr_db), lambda a: _key(a.tensor_snr_db), number=True,
            term="per-tensor INT8 activations",
        ),
        Column(
            "a scale a token", lambda a: _decibels(a, a.token_snr_db), lambda a: _key(a.token_snr_db), number=True,
            term="per-token INT8 activations",
        ),
        Column("Max", lambda a: format_number(a.amax), lambda a: a.amax, number=True, term="activation range"),
        Column(
            "Max ÷ median", lambda a: f"{format_decimals(a.ratio, 1)} ×", lambda a: a.ratio, number=True,
            term="channel ratio",
        ),
        Column(
            "Above line", lambda a: format_percent(a.share_above(threshold()), 2),
            lambda a: a.share_above(threshold()), number=True, term="LLM.int8() threshold",
        ),
    )  # fmt: skip


WIDTHS = ("Layer 30 · feed-forward down", "breaks", "99.99 dB", "99.99 dB", "9999.9", "999.9 ×", "99.99 %")


def _decibels(layer: ActivationLayer, value: float) -> str:
    return format_decibels(value) if layer.tokens else "–"


def _verdict(layer: ActivationLayer) -> str:
    if not layer.tokens:
        return "no token"
    return "breaks" if layer.breaks else "holds"


def _verdict_tip(layer: ActivationLayer) -> str:
    if not layer.tokens:
        return "No token of the text reached this expert."
    what = "loses more than a hundredth of the signal's energy" if layer.breaks else "is enough"
    return f"One INT8 scale for the whole input {what} for the median token."


def _verdict_icon(layer: ActivationLayer) -> object:
    if not layer.tokens:
        return None
    return icon("circle-x", "error") if layer.breaks else icon("circle-check", "ok")


def _key(value: float) -> float:
    return value if value == value else np.inf


def in_words(activations: Activations, threshold: float) -> str:
    """What was found, in two sentences."""
    reached = [a for a in activations.layers if a.tokens]
    broken = activations.breaking()
    share = format_percent(activations.share_above(threshold), 2)
    words = (
        f"{share} of all columns reach {format_number(threshold, 3)}, in "
        f"{format_count(len(activations.tokens))} tokens."
    )
    if not broken:
        return f"{words} One INT8 scale holds for every one of the {len(reached)} inputs."
    return (
        f"{words} One INT8 scale breaks {len(broken)} of {len(reached)} inputs, worst: {layer_name(broken[0]).lower()} "
        f"({format_decibels(broken[0].tensor_snr_db)}). With a scale a token {_fewer(broken)}."
    )


def _fewer(broken: Sequence[ActivationLayer]) -> str:
    """How many of those inputs lose as much with a scale for each token."""
    from core.inspect.activations import BREAK_DB

    left = sum(not a.token_snr_db >= BREAK_DB for a in broken)
    return "none of them does" if not left else f"{left} of them still {'do' if left > 1 else 'does'}"
