"""Runs a decoder over one text without holding it: each weight is read from its file when its step comes.

The steps are those of `core.runtime.decoder`; between two of them only buffers [tokens, width] are kept.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from core.checkpoint.base import Checkpoint
from core.inspect.activations import ActivationLayer, Activations
from core.progress import CancelToken

TOKENS = 512  # of the text; a few hundred show every outlier channel


@dataclass(frozen=True)
class ActivationProgress:
    """done of total layers are finished; found: the inputs measured since the last report; cached: nothing was run."""

    done: int
    total: int
    found: tuple[ActivationLayer, ...] = ()
    cached: bool = False


def bundled_text() -> str:
    """Prose, code, a table and other languages, about a thousand tokens of a usual tokenizer."""
    from importlib import resources

    return (resources.files("resources") / "inspect_text.txt").read_text(encoding="utf-8")


def measure_activations(
    checkpoint: Checkpoint,
    text: str | None = None,
    limit: int = TOKENS,
    token: CancelToken | None = None,
    use_cache: bool = True,
) -> Generator[ActivationProgress, None, Activations]:
    """Every linear layer's input over the first `limit` tokens of a text (None: the bundled one).

    In float32, weights decoded. Yields layer by layer; the result is kept on disk, by the checkpoint's fingerprint and
    the tokens. Raises UserError for a model that is none of `core.runtime.decoder.FAMILIES`, without a tokenizer, for
    an empty text, and where a layer's output is not finite; Cancelled between two blocks of rows.
    """
    raise NotImplementedError
    yield
