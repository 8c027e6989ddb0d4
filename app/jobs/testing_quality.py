"""A file measured against its source, for the Test page: what is asked, what it will take, and what is kept of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.jobs.runner import Work
from core.progress import CancelToken
from core.runtime.results import Number, StoredResult, new_result
from core.verdict.settings import EvalSettings
from core.verdict.thresholds import Thresholds, Verdict, judge

if TYPE_CHECKING:
    from app.jobs.testing import Backend
    from core.verdict.evaluation import Evaluation
    from core.verdict.quality import Quality

ESTIMATE_KEY = "test-quality-estimate"
# What one core does in a second: float operations of the runtime's products, bytes packed while loading, and bytes of
# weights read while writing text. Coarse on purpose; what a run took corrects the next estimate.
_FLOPS, _LOADED, _READ = 5e10, 4e8, 5e9
_LENGTHS_PER_NEEDLE = 3  # depths at which a number is hidden, in a text of each length


@dataclass(frozen=True)
class QualityOrder:
    """paths: source and quantized file. thresholds: those that were set when it started."""

    paths: tuple[Path, Path]
    settings: EvalSettings
    thresholds: Thresholds


@dataclass(frozen=True)
class QualityStep:
    """stage: what is going on. share: of everything, 0 … 1. quality: of the windows so far, None before the first."""

    stage: str
    share: float
    quality: Quality | None


@dataclass(frozen=True)
class QualityEntry:
    """A finished measurement, to be stored."""

    order: QualityOrder
    evaluation: Evaluation


def quality_work(backend: Backend, order: QualityOrder, stale: list[Any]) -> Work:
    """Yields a QualityStep now and then; the result is the Evaluation, which is stored. stale: models to close before,
    since both files are loaded anew, one after the other."""

    def work(token: CancelToken) -> Iterator[QualityStep]:
        for model in stale:
            model.close()
        stale.clear()
        evaluation = yield from backend.evaluate(order, token)
        backend.store(QualityEntry(order, evaluation))
        return evaluation

    return work


def evaluation_steps(order: QualityOrder, token: CancelToken) -> Generator[QualityStep, None, Evaluation]:
    """The bundled engine's measurement."""
    from core.checkpoint import open_checkpoint
    from core.verdict.evaluate import evaluating

    with ExitStack() as stack:
        source, artifact = (stack.enter_context(open_checkpoint(path)) for path in order.paths)
        steps = evaluating(source, artifact, order.settings, token)
        stack.callback(steps.close)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                evaluation: Evaluation = end.value
                return evaluation
            yield QualityStep(step.stage, step.share, step.quality)


def estimate_work(paths: tuple[Path, Path], settings: EvalSettings) -> Work:
    """Seconds on this computer's cores, roughly, from the files' headers. Raises UserError for what can not run."""

    def work(token: CancelToken) -> float:
        from core.checkpoint import open_checkpoint
        from core.methods.forecast import layer_flops
        from core.runtime.load import decoder_config
        from core.threads import worker_count

        seconds = 0.0
        cores = worker_count()
        for path in paths:
            token.check()
            with open_checkpoint(path) as checkpoint:
                config = decoder_config(checkpoint)
                size = checkpoint.file_bytes
            flops = layer_flops(config) * config.layers + 2.0 * config.hidden * config.vocab
            tokens = settings.text.windows * settings.text.length + settings.layers
            tokens += _LENGTHS_PER_NEEDLE * sum(min(length, config.context) for length in settings.needle)
            seconds += flops * tokens / (_FLOPS * cores) + size / _LOADED
            written = len(settings.prompts) * settings.new_tokens + (256 if settings.speed else 0)
            seconds += written * max(size / (_READ * cores), 1e-3)
        return seconds

    return work


def quality_result(entry: QualityEntry) -> StoredResult:
    """What the history keeps."""
    e, verdict = entry.evaluation, judge(entry.evaluation, entry.order.thresholds)
    q = e.quality
    numbers = [
        Number("Mean KL divergence", "nats", q.kl_mean.value),
        Number("KL divergence, 99th percentile", "nats", q.kl_p99.value),
        Number("Flip rate", "share", q.flips.value),
        Number("Perplexity, source", "per token", q.perplexity_source.value),
        Number("Perplexity, quantized", "per token", q.perplexity.value),
        Number("Perplexity ratio", "", q.perplexity_ratio.value),
        Number("RMS Δp", "share", q.delta_rms.value),
        Number("Size, quantized", "B", float(e.artifact.bytes)),
        Number("Size ratio", "", e.artifact.bytes / max(e.source.bytes, 1)),
    ]
    word = "passed" if verdict.passed else "failed"
    title = f"Quality: {e.artifact.name} against {e.source.name}, {word} '{verdict.thresholds.name}'"
    return new_result("eval", title, e.arithmetic, numbers, {"verdict": verdict.to_dict(), **e.to_dict()})


def report_work(path: Path, evaluation: Evaluation, verdict: Verdict) -> Work:
    """Writes the report as the name's ending says: .html, .md or .json. Raises UserError; the result is the path."""

    def work(_token: CancelToken) -> Path:
        from core.errors import UserError
        from core.runtime.results import write_whole

        try:
            write_whole(path, report_text(path.suffix, evaluation, verdict).encode("utf-8", "backslashreplace"))
        except OSError as error:
            raise UserError(
                f"{path.name} could not be written: {error.strerror or error}.", "Choose another folder."
            ) from error
        return path

    return work


def report_text(suffix: str, evaluation: Evaluation, verdict: Verdict) -> str:
    """The whole report; Markdown unless the ending says HTML or JSON."""
    from core.verdict.report import markdown, report_data

    match suffix.lower():
        case ".html" | ".htm":
            from core.verdict.report_html import page

            return page(evaluation, verdict)
        case ".json":
            from core.cli_commands import json_text

            return json_text(report_data(evaluation, verdict)) + "\n"
        case _:
            return markdown(evaluation, verdict)
