"""Rows and sentences of a verdict: limits with what was measured, and every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.icons import icon
from app.models.table import Column
from core import units
from core.metrics.windows import Figure
from core.verdict.thresholds import Line, Thresholds, Verdict, in_words

if TYPE_CHECKING:
    from core.verdict.evaluation import Evaluation
    from core.verdict.quality import Quality

LOOKS = {True: ("circle-check", "ok", "pass"), False: ("circle-x", "error", "FAIL")}  # icon, colour role, word
TERMS = {  # keys of limits → glossary terms
    "kl_mean": "KL divergence",
    "kl_p99": "99th percentile of KL",
    "flips": "flip rate",
    "perplexity_ratio": "perplexity ratio",
    "delta_rms": "RMS Δp",
    "layer_error": "layer error",
    "accuracy_drop": "fall of accuracy",
    "needles_lost": "number lost",
    "size_ratio": "size ratio",
    "size_bytes": "file size",
    "decode_ratio": "speed ratio",
    "decode_rate": "decode",
}
HOW = {  # keys of limits on what is not always measured → how it is
    "layer_error": "Switch “Error by layer” on under Advanced, for a model that runs here",
    "accuracy_drop": "Choose a task file under Advanced",
    "needles_lost": "Choose “Long texts” under Advanced",
    "decode_ratio": "Switch “Speed” on under Advanced",
    "decode_rate": "Switch “Speed” on under Advanced",
}


def limit_columns() -> tuple[Column, ...]:
    """Rows are `Line`."""
    return (
        Column("Limit", lambda r: r.title, tooltip=lambda r: r.reason),
        Column(
            "Result",
            _word,
            icon=lambda r: icon(*LOOKS[r.passed][:2]),
            role=lambda r: LOOKS[r.passed][1],
            tooltip=lambda r: r.reason,
        ),
        Column("Measured", _measured, number=True, tooltip=lambda r: r.reason),
        Column("± error", _error, number=True, term="standard error"),
        Column("Allowed", _allowed, number=True, tooltip=lambda r: r.reason),
    )


def _word(line: Line) -> str:
    if line.figure is None:
        return "not measured"
    return f"{LOOKS[line.passed][2]}, but close" if line.near else LOOKS[line.passed][2]


def _measured(line: Line) -> str:
    return "–" if line.figure is None else in_words(line.key, line.figure.value)


def _error(line: Line) -> str:
    error = line.figure.error if line.figure is not None else None
    return "–" if error is None else in_words(line.key, error)


def _allowed(line: Line) -> str:
    return f"{'at most' if line.at_most else 'at least'} {in_words(line.key, line.limit)}"


def headline(verdict: Verdict) -> tuple[str, str, str]:
    """State of the mark, its word, and one sentence why."""
    lines, name = verdict.lines, verdict.thresholds.name
    if not lines:
        return "info", "Measured", "No limit is set, so nothing is judged."
    missed = [line for line in lines if not line.passed]
    if not missed:
        first = lines[0]
        close = " It is close: more windows would tell for sure." if any(line.near for line in lines) else ""
        return "ok", "Passed", f"Limits “{name}” are met: {_why(first)}.{close}"
    worst = max(missed, key=_excess)
    more = len(missed) - 1
    rest = f"; {more} more of {len(lines)} {'fails' if more == 1 else 'fail'}" if more else ""
    return "failed", "Failed", f"Limits “{name}” are not met: {_why(worst)}{rest}."


def so_far(quality: Quality, limits: Thresholds) -> tuple[str, str]:
    """State of the mark and a sentence, of the figures that come with every window; ('', '') where none is judged."""
    found = [(key, limit, getattr(quality, key).value) for key in _EACH_WINDOW if (limit := getattr(limits, key))]
    missed = [(key, limit, value) for key, limit, value in found if value > limit]
    if not found:
        return "", ""
    if not missed:
        return "ok", "Within these limits so far."
    key, limit, value = max(missed, key=lambda m: m[2] / m[1])
    name = TERMS[key][:1].upper() + TERMS[key][1:]
    return "failed", f"Not within the limits so far: {name} is {in_words(key, value)}, allowed {in_words(key, limit)}."


_EACH_WINDOW = ("kl_mean", "kl_p99", "flips", "perplexity_ratio", "delta_rms")


def _why(line: Line) -> str:
    title = line.title[:1].lower() + line.title[1:] if not line.title.startswith("RMS") else line.title
    if line.figure is None:
        return f"{title} was not measured. {HOW[line.key]}"
    return f"{title} is {_measured(line)}, allowed is {_allowed(line)}"


def _excess(line: Line) -> float:
    """How far beyond its limit, as a ratio; what was not measured comes last."""
    if line.figure is None:
        return 0.0
    pair = line.figure.value, line.limit
    over, under = pair if line.at_most else pair[::-1]
    return over / under if under else float("inf")


@dataclass(frozen=True)
class FigureRow:
    """One figure, as written."""

    name: str
    value: str
    error: str
    term: str = ""


def figure_columns(explain: Any) -> tuple[Column, ...]:
    """Rows are `FigureRow`."""
    return (
        Column("Figure", lambda r: r.name, tooltip=lambda r: explain(r.term) or r.name),
        Column("Value", lambda r: r.value, number=True),
        Column("± error", lambda r: r.error, number=True, term="standard error"),
    )


def figure_rows(e: Evaluation) -> list[FigureRow]:
    """KL and its percentiles, flips, perplexities, tasks, speed and size."""
    q = e.quality
    rows = [
        _row("KL divergence, mean", q.kl_mean, "nats", "KL divergence"),
        _row("KL divergence, median", q.kl_median, "nats", "KL divergence"),
        _row("KL divergence, 90th percentile", q.kl_p90, "nats", "KL divergence"),
        _row("KL divergence, 95th percentile", q.kl_p95, "nats", "KL divergence"),
        _row("KL divergence, 99th percentile", q.kl_p99, "nats", "99th percentile of KL"),
        _row("KL divergence, 99.9th percentile", q.kl_p999, "nats", "KL divergence"),
        _row("KL divergence, largest", q.kl_max, "nats", "KL divergence"),
        _row("Flip rate", q.flips, "%", "flip rate"),
        _row("Same likeliest token", q.agreement, "%", "flip rate"),
        _row("Right token's probability, RMS change", q.delta_rms, "%", "RMS Δp"),
        _row("Perplexity, source", q.perplexity_source, "per token", "perplexity"),
        _row("Perplexity, quantized", q.perplexity, "per token", "perplexity"),
        _row("Perplexity ratio", q.perplexity_ratio, "×", "perplexity ratio"),
    ]
    if e.tasks is not None:
        rows += [
            _row("Tasks right, source", e.tasks.source, "%", "task file"),
            _row("Tasks right, quantized", e.tasks.artifact, "%", "task file"),
            _row("Tasks right, change", e.tasks.change, "%", "task file"),
        ]
    if e.speed is not None:
        for name, result in zip(("source", "quantized"), e.speed, strict=True):
            rate = units.format_tokens_per_second(result.decode_tokens_per_s)
            rows.append(FigureRow(f"Generation, {name}", rate, "–", "decode"))
    ratio = units.format_percent(e.artifact.bytes / max(e.source.bytes, 1))
    rows.append(FigureRow("Size, quantized", f"{units.format_decimal(e.artifact.bytes)}, {ratio} of source", "–"))
    return rows


def _row(name: str, figure: Figure, unit: str, term: str = "") -> FigureRow:
    if unit == "%":
        error = "–" if figure.error is None else units.format_percent(figure.error, 2)
        return FigureRow(name, units.format_percent(figure.value, 2), error, term)
    error = "–" if figure.error is None else units.format_number(figure.error, 2)
    return FigureRow(name, f"{units.format_number(figure.value)} {unit}", error, term)


def basis(e: Evaluation) -> str:
    """What the figures are of, in a line."""
    text = e.settings.text
    words = (
        f"{e.artifact.name} against {e.source.name}: {units.format_count(e.quality.windows)} windows × "
        f"{units.format_count(text.length)} tokens of {e.text}, {e.arithmetic}, in {units.format_duration(e.seconds)}."
    )
    return " ".join((words, *e.warnings))
