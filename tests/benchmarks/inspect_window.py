"""How long the Inspect page takes: a click on a large tensor until everything is on the screen, and pan and zoom.

`python tests/benchmarks/inspect_window.py [--tries N]`; writes a made-up layer of 4096 × 14336 weights to a temporary
folder first. Times are wall clock of this machine as it is; the longest block is of the event loop.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

BIG = "model.layers.0.mlp.down_proj.weight"
OTHER = "model.layers.0.self_attn.k_proj.weight"
CLICK, BLOCK, FRAME = 0.400, 0.050, 1 / 30  # seconds that are asked for


def figure(name: str, values: list[float], bound: float) -> None:
    middle = statistics.median(values)
    print(f"{name:46} {1000 * middle:7.1f} ms  (best {1000 * min(values):.1f}, bound {1000 * bound:.0f})")


class Bench:
    """A window with the model open on the Inspect page, its survey done."""

    def __init__(self, scratch: Path) -> None:
        from PySide6.QtWidgets import QApplication
        from tiny_models import write_llama

        from app.bootstrap import build_window, start_background
        from app.settings import Settings

        self.app = QApplication.instance() or QApplication([])
        source = write_llama(scratch / "large", hidden=4096, ffn=14336, heads=32, kv_heads=8, layers=1)
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        self.window = build_window(Settings(scratch / "settings.ini"))
        start_background(self.window)
        self.window.resize(1280, 820)
        self.window.show()
        self.window.open_path(source)
        store, jobs = self.window.services.session, self.window.services.jobs
        self.wait(lambda: store.current.plan is not None)
        self.wait(lambda: not jobs.jobs("pool"))
        self.window.show_page("inspect")
        self.page: Any = self.window.page("inspect")
        begin = time.perf_counter()
        self.wait(lambda: "map" in self.page.views and self.page.views["map"]._rows)
        print(f"first rows of the map after {time.perf_counter() - begin:.2f} s")
        self.wait(lambda: self.page.views["map"]._job is None)
        print(f"all of it after {time.perf_counter() - begin:.2f} s")
        self.page.look_at(OTHER)
        self.wait(lambda: "tensor" in self.page.views)
        self.view: Any = self.page.views["tensor"]
        self.wait(lambda: self.view.settled and self.view._reply is not None)

    def wait(self, condition: Callable[[], object], limit: float = 120.0) -> None:
        end = time.perf_counter() + limit
        while not condition():
            if time.perf_counter() > end:
                raise TimeoutError
            self.app.processEvents()
            time.sleep(0.0005)

    def click(self) -> tuple[float, float, float]:
        """Seconds until the picture, until everything; and the longest block."""
        from window_help import longest_block

        view = self.view
        self.page.look_at(OTHER)
        self.wait(lambda: view.settled)
        times = []

        def begin() -> None:
            times.append(time.perf_counter())
            self.page.look_at(BIG)

        def everything() -> bool:
            if not times or self.page.state.tensor.name != BIG:
                return False
            if (
                len(times) == 1
                and view._reply is not None
                and view._reply.statistics.name == BIG
                and not view._turns.busy
            ):
                times.append(time.perf_counter())
            if len(times) == 2 and view.settled:
                times.append(time.perf_counter())
            return len(times) > 2

        block = longest_block(begin, everything)
        return times[1] - times[0], times[2] - times[0], block

    def frames(self, step: Callable[[int], object], count: int = 60) -> list[float]:
        """Seconds of each painted frame."""
        found = []
        for number in range(count):
            begin = time.perf_counter()
            step(number)
            self.view.heat.canvas.repaint()
            self.app.processEvents()
            found.append(time.perf_counter() - begin)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the Inspect page.")
    parser.add_argument("--tries", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch))
        clicks = [bench.click() for _ in range(arguments.tries)]
        figure("click: picture, channels, distribution", [c[0] for c in clicks], CLICK)
        figure("click: everything, levels of the format too", [c[1] for c in clicks], CLICK)
        figure("click: longest block of the event loop", [c[2] for c in clicks], BLOCK)
        canvas = bench.view.heat.canvas
        zoom = bench.frames(lambda n: canvas.zoom(1.15 if n < 40 else 1 / 1.15), 80)
        canvas.show_whole()
        canvas.zoom(8.0)
        pan = bench.frames(lambda n: canvas._set_view(canvas.view.moved(7.3, 31.7 if n % 60 < 30 else -31.7)))
        canvas.zoom(1e6)
        single = bench.frames(lambda n: canvas._set_view(canvas.view.moved(0.4, 0.3)))
        for name, frames in (("zoom", zoom), ("pan", pan), ("pan over single values", single)):
            figure(f"{name}: a frame", frames, FRAME)
            print(f"{'':46} {1000 * max(frames):7.1f} ms the slowest")
        times = []
        for _ in range(arguments.tries):
            begin = time.perf_counter()
            bench.view._error = None
            bench.view.error_button.click()
            bench.wait(lambda: bench.view._error is not None)
            times.append(time.perf_counter() - begin)
            bench.wait(lambda: bench.view.settled)
            bench.view.weights_button.click()
        figure("error map: first picture", times, CLICK)
        bench.window.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
