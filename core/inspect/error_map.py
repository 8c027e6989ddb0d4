"""The same tensor after quantization: where the error is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint
from core.formats import Method
from core.plan import TensorPlan
from core.progress import CancelToken, ErrorStats


@dataclass(frozen=True)
class ChannelError:
    """axis: 'output' (rows) or 'input' (columns). max, rms: float32, one a channel, of |x−x̂|, weight units; NaN where
    no value was looked at yet. share: float32, of the tensor's squared error that is in the channel (sums to 1)."""

    axis: str
    max: np.ndarray
    rms: np.ndarray
    share: np.ndarray


@dataclass(frozen=True)
class ErrorMap:
    """cells: float32 [h, w], the largest |x−x̂| in each cell, NaN where nothing was looked at yet. row_edges,
    column_edges: cells' borders, h+1 and w+1 numbers. stats: of the values looked at. nrmse: √(Σ(x−x̂)² / Σx²).
    done: share of the rows looked at; the last map of an iteration has 1."""

    tensor: str
    format: str
    expert: int | None
    cells: np.ndarray
    row_edges: np.ndarray
    column_edges: np.ndarray
    rows: ChannelError
    columns: ChannelError
    stats: ErrorStats
    nrmse: float
    done: float


def error_map(
    checkpoint: Checkpoint,
    tensor: TensorPlan,
    method: Method,
    token: CancelToken,
    height: int = 256,
    width: int = 256,
    expert: int | None = None,
    seconds: float = 0.25,
) -> Iterator[ErrorMap]:
    """Maps of ever more rows: the first of rows spread evenly, within about `seconds`, the last of all of them.

    Memory does not grow with the tensor. expert: this matrix of a stack only. A tensor that is copied has no error.
    Raises UserError when the values can not be stored, Cancelled.
    """
    raise NotImplementedError
