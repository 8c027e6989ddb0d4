"""What the Test page asks of the engine, and what it gets back: plain values, and the work that yields them.

`Backend` is all that the page knows of the engine; `app.jobs.testing_core` is the real one, and tests bring their own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core.progress import CancelToken
from core.runtime.logits import LogitDifference
from core.runtime.results import StoredResult
from core.runtime.sweep import Sweep, SweepPoint

if TYPE_CHECKING:
    from app.jobs.testing_cache import CacheEntry, CacheFound, CacheOrder, CacheStep
    from app.jobs.testing_quality import QualityEntry, QualityOrder, QualityStep
    from core.verdict.evaluation import Evaluation

SIDES = ("Source", "Quantized")  # the two columns, in this order everywhere


@dataclass(frozen=True)
class Setup:
    """How a file is loaded. arithmetic: of `ARITHMETICS`. context: tokens that the cache can hold.

    device: 'cpu', 'gpu:0' …; fallback: on the processor where it can not run there. cache: text of a CacheScheme,
    '': the file's own.
    """

    path: Path
    arithmetic: str = "fast"
    context: int = 2048
    device: str = "cpu"
    fallback: bool = False
    cache: str = ""


@dataclass(frozen=True)
class Devices:
    """GPUs that models can run on: (name as in `Setup.device`, what people call it). reason: why there is none, in a
    clause; remedy: what to do about it, or ''.
    """

    gpus: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a GPU: in use by all programs and all there are, as the driver says, and what the model was to take."""

    used: int
    total: int
    predicted: int


@dataclass(frozen=True)
class Sampling:
    """temperature 0: always the likeliest token. top_k 0, top_p 1, min_p 0, repetition 1: off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Question:
    """One prompt for both files. chat: put it into the model's own chat template. tokens: at most so many come back."""

    prompt: str
    chat: bool = False
    tokens: int = 64
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class LoadStep:
    """share: 0 to 1 of the file is packed; below 0: not known."""

    side: int
    share: float
    text: str = ""


@dataclass(frozen=True)
class Piece:
    """One token as it came. text: what it adds to the answer, '' while a character is incomplete. name: how people
    call the token. margin: logit of the likeliest token less that of the second, None: not known.
    """

    side: int
    id: int
    text: str
    margin: float | None = None
    name: str = ""

    @property
    def result(self) -> int:
        """Set, so that the runner drops none of them."""
        return self.id


@dataclass(frozen=True)
class KernelUse:
    """Which kernel ran an operation, and why that one."""

    op: str
    shape: str
    kernel: str
    isa: str
    reason: str
    side: int = 0


@dataclass(frozen=True)
class Measured:
    """What one generation took; seconds, bytes, tokens a second. None: not known or not measured.

    bytes_per_token: weights that a single step reads. bound_fraction: bandwidth bound ÷ measured time per token.
    energy: joules a token; energy_reason: why there is none. disturbed: what else ran meanwhile. device: where it ran.
    cache: what keys and values were kept in; cache_planned: bytes by its formula, for all the places that were asked
    for; cache_allocated: what the engine took for it and for its buffers.
    """

    prompt_tokens: int
    tokens: int
    first_token: float
    token_p50: float | None
    token_p95: float | None
    prompt_rate: float | None
    decode_rate: float | None
    peak_memory: int
    weight_bytes: int
    bytes_per_token: int
    bound_fraction: float | None = None
    energy: float | None = None
    energy_reason: str = ""
    end: str = ""
    kernels: tuple[KernelUse, ...] = ()
    disturbed: str = ""
    device: str = "cpu"
    device_memory: DeviceMemory | None = None
    cache: str = "F16"
    cache_planned: int | None = None
    cache_allocated: int | None = None


@dataclass(frozen=True)
class Answered:
    """One side has finished its answer."""

    side: int
    measured: Measured

    @property
    def result(self) -> Measured:
        return self.measured


class Model(Protocol):
    """A loaded file, ready to generate."""

    @property
    def nbytes(self) -> int:
        """Memory that it holds: weights and cache."""

    @property
    def summary(self) -> str:
        """Formats and sizes in a few words, such as 'Q4_K, Q6_K · 30 layers'."""

    @property
    def cache(self) -> str:
        """What keys and values are kept in, such as 'FP8 with the file's scales'."""

    @property
    def device_memory(self) -> DeviceMemory | None:
        """Of the GPU that it is on, asked now; None on the processor, or where the driver does not say."""

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True)
class Shape:
    """What a sweep can measure: a layer of rows × columns in `format` against 16 bits, or a whole decode step."""

    label: str
    format: str = ""
    rows: int = 0
    columns: int = 0

    @property
    def decode(self) -> bool:
        return not self.format


@dataclass(frozen=True)
class SweepOrder:
    """paths: source and quantized file; a layer needs neither."""

    shape: Shape
    paths: tuple[Path | None, Path | None] = (None, None)
    context: int = 128
    arithmetic: str = "fast"
    device: str = "cpu"


@dataclass(frozen=True)
class Point:
    """One batch of a sweep is measured."""

    result: SweepPoint


class Backend(Protocol):
    """The engine as the page sees it. Everything runs on a worker; cancelling raises core.errors.Cancelled."""

    def devices(self) -> Devices:
        """The GPUs of this computer; may take seconds."""

    def refuses(self, cache: str, device: str) -> str:
        """Why keys and values can not be kept in this scheme there, in a sentence; '' where they can."""

    def load(self, side: int, setup: Setup, token: CancelToken) -> Iterator[LoadStep]:
        """Returns a Model. Raises UserError with the tensor's name."""

    def generate(self, side: int, model: Any, question: Question, token: CancelToken) -> Iterator[Piece]:
        """Returns Measured. Raises UserError, such as for a prompt that does not fit the context."""

    def shapes(self, paths: tuple[Path | None, Path | None], models: tuple[Any, Any]) -> Sequence[Shape]:
        """What can be swept with these files, loaded (then the models are given) or not."""

    def sweep(self, order: SweepOrder, token: CancelToken) -> Iterator[SweepPoint]:
        """Returns a Sweep."""

    def compare_logits(self, models: tuple[Any, Any], question: Question, answer: Sequence[Piece]) -> LogitDifference:
        """Of both models, over the prompt and this answer."""

    def why_slower(self, source: Measured, quantized: Measured) -> str:
        """Why the quantized file takes longer for a token, in one sentence; '' when it does not."""

    def evaluate(self, order: QualityOrder, token: CancelToken) -> Generator[QualityStep, None, Evaluation]:
        """Returns an Evaluation. Raises UserError, such as for two files that do not know the same tokens."""

    def compare_caches(self, order: CacheOrder, token: CancelToken) -> Generator[CacheStep, None, CacheFound]:
        """Returns a CacheFound. Raises UserError, such as for a model that the processor's engine does not run."""

    def store(self, entry: AnswerEntry | SweepEntry | QualityEntry | CacheEntry) -> None:
        """Keep a result for the history."""

    def history(self) -> Sequence[StoredResult]:
        """Stored results, newest first."""

    def remove(self, stored: StoredResult) -> None:
        """Take a stored result out of the history."""


@dataclass(frozen=True)
class AnswerEntry:
    """A finished comparison, to be stored. setups, measured, texts: one a side; None: that side did not take part."""

    question: Question
    setups: tuple[Setup | None, Setup | None]
    measured: tuple[Measured | None, Measured | None]
    texts: tuple[str, str]
    same_tokens: int | None
    margin: float | None
    logits: LogitDifference | None = None


@dataclass(frozen=True)
class SweepEntry:
    """A finished sweep, to be stored."""

    order: SweepOrder
    sweep: Sweep
