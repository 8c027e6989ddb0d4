"""What is left of a matrix in a format that stores it alone, in memory and in pieces."""

from __future__ import annotations

import numpy as np

from core.formats import EncodeOptions, Format, Method
from core.progress import CancelToken
from core.threads import in_parallel

_PIECE = 1 << 19  # values that are encoded between two looks at the token


def rounded(weight: np.ndarray, form: Format, importance: np.ndarray | None, token: CancelToken) -> np.ndarray:
    """float32 [N, K]; numbers are searched, weighted by importance [K] where there is one. Raises Cancelled."""
    options = EncodeOptions(method=Method.SEARCH, importance=importance)
    if form.needs_amax:
        options = form.fit(lambda: iter([weight]), options)
    lanes = form.lanes(weight.shape)
    rows = weight if lanes is None else weight.reshape(-1, lanes.length)
    unit = form.unit_rows(weight.shape) if lanes is None else len(rows)
    step = max(1, _PIECE // rows.shape[1] // unit) * unit

    found = np.empty(rows.shape, np.float32)

    def one(start: int) -> None:
        some = np.ascontiguousarray(rows[start : start + step])
        parts = [np.ascontiguousarray(p).reshape(-1).view(np.uint8) for p in form.encode(some, options)]
        found[start : start + step] = form.decode(parts, *some.shape)

    for _ in in_parallel(one, range(0, len(rows), step), token):
        pass
    return found.reshape(weight.shape)
