"""The report as one HTML file: nothing fetched, no script; light or dark as the reader has it."""

from __future__ import annotations

from html import escape

import numpy as np

from core.inspect.figures import Curve, profile
from core.inspect.html_parts import figure, table
from core.verdict.evaluation import Evaluation
from core.verdict.report import Block, Code, Section, Table, headline, sections
from core.verdict.thresholds import Verdict

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1d23;--muted:#555d6b;--line:#dadde3;--sunken:#f1f3f6;
--s0:#1f4fb0;--s1:#c25e0c;--s2:#2a9a7c;--s3:#7a2a62;--good:#1c6b3c;--bad:#8c0c25}
@media(prefers-color-scheme:dark){:root{--bg:#15181d;--fg:#e8eaee;--muted:#a3abb8;--line:#2e343d;--sunken:#1d2127;
--s0:#6f9bf0;--s1:#f2a24a;--s2:#5fd9b0;--s3:#d27bb0;--good:#6fd598;--bad:#ff7c74}}
body{font:15px/1.5 system-ui,sans-serif;background:var(--bg);color:var(--fg);max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin-top:2.5rem;border-bottom:1px solid var(--line)}
p{overflow-wrap:anywhere}
figure{margin:1rem 0;overflow-x:auto}figcaption,.note,.legend{color:var(--muted);font-size:.86rem}
svg{width:100%;min-width:560px;height:auto}
.legend span{margin-right:1.2rem}.legend i{display:inline-block;width:1.1em;height:.25em;margin-right:.4em;
vertical-align:middle}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
pre{background:var(--sunken);padding:.6rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.86rem}
.pass,.fail{font-weight:600}.pass{color:var(--good)}.fail{color:var(--bad)}
nav a{margin-right:1rem}a{color:var(--s0)}
"""
_WORDS = {"pass": '<span class="pass">pass</span>', "FAIL": '<span class="fail">FAIL</span>'}


def page(evaluation: Evaluation, verdict: Verdict) -> str:
    """The whole file."""
    parts = sections(evaluation, verdict)
    title = escape(f"{evaluation.artifact.name} against {evaluation.source.name}")
    links = "".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in parts)
    body = "".join(_section(s, evaluation) for s in parts)
    mark = "pass" if verdict.passed else "fail"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><header><h1>{title}</h1>"
        f'<p class="{mark}">{escape(headline(evaluation, verdict))}</p>'
        f'<nav aria-label="Sections">{links}</nav></header>'
        f"<main>{body}</main></body></html>\n"
    )


def _section(section: Section, evaluation: Evaluation) -> str:
    blocks = section.blocks[1:] if section.key == "verdict" else section.blocks  # the headline stands at the top
    inner = "".join(map(_html, blocks))
    if section.key == "layers" and evaluation.layers.layers:
        inner = _curve(evaluation) + inner
    return f'<section id="{section.key}"><h2>{escape(section.title)}</h2>{inner}</section>'


def _html(block: Block) -> str:
    if isinstance(block, Table):
        rows = [[_WORDS.get(cell) or escape(cell) for cell in row] for row in block.rows]
        return table(block.head, rows, numeric=block.numeric)
    if isinstance(block, Code):
        return f"<pre>{escape(block.text)}</pre>"
    return f"<p>{escape(block)}</p>"


def _curve(evaluation: Evaluation) -> str:
    layers = evaluation.layers.layers
    mean, worst = (np.array([getattr(layer, name) for layer in layers], np.float32) for name in ("mean", "worst"))
    picture = profile(
        "Relative error of the hidden states", (Curve("mean", mean, 0), Curve("worst token", worst, 1)), x_name="layer"
    )
    return figure(picture, "The first point is after the embedding.")
