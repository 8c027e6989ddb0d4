"""Runs programs of steps (`kernels.program`), and draws the next token from their logits.

The compiled engine runs a whole step on threads of its own; numpy's (`kernels.reference.program`) is the definition and
the fallback. `kernels.dispatch` chooses, and `dispatch.only('cpu:avx2')` or `only('reference')` forces one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels import cpu, dispatch
from kernels import engine_backends as _backends  # registers them
from kernels.engine_backends import Cancelled
from kernels.engine_report import KernelUse, kernel_uses
from kernels.program import Embed, Experts, Linear, Program

__all__ = ["BATCH", "Cancelled", "Engine", "KernelUse", "StepTime", "sample"]

BATCH = 512  # tokens that are computed together; more of them go through in parts


class _Executor(Protocol):
    def run(
        self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray: ...
    def cancel(self) -> None: ...
    def profile(self, on: bool) -> None: ...
    def times(self) -> list[float]: ...
    def cache_bytes(self) -> int: ...
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class StepTime:
    """label: of `Program.labels`, or the step's place; seconds: all runs since `Engine.profile(True)`."""

    label: str
    op: str
    seconds: float


class Engine:
    """A program with its cache, ready to run. threads: the caller's is one of them; they sleep between runs.

    Raises RuntimeError when the backend that `dispatch.only` asks for can not run the program, and ValueError for a
    program whose steps do not fit together.
    """

    def __init__(self, program: Program, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"an engine has at least one thread, not {threads}")
        self.program = program
        self.threads = threads
        variant = _backends.packing(program)
        chosen = dispatch.find("program", variant)
        self.backend = chosen.backend
        self._reason = dispatch.reason("program", variant) or cpu.engine_missing or "the best that this processor has"
        self._executor: _Executor | None = chosen.function(program, threads)

    @property
    def isa(self) -> str:
        """The instruction set, or 'numpy'."""
        return self.backend.removeprefix("cpu:") if self.backend != "reference" else "numpy"

    @property
    def bytes_per_token(self) -> int:
        """Weights that a step of one token reads."""
        total = 0.0
        for step in self.program.steps:
            if isinstance(step, Linear):
                total += sum(weight.nbytes for weight in step.weights)
            elif isinstance(step, Experts):
                everything = sum(weight.nbytes for weight in step.gates + step.ups + step.downs)
                total += everything * step.used / len(step.gates)
            elif isinstance(step, Embed):
                total += step.weight.nbytes / step.weight.rows
        return round(total)

    @property
    def cache_bytes(self) -> int:
        """What the cache takes, as it was allocated."""
        return self._open().cache_bytes()

    @property
    def nbytes(self) -> int:
        """The cache and the buffers; not the weights, which belong to the program."""
        return self._open().nbytes()

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Logits float32 [W, vocabulary] of the batch's rows `wanted`. All arguments are integers, [M] and [W].

        Tokens of a sequence see each other and what earlier runs left, up to their own positions; a position that is
        given again is overwritten. Raises ValueError, before anything is computed, for a token, sequence, position or
        row that does not exist, and Cancelled after `cancel`. One run at a time; another thread's waits.
        """
        executor = self._open()
        tokens, sequences, positions, wanted = (
            np.ascontiguousarray(values, np.int32).reshape(-1) for values in (tokens, sequences, positions, wanted)
        )
        if len(tokens) <= BATCH or not len(tokens) == len(sequences) == len(positions):
            return executor.run(tokens, sequences, positions, wanted)
        _check_range(sequences, self.program.cache.sequences, "sequence")
        _check_range(positions, self.program.cache.capacity, "position")
        _check_range(wanted, len(tokens), "wanted row")
        for step in self.program.steps:
            if isinstance(step, Embed):
                _check_range(tokens, step.weight.rows, "token")
        # By position, so that whatever a token sees is there when its part comes.
        order = np.argsort(positions, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        logits = np.empty((len(wanted), self.program.widths[self.program.logits]), np.float32)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            here = np.flatnonzero((place[wanted] >= start) & (place[wanted] < start + len(part)))
            rows = (place[wanted[here]] - start).astype(np.int32)
            logits[here] = executor.run(tokens[part], sequences[part], positions[part], rows)
        return logits

    def cancel(self) -> None:
        """Stops the run that is under way, from another thread: it raises Cancelled. Without one, nothing happens."""
        if self._executor is not None:
            self._executor.cancel()

    def report(self) -> tuple[KernelUse, ...]:
        """What computes each kind of step, and why nothing better does."""
        return kernel_uses(self.program, self.backend, self._reason)

    def profile(self, on: bool) -> None:
        """Start measuring every step from zero, or stop."""
        self._open().profile(on)

    def times(self) -> tuple[StepTime, ...]:
        """Since `profile(True)`. A step that is done together with its neighbour has none of its own."""
        labels = self.program.labels or tuple(str(i) for i in range(len(self.program.steps)))
        return tuple(
            StepTime(label, type(step).__name__, seconds)
            for label, step, seconds in zip(labels, self.program.steps, self._open().times(), strict=True)
        )

    def close(self) -> None:
        """Gives cache, buffers and threads back; a run under way in another thread is cancelled."""
        self.cancel()
        self._executor = None

    def _open(self) -> _Executor:
        if self._executor is None:
            raise RuntimeError("the engine is closed")
        return self._executor


def sample(
    logits: np.ndarray,
    previous: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition: float = 1.0,
    seed: int = 0,
    step: int = 0,
) -> int:
    """The next token. logits: float32 [V], NaN counts as −∞; previous: integers, for the repetition penalty.

    In this order: logits of previous tokens are divided by `repetition` where positive and multiplied elsewhere;
    temperature divides all (0: the largest wins, the lowest token among equals); the `top_k` most likely remain (0:
    all); of these, the most likely whose probabilities first reach `top_p` of the sum; of these, those with at least
    `min_p` times the largest probability. What is drawn: the first token, in the order of tokens, whose running sum of
    remaining probabilities exceeds `kernels.reference.sample.uniform(seed, step)` of their sum. Equal logits count by
    token, lower first. Raises ValueError where no finite logit is the largest.
    """
    logits = np.ascontiguousarray(logits, np.float32).reshape(-1)
    previous = np.ascontiguousarray(previous, np.int32).reshape(-1)
    function = dispatch.find("sample").function
    return int(function(logits, previous, temperature, top_k, top_p, min_p, repetition, seed & (1 << 64) - 1, step))


def _check_range(values: np.ndarray, limit: int, what: str) -> None:
    if len(values) and not 0 <= values.min() <= values.max() < limit:
        raise ValueError(f"a {what} is outside of 0 … {limit - 1}")
