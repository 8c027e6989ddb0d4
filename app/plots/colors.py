"""Colours of magnitudes: perceptually even maps that keep their order for every common kind of colour vision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PySide6.QtGui import QColor, QImage

from app.theme import LIGHT, Theme
from core.inspect import palette

_ANCHORS = {
    "viridis": palette.VIRIDIS,
    # Nuñez, Anderton and Renslow 2018 (CC0), likewise
    "cividis": "00204D 002C69 06366E 2D426C 414D6B 52596C 61646F 6F7073 7D7C78 8B8779 9B9477 ACA174 BCAF6F CEBC68 "
    "E0CB5E F2DA50 FFEA46",
}
WEIGHTS, ERRORS = "viridis", "cividis"
DAMAGED = LIGHT.color("error")  # of NaN and Inf, in both themes: the other red is a yellow of these maps to some eyes
BLACK, WHITE = QColor("#000000"), QColor("#FFFFFF")  # on colours that are the same in both themes
SHADES = 254  # indices of a picture that stand for magnitudes; the two above them:
NOT_FINITE, UNSEEN = 254, 255


@lru_cache(maxsize=8)
def shades(name: str) -> np.ndarray:
    """uint8 [SHADES, 3], from small to large."""
    return palette.shades(_ANCHORS[name], SHADES)


@dataclass(frozen=True)
class Scale:
    """Which colour a number has. low, high: ends of the map, low < high; log: in even steps of the logarithm.

    falling: a small number is the bright one, as where small means trouble. Numbers beyond the ends have the end's
    colour, and the colour bar says so.
    """

    low: float
    high: float
    log: bool = True
    falling: bool = False
    name: str = WEIGHTS

    def indices(self, values: np.ndarray, nan: int = NOT_FINITE) -> np.ndarray:
        """uint8 of the same shape. nan: what NaN becomes; Inf is NOT_FINITE."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # what float32 can not hold has the end's
            share = (self._place(np.asarray(values, np.float32)) - self._first) * np.float32(1.0 / self._width)
        if self.falling:
            share = 1.0 - share
        out = (np.clip(np.nan_to_num(share, nan=0.0), 0.0, 1.0) * np.float32(SHADES - 1) + 0.5).astype(np.uint8)
        if not np.isfinite(values).all():
            out[np.isinf(values)] = NOT_FINITE
            out[np.isnan(values)] = nan
        return out

    def color(self, value: float) -> QColor:
        """Of one finite number."""
        return QColor(*(int(c) for c in shades(self.name)[int(self.indices(np.array([value]))[0])]))

    def share(self, value: float) -> float:
        """Where on the colour bar a number stands, 0 (dark end) … 1, for its ticks."""
        place = float(self._place(np.array(value, np.float64)) - self._first) / self._width
        return min(1.0, max(0.0, 1.0 - place if self.falling else place))

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers between the ends: powers of ten if there are several, else 1, 2, 5 and their tens."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
                every = max(1, round((last - first) / count)) if steps == (1,) else 1
                found = [s * 10.0**p for p in range(first, last + 1, every) for s in steps]
                found = [v for v in found if self.low * 0.999 <= v <= self.high * 1.001]
                if len(found) >= min(3, count):
                    return found
            return [self.low, self.high]
        width = self.high - self.low
        step = 10.0 ** math.floor(math.log10(width / count))
        step *= next((s for s in (1, 2, 5, 10) if width / (s * step) <= count), 10)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def _place(self, values: np.ndarray) -> np.ndarray:
        return np.log2(values) if self.log else values

    @property
    def _first(self) -> np.float32:
        return np.float32(math.log2(self.low) if self.log else self.low)

    @property
    def _width(self) -> float:
        return (math.log2(self.high) if self.log else self.high) - float(self._first)


def scale_for(
    values: np.ndarray, *, log: bool = True, falling: bool = False, name: str = WEIGHTS, clip: float = 0.0
) -> Scale:
    """A scale over the finite values (with `log`, those above 0). clip: quantile below which all is the dark end."""
    finite = values[np.isfinite(values)]
    if log:
        finite = finite[finite > 0]
    if not finite.size:
        return Scale(1e-3, 1.0, log, falling, name)
    low = float(np.quantile(finite, clip)) if clip else float(finite.min())
    high = float(finite.max())
    if not low < high * 0.999:  # one value only
        low = high / 2 if log and high > 0 else high - max(abs(high), 1.0) / 2
    return Scale(low, high, log, falling, name)


def picture(indices: np.ndarray, name: str, theme: Theme) -> QImage:
    """An image of indices, a pixel a cell. It holds the array's memory only while `indices` lives, so it is copied."""
    height, width = indices.shape
    data = np.ascontiguousarray(indices)
    image = QImage(data.data, width, height, width, QImage.Format.Format_Indexed8)
    image.setColorTable(color_table(name, theme))
    return image.copy()


@lru_cache(maxsize=8)
def color_table(name: str, theme: Theme) -> list[int]:
    """0xAARRGGBB of each index of a picture."""
    table = [QColor(int(r), int(g), int(b)).rgb() for r, g, b in shades(name)]
    return [*table, DAMAGED.rgb(), theme.color("sunken").rgb()]


def readable_on(color: QColor) -> QColor:
    """Black or white, whichever stands out more."""
    parts = color.red(), color.green(), color.blue()
    linear = [((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in parts]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return BLACK if light > 0.179 else WHITE
