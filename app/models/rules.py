"""Columns of the rule table. Rows are `RuleMatch`."""

from __future__ import annotations

from app.icons import icon
from app.jobs.plan import RuleMatch
from app.models.table import Column
from core import units


def _match_text(rule: RuleMatch) -> str:
    if rule.error:
        return rule.error
    return f"{units.format_count(rule.count)} tensor{'s' if rule.count != 1 else ''}"


def rule_columns() -> tuple[Column, ...]:
    return (
        Column("Pattern", lambda r: r.pattern, term="pattern", mono=True),
        Column("Format", lambda r: "keep 16 bits" if r.format == "keep" else r.format, term="format"),
        Column(
            "Decides",
            _match_text,
            lambda r: r.count,
            role=lambda r: "error" if r.error else "",
            icon=lambda r: icon("circle-x", "error") if r.error else None,
        ),
        Column("Why", lambda r: r.reason or "–"),
    )
