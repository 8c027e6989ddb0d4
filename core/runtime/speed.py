"""How fast a loaded model is, and how near to what the memory allows: prompt and decoding apart, several runs each.

Loading and warming up are outside of every figure. Two models are measured in alternation in one process, so that a
disturbance meets both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import psutil

from core.errors import UserError
from core.hardware.bandwidth import array_size, last_level_cache, read_bandwidth
from core.progress import CancelToken
from core.runtime.device import CPU, Place
from core.runtime.generate import PROMPT_BATCH, percentile
from core.runtime.layers import embedding_rows
from core.runtime.model import KernelUse, Model
from core.runtime.results import Number
from core.runtime.steps import Watch, step
from core.runtime.usage import Energy, EnergyMeter, peak_rss, reset_peak
from core.threads import worker_count
from core.units import format_bytes, format_count, format_percent

SLOWER = 1.02  # ratio of times from which one is called slower; less is noise
SLOW_SETS = frozenset({"reference", "portable", "numpy", "scalar"})
SEED = 7
GPU_ENERGY = "The counters are the processor's, and the model ran on a GPU."


@dataclass(frozen=True)
class BenchSettings:
    """context: positions before the first decoded token; None: right after the prompt. runs: of which medians are."""

    prompt_tokens: int = 512
    decode_tokens: int = 64
    context: int | None = None
    runs: int = 3

    @property
    def start(self) -> int:
        return self.prompt_tokens if self.context is None else self.context

    @property
    def capacity(self) -> int:
        """Positions that the cache needs."""
        return max(self.prompt_tokens, self.start + self.decode_tokens)

    def check(self, capacity: int | None = None) -> None:
        """Raises UserError for numbers that can not be measured, or that a cache of `capacity` does not hold."""
        if self.prompt_tokens < 1 or self.decode_tokens < 2 or self.runs < 1 or self.start < 1:
            raise UserError(
                "A measurement needs a prompt and a context of 1 token or more, 2 new tokens and 1 run.",
                "Give larger numbers.",
            )
        if capacity is not None and self.capacity > capacity:
            raise UserError(
                f"This measurement takes {format_count(self.capacity)} places, but the cache holds "
                f"{format_count(capacity)}.",
                "Measure fewer tokens, or load the model with a larger context.",
            )


@dataclass(frozen=True)
class SpeedStep:
    """One run of one model is done. share: of the whole measurement."""

    side: int
    run: int
    share: float


@dataclass(frozen=True)
class SpeedResult:
    """Medians over the runs; itl: over every decoded token. bytes_per_token: weights that a single step reads.

    bandwidth: bytes/s that all threads read, the best pass of several. bound_fraction: bytes_per_token · tokens/s ÷
    bandwidth; over 1 when weights stay in the cache. energy: joules a token of the whole processor, or None with a
    reason. peak_rss_bytes: of this process, other models in it included. device: where it ran, 'cpu' or 'gpu:0' …,
    whose bandwidth it is; device_bytes: the most of a GPU's memory that was in use.
    """

    settings: BenchSettings
    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    ttft_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    peak_rss_bytes: int
    weight_bytes: int
    bytes_per_token: int
    bandwidth: float | None
    bound_fraction: float | None
    energy: float | None
    energy_reason: str
    kernels: tuple[KernelUse, ...]
    prompt_runs: tuple[float, ...] = ()
    decode_runs: tuple[float, ...] = ()
    device: str = "cpu"
    device_bytes: int = 0

    @property
    def numbers(self) -> tuple[Number, ...]:
        """For the history."""
        return (
            Number("Prompt", "tokens/s", self.prompt_tokens_per_s),
            Number("Generation", "tokens/s", self.decode_tokens_per_s),
            Number("Time to first token", "s", self.ttft_ms / 1000),
            Number("Time per token, median", "s", self.itl_p50_ms / 1000),
            Number("Time per token, 95th percentile", "s", self.itl_p95_ms / 1000),
            Number("Peak memory", "B", float(self.peak_rss_bytes)),
            *([Number("Peak GPU memory", "B", float(self.device_bytes))] if self.device_bytes else []),
            Number("Weights", "B", float(self.weight_bytes)),
            Number("Bytes read per token", "B", float(self.bytes_per_token)),
            Number("Share of the bandwidth bound", "share", self.bound_fraction),
            Number("Memory bandwidth", "B/s", self.bandwidth),
            Number("Energy per token", "J", self.energy),
        )


@dataclass(frozen=True)
class Comparison:
    """ratios: result ÷ baseline, of rates; above 1 is faster. why: in words, when decoding is slower, else ''."""

    baseline: SpeedResult
    decode_ratio: float
    prompt_ratio: float
    why: str


class _Measurement:
    """Runs of one model, collected."""

    def __init__(self, model: Model, settings: BenchSettings, cancel: CancelToken) -> None:
        settings.check(model.capacity)
        self.model, self.settings, self.cancel = model, settings, cancel
        self.prompts: list[float] = []
        self.steps: list[list[float]] = []
        self.joules: list[Energy] = []
        self.tokens = _tokens(model, settings.capacity)

    def warm_up(self) -> None:
        self._fill(0, min(self.settings.prompt_tokens, 32))
        for _ in range(2):
            self._step(self.tokens[:1], 0)

    def run(self) -> None:
        s = self.settings
        begin = time.perf_counter()
        self._fill(0, s.prompt_tokens)
        self.prompts.append(time.perf_counter() - begin)
        if s.start > s.prompt_tokens:
            self._fill(s.prompt_tokens, s.start)
        taken = []
        meter = EnergyMeter()
        meter.start()
        token = self.tokens[s.start - 1 : s.start]
        for position in range(s.start, s.start + s.decode_tokens):
            self.cancel.check()
            begin = time.perf_counter()
            logits = self._step(token, position)
            token = np.argmax(logits[0]).astype(np.int32).reshape(1)
            taken.append(time.perf_counter() - begin)
        self.joules.append(meter.stop())
        self.steps.append(taken)

    def _fill(self, start: int, stop: int) -> None:
        """Tokens start … stop − 1 of the prompt; of the last one the logits are worked out, as a prompt needs them."""
        for begin in range(start, stop, PROMPT_BATCH):
            self.cancel.check()
            end = min(begin + PROMPT_BATCH, stop)
            positions = np.arange(begin, end, dtype=np.int32)
            wanted = [end - begin - 1] if end == stop else []
            self._run(self.tokens[begin:end], positions, np.array(wanted, np.int32))

    def _step(self, token: np.ndarray, position: int) -> np.ndarray:
        return self._run(token, np.array([position], np.int32), np.zeros(1, np.int32))

    def _run(self, tokens: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        return step(self.model, tokens, np.zeros(len(tokens), np.int32), positions, wanted, self.cancel)

    def result(self, bandwidth: float | None, peak: int) -> SpeedResult:
        s, model = self.settings, self.model
        every = [1000 * t for taken in self.steps for t in taken]
        prompt_rates = tuple(s.prompt_tokens / t for t in self.prompts)
        decode_rates = tuple(len(taken) / sum(taken) for taken in self.steps)
        rate = median(decode_rates)
        device = device_of(model)
        joules = self.joules if device == CPU.name else [Energy(None, GPU_ENERGY)]
        known = [e.joules for e in joules if e.joules is not None]
        return SpeedResult(
            settings=s,
            prompt_tokens_per_s=median(prompt_rates),
            decode_tokens_per_s=rate,
            ttft_ms=1000 * median(self.prompts),
            itl_p50_ms=percentile(every, 50) or 0.0,
            itl_p95_ms=percentile(every, 95) or 0.0,
            peak_rss_bytes=peak,
            weight_bytes=model.weight_bytes,
            bytes_per_token=model.engine.bytes_per_token,
            bandwidth=bandwidth,
            bound_fraction=model.engine.bytes_per_token * rate / bandwidth if bandwidth else None,
            energy=median(known) / s.decode_tokens if len(known) == len(joules) else None,
            energy_reason=next((e.reason for e in joules if e.reason), ""),
            kernels=tuple(model.engine.report()),
            prompt_runs=prompt_rates,
            decode_runs=decode_rates,
            device=device,
            device_bytes=device_bytes_of(model),
        )


def _tokens(model: Model, count: int) -> np.ndarray:
    """Tokens of no meaning, the same ones every time: int32 [count]."""
    rng = np.random.default_rng(SEED)
    return rng.integers(0, embedding_rows(model.program) or 1, count).astype(np.int32)


def measure(
    models: Sequence[Model], settings: BenchSettings, cancel: CancelToken | None = None
) -> Generator[SpeedStep, None, tuple[SpeedResult, ...]]:
    """One result a model, all of them measured in turn. Raises UserError when the cache is too small; Cancelled."""
    cancel = cancel or CancelToken()
    sides = [_Measurement(model, settings, cancel) for model in models]
    reset_peak()
    bandwidths: list[float] = []
    own: list[Callable[[], float] | None] = [getattr(model.engine, "read_bandwidth", None) for model in models]
    peak = 0
    with Watch(models, cancel):
        for side in sides:
            side.warm_up()
        total = settings.runs * len(sides)
        for run in range(settings.runs):
            order = list(enumerate(sides))
            if run % 2:
                order.reverse()  # none is always the one that runs on what the other left in the caches
            for done, (number, side) in enumerate(order):
                side.run()
                yield SpeedStep(number, run, (run * len(sides) + done + 1) / total)
            if not run:
                peak = peak_rss()  # before the bandwidth's own array; later runs take no more than the first
            if None in own:
                bandwidths.append(_bandwidth())
        best = [max(bandwidths) if measure is None else measure() for measure in own]
    return tuple(side.result(most or None, peak) for side, most in zip(sides, best, strict=True))


def device_of(model: Model) -> str:
    """'cpu', or the GPU that a model is on."""
    place: Place | None = getattr(model, "place", None)
    return place.name if place is not None else CPU.name


def device_bytes_of(model: Model) -> int:
    """The most of a GPU's memory that was in use at once; 0 for a model on the processor."""
    peak: Callable[[], int] | None = getattr(model.engine, "peak_bytes", None)
    return peak() if peak is not None else 0


def _bandwidth() -> float:
    size = array_size(last_level_cache(), int(psutil.virtual_memory().available))
    return read_bandwidth(size, worker_count()) if size else 0.0


def against(result: SpeedResult, baseline: SpeedResult) -> Comparison:
    """How a result compares with one that was measured beside it."""
    ratio = result.decode_tokens_per_s / baseline.decode_tokens_per_s
    return Comparison(
        baseline, ratio, result.prompt_tokens_per_s / baseline.prompt_tokens_per_s, why_slower(result, baseline)
    )


def why_slower(result: SpeedResult, baseline: SpeedResult, cache: int | None = None) -> str:
    """Why a token takes longer than with the baseline, in one sentence; '' when it does not. cache: its bytes."""
    if result.itl_p50_ms <= SLOWER * baseline.itl_p50_ms:
        return ""
    cache = last_level_cache() if cache is None else cache
    if result.device != baseline.device:
        return f"A token takes longer on {result.device} than the baseline's on {baseline.device}."
    cache = cache if result.device == CPU.name else 0
    times = f"A token takes {result.itl_p50_ms / baseline.itl_p50_ms:.2f} times as long as with the baseline"
    return f"{times}, {_reason(result, baseline, cache)}."


def _reason(result: SpeedResult, baseline: SpeedResult, cache: int) -> str:
    slow = [use for use in result.kernels if use.isa.lower() in SLOW_SETS]
    if slow and not any(use.isa.lower() in SLOW_SETS for use in baseline.kernels):
        return f"because {slow[0].kernel} for {slow[0].op} has no fast form here ({slow[0].reason.rstrip('.')})"
    if result.bytes_per_token >= baseline.bytes_per_token:
        sizes = [format_bytes(r.bytes_per_token) for r in (result, baseline)]
        return f"because it reads no less memory for a token: {sizes[0]} against {sizes[1]}"
    if baseline.bytes_per_token <= cache:
        return (
            f"because the baseline's weights fit the processor's cache of {format_bytes(cache)}, where reading costs "
            "little and unpacking shows"
        )
    if result.bound_fraction and baseline.bound_fraction and result.bound_fraction < baseline.bound_fraction:
        shares = [format_percent(r.bound_fraction or 0.0, 0) for r in (result, baseline)]
        return (
            "because unpacking and the fixed costs of a step take its time, not memory: it reaches "
            f"{shares[0]} of its bandwidth bound, the baseline {shares[1]}"
        )
    return "although it reads less memory; other work on this computer may have disturbed the measurement"


def speed_data(result: SpeedResult, comparison: Comparison | None = None) -> dict[str, Any]:
    """The JSON of `bitsmith bench`."""
    data: dict[str, Any] = {
        "prompt_tokens_per_s": result.prompt_tokens_per_s,
        "decode_tokens_per_s": result.decode_tokens_per_s,
        "ttft_ms": result.ttft_ms,
        "itl_ms": {"p50": result.itl_p50_ms, "p95": result.itl_p95_ms},
        "device": result.device,
        "device_bytes": result.device_bytes or None,
        "peak_rss_bytes": result.peak_rss_bytes,
        "weight_bytes": result.weight_bytes,
        "bound_fraction": result.bound_fraction,
        "kernels": [kernel_data(use) for use in result.kernels],
        "bytes_per_token": result.bytes_per_token,
        "bandwidth_bytes_per_s": result.bandwidth,
        "energy_per_token_j": result.energy,
        "energy_reason": result.energy_reason or None,
        "prompt_tokens": result.settings.prompt_tokens,
        "decode_tokens": result.settings.decode_tokens,
        "context": result.settings.start,
        "runs": {"prompt_tokens_per_s": list(result.prompt_runs), "decode_tokens_per_s": list(result.decode_runs)},
    }
    if comparison is not None:
        data["baseline"] = speed_data(comparison.baseline)
        data["ratio"] = {"decode": comparison.decode_ratio, "prompt": comparison.prompt_ratio}
        data["why_slower"] = comparison.why or None
    return data


def kernel_data(use: KernelUse) -> dict[str, Any]:
    """One line of the kernel report."""
    shape = use.shape if isinstance(use.shape, str) else list(use.shape)
    return {"op": use.op, "shape": shape, "kernel": use.kernel, "isa": use.isa, "reason": use.reason}
