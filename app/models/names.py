"""Tensor names in little room: what tells one from its neighbours stays in view, where an elision would hide it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QModelIndex, QPersistentModelIndex
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem

AnyIndex = QModelIndex | QPersistentModelIndex
PADDING = 16  # px that a cell keeps free at its sides
_ENDING = ".weight"


def short_name(name: str, fits: Callable[[str], bool]) -> str:
    """'model.layers.29.self_attn.q_proj.weight' → '…29.self_attn.q_proj…' or '…29…q_proj…', the longest that fits.

    A name without a layer, or one for which nothing fits, is returned as it is.
    """
    if fits(name):
        return name
    stem, end = (name.removesuffix(_ENDING), "…") if name.endswith(_ENDING) else (name, "")
    parts = stem.split(".")
    layer = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    tried = [stem + end]
    if layer is not None and layer + 1 < len(parts):
        tried += ["…" + ".".join(parts[layer:]) + end]
        tried += [f"…{parts[layer]}…{'.'.join(parts[first:])}{end}" for first in range(layer + 2, len(parts))]
    return next((text for text in tried if fits(text)), name)


class NameDelegate(QStyledItemDelegate):
    """Paints names so; the whole one is the cell's tooltip, and what is copied."""

    def initStyleOption(self, option: QStyleOptionViewItem, index: AnyIndex) -> None:
        super().initStyleOption(option, index)
        room = option.rect.width() - PADDING
        option.text = short_name(option.text, lambda text: option.fontMetrics.horizontalAdvance(text) <= room)
