"""How a series is told from the others: by colour and by dash, since colour alone is not enough."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from app.theme import Theme

DASHES = {
    "solid": Qt.PenStyle.SolidLine,
    "dash": Qt.PenStyle.DashLine,
    "dot": Qt.PenStyle.DotLine,
    "dashdot": Qt.PenStyle.DashDotLine,
}


@dataclass(frozen=True)
class LegendItem:
    """series: index into Theme.series, or −1 for the muted colour. dash: a key of DASHES.

    hint: what the entry's tooltip says.
    """

    label: str
    series: int
    dash: str = "solid"
    fill: bool = False
    hint: str = ""

    def color(self, theme: Theme) -> QColor:
        return theme.color("muted") if self.series < 0 else theme.series_color(self.series)
