"""The windows of a text that two models are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.errors import UserError
from core.runtime.tokenizer import Text
from core.units import format_count
from core.verdict.settings import EvalText
from resources import read_text

MAX_BYTES = 8 << 20  # of a text that are read: more than is tokenized within some seconds
LETTERS = 16  # of a text that are looked at for each token that is wanted from its start
BUNDLED = "evaluation/text.txt"


@dataclass(frozen=True, eq=False)
class Windows:
    """ids: int32 [windows, length]. starts: places in the text's tokens. asked: windows that were asked for."""

    ids: np.ndarray
    starts: tuple[int, ...]
    asked: int
    title: str

    @property
    def warning(self) -> str:
        """'' when the text had enough."""
        found = len(self.ids)
        if found == self.asked:
            return ""
        return (
            f"The text has tokens for {format_count(found)} of the {format_count(self.asked)} windows that "
            "were asked for."
        )


def read_evaluation_text(settings: EvalText) -> str:
    """Raises UserError for a file that can not be read, or is no text."""
    if not settings.path:
        return read_text(BUNDLED)
    path = Path(settings.path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as e:
        raise UserError(
            f"{path.name or path} can not be read ({e.strerror or e}).", "Check the name of the file."
        ) from e
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        if len(data) == MAX_BYTES and e.start > MAX_BYTES - 4:  # cut inside of a letter
            return data[: e.start].decode("utf-8-sig")
        raise UserError(f"{path.name} is no text in UTF-8.", "Save it as UTF-8.") from e


def take_windows(text: str, source: Text, artifact: Text, settings: EvalText) -> Windows:
    """Raises UserError when both tokenizers do not agree on the text, and when it is too short for one window."""
    size, count = settings.length, settings.windows
    if not settings.spread:
        text = text[: size * count * LETTERS]
    ids = source.encode(text, add_special=False)
    if ids != artifact.encode(text, add_special=False):
        raise UserError(
            "The two models cut the text into different tokens, so their predictions can not be compared.",
            "Compare an artifact with the source that it was made from.",
        )
    before = list(source.ids.before)
    ids = [*before, *ids]
    whole = len(ids) // size
    if not whole:
        raise UserError(
            f"The text has {format_count(len(ids))} tokens, but a window takes {format_count(size)}.",
            "Give a longer text, or shorter windows.",
        )
    taken = min(whole, count)
    if settings.spread and taken > 1:
        starts = tuple(round(i * (len(ids) - size) / (taken - 1)) for i in range(taken))
    else:
        starts = tuple(i * size for i in range(taken))
    windows = np.array([ids[start : start + size] for start in starts], np.int32)
    windows[:, : len(before)] = before
    return Windows(windows, starts, count, Path(settings.path).name or "bundled text")
