"""What the first picture does not wait for: libraries are loaded and pages built while the window is there already."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from app import __path__ as own_path
from core.errors import UserError

if TYPE_CHECKING:
    from app.main_window import MainWindow

log = logging.getLogger(__name__)

NEXT_TURN = 1  # ms; with 0 it would be the same turn of the event loop
LIBRARIES_KEY = "libraries"


class Ahead(QObject):
    """`start` loads on a worker, and then builds in the window's own turns. What fails is said there, with a button
    that tries it again; the rest goes on."""

    def __init__(self, window: MainWindow) -> None:
        super().__init__(window)
        self._window = window
        self._failed: set[str] = set()  # pages that could not be built

    def start(self) -> None:
        """Also once more, after a failure."""
        self._failed.clear()
        self._window.services.jobs.run(
            "Load libraries", lambda _token: load_libraries(), lambda _none: self.build(),
            lambda error: self._tell(error, self.start), latest_key=LIBRARIES_KEY, owner=self,
        )  # fmt: skip

    def build(self) -> None:
        """Build what has not been shown yet, piece by piece and plot by plot, each when the event loop comes around."""
        window = self._window
        missing = next((key for key in window.unbuilt() if key not in self._failed), None)
        try:
            if not (window.build_piece(missing) if missing is not None else self._prepare_plot()):
                return
        except Exception as error:  # noqa: BLE001 - the other pages can be used
            self._tell(error, self.start)
            if missing is None:
                return
            self._failed.add(missing)
        QTimer.singleShot(NEXT_TURN, self, self.build)

    def _prepare_plot(self) -> bool:
        from app.plots import PlotPanel

        plot = next((panel for panel in self._window.findChildren(PlotPanel) if not panel.prepared), None)
        if plot is not None:
            plot.prepare()
        return plot is not None

    def _tell(self, error: BaseException, again: Callable[[], object]) -> None:
        log.warning("a part of the window is missing", exc_info=error)
        told = UserError("A part of the program could not be loaded.", "Try again, or install the program anew.")
        told.__cause__ = error
        self._window.banner.show_error(told)
        self._window.banner.offer("Try again", "Load what is missing once more", again)


def load_libraries() -> None:
    """Import what the window needs: first the pages, then all else of app, so that it is there when it is asked for."""
    from app.main_window import PAGES
    from app.plots.panel import load_library

    load_library()
    for place in PAGES.values():
        import_module(place.split(":")[0])
    for found in walk_packages(own_path, "app."):
        if found.name != "app.__main__":  # which is the program
            import_module(found.name)
