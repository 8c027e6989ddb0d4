"""Draws what `kernels.gpu.bench` measured as SVG, without a library: speed beside bfloat16, a panel a shape."""

from __future__ import annotations

import math
from html import escape
from typing import Any

_COLORS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#475569")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 560, 300, 56, 48, 44


def svg(results: dict[str, Any]) -> str:
    """The picture; where nothing was measured, it says so."""
    rows = [row for name in ("products", "peers") for row in results.get(name, {}).get("rows", ())]
    rows = [row for row in rows if row.get("times_bfloat16", 0) > 0]
    shapes = list(dict.fromkeys((row["rows"], row["columns"]) for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    color = {name: _COLORS[i % len(_COLORS)] for i, name in enumerate(names)}
    panels = [_panel(i, shape, [r for r in rows if (r["rows"], r["columns"]) == shape], color)
              for i, shape in enumerate(shapes)]  # fmt: skip
    notes = _steps(results) or ["no decode step was measured"]
    if not rows:
        notes.insert(0, "no product was measured")
    bottom = _TOP + len(panels) * (_HEIGHT + _TOP)
    places = [(_LEFT + 190 * (i % 3), bottom + 18 * (i // 3)) for i in range(len(names))]
    legend = [_text(*place, f"● {name}", color[name]) for place, name in zip(places, names, strict=True)]
    bottom += 18 * (-(-len(names) // 3) + 1)
    legend += [_text(_LEFT, bottom + 18 * i, note) for i, note in enumerate(notes)]
    height = bottom + 18 * len(notes) + 20
    title = _text(_LEFT, 24, str(results.get("about", {}).get("card", "")), size=15)
    body = "\n".join([title, *panels, *legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 24} {height}" '
        f'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _panel(number: int, shape: tuple[int, int], rows: list[dict[str, Any]], color: dict[str, str]) -> str:
    top = _TOP + number * (_HEIGHT + _TOP)
    most = max(1.2, *(row["times_bfloat16"] for row in rows)) * 1.08
    batches = sorted({row["batch"] for row in rows})
    last = max(math.log2(batches[-1]), 1)

    def place(batch: int, times: float) -> tuple[float, float]:
        return _LEFT + math.log2(batch) / last * _WIDTH, top + _HEIGHT - _BELOW - times / most * (_HEIGHT - _BELOW)

    parts = [_text(_LEFT, top - 6, f"{shape[0]} × {shape[1]}: times bfloat16's speed, by tokens")]
    ground = place(1, 0)[1]
    for times in range(math.floor(most) + 1):
        y = place(1, times)[1]
        stroke = "#94a3b8" if times == 1 else "#e2e8f0"
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="{stroke}"/>' + _text(_LEFT - 24, y + 4, f"{times}×"))
    parts += [_text(place(batch, 0)[0] - 6, ground + 18, str(batch)) for batch in batches]
    for name in dict.fromkeys(row["name"] for row in rows):
        points = sorted((row["batch"], row["times_bfloat16"]) for row in rows if row["name"] == name)
        places = [place(*point) for point in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color[name]}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color[name]}"/>' for x, y in places]
    return "\n".join(parts)


def _steps(results: dict[str, Any]) -> list[str]:
    said = []
    for row in results.get("step", {}).get("rows", ()):
        share = f", {row['bound_seconds'] / row['seconds']:.0%} of the bound" if row.get("bound_seconds") else ""
        took = f"{row['seconds'] * 1e3:.2f} ms{share}"
        said.append(f"decode step of 8 billion parameters, {row['batch']} sequences: {took}")
    return said


def _text(x: float, y: float, text: str, color: str = "#0f172a", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}">{escape(text)}</text>'
