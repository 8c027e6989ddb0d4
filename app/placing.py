"""Where the window stands on the screen, and what may be dropped on it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, QSize
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QApplication, QWidget

DEFAULT_SIZE = QSize(1280, 820)
SMALLEST = QSize(900, 600)


def place(window: QWidget, saved: QByteArray | None) -> None:
    """Give the window the size and place of last time, or the usual ones, and keep it on a screen that is there."""
    screen = window.screen() or QApplication.primaryScreen()
    available = screen.availableGeometry()
    window.setMinimumSize(SMALLEST.boundedTo(available.size()))
    window.resize(DEFAULT_SIZE.boundedTo(available.size()))
    if saved is not None:
        window.restoreGeometry(saved)
        there = QApplication.screenAt(window.geometry().center())  # a second one may have been in use
        available = there.availableGeometry() if there is not None else available
    if not window.isMaximized() and not available.contains(window.frameGeometry()):
        window.resize(window.size().boundedTo(available.size()))
        frame = window.frameGeometry()
        left = max(available.left(), min(frame.left(), available.right() - frame.width() + 1))
        top = max(available.top(), min(frame.top(), available.bottom() - frame.height() + 1))
        window.move(left, top)


def let_drops_through(page: QWidget) -> None:
    """Text fields take a dropped file for text; here a file is a model to open, wherever it is dropped."""
    for field in page.findChildren(QWidget):
        if field.acceptDrops():
            field.setAcceptDrops(False)


def dropped_path(event: QDropEvent) -> Path | None:
    """The first file or folder of a drop; several shards of one model dropped together are the model of the first."""
    for url in event.mimeData().urls():
        if url.isLocalFile() and Path(url.toLocalFile()).exists():
            return Path(url.toLocalFile())
    return None
