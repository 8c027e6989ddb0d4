"""What the reads of one load share: how far it is, whether it was cancelled, and what could not stay as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from core.errors import Cancelled
from core.progress import CancelToken
from kernels import matrix
from kernels.matrix import Matrix


class NoLayout(ValueError):
    """The engine has no layout for a format."""


class Matrices(Protocol):
    """Makes matrices where a model is to run: `kernels.matrix`, or one of a GPU (`kernels.gpu.runtime.matrices`)."""

    def from_blocks(
        self, kind: str, rows: int, columns: int, read: Callable[[int, int], np.ndarray], tensor_scale: float = 1.0
    ) -> Matrix: ...

    def from_groups(
        self,
        rows: int,
        columns: int,
        bits: int,
        group: int,
        read: Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray | None]],
        scale_dtype: str = "BF16",
        symmetric: bool = True,
        table: np.ndarray | None = None,
        offsets: bool = False,
        order: np.ndarray | None = None,
    ) -> Matrix: ...

    def from_elements(
        self,
        dtype: str,
        rows: int,
        columns: int,
        read: Callable[[int, int], np.ndarray],
        scales: np.ndarray | None = None,
        tiling: tuple[int, int] = (128, 128),
    ) -> Matrix: ...


PROCESSOR: Matrices = matrix


@dataclass(frozen=True)
class Conversion:
    """A matrix that is not kept in its file's format, and why."""

    name: str
    stored: str
    kept: str
    reason: str


class Reading:
    """What all reads of one load share. Every piece asks whether the load was cancelled; thread-safe.

    matrices: what packs them.
    """

    def __init__(self, token: CancelToken, matrices: Matrices = PROCESSOR) -> None:
        self.matrices = matrices
        self.bytes_done = 0
        self.conversions: list[Conversion] = []
        self._token = token
        self._given_up = False
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """Nobody waits for the result: reads end as if they were cancelled."""
        self._given_up = True

    def took(self, nbytes: int) -> None:
        """Count bytes that were read. Raises Cancelled."""
        self._token.check()
        if self._given_up:
            raise Cancelled
        with self._lock:
            self.bytes_done += nbytes

    def converted(self, conversion: Conversion) -> None:
        with self._lock:
            self.conversions.append(conversion)
