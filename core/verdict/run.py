"""Windows of text through a model, and the logits of its scored rows a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from core.progress import CancelToken
from core.runtime.model import Model
from core.runtime.steps import Watch, step

PIECE = 128 << 20  # bytes of logits at a time, in float32
MOST_ROWS, FEWEST_ROWS = 512, 32


def logit_width(model: Model) -> int:
    """Columns of the logits."""
    return model.program.widths[model.program.logits]


def scored_logits(model: Model, ids: np.ndarray, first: int, token: CancelToken) -> Iterator[tuple[slice, np.ndarray]]:
    """ids: int32 [length], in sequence 0 from position 0 on. For pieces of the rows first … length − 2: which of the
    scored rows they are, and their logits, float32 [rows, vocabulary]. Raises Cancelled.
    """
    rows = max(FEWEST_ROWS, min(MOST_ROWS, PIECE // (4 * logit_width(model)) // 32 * 32))
    last = len(ids) - 1  # its next token is not known
    with Watch((model,), token):
        for start in range(0, last, rows):
            token.check()
            stop = min(start + rows, last)
            positions = np.arange(start, stop, dtype=np.int32)
            wanted = np.arange(max(first - start, 0), stop - start, dtype=np.int32)
            logits = step(model, ids[start:stop], np.zeros(stop - start, np.int32), positions, wanted, token)
            if len(wanted):
                yield slice(start + int(wanted[0]) - first, stop - first), logits
