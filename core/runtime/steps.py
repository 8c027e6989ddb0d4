"""Runs of an engine that can be stopped from outside, also in the middle of one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

import numpy as np

from core.errors import Cancelled
from core.progress import CancelToken
from core.runtime.model import Engine

POLL = 0.02  # seconds between looks at the cancel token while an engine works


class Running(Protocol):
    """A loaded model, or an engine alone."""

    @property
    def engine(self) -> Engine: ...


def step(
    model: Running,
    tokens: np.ndarray,
    sequences: np.ndarray,
    positions: np.ndarray,
    wanted: np.ndarray,
    cancel: CancelToken,
) -> np.ndarray:
    """One run of the engine, float32 [wanted, vocabulary]. Raises Cancelled when it was stopped inside."""
    try:
        return model.engine.run(tokens, sequences, positions, wanted)
    except Exception:
        if cancel.cancelled:
            raise Cancelled from None
        raise


class Watch:
    """Hands a cancel on to the engines while they work: a batch of a large model takes longer than one wants to wait.

    Again and again until the block is left, since a cancel that meets no run does nothing, and the next run may just
    then begin.
    """

    def __init__(self, models: Sequence[Running], cancel: CancelToken) -> None:
        self._models, self._cancel = models, cancel
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="cancel-watch", daemon=True)

    def _poll(self) -> None:
        while not self._done.wait(POLL):
            if self._cancel.cancelled:
                for model in self._models:
                    model.engine.cancel()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
