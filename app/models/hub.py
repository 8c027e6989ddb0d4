"""Columns for what a hub finds, and for the files of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.models.table import Column
from core import units

if TYPE_CHECKING:
    from core.hub.files import Fate
    from core.hub.listing import Found


def found_columns() -> tuple[Column, ...]:
    """Rows are `Found`."""
    return (
        Column(
            "Name",
            lambda f: f.repository,
            term="repository",
            tooltip=lambda f: f"{f.repository}\nEnter lists its files",
        ),
        Column("Parameters", lambda f: _count(f.parameters), lambda f: f.parameters, number=True, term="parameter"),
        Column("Size", lambda f: units.format_decimal(f.bytes) if f.bytes else "–", lambda f: f.bytes, number=True),
        Column("Licence", lambda f: f.licence or "not said", term="licence"),
        Column("Downloads", lambda f: units.format_count(f.downloads), lambda f: f.downloads, number=True),
        Column("Access", access_text, term="gated", role=lambda f: "warning" if f.gated else ""),
    )


def access_text(found: Found) -> str:
    return "gated" if found.gated else "open"


def _count(n: int) -> str:
    """Billions and millions, as models are named by them."""
    return units.format_decimal(n).removesuffix("B").strip().replace("G", "B").replace("k", "K") if n else "–"


def file_columns() -> tuple[Column, ...]:
    """Rows are `Fate`."""

    def fetched(rows: Sequence[Fate]) -> str:
        return f"{units.format_count(sum(r.fetched for r in rows))} of {units.format_count(len(rows))} files"

    def total(rows: Sequence[Fate]) -> str:
        return units.format_decimal(sum(max(r.file.bytes, 0) for r in rows if r.fetched))

    return (
        Column("File", lambda r: r.file.name, mono=True, role=_faded, total=fetched),
        Column(
            "Size", lambda r: _size(r), lambda r: r.file.bytes, number=True, role=_faded, tooltip=_exact, total=total
        ),
        Column("Fetched", lambda r: "yes" if r.fetched else "no", role=_faded),
        Column("Why", lambda r: r.reason, role=_faded, tooltip=lambda r: r.reason),
    )


def _faded(row: Fate) -> str:
    return "" if row.fetched else "muted"


def _size(row: Fate) -> str:
    return units.format_decimal(row.file.bytes) if row.file.bytes >= 0 else "unknown"


def _exact(row: Fate) -> str:
    return f"{units.format_bytes(row.file.bytes)}" if row.file.bytes >= 0 else "The hub does not say how large it is."
