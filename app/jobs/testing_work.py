"""The page's background work, made of what a `Backend` can do. Plain generators; no window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.jobs.runner import Work
from app.jobs.testing import (
    Answered,
    AnswerEntry,
    Backend,
    DeviceMemory,
    Devices,
    Piece,
    Point,
    Question,
    Setup,
    SweepEntry,
    SweepOrder,
)
from app.models.answers import Comparison, compare
from core.errors import Cancelled
from core.progress import CancelToken
from core.runtime.logits import LogitDifference
from core.runtime.results import StoredResult


@dataclass(frozen=True)
class Loaded:
    """A file is ready. Whoever gets this owns the model and closes it."""

    side: int
    setup: Setup
    model: Any

    @property
    def result(self) -> Any:
        return self.model


@dataclass(frozen=True)
class Asking:
    """The prompt goes to this side now."""

    side: int

    @property
    def result(self) -> int:
        return self.side


@dataclass(frozen=True)
class Failed:
    """This side can not go on; the other one does."""

    side: int
    error: BaseException

    @property
    def result(self) -> BaseException:
        return self.error


@dataclass(frozen=True)
class Wanted:
    """One side's part of a job. model: loaded already, or None. stale: a model to close before."""

    side: int
    setup: Setup
    model: Any = None
    stale: Any = None


@dataclass(frozen=True)
class Outcome:
    """What came of a question. comparison: None unless both sides have answered. slower: why the second one is.
    logits: of one file on two devices.
    """

    comparison: Comparison | None
    slower: str = ""
    logits: LogitDifference | None = None


def load_work(backend: Backend, wanted: Sequence[Wanted]) -> Work:
    """Yields LoadStep, Loaded and Failed for each side."""

    def work(token: CancelToken) -> Iterator[Any]:
        yield from _load(backend, wanted, token)

    return work


def close_work(models: Sequence[Any]) -> Work:
    """Gives the models' memory back."""

    def work(_token: CancelToken) -> None:
        for model in models:
            model.close()

    return work


def answer_work(backend: Backend, wanted: Sequence[Wanted], question: Question) -> Work:
    """Loads what is not loaded, then asks one side after the other, so that neither disturbs the other's timing."""

    def work(token: CancelToken) -> Iterator[Any]:
        models = yield from _load(backend, wanted, token)
        pieces: dict[int, list[Piece]] = {}
        measured: dict[int, Any] = {}
        for part in wanted:
            if part.side not in models:
                continue
            yield Asking(part.side)
            try:
                taken = pieces[part.side] = []
                steps = backend.generate(part.side, models[part.side], question, token)
                measured[part.side] = yield from _kept(steps, taken)
                yield Answered(part.side, measured[part.side])
            except Cancelled:
                raise
            except Exception as error:  # noqa: BLE001 - told in the side's own column
                yield Failed(part.side, error)
        both = len(measured) == 2
        comparison = compare(pieces[0], pieces[1]) if both else None
        logits = None
        if both and _one_file_twice(wanted):
            logits = backend.compare_logits((models[0], models[1]), question, pieces[0])
        if measured:
            setups = {part.side: part.setup for part in wanted}
            texts = ["".join(p.text for p in pieces.get(side, ())) for side in (0, 1)]
            backend.store(
                AnswerEntry(
                    question,
                    (setups.get(0), setups.get(1)),
                    (measured.get(0), measured.get(1)),
                    (texts[0], texts[1]),
                    comparison.same if comparison is not None else None,
                    comparison.margin if comparison is not None else None,
                    logits,
                )
            )
        return Outcome(comparison, backend.why_slower(measured[0], measured[1]) if both else "", logits)

    return work


def sweep_work(backend: Backend, order: SweepOrder, stale: Sequence[Any] = ()) -> Work:
    """Yields a Point each; the result is the finished Sweep, which is stored. stale: models to close before."""

    def work(token: CancelToken) -> Iterator[Point]:
        for model in stale:
            model.close()
        steps = backend.sweep(order, token)
        while True:
            try:
                point = next(steps)
            except StopIteration as end:
                sweep = end.value
                break
            yield Point(point)
        backend.store(SweepEntry(order, sweep))
        return sweep

    return work


def history_work(backend: Backend, remove: Sequence[StoredResult] = ()) -> Work:
    """The result is every stored record, newest first, those of `remove` taken out before."""

    def work(_token: CancelToken) -> tuple[StoredResult, ...]:
        for stored in remove:
            backend.remove(stored)
        return tuple(backend.history())

    return work


def _load(backend: Backend, wanted: Sequence[Wanted], token: CancelToken) -> Iterator[Any]:
    models: dict[int, Any] = {}
    for part in wanted:
        token.check()
        if part.stale is not None:
            part.stale.close()
        if part.model is not None:
            models[part.side] = part.model
            continue
        try:
            model = yield from backend.load(part.side, part.setup, token)
        except Cancelled:
            raise
        except Exception as error:  # noqa: BLE001 - told in the side's own column
            yield Failed(part.side, error)
            continue
        models[part.side] = model
        yield Loaded(part.side, part.setup, model)
    return models


def _one_file_twice(wanted: Sequence[Wanted]) -> bool:
    """Whether both columns have the same file, on different devices or with different activations."""
    setups = [part.setup for part in wanted]
    return len(setups) == 2 and setups[0].path == setups[1].path and setups[0] != setups[1]


def devices_work(backend: Backend) -> Work:
    """The result is the backend's Devices."""

    def work(_token: CancelToken) -> Devices:
        return backend.devices()

    return work


def memory_work(model: Any) -> Work:
    """The result is the model's DeviceMemory, or None."""

    def work(_token: CancelToken) -> DeviceMemory | None:
        found: DeviceMemory | None = model.device_memory
        return found

    return work


def _kept(steps: Iterator[Piece], pieces: list[Piece]) -> Iterator[Piece]:
    """Pass tokens on and keep them; returns what the generator returns."""
    while True:
        try:
            piece = next(steps)
        except StopIteration as end:
            return end.value
        pieces.append(piece)
        yield piece
