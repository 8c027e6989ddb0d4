"""What a cache's formats cost in quality and in time, for the Test page: what is asked, and the work that answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.jobs.runner import Work
from core.errors import UserError
from core.progress import CancelToken
from core.runtime.results import Number, StoredResult, new_result
from core.units import format_count

if TYPE_CHECKING:
    from app.jobs.testing import Backend
    from core.kv.compare import SchemeCost
    from core.kv.contexts import ContextSweep
    from core.kv.needles import NeedleTable
    from core.kv.scheme import CacheScheme
    from core.runtime.load import LoadedModel

WINDOW = 128  # tokens in 16 bits of the exercise
MOST_TIMED = 4  # formats whose speed is measured beside 16 bits: more can not be told from each other in a plot
_PAIRS = (
    "Q8_0", "Q8_0/F16", "F16/Q8_0", "Q5_1", "Q4_0", "Q4_0/F16", "F16/Q4_0", "Q8_0/Q4_0", "INT8", "INT4",
    "INT4-g32,rotate", "INT4-g32,window=128,rotate", "KIVI2,window=128", "LM4,rotate", "LM3,rotate", "FP8",
)  # fmt: skip
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # tokens of texts with a number in them
_TIMED = ("Q8_0", "Q4_0", "INT8", "INT4", "Q8_0/Q4_0")
_HIDDEN = ("Q8_0", "FP8", "INT8", "Q4_0", "INT4", "INT4-g32,rotate", "KIVI2,window=128", "LM3,rotate", "LM2,rotate")
_POLL = 0.05  # seconds


class CacheMeasure(Enum):
    """What is measured; the values are what a person reads."""

    POSITION = "Quality by position"
    WINDOW = "Keys, values, window"
    NEEDLES = "Numbers in long texts"
    SPEED = "Speed by context"


@dataclass(frozen=True)
class CacheOrder:
    """tokens: of the text that is read; of SPEED, the longest context."""

    measure: CacheMeasure
    path: Path
    tokens: int
    arithmetic: str = "fast"


@dataclass(frozen=True)
class CacheStep:
    """share: of everything, 0 to 1."""

    share: float
    text: str


@dataclass(frozen=True)
class CacheFound:
    """costs: one a scheme, of quality. sweep: of SPEED. needles: of NEEDLES. tokens: as many as were read."""

    order: CacheOrder
    tokens: int
    costs: tuple[SchemeCost, ...] = ()
    sweep: ContextSweep | None = None
    needles: NeedleTable | None = None


@dataclass(frozen=True)
class CacheEntry:
    """A finished measurement, to be stored."""

    found: CacheFound


def schemes_of(measure: CacheMeasure) -> tuple[CacheScheme, ...]:
    """What the engine of this computer's processor runs of those that the measurement asks for.

    Raises UserError where it does not run what the measurement is about.
    """
    from app.jobs.testing_core import why_not
    from core.kv.compare import window_exercise
    from core.kv.scheme import CacheScheme

    if measure is CacheMeasure.WINDOW:
        exercise = window_exercise(WINDOW)
        refused = next(filter(None, (why_not(scheme, "cpu") for scheme in exercise)), "")
        if refused:
            raise UserError(refused, "Measure the quality by position instead.")
        return exercise
    texts = {CacheMeasure.SPEED: _TIMED, CacheMeasure.NEEDLES: _HIDDEN}.get(measure, _PAIRS)
    asked = map(CacheScheme.parse, texts)
    found = [scheme for scheme in asked if not why_not(scheme, "cpu")]
    return (CacheScheme(), *found[:MOST_TIMED]) if measure is CacheMeasure.SPEED else tuple(found)


def cache_problem(measure: CacheMeasure) -> str:
    """Why it can not be measured here, in a sentence; '' when it can."""
    try:
        return "" if schemes_of(measure) else "The engine keeps its cache in 16 bits alone."
    except UserError as error:
        return error.message


def cache_work(backend: Backend, order: CacheOrder, stale: list[Any]) -> Work:
    """Yields CacheStep; the result is a CacheFound, which is stored. stale: models to close before."""

    def work(token: CancelToken) -> Iterator[CacheStep]:
        for model in stale:
            model.close()
        stale.clear()
        found = yield from backend.compare_caches(order, token)
        backend.store(CacheEntry(found))
        return found

    return work


def cache_steps(order: CacheOrder, token: CancelToken) -> Generator[CacheStep, None, CacheFound]:
    """The bundled engine's measurement."""
    from core.checkpoint import open_checkpoint
    from core.runtime.arithmetic import ARITHMETICS
    from core.runtime.load import decoder_config, loading

    schemes = schemes_of(order.measure)
    with open_checkpoint(order.path) as checkpoint:
        tokens = min(order.tokens, decoder_config(checkpoint).context - 1)
        steps = loading(checkpoint, tokens + 1, 1, ARITHMETICS[order.arithmetic], token=token)
        with closing(steps):
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    model: LoadedModel = end.value
                    break
                yield CacheStep(0.1 * step.bytes_done / max(step.bytes_total, 1), "Reading the file")
        try:
            if order.measure is CacheMeasure.SPEED:
                return (yield from _timed(order, model, schemes, tokens, token))
            if order.measure is CacheMeasure.NEEDLES:
                return (yield from _hidden(order, model, schemes, tokens, token))
            return (yield from _compared(order, model, schemes, tokens, token))
        finally:
            model.unload()


def _timed(
    order: CacheOrder, model: LoadedModel, schemes: Sequence[CacheScheme], tokens: int, token: CancelToken
) -> Generator[CacheStep, None, CacheFound]:
    from core.kv.contexts import CONTEXTS, Filling, sweep_contexts

    contexts = [n for n in CONTEXTS if n <= tokens] or [tokens]
    steps = sweep_contexts(model, schemes, contexts, token=token)
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            return CacheFound(order, contexts[-1], sweep=end.value)
        if isinstance(step, Filling):
            yield CacheStep(0.1 + 0.9 * step.share, f"Writing tokens up to {format_count(step.context)}")


def _compared(
    order: CacheOrder, model: LoadedModel, schemes: Sequence[CacheScheme], tokens: int, token: CancelToken
) -> Generator[CacheStep, None, CacheFound]:
    from core.kv.compare import compare_schemes
    from core.verdict.settings import EvalText
    from core.verdict.text import read_evaluation_text

    ids = model.text.encode(read_evaluation_text(EvalText()))[:tokens]

    def job(tell: Callable[[float], None]) -> tuple[SchemeCost, ...]:
        return compare_schemes(model, ids, schemes, progress=tell, token=token)

    text = f"{len(schemes)} caches read the text beside one in 16 bits"
    steps = _told(job)
    while True:
        try:
            share = next(steps)
        except StopIteration as end:
            return CacheFound(order, len(ids), costs=end.value)
        yield CacheStep(0.1 + 0.9 * share, text)


def _hidden(
    order: CacheOrder, model: LoadedModel, schemes: Sequence[CacheScheme], tokens: int, token: CancelToken
) -> Generator[CacheStep, None, CacheFound]:
    from core.kv.needles import find_needles
    from core.verdict.settings import EvalText
    from core.verdict.text import read_evaluation_text

    lengths = [n for n in LENGTHS if n <= tokens] or [tokens]
    filler = read_evaluation_text(EvalText())

    def job(tell: Callable[[float], None]) -> NeedleTable:
        return find_needles(model, filler, schemes, lengths, progress=tell, token=token)

    steps = _told(job)
    while True:
        try:
            share = next(steps)
        except StopIteration as end:
            return CacheFound(order, lengths[-1], needles=end.value)
        yield CacheStep(0.1 + 0.9 * share, f"{len(schemes) + 1} caches are asked for numbers in long texts")


T = TypeVar("T")


def _told(job: Callable[[Callable[[float], None]], T]) -> Generator[float, None, T]:
    """What a job returns that tells how far it is to a function; yields the newest share while it works."""
    shares: queue.SimpleQueue[float] = queue.SimpleQueue()
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(job(shares.put))
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=work, name="bitsmith-caches", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL)
            newest = None
            while not shares.empty():
                newest = shares.get()
            if newest is not None:
                yield newest
    finally:
        thread.join()  # the model is the caller's and goes after this
    if errors:
        raise errors[0]
    return results[0]


def cache_result(entry: CacheEntry) -> StoredResult:
    """For the history."""
    from core.runtime.arithmetic import ARITHMETICS, contract_text
    from core.runtime.device import CPU

    found, order = entry.found, entry.found.order
    numbers = [Number(f"{cost.scheme.text}: KL divergence", "nats", cost.kl) for cost in found.costs]
    rows = found.needles.rows if found.needles is not None else ()
    numbers += [Number(f"{row.scheme.text}: numbers found", "", row.found) for row in rows]
    points = found.sweep.points if found.sweep is not None else ()
    numbers += [Number(f"{point.scheme.text} at {point.context}", "s", point.seconds) for point in points]
    contract = contract_text(ARITHMETICS[order.arithmetic], CPU)
    details = {"tokens": found.tokens, "measure": order.measure.name.lower(), "file": order.path.name}
    return new_result("cache", f"Cache: {order.measure.value.lower()}, {order.path.name}", contract, numbers, details)
