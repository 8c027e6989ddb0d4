"""Show a file in the system's file manager, or a page in its browser."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices


def reveal(path: Path) -> bool:
    """Open the folder that holds `path`. False when the system has no program for folders."""
    return QDesktopServices.openUrl(QUrl.fromLocalFile(str(path.parent)))


def browse(address: str) -> bool:
    """Show a page in the system's browser. False when there is none, or when the address is no page."""
    url = QUrl(address)
    return url.scheme() in ("http", "https") and QDesktopServices.openUrl(url)
