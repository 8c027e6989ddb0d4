"""A report as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from core.inspect.activations import BREAK_DB, Activations, Place
from core.inspect.compare_rows import CompareRow
from core.inspect.figures import number
from core.inspect.findings import Finding
from core.inspect.remedies import Remedy
from core.inspect.report import Report, TensorReport
from core.inspect.survey import SurveyRow
from core.methods.record import read_record, text_of_record
from core.units import format_bytes, format_count, format_decibels, format_number, format_percent, format_signed

LINES = 12  # of each table


def text_lines(report: Report) -> Iterator[str]:
    """Line by line; every table is cut after LINES, JSON has everything."""
    checkpoint, plan = report.checkpoint, report.plan
    yield (
        f"{checkpoint.path}: {checkpoint.container.value}, architecture {checkpoint.architecture or 'unknown'}, "
        f"{format_count(len(checkpoint.tensors))} tensors, {format_bytes(checkpoint.total_bytes)}"
    )
    if record := read_record(checkpoint):
        yield f"  numbers chosen by {record['method']}, from {text_of_record(record)}".removesuffix(", from ")
    if plan is not None:
        yield f"  judged as {plan.target.name}: {format_bytes(plan.bytes_total)}"
    if report.rows and not report.wishes.tensor:
        yield from _rows(report.rows)
    for tensor in report.tensors:
        yield from _tensor(tensor)
    if plan is not None:
        yield from _findings(report.findings)
    elif report.activations is None and report.compared is None:
        yield "\nWhat a format breaks and what to do about it: add --to Q4_K_M, or another of 'bitsmith formats'"
    if report.activations is not None:
        yield from _activations(report.activations, report.wishes.threshold)
    if report.compared is not None:
        yield from _compared(report.compared)


def _rows(rows: tuple[SurveyRow, ...]) -> Iterator[str]:
    known = [(r, r.statistics) for r in rows if r.statistics is not None]
    matrices = [(r, s) for r, s in known if len(r.shape) > 1]
    lines: list[tuple[str, ...]] = [
        (r.name, number(s.amax), number(s.outlier_ratio), number(s.kurtosis))
        for r, s in sorted(matrices, key=lambda pair: -pair[1].outlier_ratio)[:LINES]
    ]
    yield from _table("The largest outlier ratios", ("tensor", "range", "ratio", "kurtosis"), lines)
    for r, s in [(r, s) for r, s in known if s.nonfinite][:LINES]:
        values = "value that is" if s.nonfinite == 1 else "values that are"
        yield f"  warning: {r.name} has {format_count(s.nonfinite)} {values} NaN or infinite"
    predicted = [(r, r.predicted) for r in rows if r.predicted is not None]
    for r, p in [(r, p) for r, p in predicted if p.problem][:LINES]:
        yield f"  {r.name} can not be stored as {p.format}: {p.problem}"
    measured = [(r, p) for r, p in predicted if math.isfinite(p.snr_db) and not p.problem]
    worst = sorted(measured, key=lambda pair: pair[1].snr_db)
    lines = [
        (
            r.name,
            p.format,
            format_decibels(p.snr_db),
            number(p.nrmse),
            "" if p.finer_gain_db is None else f"{p.finer_gain_db:+.2f} dB",
        )
        for r, p in worst[:LINES]
    ]
    if lines:
        head = ("tensor", "format", "SNR", "relative error", "gain by finer scales")
        yield from _table("The lowest predicted SNRs", head, lines)


def _tensor(t: TensorReport) -> Iterator[str]:
    s = t.statistics
    which = f", expert {t.expert}" if t.expert is not None else ""
    yield f"\n{t.tensor.name}: {' × '.join(map(str, t.tensor.shape))} of {t.tensor.dtype}{which}"
    yield (
        f"  range {number(s.amax)} ({number(s.min)} … {number(s.max)}), 99.9th percentile {number(s.p999)}, outlier "
        f"ratio {number(s.outlier_ratio)}"
    )
    yield f"  standard deviation {number(s.std)}, mean {number(s.mean)}, kurtosis {number(s.kurtosis)}"
    yield (
        f"  {format_count(s.zeros)} zeros, {format_count(s.nonfinite)} NaN or infinite of "
        f"{format_count(s.values)} values"
    )
    if t.plan is not None:
        yield f"  planned: {t.plan.format_name}, {format_bytes(t.plan.bytes.total)} ({t.plan.reason})"
    if t.error is not None:
        e = t.error.stats
        yield f"  error: SNR {format_decibels(e.snr_db)}, largest {number(e.max_error)}, RMS {number(e.rms_error)}"
    if t.grid is not None:
        yield f"  levels in use in {t.group}: {format_percent(t.grid.used, 0)} of {format_count(len(t.grid.levels))}"
    if t.problem:
        yield f"  {t.problem}"
    title, chosen = t.channels(LINES)
    lines = [(c.axis, format_count(c.index), number(c.max), number(c.rms), f"{number(c.ratio)} ×") for c in chosen]
    yield from _table(title, ("axis", "channel", "largest", "RMS", "× median"), lines)


def _findings(found: tuple[tuple[Finding, tuple[Remedy, ...]], ...]) -> Iterator[str]:
    yield "\nFindings" if found else "\nNothing stands out in this format."
    for finding, offered in found[: max(LINES, sum(1 for _, o in found if o))]:
        yield f"  {finding.text}"
        for r in offered:
            if not r.possible:
                yield f"    {r.title}: not possible, {r.why_not}"
                continue
            after = format_decibels(r.after.snr_db) if r.after else "exact"
            gain = f", {r.gain_db:+.2f} dB" if math.isfinite(r.gain_db) else ""
            title = r.title if r.format in r.title else f"{r.title} ({r.format})"
            yield f"    {title}: {format_signed(r.bytes_change)} B, SNR {after}{gain}"
    if len(found) > LINES:
        priced = sum(1 for _, offered in found if offered)
        more = f", --findings {2 * priced} remedies for more of them" if priced else ""
        yield f"  {format_count(len(found))} findings in all; --json has every one{more}"


def _activations(found: Activations, threshold: float) -> Iterator[str]:
    inputs = [a for a in found.layers if a.tokens]
    yield f"\nActivations over {format_count(len(found.tokens))} tokens"
    yield (
        f"  {format_percent(found.share_above(threshold), 2)} of the channels reach "
        f"{format_number(threshold)} in some token"
    )
    yield (
        f"  one int8 scale for all tokens breaks {format_count(len(found.breaking()))} of "
        f"{format_count(len(inputs))} inputs (the median "
        f"token's SNR is below {BREAK_DB:.0f} dB)"
    )
    lines = [
        (
            a.name,
            number(a.amax),
            f"{number(a.ratio)} ×",
            format_percent(a.share_above(threshold), 2),
            format_decibels(a.tensor_snr_db),
            format_decibels(a.token_snr_db),
        )
        for a in sorted(inputs, key=lambda a: a.tensor_snr_db)[:LINES]
    ]
    head = ("input of", "largest", "× median", f"from {format_number(threshold)} on", "by tensor", "by token")
    yield from _table("Worst under one int8 scale", head, lines)
    channels: list[tuple[str, ...]] = []
    for place in found.places:
        if place is not Place.HEAD:
            depth = found.depth_map(place)
            channels += [
                (
                    place.value,
                    format_count(c.index),
                    number(c.max),
                    str(c.layer),
                    f"{number(c.ratio)} ×",
                    str(c.layers_above),
                )
                for c in depth.outliers(3, threshold)
            ]
    head = ("place", "channel", "largest", "in layer", "× median", f"layers from {format_number(threshold)} on")
    yield from _table("Channels that stand out", head, channels)


def _compared(rows: tuple[CompareRow, ...]) -> Iterator[str]:
    worst = sorted((r for r in rows if r.error), key=lambda r: r.error.snr_db if r.error else math.inf)
    lines = [
        (
            r.name,
            r.format,
            r.other_format,
            format_decibels(r.error.snr_db),
            number(r.error.max_error),
            f"{r.worst[0].axis} {format_count(r.worst[0].index)}" if r.worst else "",
        )
        for r in worst[:LINES]
        if r.error is not None
    ]
    head = ("tensor", "first", "second", "SNR", "largest error", "worst channel")
    yield from _table(f"{format_count(len(worst))} tensors compared, the lowest SNRs", head, lines)
    apart = [r for r in rows if r.error is None]
    for r in apart[:LINES]:
        yield f"  {r.name or r.other_name}: {r.match.value} {r.note}".rstrip()
    if len(apart) > LINES:
        yield f"  {format_count(len(apart))} tensors are not compared in all"


def _table(title: str, head: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Names to the left, figures to the right."""
    yield f"\n{title}"
    rows = [head, *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        first, *others = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join([first, *others]).rstrip()
