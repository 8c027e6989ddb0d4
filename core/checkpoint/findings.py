"""What the input doctor says: one plain sentence, one next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from core.units import format_count

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """severity: 'error' when the result can not be right, 'warning' when it may not be what is wanted, else 'info'.

    code: stable name of the kind. message: one sentence. hint: one next step. tensor: whom it concerns, '' for all.
    """

    severity: Severity
    code: str
    message: str
    hint: str
    tensor: str = ""


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(name if len(name) <= 80 else name[:77] + "…" for name in names[:limit])
    return shown + (f" and {format_count(len(names) - limit)} more" if len(names) > limit else "")
