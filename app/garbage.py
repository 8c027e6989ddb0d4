"""When Python looks for reference cycles: on the GUI thread, between events, and never for longer than a frame.

Left alone it looks whenever enough objects have been made, on whatever thread made them, and holds the interpreter for
0.1 to 0.3 s once plans of ten thousand tensors are about. On a worker it could also delete a widget, which only the
GUI thread may do. Nearly everything is freed by its reference count, at once and without any of this.
"""

from __future__ import annotations

import gc
import time

from PySide6.QtCore import QObject, QTimer

INTERVAL_MS = 1000
FEW = 2_000  # new objects for which it is not worth looking
MOST = 10_000  # objects that are looked through in about 5 ms; more are left out from then on
LONG = 0.010  # seconds after which what has been looked through is left out, too


class Garbage(QObject):
    """Takes the collector over until `stop`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        gc.disable()
        gc.freeze()  # modules and what they hold stay for good
        self._timer = QTimer(self, interval=INTERVAL_MS)
        self._timer.timeout.connect(self.look)
        self._timer.start()

    def look(self) -> None:
        """Free unreachable cycles among the objects made since the last time that there were too many.

        Nothing here may take references to objects of other threads, as gc.get_objects does: a tuple that a worker is
        just building would then fail.
        """
        made = gc.get_count()[0]
        if made < FEW:
            return
        if made > MOST:
            gc.freeze()
            return
        begin = time.perf_counter()
        gc.collect()
        if time.perf_counter() - begin > LONG:
            gc.freeze()

    def stop(self) -> None:
        """Give the collector back."""
        self._timer.stop()
        gc.unfreeze()
        gc.enable()
