"""Icons of the Lucide set (resources/icons), drawn in a colour of the theme and redrawn when it changes."""

from __future__ import annotations

import re
import tempfile
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import shiboken6
from PySide6.QtCore import QByteArray, QObject, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.assets import ICONS
from app.theme import Theme, current

_SIZES = (16, 32, 48)  # 16 px as shown, the others for screens with 2 and 3 dots a pixel


class HasIcon(Protocol):
    """A button, an action, a tab: anything with setIcon."""

    def setIcon(self, icon: QIcon) -> None: ...


def icon(name: str, role: str = "text", gap: int = 0) -> QIcon:
    """The icon `name` in the current theme's colour `role`, its disabled form included.

    gap: pixels of empty space at the right of 16 pixels of icon; Qt itself leaves too little before a button's text.
    It keeps its colours; use `set_icon` for one that follows the theme. Raises FileNotFoundError for unknown names.
    """
    theme = current()
    return _icon(name, getattr(theme, role), theme.disabled, gap)


@lru_cache(maxsize=256)  # tables ask for one a cell; a QIcon is shared until it is changed, which nobody does
def _icon(name: str, color: str, disabled: str, gap: int) -> QIcon:
    result = QIcon()
    for mode, drawn in ((QIcon.Mode.Normal, _drawing(name, color)), (QIcon.Mode.Disabled, _drawing(name, disabled))):
        for size in _SIZES:
            result.addPixmap(_picture(drawn, size, gap), mode)
    return result


def set_icon(target: HasIcon, name: str, role: str = "text", gap: int = 0) -> None:
    """Give `target` an icon that follows theme changes for as long as `target` lives."""
    _targets[target] = (name, role, gap)
    target.setIcon(icon(name, role, gap))


def refresh_icons(_theme: Theme) -> None:
    """Redraw every icon given by `set_icon`; the theme manager calls it."""
    for target, look in list(_targets.items()):
        if not isinstance(target, QObject) or shiboken6.isValid(target):
            target.setIcon(icon(*look))


_targets: weakref.WeakKeyDictionary[HasIcon, tuple[str, str, int]] = weakref.WeakKeyDictionary()


@lru_cache(maxsize=512)
def pixmap(name: str, color: str, size: int, gap: int = 0) -> QPixmap:
    """The icon as a square of `size` device pixels in colour '#RRGGBB', with gap/16 of it added at the right."""
    return _picture(_drawing(name, color), size, gap)


def _drawing(name: str, color: str) -> QSvgRenderer:
    return QSvgRenderer(QByteArray(_svg(name, color).encode()))


def _picture(drawing: QSvgRenderer, size: int, gap: int) -> QPixmap:
    result = QPixmap(size + size * gap // 16, size)
    result.fill(Qt.GlobalColor.transparent)
    with QPainter(result) as painter:
        drawing.render(painter, QRectF(0, 0, size, size))
    return result


@lru_cache(maxsize=128)
def _source(name: str) -> str:
    return (ICONS / f"{name}.svg").read_text(encoding="utf-8")


def _svg(name: str, color: str) -> str:
    return re.sub(r"currentColor", color, _source(name))


@lru_cache(maxsize=64)
def icon_file(name: str, color: str) -> str:
    """Path of the coloured icon as an SVG file, which style sheets need; kept until the program ends."""
    path = Path(_folder().name) / f"{name}-{color.lstrip('#')}.svg"
    path.write_text(_svg(name, color), encoding="utf-8")
    return path.as_posix()


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bitsmith-icons-")
