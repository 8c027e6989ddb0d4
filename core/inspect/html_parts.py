"""Pieces of a page: tables, and pictures with what they show in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from core.inspect.figures import SHADES, HeatMap, data_uri, number, png
from core.units import format_count

_WIDE, _FLAT, _TALL, _ROW = 860, 110, 420, 12  # CSS pixels of a heat map
ROWS = 400  # of a table; the JSON has all


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", numeric: Sequence[int] = ()) -> str:
    """Cells are HTML already. numeric: columns that stand to the right."""
    right = set(numeric)
    marks = [' class="n"' if i in right else "" for i in range(len(head))]
    top = "".join(f'<th scope="col"{marks[i]}>{escape(name)}</th>' for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{marks[i]}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>" for row in rows
    )
    title = f"<caption class='note'>{escape(caption)}</caption>" if caption else ""
    return f'<div class="wide"><table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def heat_figure(picture: HeatMap, alt: str, caption: str, unit: str) -> str:
    """An image with its colour bar; cells are as high as wide where that is neither too flat nor too tall."""
    square = round(_WIDE * picture.rows / max(picture.columns, 1))
    height = max(_FLAT, picture.rows, min(_TALL, max(square, _ROW * picture.rows)))
    style = f' style="height:{height}px"'
    bar = png(np.arange(SHADES, dtype=np.uint8)[None])
    scale = (
        f'<span class="legend">{number(picture.low)} <img class="bar" src="{data_uri(bar)}" alt="from dark to bright"> '
        f"{number(picture.high)}{escape(' ' + unit if unit else '')}, logarithmic</span>"
    )
    image = f'<img src="{data_uri(picture.png)}" alt="{escape(alt, quote=True)}"{style}>{scale}'
    return figure(image, caption)


def cut(rows: Sequence[object]) -> str:
    return f"The first {format_count(ROWS)} of {format_count(len(rows))}; --json has all." if len(rows) > ROWS else ""
