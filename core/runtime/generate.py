"""Text out of a loaded model, a token at a time, with the time that each took.

Time is counted while the engine and the sampler work, not while whoever asked looks at a token, so a slow window or
pipe does not make a model slow. Loading and warming up are not part of it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

import numpy as np

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime.layers import embedding_rows
from core.runtime.model import Model
from core.runtime.sampling import Sampler, Sampling
from core.runtime.steps import Watch, step
from core.runtime.stops import StopFinder
from core.runtime.tokenizer import Message
from core.runtime.usage import peak_rss, reset_peak
from core.units import format_count

PROMPT_BATCH = 256  # tokens a step of the prompt: enough to reuse each weight often, and soon done on small machines


class Finish(Enum):
    """Why a generation ended."""

    STOP = "stop"  # a stop string
    EOS = "eos"  # the model's own end of text or turn
    LENGTH = "length"  # as many tokens as were asked for
    CAPACITY = "capacity"  # the cache is full
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class GenerateRequest:
    """What to continue, and for how long.

    prompt is continued as it stands; messages (then prompt stays empty) go through the chat template; tokens are
    taken instead of both. max_tokens: None fills the cache. parse_special: special tokens written out in the prompt
    are taken as such. ignore_end: go on after the model's own end. details: log-probability and margin of each token,
    worked out beside the clock.
    """

    prompt: str = ""
    messages: tuple[Message, ...] = ()
    tokens: tuple[int, ...] = ()
    max_tokens: int | None = 128
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    parse_special: bool = False
    ignore_end: bool = False
    details: bool = False


@dataclass(frozen=True)
class TokenEvent:
    """One token. text: what can be shown now, '' while a character or a stop string is incomplete.

    seconds: on the generation's own clock. logprob: natural logarithm of its probability before sampling changes it;
    margin: logit of the likeliest token less that of the second; a small one is a near-tie. Both None without details.
    """

    index: int
    token: int
    text: str
    seconds: float
    logprob: float | None = None
    margin: float | None = None


@dataclass(frozen=True)
class GenerationResult:
    """A finished generation. itl_ms: the time of every token but the first. peak_memory: resident bytes.

    tokens: with the end token, if one came; text: without what is no text, and without the stop string.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    prompt_tokens: int
    ttft_ms: float
    prompt_seconds: float
    itl_ms: tuple[float, ...]
    peak_memory: int

    @property
    def itl_p50(self) -> float | None:
        return percentile(self.itl_ms, 50)

    @property
    def itl_p95(self) -> float | None:
        return percentile(self.itl_ms, 95)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds > 0 else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """From the tokens after the first, which the prompt's last step brings."""
        total = sum(self.itl_ms)
        return 1000 * len(self.itl_ms) / total if total > 0 else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between neighbours; None of nothing."""
    return float(np.percentile(values, percent)) if len(values) else None


WARM_UP = 8  # tokens of a first batch, whose buffers and pages the next ones find in place


def warm_up(model: Model, cancel: CancelToken | None = None) -> None:
    """A small prompt and a step that nobody waits for, so that the first one that counts is as fast as the others."""
    cancel = cancel or CancelToken()
    size = min(WARM_UP, model.capacity)
    positions, last = np.arange(size, dtype=np.int32), np.array([size - 1], np.int32)
    zeros = np.zeros(size, np.int32)
    with Watch((model,), cancel):
        step(model, zeros, zeros, positions, last, cancel)
        step(model, zeros[:1], zeros[:1], last, zeros[:1], cancel)


def prompt_ids(model: Model, request: GenerateRequest) -> list[int]:
    """The tokens that a request starts from. Raises UserError for an empty prompt of a model without a start token."""
    if request.tokens:
        return list(request.tokens)
    if request.messages:
        return model.text.chat_ids(request.messages)
    ids = model.text.encode(request.prompt, parse_special=request.parse_special)
    if not ids and model.text.ids.bos is not None:
        ids = [model.text.ids.bos]
    if not ids:
        raise UserError("The prompt is empty, and this model has no token that starts a text.", "Write a prompt.")
    return ids


def check_capacity(capacity: int, prompt: int, more: int | None) -> None:
    """Raises UserError when a prompt and the tokens that are asked for do not fit. The last token takes no place."""
    if prompt > capacity:
        raise UserError(
            f"The prompt has {format_count(prompt)} tokens, but the cache holds {format_count(capacity)}.",
            "Shorten it, or load the model with a larger context.",
        )
    if more is not None and prompt + more - 1 > capacity:
        raise UserError(
            f"A prompt of {format_count(prompt)} tokens and {format_count(more)} new ones take "
            f"{format_count(prompt + more - 1)} places, but the cache "
            f"holds {format_count(capacity)}.",
            f"Ask for at most {format_count(capacity - prompt + 1)}, or load the model with a larger context.",
        )


def _check_tokens(prompt: Sequence[int], rows: int | None) -> None:
    if rows is not None and not 0 <= min(prompt) <= max(prompt) < rows:
        raise UserError(
            f"The prompt has the token {format_count(max(prompt))}, but the model's embedding only "
            f"{format_count(rows)} rows.",
            "Use the tokenizer that belongs to these weights.",
        )


def generate(
    model: Model, request: GenerateRequest, cancel: CancelToken | None = None
) -> Generator[TokenEvent, None, GenerationResult]:
    """Tokens as they come; the result is the generator's return value.

    Raises UserError before the first step when the request can not be met. When cancelled, it ends within 200 ms with
    a result that says so.
    """
    steps = generate_batch(model, (request,), cancel)
    while True:
        try:
            _, event = next(steps)
        except StopIteration as end:
            result: GenerationResult = end.value[0]
            return result
        yield event


def generate_batch(
    model: Model, requests: Sequence[GenerateRequest], cancel: CancelToken | None = None
) -> Generator[tuple[int, TokenEvent], None, tuple[GenerationResult, ...]]:
    """Several prompts, of any lengths, in one batch: (number of the request, token) as they come.

    Raises UserError when there are more than the cache has sequences, or one does not fit.
    """
    cancel = cancel or CancelToken()
    if not requests:
        return ()
    if len(requests) > model.sequences:
        raise UserError(
            f"There are {format_count(len(requests))} prompts, but the cache has room for "
            f"{format_count(model.sequences)}.",
            "Give fewer at once, or load the model for more sequences.",
        )
    reset_peak()
    clock = _Clock()
    _ = model.text  # opening the tokenizer is part of loading
    with clock:
        runs = [_Run(model, request, slot) for slot, request in enumerate(requests)]
    with Watch((model,), cancel):
        try:
            yield from _prompts(model, runs, clock, cancel)
            while active := [run for run in runs if run.finish is None]:
                cancel.check()
                with clock:
                    logits = step(
                        model,
                        np.array([run.tokens[-1] for run in active], np.int32),
                        np.array([run.slot for run in active], np.int32),
                        np.array([run.used for run in active], np.int32),
                        np.arange(len(active), dtype=np.int32),
                        cancel,
                    )
                    chosen = [run.choose(row) for run, row in zip(active, logits, strict=True)]
                for run, token, row in zip(active, chosen, logits, strict=True):
                    run.itl_ms.append(1000 * clock.last)
                    yield run.slot, run.event(token, row, clock.total)
        except Cancelled:
            for run in runs:
                run.finish = run.finish or Finish.CANCELLED
    peak = peak_rss()
    return tuple(run.result(peak) for run in runs)


def _prompts(
    model: Model, runs: Sequence[_Run], clock: _Clock, cancel: CancelToken
) -> Generator[tuple[int, TokenEvent], None, None]:
    """All prompts one after the other in batches, which may hold the end of one and the start of the next."""
    tokens = np.array([token for run in runs for token in run.prompt], np.int32)
    slots = np.repeat([run.slot for run in runs], [len(run.prompt) for run in runs]).astype(np.int32)
    positions = np.concatenate([np.arange(len(run.prompt), dtype=np.int32) for run in runs])
    last = np.cumsum([len(run.prompt) for run in runs]) - 1
    seconds = 0.0
    for start in range(0, len(tokens), PROMPT_BATCH):
        cancel.check()
        part = slice(start, start + PROMPT_BATCH)
        ending = [run for run, at in zip(runs, last, strict=True) if start <= at < start + PROMPT_BATCH]
        wanted = last[[run.slot for run in ending]] - start if ending else np.empty(0)
        with clock:
            logits = step(model, tokens[part], slots[part], positions[part], wanted.astype(np.int32), cancel)
        seconds += clock.last
        for run, row in zip(ending, logits, strict=True):
            with clock:
                token = run.choose(row)
            run.prompt_seconds, run.ttft_ms = seconds, 1000 * clock.total
            yield run.slot, run.event(token, row, clock.total)


class _Clock:
    """Counts the seconds inside its blocks. last: of the latest one."""

    def __init__(self) -> None:
        self.total = self.last = 0.0
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.last = time.perf_counter() - self._start
        self.total += self.last


class _Run:
    """One request on its way. used: places of the cache that hold its tokens."""

    def __init__(self, model: Model, request: GenerateRequest, slot: int) -> None:
        self.slot, self.request = slot, request
        if request.max_tokens is not None and request.max_tokens < 1:
            raise UserError(f"{request.max_tokens} tokens can not be generated.", "Ask for 1 or more.")
        self.sampler = Sampler(request.sampling)
        self.prompt = prompt_ids(model, request)
        check_capacity(model.capacity, len(self.prompt), request.max_tokens)
        _check_tokens(self.prompt, embedding_rows(model.program))
        self.capacity = model.capacity
        self.ends = frozenset() if request.ignore_end else model.text.ids.ends
        self.stream = model.text.stream(after=self.prompt)
        self.stops = StopFinder(request.stop)
        self.tokens: list[int] = []
        self.pieces: list[str] = []
        self.itl_ms: list[float] = []
        self.ttft_ms = self.prompt_seconds = 0.0
        self.finish: Finish | None = None

    @property
    def used(self) -> int:
        return len(self.prompt) + len(self.tokens) - 1

    def choose(self, logits: np.ndarray) -> int:
        """Takes the next token; works on its text, too, so that it is within the clock."""
        token = self.sampler.choose(logits, self.prompt, self.tokens)
        self.tokens.append(token)
        if token in self.ends:
            self.finish = Finish.EOS
        piece = self.stops.push("" if self.finish else self.stream.push(token))
        if self.stops.hit:
            self.finish = Finish.STOP
        elif self.finish is None and len(self.tokens) == self.request.max_tokens:
            self.finish = Finish.LENGTH
        elif self.finish is None and self.used >= self.capacity:
            self.finish = Finish.CAPACITY
        if self.finish and not self.stops.hit:
            piece += self.stops.push(self.stream.finish()) + self.stops.finish()
        self.pieces.append(piece)
        return token

    def event(self, token: int, logits: np.ndarray, seconds: float) -> TokenEvent:
        logprob, margin = _details(logits, token) if self.request.details else (None, None)
        return TokenEvent(len(self.tokens) - 1, token, self.pieces[-1], seconds, logprob, margin)

    def result(self, peak: int) -> GenerationResult:
        if self.finish is Finish.CANCELLED:
            self.pieces.append(self.stops.finish())
        return GenerationResult(
            "".join(self.pieces),
            tuple(self.tokens),
            self.finish or Finish.CANCELLED,
            len(self.prompt),
            self.ttft_ms,
            self.prompt_seconds,
            tuple(self.itl_ms),
            peak,
        )


def _details(logits: np.ndarray, token: int) -> tuple[float, float]:
    values = logits.astype(np.float64)
    second, first = np.partition(values, -2)[-2:] if values.size > 1 else (-np.inf, values[0])
    return float(values[token] - first - np.log(np.exp(values - first).sum())), float(first - second)
