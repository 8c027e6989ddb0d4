"""A report as one HTML file: pictures inside, nothing fetched, no script; light or dark as the reader has it."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from core.inspect.activations import BREAK_DB
from core.inspect.figures import cells, number
from core.inspect.html_parts import ROWS, cut, figure, table
from core.inspect.measures import MEASURES
from core.inspect.report import Report
from core.inspect.report_activations import activations_section
from core.inspect.report_tensor import tensor_section
from core.inspect.survey import SurveyRow
from core.tensor_info import Role
from core.units import format_bytes, format_count, format_decibels, format_percent, format_signed

_DEFINITIONS = (
    ("Range", "amax: the largest magnitude of a tensor's finite values, in weight units."),
    ("Outlier ratio", "amax over the 99.9th percentile of the magnitudes. 1 to 2 is usual; 10 wastes three bits."),
    ("Kurtosis", "The fourth central moment over the squared variance. 3 for a normal distribution."),
    ("SNR", "10·log10(Σw² / Σ(w−ŵ)²) in dB. Six more dB halve the error."),
    ("Outlier channel", "A row or column whose largest magnitude is at least 6 times the median channel's."),
    ("Channel ratio", "A channel's largest magnitude over the median of all channels' largest magnitudes."),
    ("RMS", "The root of the mean square, in the unit of the values."),
    (
        "INT8 by tensor, by token",
        f"SNR of the median token in int8, one scale for all tokens or one each. Below {BREAK_DB:.0f} dB it breaks.",
    ),
    (
        "Columns above the threshold",
        "Share of an input's channels that reach the threshold in any token. LLM.int8() keeps those in 16 bits.",
    ),
)
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1d23;--muted:#555d6b;--line:#dadde3;--sunken:#f1f3f6;
--s0:#1f4fb0;--s1:#c25e0c;--s2:#2a9a7c;--s3:#7a2a62;--bad:#8c0c25}
@media(prefers-color-scheme:dark){:root{--bg:#15181d;--fg:#e8eaee;--muted:#a3abb8;--line:#2e343d;--sunken:#1d2127;
--s0:#6f9bf0;--s1:#f2a24a;--s2:#5fd9b0;--s3:#d27bb0;--bad:#ff7c74}}
body{font:15px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg);max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin-top:2.5rem;border-bottom:1px solid var(--line)}
h3{font-size:1.05rem;margin-top:1.8rem;overflow-wrap:anywhere}
figure{margin:1rem 0;overflow-x:auto}
figcaption,.legend,.note{color:var(--muted);font-size:.86rem}
img{width:100%;min-width:512px;image-rendering:pixelated;border:1px solid var(--line);box-sizing:border-box}
img.bar{height:.7rem;width:10rem;min-width:0;vertical-align:middle}
svg{width:100%;min-width:560px;height:auto}
.legend span{margin-right:1.2rem}.legend i{display:inline-block;width:1.1em;height:.25em;margin-right:.4em;
vertical-align:middle}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}caption{text-align:left}
.bad{color:var(--bad);font-weight:600}
nav a{margin-right:1rem}
a{color:var(--s0)}
dt{font-weight:600}dd{margin:0 0 .5rem}
summary{cursor:pointer}
"""


def page(report: Report) -> str:
    """The whole file."""
    checkpoint, plan = report.checkpoint, report.plan
    sections: list[tuple[str, str, str]] = []
    if report.rows and not report.wishes.tensor:
        sections.append(("map", "Map of the model", _maps(report.rows)))
    if plan is not None:
        sections.append(("findings", "Findings and remedies", _findings(report)))
    if report.tensors:
        title = "The tensor" if report.wishes.tensor else "Tensors closely"
        sections.append(("tensors", title, "".join(tensor_section(t) for t in report.tensors)))
    if report.activations is not None:
        body = activations_section(report.activations, report.wishes.threshold)
        sections.append(("activations", "Activations", body))
    if report.compared is not None:
        sections.append(("compared", "Compared", _compared(report)))
    if report.rows:
        sections.append(("all", "All tensors", _all_rows(report.rows)))
    definitions = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in _DEFINITIONS)
    sections.append(("definitions", "What the figures mean", f"<dl>{definitions}</dl>"))
    values = sum(t.values for t in checkpoint.tensors if not t.tied_to)
    about = (
        f"{checkpoint.container.value}, architecture {checkpoint.architecture or 'unknown'}; "
        f"{format_count(values)} parameters in "
        f"{format_count(len(checkpoint.tensors))} tensors, {format_bytes(checkpoint.total_bytes)}."
    )
    if plan is not None:
        about += f" Judged as {plan.target.name}: {format_bytes(plan.bytes_total)}."
    links = "".join(f'<a href="#{key}">{escape(title)}</a>' for key, title, _ in sections)
    body = "".join(f'<section id="{key}"><h2>{escape(title)}</h2>{text}</section>' for key, title, text in sections)
    name = escape(checkpoint.path.name or str(checkpoint.path))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{name} inspected</title><style>{_STYLE}</style></head><body><header><h1>{name}</h1>"
        f"<p>{escape(about)}</p><nav aria-label='Sections'>{links}</nav></header><main>{body}</main></body></html>\n"
    )


def _maps(rows: tuple[SurveyRow, ...]) -> str:
    shown = [r for r in rows if len(r.shape) > 1]
    layers = sorted({r.layer for r in shown if r.layer is not None})
    places: list[int | None] = [None] if any(r.layer is None for r in shown) else []
    places += layers
    roles = [role.value for role in Role if any(r.role is role for r in shown)]
    parts = []
    for m in MEASURES:
        values = np.full((len(places), len(roles)), np.nan)
        for row in shown:
            value = row.measure(m.measure)
            if value is None:
                continue
            at = places.index(row.layer), roles.index(row.role.value)
            worse = np.fmin if m.falling else np.fmax
            values[at] = worse(values[at], value)
        if np.isfinite(values).any():
            names = ["no layer" if p is None else str(p) for p in places]
            picture = cells(f"{m.title} by layer and role", names, roles, values, m.log, m.falling, m.unit)
            parts.append(
                f"<h3>{m.title}</h3>" + figure(picture, m.definition + " The worst, where several share a cell.")
            )
    return "".join(parts) or "<p>No tensor could be decoded.</p>"


def _findings(report: Report) -> str:
    if not report.findings:
        return "<p>Nothing stands out in this format.</p>"
    parts, others = [], []
    for finding, offered in report.findings:
        if not offered:
            others.append(f"<li>{escape(finding.text)}</li>")
            continue
        rows = [
            (
                escape(r.title),
                escape(r.format),
                f"{format_signed(r.bytes_change)} B" if r.possible else "–",
                format_decibels(r.after.snr_db) if r.after else "exact" if r.possible else "–",
                f"{r.gain_db:+.2f} dB" if r.possible and math.isfinite(r.gain_db) else "–",
                "" if r.possible else escape(r.why_not),
            )
            for r in offered
        ]
        parts.append(f"<h3>{escape(finding.tensor)}</h3><p>{escape(finding.text)}</p>")
        head = ("Remedy", "Format", "Size", "SNR", "Gain", "Why not")
        width = len(head) if any(row[-1] for row in rows) else len(head) - 1
        parts.append(table(head[:width], [row[:width] for row in rows], numeric=(2, 3, 4)))
    if others:
        count = f"{format_count(len(others))} more findings" + (
            f", of which the first {format_count(ROWS)}" if len(others) > ROWS else ""
        )
        parts.append(f"<details><summary>{count}</summary><ul>{''.join(others[:ROWS])}</ul></details>")
    if any(r.sampled for _, offered in report.findings for r in offered):
        parts.append('<p class="note">Errors are measured on evenly spread rows; `--tensor` measures all of one.</p>')
    return "".join(parts)


def _compared(report: Report) -> str:
    rows = sorted(report.compared or (), key=lambda r: r.error.snr_db if r.error else math.inf)
    cells_ = [
        (
            escape(r.name or r.other_name),
            escape(r.format),
            escape(r.other_format),
            format_decibels(r.error.snr_db) if r.error else "–",
            number(r.error.max_error) if r.error else "–",
            escape(f"{r.worst[0].axis} {format_count(r.worst[0].index)}, {format_percent(r.worst[0].share)}")
            if r.worst
            else "–",
            escape("; ".join(filter(None, (r.match.value if r.error is None else "", r.note)))),
        )
        for r in rows
    ]
    head = ("Tensor", "First", "Second", "SNR", "Largest error", "Worst channel, its share of the error", "Note")
    other = escape(str(report.other.path.name)) if report.other else ""
    return f"<p>Against {other}, lowest SNR first.</p>" + table(head, cells_[:ROWS], cut(cells_), (3, 4))


def _all_rows(rows: tuple[SurveyRow, ...]) -> str:
    head = ("Tensor", "Shape", "Type", "Range", "Outlier ratio", "Kurtosis", "NaN, Inf", "Format", "SNR")
    shown = []
    for r in rows:
        s, p = r.statistics, r.predicted
        shown.append(
            (
                escape(r.name),
                " × ".join(f"{format_count(n)}" for n in r.shape),
                escape(r.dtype),
                *((number(s.amax), number(s.outlier_ratio), number(s.kurtosis)) if s else ("–", "–", "–")),
                (f'<span class="bad">{format_count(s.nonfinite)}</span>' if s.nonfinite else "0") if s else "–",
                escape(p.format) if p else "–",
                (escape(p.problem) or format_decibels(p.snr_db)) if p else "–",
            )
        )
    inner = table(head, shown[:ROWS], cut(shown), (3, 4, 5, 6, 8))
    return f"<details><summary>{format_count(len(rows))} tensors</summary>{inner}</details>"
