"""A verdict that a team can file: what was compared, how good it is, and what to do with it.

`sections` are the facts; `core.verdict.report_html` and `markdown` write them down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.metrics.windows import Figure
from core.units import (
    format_bits,
    format_bytes,
    format_count,
    format_decimals,
    format_duration,
    format_number,
    format_percent,
    format_tokens_per_second,
)
from core.verdict.evaluation import Evaluation
from core.verdict.needle import NeedleResult
from core.verdict.texts import TextPair
from core.verdict.thresholds import REASONS, Verdict


@dataclass(frozen=True)
class Table:
    """numeric: columns that stand to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()


@dataclass(frozen=True)
class Code:
    """Text as it is."""

    text: str


Block = str | Table | Code


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    blocks: tuple[Block, ...]


def report_data(evaluation: Evaluation, verdict: Verdict) -> dict[str, Any]:
    """The JSON of `bitsmith eval`."""
    return {"verdict": verdict.to_dict(), **evaluation.to_dict()}


def headline(evaluation: Evaluation, verdict: Verdict) -> str:
    """One sentence."""
    failed = sum(not line.passed for line in verdict.lines)
    name, limits = evaluation.artifact.name, f"the thresholds '{verdict.thresholds.name}'"
    if not verdict.lines:
        return f"{name} was measured; no threshold was set."
    if verdict.passed:
        return f"{name} passes {limits}."
    return f"{name} fails {limits}: {failed} of {len(verdict.lines)} limits are not met."


def sections(evaluation: Evaluation, verdict: Verdict) -> tuple[Section, ...]:
    """Everything that is known, in the order in which it is read."""
    return tuple(s for s in _sections(evaluation, verdict) if s.blocks)


def _sections(e: Evaluation, verdict: Verdict) -> Iterator[Section]:
    yield Section("verdict", "Verdict", tuple(_verdict(e, verdict)))
    yield Section("quality", "Quality", tuple(_quality(e)))
    yield Section("layers", "Error by layer", tuple(_layers(e)))
    if e.tasks:
        yield Section("tasks", "Tasks", tuple(_tasks(e)))
    if e.needle:
        yield Section("needle", "Numbers hidden in long texts", tuple(_needle(e.needle)))
    if e.texts:
        yield Section("texts", "Texts side by side", tuple(_texts(e.texts)))
    if e.speed:
        yield Section("speed", "Speed", tuple(_speed(e)))
    yield Section("files", "Files and contract", tuple(_files(e)))
    yield Section("serving", "Serving", tuple(_serving(e)))
    yield Section("rollback", "Rollback", tuple(e.rollback))
    yield Section("measured", "How it was measured", tuple(_measured(e)))


def _verdict(e: Evaluation, verdict: Verdict) -> Iterator[Block]:
    yield headline(e, verdict)
    if verdict.lines:
        rows = tuple(("pass" if line.passed else "FAIL", line.title, line.reason) for line in verdict.lines)
        yield Table(("", "Limit", "Reason"), rows)
    reason = REASONS.get(verdict.thresholds.name)
    if reason:
        yield f"The limits '{verdict.thresholds.name}' stand for: {reason}."


def _with_error(figure: Figure, percent: bool = False) -> tuple[str, str]:
    if percent:
        error = "–" if figure.error is None else format_percent(figure.error, 3)
        return format_percent(figure.value, 3), error
    return format_number(figure.value), "–" if figure.error is None else format_number(figure.error, 2)


def _quality(e: Evaluation) -> Iterator[Block]:
    q = e.quality
    figures = (
        ("KL divergence, mean", q.kl_mean, False, "nats a token"),
        ("KL divergence, median", q.kl_median, False, "nats"),
        ("KL divergence, 90th percentile", q.kl_p90, False, "nats"),
        ("KL divergence, 95th percentile", q.kl_p95, False, "nats"),
        ("KL divergence, 99th percentile", q.kl_p99, False, "nats"),
        ("KL divergence, 99.9th percentile", q.kl_p999, False, "nats"),
        ("KL divergence, largest", q.kl_max, False, "nats"),
        ("Same likeliest token", q.agreement, True, ""),
        ("Flip rate", q.flips, True, ""),
        ("Right token's probability, mean change", q.delta_mean, True, ""),
        ("Right token's probability, RMS change", q.delta_rms, True, ""),
        ("Perplexity of the source", q.perplexity_source, False, ""),
        ("Perplexity of the artifact", q.perplexity, False, ""),
        ("Perplexity ratio", q.perplexity_ratio, False, "×"),
    )
    rows = tuple((name, *_with_error(figure, percent), unit) for name, figure, percent, unit in figures)
    yield Table(("Figure", "Value", "± standard error", "Unit"), rows, (1, 2))
    yield (
        f"Over {format_count(q.windows)} windows of {format_count(e.settings.text.length)} tokens, of which "
        f"{format_count(q.tokens)} are scored in each. Errors are between windows."
    )


def _layers(e: Evaluation) -> Iterator[Block]:
    if e.layers.layers:
        rows = tuple(
            ("embedding" if layer.layer is None else str(layer.layer), format_percent(layer.mean, 2),
             format_percent(layer.worst, 2))
            for layer in e.layers.layers
        )  # fmt: skip
        yield (
            f"‖h′ − h‖ / ‖h‖ of the hidden states after each layer, over the first {format_count(e.layers.tokens)} "
            "tokens of the first window, in float32."
        )
        yield Table(("After layer", "Mean", "Worst token"), rows, (1, 2))
    elif e.settings.layers:
        yield e.layers.note


def _tasks(e: Evaluation) -> Iterator[Block]:
    t = e.tasks
    assert t is not None
    figures = (
        ("Right, source", t.source),
        ("Right, artifact", t.artifact),
        ("Change", t.change),
        ("Right by likelihood a letter, source", t.source_normalized),
        ("Right by likelihood a letter, artifact", t.artifact_normalized),
    )
    yield Table(
        ("Figure", "Value", "± standard error"),
        tuple((name, *_with_error(figure, True)) for name, figure in figures),
        (1, 2),
    )
    yield f"Of {format_count(t.items)} tasks, the two models answer {format_count(t.differ)} differently."


def _needle(n: NeedleResult) -> Iterator[Block]:
    rows = tuple(
        (
            format_count(p.length),
            format_percent(p.depth, 0),
            f"{'found' if p.found_source else 'not found'} ({format_decimals(p.margin_source, 2)})",
            f"{'found' if p.found else 'not found'} ({format_decimals(p.margin, 2)})",
        )
        for p in n.places
    )
    yield Table(("Tokens", "Depth", "Source", "Artifact"), rows, (0, 1))
    yield (
        f"{format_count(n.lost)} that the source finds are lost. In brackets: how many nats likelier the right "
        "number is than the likeliest wrong one."
    )


def _texts(pairs: Sequence[TextPair]) -> Iterator[Block]:
    for pair in pairs:
        if pair.difference is None:
            yield f"“{pair.prompt.strip()}” is continued alike."
            yield Code(pair.source)
            continue
        yield f"“{pair.prompt.strip()}” is continued differently from new token {format_count(pair.difference + 1)} on."
        yield Code(f"source:   {marked(pair.source, pair.letter)}\n\nartifact: {marked(pair.artifact, pair.letter)}")


def marked(text: str, letter: int) -> str:
    """With ▸ where the other text goes another way."""
    return f"{text[:letter]}▸{text[letter:]}"


def _speed(e: Evaluation) -> Iterator[Block]:
    assert e.speed is not None
    a, b = e.speed
    rows = (
        ("Prompt", *(format_tokens_per_second(s.prompt_tokens_per_s) for s in (a, b)),
         f"{b.prompt_tokens_per_s / a.prompt_tokens_per_s:.2f} ×"),
        ("Decoding", *(format_tokens_per_second(s.decode_tokens_per_s) for s in (a, b)), f"{e.decode_ratio:.2f} ×"),
        ("Time a token, 95th percentile", *(format_duration(s.itl_p95_ms / 1000) for s in (a, b)), ""),
        ("Weights in memory", *(format_bytes(s.weight_bytes) for s in (a, b)), ""),
    )  # fmt: skip
    yield Table(("On this computer", "Source", "Artifact", "Artifact ÷ source"), rows, (1, 2, 3))


def _files(e: Evaluation) -> Iterator[Block]:
    rows = tuple(
        (name, f.name, f.container, f.architecture or "unknown", format_count(f.parameters), format_bytes(f.bytes))
        for name, f in (("Source", e.source), ("Artifact", e.artifact))
    )
    yield Table(("", "Name", "Container", "Architecture", "Values", "Size"), rows, (4, 5))
    yield f"The artifact takes {format_percent(e.artifact.bytes / max(e.source.bytes, 1))} of the source's bytes."
    yield f"Method: {e.settings.method or 'not known'}. Calibration: {e.settings.calibration or 'not known'}."
    yield f"Fingerprints: source {e.source.fingerprint}, artifact {e.artifact.fingerprint}."
    contract = tuple(
        (r.role, r.format, format_count(r.tensors), format_bits(r.bits), format_bytes(r.bytes), r.contract)
        for r in e.artifact.contract
    )
    yield Table(("Tensors", "Format", "Count", "Bits a value", "Size", "Contract"), contract, (2, 3, 4))


def _serving(e: Evaluation) -> Iterator[Block]:
    for command in e.serving:
        yield f"{command.runtime}. {command.note}".strip() if command.note else f"{command.runtime}:"
        yield Code(command.text)


def _measured(e: Evaluation) -> Iterator[Block]:
    text = e.settings.text
    scored = "second half of each window" if text.first else "every token but each window's first"
    order = "spread evenly over it" if text.spread else "one after the other from its start"
    yield f"Text: {e.text}, windows {order}; scored: {scored}."
    yield f"Both models ran in this program with the same arithmetic: {e.arithmetic}."
    if e.kept:
        yield (
            "The source's distributions are kept as float16 distances from the largest logit: log P is within a share "
            "of 2⁻¹¹ of that distance."
        )
    yield from e.warnings
    yield f"{e.machine}. {e.versions}. {e.when}, within {format_duration(e.seconds)}."


# ---- Markdown --------------------------------------------------------------------------------------------------------


def markdown(evaluation: Evaluation, verdict: Verdict) -> str:
    """The whole report."""
    lines = [f"# {evaluation.artifact.name} against {evaluation.source.name}", ""]
    for section in sections(evaluation, verdict):
        lines += [f"## {section.title}", ""]
        for block in section.blocks:
            lines += [*_markdown(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown(block: Block) -> list[str]:
    if isinstance(block, Table):
        rule = ["---:" if i in block.numeric else "---" for i in range(len(block.head))]
        return [_row(block.head), _row(rule), *(_row([_cell(c) for c in row]) for row in block.rows)]
    if isinstance(block, Code):
        runs = re.findall("`+", block.text)
        fence = "`" * max(3, *(len(run) + 1 for run in runs), 3)
        return [fence + "text", block.text, fence]
    return [block.replace("\n", " ")]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
