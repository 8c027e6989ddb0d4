"""Measures an artifact against its source, step by step: `evaluating` is what command line and window drive.

The source runs first and leaves its distributions in a file (`core.verdict.source_logits`), so that one model is in
memory at a time, and the next artifact needs no source. Where such a file would be too large, both run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.inspect.cache import DamagedFile
from core.kv.scheme import CacheScheme
from core.methods.record import read_record, text_of_record
from core.metrics.divergence import NonFinite, SourceRows, TokenFigures, compact, compare
from core.progress import CancelToken
from core.runtime.arithmetic import ARITHMETICS, contract_text
from core.runtime.device import check_place, parse_place
from core.runtime.generate import GenerationResult
from core.runtime.load import LoadedModel, decoder_config, loading
from core.runtime.results import machine_name, version_names
from core.runtime.speed import BenchSettings, SpeedResult, measure
from core.runtime.tokenizer import Text, open_text
from core.runtime.transformers_model import in_background
from core.units import format_count
from core.verdict.choices import Item, read_tasks, score, task_result
from core.verdict.evaluation import Evaluation
from core.verdict.facts import commands, facts_of, rollback
from core.verdict.layers import LayerErrors, layer_errors, logits_not_finite
from core.verdict.needle import needle_items, needle_lengths, needle_result
from core.verdict.quality import Quality
from core.verdict.run import logit_width, scored_logits
from core.verdict.settings import EvalSettings
from core.verdict.source_logits import LogitsWriter, SourceLogits, source_key
from core.verdict.text import Windows, read_evaluation_text, take_windows
from core.verdict.texts import continuations, text_pairs

CACHE_DTYPE = "F16"  # of the source
SPEED = BenchSettings(prompt_tokens=256, decode_tokens=32, runs=3)
# What each part costs, in windows' worth: only the progress bar depends on it.
_LOAD, _TEXTS, _LAYERS, _SPEED = 2.0, 2.0, 3.0, 6.0

T = TypeVar("T")


@dataclass(frozen=True)
class EvalStep:
    """stage: what is going on, for people. share: of everything, 0 … 1. quality: of the windows so far, once there is
    one."""

    stage: str
    share: float
    quality: Quality | None = None


Steps = Generator[EvalStep, None, T]


@dataclass
class _Job:
    """One evaluation under way. total, done: in windows' worth."""

    source: Checkpoint
    artifact: Checkpoint
    settings: EvalSettings
    token: CancelToken
    total: float = 1.0
    done: float = 0.0
    figures: list[TokenFigures] = field(default_factory=list)
    quality: Quality | None = None
    contracts: dict[str, None] = field(default_factory=dict)  # what the figures hold for
    notes: dict[str, None] = field(default_factory=dict)

    def step(self, stage: str, more: float = 0.0) -> EvalStep:
        return EvalStep(stage, min((self.done + more) / self.total, 1.0), self.quality)

    def shares(self, stage: str, weight: float, steps: Generator[float, None, T]) -> Steps[T]:
        """Steps of a part that tells its own share."""
        while True:
            try:
                share = next(steps)
            except StopIteration as end:
                self.done += weight
                result: T = end.value
                return result
            yield self.step(stage, share * weight)


@dataclass(frozen=True)
class _Questions:
    """Everything besides windows that a model is asked."""

    tasks: tuple[Item, ...]
    needles: tuple[tuple[int, float, Item], ...]
    prompts: tuple[str, ...]
    capacity: int
    warning: str = ""

    @property
    def any(self) -> bool:
        return bool(self.tasks or self.needles or self.prompts)

    def cost(self, settings: EvalSettings) -> float:
        """Of tasks and needles, in windows' worth."""
        return sum(item.length for item in self.items) / settings.text.length

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.tasks, *(item for _, _, item in self.needles))


@dataclass(frozen=True, eq=False)
class _Answers:
    scores: tuple[np.ndarray, ...] = ()
    texts: tuple[GenerationResult, ...] = ()


def evaluating(
    source: Checkpoint, artifact: Checkpoint, settings: EvalSettings, token: CancelToken | None = None
) -> Steps[Evaluation]:
    """Yields as it goes on; returns the Evaluation, which `core.verdict.thresholds.judge` judges.

    Raises UserError for models whose tokens are not the same, a text that is too short, values that are not finite
    (with the layer), and what loading a model can refuse; Cancelled soon after the token is set.
    """
    begin = time.perf_counter()
    job = _Job(source, artifact, settings, token or CancelToken())
    place = parse_place(settings.device)
    check_place(place, settings.fallback)
    _check_pair(source, artifact)
    yield job.step("reading the text")
    prepare = partial(_prepare, source, artifact, settings)
    windows, questions = yield from in_background(prepare, job.token, job.step("reading the text"))
    ids, first = windows.ids, settings.text.first
    arithmetic = ARITHMETICS[settings.arithmetic]
    width, rows = decoder_config(source).vocab, settings.text.scored
    key = source_key(source, ids, first, contract_text(arithmetic, place), CACHE_DTYPE)
    kept, damaged = None, ""
    try:
        if settings.use_cache:
            kept = SourceLogits.open(key, len(ids), rows, width, job.token)
    except DamagedFile as problem:
        damaged = problem.note
    reused = kept is not None
    asked = questions.cost(settings) + (_TEXTS if questions.prompts else 0)
    job.total = 2 * (_LOAD + len(ids) + asked) + (_LAYERS if settings.layers else 0) + (_SPEED if settings.speed else 0)
    answers = _Answers()
    with ExitStack() as stack:
        if reused and not questions.any:
            job.done += _LOAD + len(ids)
        elif reused or (settings.use_cache and LogitsWriter.fits(len(ids), rows, width)):
            with ExitStack() as alone:
                model = yield from _load(job, alone, source, questions.capacity)
                if not reused:
                    yield from _keep_source(job, model, windows, key)
                    width = logit_width(model)
                    with suppress(DamagedFile):
                        kept = SourceLogits.open(key, len(ids), rows, width, job.token)
                answers = yield from _answer(job, model, questions)
        both = None
        if kept is None:  # too large, or the folder can not be written
            both = yield from _load(job, stack, source, questions.capacity)
            width = logit_width(both)
        else:
            stack.callback(kept.close)
        model = yield from _load(job, stack, artifact, questions.capacity)
        if logit_width(model) != width:
            raise _other_vocabulary(width, logit_width(model))
        yield from _compare(job, model, windows, kept, both)
        if both is not None and questions.any and not answers.scores and not answers.texts:
            answers = yield from _answer(job, both, questions)
        others = yield from _answer(job, model, questions)
    assert job.quality is not None
    layers = LayerErrors((), 0, "Not asked for.")
    if settings.layers:
        part = ids[0, : settings.layers]
        stage = "comparing layer by layer"
        layers = yield from job.shares(stage, _LAYERS, layer_errors(source, artifact, part, job.token))
    speed = (yield from _measure_speed(job)) if settings.speed else None
    tasks = len(questions.tasks)
    yield EvalStep("done", 1.0, job.quality)
    return Evaluation(
        settings=_with_record(settings, artifact),
        text=windows.title,
        arithmetic="; ".join(job.contracts),
        quality=job.quality,
        layers=layers,
        tasks=task_result(questions.tasks, answers.scores[:tasks], others.scores[:tasks]) if tasks else None,
        needle=needle_result(questions.needles, answers.scores[tasks:], others.scores[tasks:])
        if questions.needles
        else None,
        texts=text_pairs(questions.prompts, answers.texts, others.texts),
        speed=speed,
        source=facts_of(source),
        artifact=facts_of(artifact),
        serving=commands(artifact),
        rollback=rollback(source),
        machine=machine_name(),
        versions=version_names(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - begin,
        reused=reused,
        kept=kept is not None,
        warnings=tuple(filter(None, (windows.warning, questions.warning, *job.notes, damaged))),
    )


def _with_record(settings: EvalSettings, artifact: Checkpoint) -> EvalSettings:
    """What the artifact says of how it was made, where nobody said anything else."""
    record = read_record(artifact)
    method = settings.method or str(record.get("method", ""))
    return replace(settings, method=method, calibration=settings.calibration or text_of_record(record))


def evaluate(
    source: Checkpoint,
    artifact: Checkpoint,
    settings: EvalSettings,
    progress: Callable[[EvalStep], None] | None = None,
    token: CancelToken | None = None,
) -> Evaluation:
    """What `evaluating` returns, its progress told to a function."""
    steps = evaluating(source, artifact, settings, token)
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            result: Evaluation = end.value
            return result
        if progress is not None:
            progress(step)


def _check_pair(source: Checkpoint, artifact: Checkpoint) -> None:
    for checkpoint in (source, artifact):
        if checkpoint.packed_problem:
            raise checkpoint.packed_problem


def _other_vocabulary(source: int, artifact: int) -> UserError:
    return UserError(
        f"The source knows {format_count(source)} tokens and the artifact {format_count(artifact)}, so they can "
        "not be compared.",
        "Compare an artifact with the source that it was made from.",
    )


def _prepare(source: Checkpoint, artifact: Checkpoint, settings: EvalSettings) -> tuple[Windows, _Questions]:
    """Everything that needs a tokenizer; no weights."""
    configs = decoder_config(source), decoder_config(artifact)
    if configs[0].vocab != configs[1].vocab:
        raise _other_vocabulary(configs[0].vocab, configs[1].vocab)
    tokenizer, other = open_text(source), open_text(artifact)
    text = read_evaluation_text(settings.text)
    windows = take_windows(text, tokenizer, other, settings.text)
    if windows.ids.max() >= configs[0].vocab:
        raise UserError(
            f"The tokenizer knows token {format_count(windows.ids.max())}, but the model has only "
            f"{format_count(configs[0].vocab)}.",
            "Use the tokenizer that belongs to these weights.",
        )
    context = min(c.context for c in configs)
    if settings.text.length > context:
        raise UserError(
            f"A window of {format_count(settings.text.length)} tokens is longer than the context of "
            f"{format_count(context)}.",
            "Choose shorter windows.",
        )
    return windows, _questions(tokenizer, text, settings, context)


def _questions(tokenizer: Text, text: str, settings: EvalSettings, context: int) -> _Questions:
    tasks = read_tasks(Path(settings.tasks), tokenizer) if settings.tasks else ()
    needles = needle_items(tokenizer, text, needle_lengths(settings.needle, context)) if settings.needle else ()
    needles = tuple(n for n in needles if n[2].length <= context)
    longest = [item.length for item in (*tasks, *(n[2] for n in needles))]
    longest += [len(tokenizer.encode(prompt)) + settings.new_tokens for prompt in settings.prompts]
    need = max([settings.text.length, *longest])
    if need > context:
        raise UserError(
            f"A task or prompt takes {format_count(need)} tokens, but the context is {format_count(context)}.",
            "Shorten it, or leave it out.",
        )
    left = [n for n in settings.needle if n > context]
    warning = (
        f"Numbers are not hidden in texts of {format_count(max(left))} tokens: the context is {format_count(context)}."
        if left
        else ""
    )
    return _Questions(tasks, needles, settings.prompts, need, warning)


def _load(job: _Job, stack: ExitStack, checkpoint: Checkpoint, capacity: int) -> Steps[LoadedModel]:
    arithmetic = ARITHMETICS[job.settings.arithmetic]
    stage = f"loading {checkpoint.path.name}"
    place, fallback = parse_place(job.settings.device), job.settings.fallback
    cache = CacheScheme.parse(job.settings.cache).text if checkpoint is job.artifact else CACHE_DTYPE
    steps = loading(checkpoint, capacity, 1, arithmetic, job.settings.threads, cache, job.token, place, fallback)
    while True:
        try:
            read = next(steps)
        except StopIteration as end:
            model: LoadedModel = end.value
            stack.callback(model.unload)
            job.contracts[model.contract] = None
            if model.fell_back:
                job.notes[f"{model.fell_back} It ran on the processor."] = None
            job.done += _LOAD
            return model
        yield job.step(stage, _LOAD * read.bytes_done / max(read.bytes_total, 1))


def _keep_source(job: _Job, model: LoadedModel, windows: Windows, key: str) -> Steps[None]:
    """Run the source over all windows into the file. Where it can not be written there is none in the end."""
    ids, text = windows.ids, job.settings.text
    stage, done = "measuring the source", job.done
    if model.fell_back:  # the key says another place
        return
    try:
        with LogitsWriter(key, len(ids), text.scored, logit_width(model)) as writer:
            for number, window in enumerate(ids):
                for part, rows in _source_rows(job, model, window):
                    writer.write(number, part, rows)
                    yield job.step(stage, part.stop / text.scored)
                job.done += 1
            writer.finish(job.token)
    except OSError:
        job.done = done


def _source_rows(job: _Job, model: LoadedModel, window: np.ndarray) -> Generator[tuple[slice, SourceRows], None, None]:
    first = job.settings.text.first
    for part, logits in scored_logits(model, window, first, job.token):
        with _Finite(job, model.checkpoint, window):
            rows = compact(logits, _right(window, part, first), job.token)
        yield part, rows


def _right(window: np.ndarray, part: slice, first: int) -> np.ndarray:
    """The tokens that follow these scored rows."""
    return window[part.start + first + 1 : part.stop + first + 1]


class _Finite:
    """Turns logits that are not finite into a sentence with the layer."""

    def __init__(self, job: _Job, checkpoint: Checkpoint, window: np.ndarray) -> None:
        self._job, self._checkpoint, self._window = job, checkpoint, window

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NonFinite):
            raise logits_not_finite(self._checkpoint, self._window, self._job.token) from error


def _compare(
    job: _Job, model: LoadedModel, windows: Windows, kept: SourceLogits | None, both: LoadedModel | None
) -> Steps[None]:
    """Every window of the artifact, against the file or, beside it, the source itself."""
    text, stage = job.settings.text, "measuring the artifact"
    for number, window in enumerate(windows.ids):
        parts = []
        beside = _source_rows(job, both, window) if both is not None else None
        for part, logits in scored_logits(model, window, text.first, job.token):
            source = next(beside)[1] if beside is not None else kept.rows(number, part)  # type: ignore[union-attr]
            with _Finite(job, model.checkpoint, window):
                parts.append(compare(source, logits, _right(window, part, text.first), job.token))
            yield job.step(stage, part.stop / text.scored)
        job.figures.append(TokenFigures.joined(parts))
        job.quality = Quality.of(job.figures, resamples=0)
        job.done += 1 if both is None else 2
        yield job.step(stage)
    job.quality = Quality.of(job.figures)


def _answer(job: _Job, model: LoadedModel, questions: _Questions) -> Steps[_Answers]:
    name = model.checkpoint.path.name
    scores: tuple[np.ndarray, ...] = ()
    texts: tuple[GenerationResult, ...] = ()
    if questions.items:
        steps = score(model, questions.items, job.token)
        scores = yield from job.shares(f"asking {name}", questions.cost(job.settings), steps)
    if questions.prompts:
        new = continuations(model, questions.prompts, job.settings.new_tokens, job.token)
        texts = yield from job.shares(f"letting {name} write", _TEXTS, new)
    return _Answers(scores, texts)


def _measure_speed(job: _Job) -> Steps[tuple[SpeedResult, SpeedResult]]:
    """Both in turn, with the arithmetic that the engine runs with."""
    context = min(decoder_config(c).context for c in (job.source, job.artifact))
    settings = replace(SPEED, prompt_tokens=max(min(SPEED.prompt_tokens, context - SPEED.decode_tokens), 1))
    done = job.done
    with ExitStack() as stack:
        models = []
        fast = _Job(job.source, job.artifact, replace(job.settings, arithmetic="fast"), job.token, job.total, done)
        fast.quality = job.quality
        for checkpoint in (job.source, job.artifact):
            fast.done = done
            models.append((yield from _load(fast, stack, checkpoint, settings.capacity)))
        steps = measure(models, settings, job.token)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                results = end.value
                return results[0], results[1]
            yield job.step("measuring speed", _SPEED * step.share)
