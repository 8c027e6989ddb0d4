"""Pictures of a report: heat maps as PNG, curves and tables of cells as SVG. No window, no library.

SVG takes its colours from the page: currentColor, and the variables --s0 … --s3, --bad, --line. Every picture has a
title that a screen reader reads.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

import numpy as np

from core.inspect.palette import VIRIDIS, shades
from core.units import format_count, format_number

SHADES = 255  # indices of a PNG that stand for numbers; the last is for those that are none
NOT_A_NUMBER = (200, 30, 60)
WIDTH = 860  # of an SVG, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 34


@dataclass(frozen=True)
class HeatMap:
    """A PNG, a pixel a cell, and the numbers of its darkest and brightest colour (0 … 0 when there are none)."""

    png: bytes
    rows: int
    columns: int
    low: float
    high: float


@lru_cache(maxsize=1)
def palette() -> np.ndarray:
    """uint8 [256, 3]: SHADES colours from small to large, then that of NaN and Inf."""
    return np.concatenate([shades(VIRIDIS, SHADES), np.array([NOT_A_NUMBER], np.uint8)])


def indices(values: np.ndarray, low: float, high: float, log: bool = True) -> np.ndarray:
    """Colour of each number, uint8 of the same shape, low and high being the ends; beyond them, the end's."""
    bad = ~np.isfinite(values)
    x = np.where(bad, low, values).astype(np.float64)
    if log:
        share = np.log(np.maximum(x, low) / low) / max(math.log(high / low), 1e-12) if low > 0 else np.zeros(x.shape)
    else:
        share = (x - low) / max(high - low, 1e-300)
    out = np.rint(np.clip(share, 0, 1) * (SHADES - 1)).astype(np.uint8)
    out[bad] = SHADES
    return out


def ends(values: np.ndarray, log: bool = True) -> tuple[float, float]:
    """Smallest and largest finite number, of those above 0 where `log`; (0, 0) when there is none."""
    finite = values[np.isfinite(values)]
    finite = finite[finite > 0] if log else finite
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def png(picture: np.ndarray) -> bytes:
    """uint8 [rows, columns] of colour numbers → a PNG with `palette` (ISO/IEC 15948, colour type 3)."""
    rows, columns = picture.shape
    lines = np.zeros((rows, columns + 1), np.uint8)  # each line begins with its filter, 0: none
    lines[:, 1:] = picture

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    body = chunk(b"PLTE", palette().tobytes()) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def heat_map(values: np.ndarray, quantile: float = 0.0, log: bool = True) -> HeatMap:
    """A picture of float32 [rows, columns]. quantile: share of the numbers that all have the darkest colour."""
    low, high = ends(values, log)
    if quantile and high > low:
        finite = values[np.isfinite(values) & (values > 0)] if log else values[np.isfinite(values)]
        low = float(np.quantile(finite, quantile))
    return HeatMap(png(indices(values, low, high, log)), values.shape[0], values.shape[1], low, high)


def data_uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def number(value: float) -> str:
    """Three digits that count, as the window writes them."""
    return format_number(value, 3)


@dataclass(frozen=True)
class Curve:
    """values: one a channel. series: which of the page's colours, 0 … 3."""

    name: str
    values: np.ndarray
    series: int


@dataclass(frozen=True)
class Mark:
    """A point that is marked and named."""

    index: int
    value: float
    text: str


def profile(title: str, curves: Sequence[Curve], marks: Sequence[Mark] = (), x_name: str = "channel") -> str:
    """Curves over channels, log scale; of more channels than points, each point is the largest of its channels."""
    count = max((len(c.values) for c in curves), default=0)
    positive = [v[np.isfinite(v) & (v > 0)] for v in (np.asarray(c.values, np.float64) for c in curves)]
    everything = np.concatenate(positive) if positive else np.zeros(0)
    if not count or not everything.size:
        return _empty(title)
    low = float(everything.min())
    high = float(everything.max())
    low = max(low, high * 1e-6) * 0.8
    high *= 1.3
    height = 220
    x_of, y_of = _axes(0, max(count - 1, 1), low, high, height)
    parts = [_y_ticks(low, high, y_of), _x_ticks(0, max(count - 1, 1), x_of, height)]
    for curve in curves:
        points = _pooled(np.maximum(np.nan_to_num(curve.values.astype(np.float64)), low))
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="var(--s{curve.series})" stroke-width="1.2" points="{line}"/>')
    for mark in marks:
        x, y = x_of(mark.index), y_of(max(mark.value, low))
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="var(--bad)" stroke-width="2">'
            f"<title>{escape(mark.text)}</title></circle>"
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">{escape(x_name)}</text>')
    return _svg(title, height, parts) + _legend([(c.name, f"var(--s{c.series})") for c in curves])


def distribution(title: str, edges: np.ndarray, counts: np.ndarray, levels: np.ndarray, used: np.ndarray) -> str:
    """Counts of |x| between edges on a log axis, both axes; below it the magnitudes of a format's levels.

    levels: magnitudes, 0 is left out; used: bool, whether any value goes to each.
    """
    filled = np.flatnonzero(counts)
    if not filled.size:
        return _empty(title)
    first, last = int(filled[0]), int(filled[-1]) + 1
    total = counts.sum()
    while first < last - 1 and counts[: first + 1].sum() < total * 1e-6:  # a handful of tiny values stretch the axis
        first += 1
    low, high = float(edges[first]), float(edges[last])
    height, strip = 240, 30
    top = float(counts.max()) * 1.5
    log_low, log_high = math.log10(low), math.log10(high)

    def x_of(value: float) -> float:
        return _LEFT + (math.log10(value) - log_low) / (log_high - log_low) * (WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return _TOP + (1 - math.log10(max(value, 0.7) / 0.7) / math.log10(top / 0.7)) * (
            height - _TOP - _BOTTOM - strip
        )

    base = y_of(0.7)
    parts = [_y_ticks(1, top, y_of)]
    for i in range(first, last):
        if counts[i]:
            x, right, y = x_of(edges[i]), x_of(edges[i + 1]), y_of(float(counts[i]))
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(right - x - 0.5, 0.5):.1f}" height="{base - y:.1f}" '
                f'fill="var(--s0)"><title>{number(edges[i])} … {number(edges[i + 1])}: '
                f"{format_count(counts[i])}</title></rect>"
            )
    for level, hit in zip(levels, used, strict=True):
        if low <= level <= high:
            x = x_of(float(level))
            color = "var(--s1)" if hit else "var(--muted)"
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base + 4:.1f}" y2="{base + strip:.1f}" stroke="{color}" '
                f'stroke-width="{2 if hit else 1}"><title>level {number(float(level))}{"" if hit else ", not used"}'
                "</title></line>"
            )
    parts += [
        f'<text x="{x_of(10.0**power):.1f}" y="{height - 18}" text-anchor="middle">{number(10.0**power)}</text>'
        for power in range(math.ceil(log_low), math.floor(log_high) + 1)
    ]
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">|w|, weight units</text>')
    names = [("values", "var(--s0)")]
    if len(levels):
        names += [("levels in use", "var(--s1)"), ("levels that no value goes to", "var(--muted)")]
    return _svg(title, height, parts) + _legend(names)


def cells(
    title: str, rows: Sequence[str], columns: Sequence[str], values: np.ndarray, log: bool, falling: bool, unit: str
) -> str:
    """A table of coloured cells [rows, columns]; NaN is left blank.

    falling: the smallest number is the bright one, and an infinite one as good as the largest.
    """
    low, high = ends(values, log)
    count = max(len(rows), 1)
    height_of, width_of = max(6, min(16, 420 // count)), (WIDTH - _LEFT - 90) / max(len(columns), 1)
    table = palette()
    shown = indices(np.minimum(values, high) if falling else values, low, high, log)
    top = 78
    parts = []
    for j, name in enumerate(columns):
        x = _LEFT + (j + 0.5) * width_of
        parts.append(f'<text transform="translate({x:.1f} {top - 6}) rotate(-30)">{escape(name)}</text>')
    every = max(1, math.ceil(12 / height_of))
    for i, name in enumerate(rows):
        y = top + i * height_of
        if i % every == 0 or not name.isdecimal():
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + height_of / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>'
            )
        for j, column in enumerate(columns):
            value = float(values[i, j])
            if math.isnan(value):
                continue
            index = int(shown[i, j])
            index = SHADES - 1 - index if falling and index < SHADES else index
            color = "#" + "".join(f"{c:02x}" for c in table[index])
            parts.append(
                f'<rect x="{_LEFT + j * width_of:.1f}" y="{y:.1f}" width="{width_of - 1:.1f}" '
                f'height="{height_of - 1:.1f}" fill="{color}"><title>{escape(name)}, {escape(column)}: '
                f"{number(value)} {escape(unit)}</title></rect>"
            )
    bright, dark = (low, high) if falling else (high, low)
    legend = f'<p class="legend">dark {number(dark)} … bright {number(bright)} {escape(unit)}</p>'
    return _svg(title, top + len(rows) * height_of + 4, parts) + legend


def _axes(
    x_low: float, x_high: float, low: float, high: float, height: int
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    def x_of(value: float) -> float:
        return _LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return _TOP + (1 - math.log(value / low) / math.log(high / low)) * (height - _TOP - _BOTTOM)

    return x_of, y_of


def _pooled(values: np.ndarray) -> list[tuple[float, float]]:
    """(place, largest) of at most about WIDTH runs."""
    step = math.ceil(len(values) / WIDTH)
    starts = np.arange(0, len(values), step)
    return list(zip(starts + (step - 1) / 2, np.maximum.reduceat(values, starts), strict=True))


def _y_ticks(low: float, high: float, y_of: Callable[[float], float]) -> str:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    values = [10.0**p for p in powers]
    if len(values) < 2:
        values = [m * 10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
                  for m in (1, 2, 5) if low <= m * 10.0**p <= high]  # fmt: skip
    values = values[:: math.ceil(len(values) / 8)] if values else []
    return "".join(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y_of(v):.1f}" y2="{y_of(v):.1f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 6}" y="{y_of(v) + 4:.1f}" text-anchor="end">{number(v)}</text>'
        for v in values
    )


def _x_ticks(low: float, high: float, x_of: Callable[[float], float], height: int) -> str:
    step = 10.0 ** math.floor(math.log10(max((high - low) / 5, 1)))
    step *= next((m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 8), 10)
    ticks = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return "".join(
        f'<text x="{x_of(v):.1f}" y="{height - 18}" text-anchor="middle">{format_count(round(v))}</text>' for v in ticks
    )


def _legend(names: Sequence[tuple[str, str]]) -> str:
    spans = "".join(f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in names)
    return f'<p class="legend">{spans}</p>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>'
        f'<g font-size="11" fill="currentColor">{"".join(parts)}</g></svg>'
    )


def _empty(title: str) -> str:
    return f"<p>{escape(title)}: nothing above zero to show.</p>"
