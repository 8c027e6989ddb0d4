"""What is said about calibration text that is too little, or does not suit the model. Each is one or two sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from core.calibration.settings import CalibrationText
from core.runtime.tokenizer import Text
from core.units import format_count

DISTINCT_SHARE = 0.02  # of the smaller of tokens and vocabulary; ordinary text of 32,768 tokens has 0.1 to 0.2
ENOUGH_TO_JUDGE = 2048  # tokens, below which there is no saying how varied a text is


@dataclass(frozen=True)
class Coverage:
    """ids: int32 [samples, length]. bytes_per_token: of all text that was read. hidden, intermediate: of the model."""

    ids: np.ndarray
    bytes_per_token: float
    hidden: int
    intermediate: int


class Counts(Protocol):
    """chats, plain: records of either kind that were read. refused: chats that the template does not take."""

    chats: int
    plain: int
    refused: int


def about_tokens(coverage: Coverage, settings: CalibrationText, text: Text) -> list[str]:
    """On the amount of text, and on how varied it is."""
    found = []
    ids = coverage.ids
    if len(ids) < settings.samples:
        found.append(
            f"The text gives {format_count(len(ids))} of the {format_count(settings.samples)} samples asked for."
        )
    widest = max(coverage.hidden, coverage.intermediate)
    if ids.size < widest:
        found.append(
            f"{format_count(int(ids.size))} tokens are fewer than the {format_count(widest)} channels of the widest "
            "layer, so what is measured of it is incomplete. Take more or longer samples."
        )
    distinct = np.unique(ids)
    if ids.size >= ENOUGH_TO_JUDGE and len(distinct) < DISTINCT_SHARE * min(ids.size, text.count):
        found.append(
            f"The text uses {format_count(len(distinct))} different tokens of {format_count(text.count)}: it repeats "
            "itself, or is very narrow. Add other text."
        )
    return found


def about_chats(counts: Counts, settings: CalibrationText, text: Text) -> list[str]:
    """On chats that the model was made for and the text does not have, or the other way round."""
    found = []
    if counts.refused:
        found.append(f"The chat template does not take {format_count(counts.refused)} chats of the text; left out.")
    if text.template and not counts.chats and not settings.chat:
        found.append(
            "The model was made for chats, and the text has none. Turn the chat template on, or add chats to the text."
        )
    if counts.chats and not text.template and settings.path:
        found.append("The text has chats, and the model has no chat template: they are written as plain dialogues.")
    return found
