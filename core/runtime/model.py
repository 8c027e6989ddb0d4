"""What the runtime needs of a loaded model, whoever loaded it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from core.kv.scales import FileScales
from core.runtime.tokenizer import Text
from kernels.program import Program


class KernelUse(Protocol):
    """One line of an engine's report. shape: 'rows × columns'; reason: why this kernel and not a better one."""

    @property
    def op(self) -> str: ...
    @property
    def shape(self) -> str | tuple[int, ...]: ...
    @property
    def kernel(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Engine(Protocol):
    """A program that runs (`kernels.engine.Engine`)."""

    @property
    def bytes_per_token(self) -> int: ...

    def run(
        self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray: ...

    def cancel(self) -> None:
        """Stop the run that goes on, from another thread; without one, nothing happens."""

    def report(self) -> Sequence[KernelUse]: ...


class Model(Protocol):
    """capacity: positions of each sequence in the cache; sequences: how many it has. program: what the engine runs.
    file_scales: of a cache in FP8, that the file has."""

    @property
    def engine(self) -> Engine: ...
    @property
    def program(self) -> Program: ...
    @property
    def text(self) -> Text: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def file_scales(self) -> FileScales: ...
