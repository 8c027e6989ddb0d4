"""What stands out in each head of the cache: a row for each layer and head, a column for each channel or token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtWidgets import QWidget

from app.plots.heat_map import ArrayMatrix, HeatMap, HeatPicture
from core.units import format_count, format_number

if TYPE_CHECKING:
    from core.inspect.cache_outliers import HeadMap

_HEAD = re.compile(r"^Head ([\d\u202f]+),")


class HeadOutliers(HeatMap):
    """Ratios to each head's median: 1 is as the others, and what is far above takes the codes from the rest."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        self._map: HeadMap | None = None
        self._place = "channel"
        super().__init__(name, "No data yet: run a few hundred tokens to see it.", parent)

    def clear(self, text: str = "") -> None:
        self._map = None
        super().clear(text)

    def show_map(self, title: str, shown: HeadMap, place: str, top: float) -> None:
        """place: 'channel' or 'token'. top: ratio at the bright end, the same for maps that are compared."""
        self._map, self._place = shown, place
        ratios = shown.ratios
        lost = int(np.count_nonzero(np.isinf(ratios)))
        note = f"{format_count(lost)} {place}s hold Inf." if lost else ""
        heads = f"layer and head ({shown.heads} a layer) ↓"
        self.show_picture(
            HeatPicture(
                title, ArrayMatrix(np.where(np.isinf(ratios), np.float32(np.nan), ratios)), "÷ median",
                unseen=True, top=top, note=note, axes=("head", place), axis_title=f"{place} →     {heads}",
            )
        )  # fmt: skip

    def _on_pointed(self, text: str) -> None:
        super()._on_pointed(_HEAD.sub(self._named, text))

    def _named(self, found: re.Match[str]) -> str:
        row, heads = int(found[1].replace("\u202f", "")), self._map.heads if self._map is not None else 1
        return f"Layer {row // heads}, head {row % heads},"

    def describe(self) -> str:
        if self._map is None:
            return ""
        loudest = self._map.loudest
        where = f"{self._place} {format_count(loudest.place)} of layer {loudest.layer}, head {loudest.head}"
        times = format_number(loudest.ratio, 3)
        return f"{format_count(len(self._map.values))} heads. Loudest: {where}, {times} times the head's median."
