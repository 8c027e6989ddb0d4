"""Pictures of every page in every state, light and dark, into build/screens/.

`python tests/app/screens.py [FOLDER] [--size 900x600]` does it, and `make screens`. The test of it takes each state in
one theme, since switching takes half of the time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "screens"
THEMES = ("light", "dark")
SIZE = (1100, 700)
PATIENCE = 40.0  # seconds that a state may take to come about


class Camera:
    """Puts the window into one state after another and takes a picture of each. Names say page and state."""

    def __init__(self, window: Any, folder: Path, scratch: Path, turns: int = 0) -> None:
        """turns: states in a row that share a theme, each taken in that one alone; 0: each is taken in both."""
        self.window, self.folder, self.scratch, self.turns = window, folder, scratch, turns
        self.states = 0
        self.taken: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, name: str) -> None:
        """NAME-light.png and NAME-dark.png, the present theme first, since switching takes time; or one of them."""
        themes = self.window.services.themes
        wanted = sorted(THEMES, key=lambda theme: theme != themes.theme.name)
        if self.turns:
            wanted = [THEMES[self.states // self.turns % 2]]
        self.states += 1
        for theme in wanted:
            themes.set_mode(theme)
            self.wait(lambda: not themes.dressing)
            self.rest(0.03)
            path = self.folder / f"{name}-{theme}.png"
            self.window.grab().save(str(path))
            self.taken.append(path)

    def wait(self, condition: Callable[[], bool]) -> None:
        from PySide6.QtWidgets import QApplication

        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError("this state did not come about")
            QApplication.processEvents()
            time.sleep(0.002)

    def rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until)


def take_all(window: Any, folder: Path, scratch: Path, size: tuple[int, int] = SIZE, turns: int = 0) -> list[Path]:
    """Every page in every state; returns the pictures. scratch: an empty folder for models and results.

    turns: see Camera.
    """
    camera = Camera(window, folder, scratch, turns)
    window.resize(*size)
    window.show()
    for name in states(camera):
        camera.take(name)
    return camera.taken


def states(camera: Camera) -> Iterator[str]:
    """Puts the window into every state, one after the other, and gives the name of each."""
    from get_screens import get_states

    for part in (
        _model_pages,
        get_states,
        _recipe_pages,
        _convert_pages,
        _test_pages,
        _inspect_pages,
        _inspect_more_pages,
    ):
        yield from part(camera)


def _model_pages(c: Camera) -> Iterator[str]:
    from tiny_models import write_llama

    from core.progress import CancelToken

    window, page = c.window, c.window.page("model")
    store = window.services.session
    for key in ("recipe", "convert", "inspect", "test"):
        window.show_page(key)
        yield f"{key}-empty"
    window.show_page("model")
    c.rest(0.3)
    yield "model-empty"
    page.start.show_sample_state("Getting the sample model (93 MB), once…")
    yield "model-downloading"
    page.start.show_sample_state("")
    broken = c.scratch / "broken.gguf"
    broken.write_bytes(b"GGUF but no more")
    window.open_path(broken)
    c.wait(lambda: store.current.problem is not None)
    yield "model-failed"
    store.update(opening=c.scratch / "a-model-that-takes-a-while", problem=None)
    yield "model-opening"

    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
        tensors["model.layers.2.mlp.down_proj.weight"][:4] = 0

    _open(c, write_llama(c.scratch / "spoilt-model", layers=4, change=spoil))
    yield "model-loaded"
    page.loaded.findings.show_scan(0.42, "42 % of 269.03 MB")
    yield "model-checking"
    page.loaded.findings.scan_asked.emit()
    c.wait(lambda: page.loaded._checked)
    yield "model-checked"
    source = write_llama(c.scratch / "small")
    from core.checkpoint import open_checkpoint
    from core.plan import make_plan
    from core.recipe import Recipe
    from core.run import run

    with open_checkpoint(source) as checkpoint:
        out = c.scratch / "small-Q8_0.gguf"
        list(run(make_plan(checkpoint, Recipe(target="Q8_0")), checkpoint, out, CancelToken()))
    _open(c, out)
    yield "model-quantized"


def _recipe_pages(c: Camera) -> Iterator[str]:
    from tiny_models import write_llama

    from app.devices import DeviceChoice
    from core.calibration.settings import CalibrationText
    from core.methods.choice import Calibrated, DataMethod, Transform
    from core.recipe import Misfit, Recipe, Rule

    window, page = c.window, c.window.page("recipe")
    store = window.services.session
    narrow = write_llama(c.scratch / "smollm-like-model", hidden=576, heads=9, kv_heads=3, ffn=1536, layers=4)
    _open(c, narrow)
    window.show_page("recipe")
    _settle(c)
    yield "recipe-presets"
    device = store.current.device
    store.update(device=DeviceChoice("tiny", "A very small card", 9_000_000, 1e9, own=False))
    yield "recipe-too-large"
    store.update(device=device)
    page.set_recipe(Recipe(target="Q4_K_M"))
    _settle(c)
    yield "recipe-warning"
    page.more.click()
    for number, name in enumerate(("formats", "numbers", "method", "keep", "rules", "tensors", "size")):
        page.advanced.tabs.setCurrentIndex(number)
        c.rest(0.2)
        yield f"recipe-{name}"
    page.set_recipe(Recipe(target="w4a16-g64-asym"))
    page.advanced.tabs.setCurrentIndex(1)
    _settle(c)
    yield "recipe-scheme"
    text = CalibrationText(samples=4, length=64)
    page.set_recipe(Recipe("w8a8", calibrated=Calibrated(DataMethod.GPTQ, (Transform.SMOOTHQUANT,), text)))
    page.advanced.tabs.setCurrentIndex(2)
    c.rest(0.8)
    _settle(c)
    yield "recipe-calibrated"
    methods = page.advanced.methods
    methods.calibration.change.click()
    c.rest(0.1)
    bar = page.advanced.tabs.widget(2).verticalScrollBar()
    bar.setValue(bar.maximum())
    yield "recipe-calibration-text"
    methods.calibration.change.click()
    page.set_recipe(Recipe("Q4_K_M", calibrated=Calibrated(DataMethod.IMPORTANCE, text=text)))
    page.advanced.tabs.setCurrentIndex(5)
    c.rest(0.8)
    _settle(c)
    yield "recipe-tensors-calibrated"
    page.set_recipe(Recipe(target="Q8_0", rules=(Rule("ffn_down", "Q5_0"), Rule("blk\\.0\\.", "keep"))))
    page.advanced.tabs.setCurrentIndex(4)
    _settle(c)
    page.advanced.rules.pattern.setText("no_such_tensor")
    page.advanced.rules.add.click()
    c.wait(page.advanced.rules.error.isVisible)
    _settle(c)
    yield "recipe-rule-refused"
    page.advanced.rules.pattern.clear()
    page.more.click()
    page.set_recipe(Recipe(target="Q6_K", misfit=Misfit.STOP))
    c.wait(page.outcome.error.isVisible)
    yield "recipe-impossible"


def _convert_pages(c: Camera) -> Iterator[str]:
    from core.blocks import BlockWorker
    from core.errors import UserError
    from core.recipe import Recipe

    window, page, recipe = c.window, c.window.page("convert"), c.window.page("recipe")
    store = window.services.session
    window.show_page("recipe")
    recipe.set_recipe(Recipe(target="Q8_0"))
    c.wait(lambda: store.current.plan is not None and store.current.plan.recipe.target == "Q8_0")
    plain = BlockWorker.run
    state = {"full": False}

    def slow(self: Any, block: Any, *rest: Any) -> Any:
        time.sleep(0.3)
        if state["full"] and block.tensor > 9:
            raise UserError(f"The disk of {c.scratch} is full.", "Free some space; the run can then be resumed.")
        return plain(self, block, *rest)

    BlockWorker.run = slow  # type: ignore[method-assign]
    try:
        recipe.set_output(c.scratch / "first.gguf")
        recipe.convert.click()
        entry = page.queue.entries[-1]
        c.wait(lambda: entry.newest is not None and entry.newest > 12)
        window.show_page("recipe")
        recipe.set_output(c.scratch / "second.gguf")
        recipe.convert.click()
        c.rest(0.5)
        yield "convert-running-and-queued"
        page.queue.pause(entry)
        yield "convert-paused"
        page.queue.cancel(entry)
        c.wait(lambda: entry.state.final)
        second = page.queue.entries[-1]
        page.choose(entry)
        yield "convert-cancelled"
        state["full"] = True
        c.wait(lambda: second.state.final)
        page.choose(second)
        yield "convert-failed"
        state["full"] = False
    finally:
        BlockWorker.run = plain  # type: ignore[method-assign]
    page.queue.resume(second)
    c.wait(lambda: second.state.final)
    page.queue.remove(entry)
    c.rest(0.5)
    yield "convert-done"


def _test_pages(c: Camera) -> Iterator[str]:
    from cache_example import cache_example
    from fake_backend import FakeBackend

    from app.jobs.testing_cache import CacheMeasure, CacheOrder

    window, page = c.window, c.window.page("test")
    bench = page.bench
    engine = bench.backend = FakeBackend()
    window.show_page("test")
    for side, name in enumerate(("smollm2-135m", "smollm2-135m-Q4_K_M.gguf")):
        path = c.scratch / name
        path.write_bytes(b"")
        bench.choose(side, path)
    c.rest(0.2)
    yield "test-chosen"
    engine.pause = 0.4
    bench.load(0)
    c.wait(lambda: bench.slots[0].share > 0.3)
    yield "test-loading"
    c.wait(lambda: not bench.busy)
    engine.pause = 0.02
    page.generate.click()
    c.wait(lambda: len(bench.slots[1].pieces) > 20)
    engine.pause = 0.2  # the second theme takes a moment
    yield "test-generating"
    engine.pause = 0.0
    c.wait(lambda: not bench.busy)
    yield "test-done"
    page.more.click()
    yield "test-advanced"
    page.more.click()
    for number, name in ((1, "numbers"), (2, "kernels"), (3, "sweep-empty")):
        page.tabs.setCurrentIndex(number)
        c.rest(0.1)
        yield f"test-{name}"
    engine.pause = 0.05
    page.sweep_button.click()
    c.wait(lambda: len(bench.partial.points) > 5)
    yield "test-sweep-running"
    engine.pause = 0.0
    c.wait(lambda: not bench.busy)
    yield "test-sweep"
    page.sweep.tabs.setCurrentIndex(1)
    page.sweep.quantity.setCurrentIndex(1)
    page.sweep.quantity.activated.emit(1)
    yield "test-traffic"
    yield from _quality_pages(c)
    page.tabs.setCurrentIndex(5)
    page.caches.show_found(cache_example(CacheOrder(CacheMeasure.POSITION, c.scratch / "smollm2-Q4_K_M.gguf", 1024)))
    yield "test-cache"
    page.caches.show_found(cache_example(CacheOrder(CacheMeasure.SPEED, c.scratch / "smollm2-Q4_K_M.gguf", 32768)))
    yield "test-cache-speed"
    page.tabs.setCurrentIndex(6)
    c.wait(lambda: page.history.table.model.rowCount() == 3)
    page.history.table.view.selectAll()
    yield "test-history"
    engine.broken, engine.slow = {1}, True
    page.tabs.setCurrentIndex(0)
    bench.unload(1)
    page.generate.click()
    c.wait(lambda: not bench.busy)
    yield "test-failed"
    engine.broken = set()
    page.generate.click()
    c.wait(lambda: not bench.busy)
    yield "test-slower"
    yield from _gpu_pages(c, engine)


def _gpu_pages(c: Camera, engine: Any) -> Iterator[str]:
    """One file on a GPU and on the processor."""
    from fake_backend import GPUS

    page = c.window.page("test")
    bench = page.bench
    engine.found, engine.slow, bench.devices = GPUS, False, None
    bench.look_for_devices()
    c.wait(lambda: bench.devices is not None)
    c.rest(0.1)
    yield "test-gpu-found"
    page.columns[1].same.click()
    page.generate.click()
    c.wait(lambda: not bench.busy)
    c.rest(0.2)
    yield "test-gpu"
    page.more.click()
    c.rest(0.1)
    yield "test-gpu-advanced"
    page.more.click()
    page.tabs.setCurrentIndex(1)
    c.rest(0.1)
    yield "test-gpu-numbers"
    page.tabs.setCurrentIndex(0)


def _quality_pages(c: Camera) -> Iterator[str]:
    page = c.window.page("test")
    bench, quality = page.bench, page.quality
    page.tabs.setCurrentIndex(4)
    c.rest(0.1)
    yield "test-quality-empty"
    quality.setup.more.click()
    yield "test-quality-options"
    quality.setup.more.click()
    bench.backend.pause = 0.2
    page.judge_button.click()
    c.wait(lambda: quality.bar.value() > 400)
    yield "test-quality-running"
    bench.backend.pause = 0.0
    c.wait(lambda: not bench.busy and quality.result.settled)
    yield "test-quality-passed"
    tabs = quality.result.grid.tabs
    for number in range(1, tabs.count()):
        tabs.setCurrentIndex(number)
        yield f"test-quality-{number}"
    tabs.setCurrentIndex(0)
    quality.setup.preset.setCurrentIndex(0)
    quality.setup.preset.activated.emit(0)
    yield "test-quality-failed"
    bench.backend.broken = {1}
    page.judge_button.click()
    c.wait(lambda: not bench.busy)
    yield "test-quality-error"
    bench.backend.broken = set()


def _inspect_pages(c: Camera) -> Iterator[str]:
    from tiny_models import write_llama

    name, channel = "model.layers.4.mlp.down_proj.weight", 300

    def spoil(tensors: dict[str, Any]) -> None:
        tensors[name][:, channel] *= 20
        tensors["model.layers.2.mlp.up_proj.weight"][3, 5] = float("nan")

    _open(c, write_llama(c.scratch / "model-with-an-outlier", layers=12, hidden=384, heads=6, ffn=768, change=spoil))
    window, page = c.window, c.window.page("inspect")
    c.wait(lambda: window.services.session.current.plan is not None)
    window.show_page("inspect")
    page.show_view("map")
    c.wait(lambda: "map" in page.views and bool(page.views["map"]._rows))
    c.wait(lambda: page.views["map"].settled)
    c.rest(0.2)
    yield "inspect-map"
    view = page.views["map"]
    view.measure.setCurrentIndex(3)
    view.measure.activated.emit(3)
    yield "inspect-map-snr"
    page.look_at(name)
    c.wait(lambda: "tensor" in page.views and page.views["tensor"].heat.has_data)
    tensor = page.views["tensor"]
    c.wait(lambda: tensor.settled)
    yield "inspect-tensor"
    tensor.channels.view.selectRow(0)
    yield "inspect-tensor-channel"
    for _ in range(8):
        tensor.heat.canvas.zoom(2.0)
    yield "inspect-tensor-values"
    tensor.heat.canvas.show_whole()
    if tensor.grid.folded:
        for number, part in ((1, "profile"), (2, "distribution")):
            tensor.grid.tabs.setCurrentIndex(number)
            yield f"inspect-tensor-{part}"
        tensor.grid.tabs.setCurrentIndex(0)
    tensor.error_button.click()
    c.wait(lambda: tensor.settled)
    yield "inspect-tensor-error"
    tensor.weights_button.click()


def _inspect_more_pages(c: Camera) -> Iterator[str]:
    """Groups, activations, comparison and remedies, on a model with outlier channels."""
    from tiny_models import write_llama

    from core.recipe import Recipe

    def spoil(tensors: dict[str, Any]) -> None:
        tensors["model.layers.3.mlp.down_proj.weight"][:, 37] *= 40
        for name, values in tensors.items():
            if name.endswith("input_layernorm.weight"):
                values[21] = 30

    window, jobs = c.window, c.window.services.jobs
    source = write_llama(c.scratch / "outliers", layers=6, change=spoil)
    _open(c, source)
    recipe = window.page("recipe")
    recipe.set_recipe(Recipe(target="Q4_0"))
    _idle(c)
    window.show_page("inspect")
    page = window.page("inspect")
    c.rest(0.1)
    page.state.choose("model.layers.3.mlp.down_proj.weight")
    page.state.choose_channel("input", 37)
    page.show_view("group")
    view = page.views["group"]
    _idle(c)
    view.table.view.selectRow(5)
    yield "inspect-group"
    view.tabs.setCurrentWidget(view._side)
    _idle(c)
    yield "inspect-granularities"
    view.teaching.setChecked(True)
    _idle(c)
    yield "inspect-teaching-strips"
    view.tabs.setCurrentIndex(0)
    _idle(c)
    yield "inspect-teaching"
    view.teaching.setChecked(False)
    page.show_view("activations")
    view = page.views["activations"]
    yield "inspect-activations-empty"
    view.tokens.setValue(64)
    view.run()
    c.wait(lambda: view.found is not None and not view._turns.busy)
    yield "inspect-activations"
    view.tabs.setCurrentWidget(view._layer_tabs.together)
    c.rest(0.1)
    yield "inspect-activations-layers"
    page.show_view("cache")
    view = page.views["cache"]
    yield "inspect-cache-empty"
    view.tokens.setValue(64)
    view.run()
    c.wait(lambda: view.found is not None)
    yield "inspect-cache"
    page.show_view("compare")
    view = page.views["compare"]
    c.rest(0.1)
    yield "inspect-compare-empty"
    view.set_path(1, c.scratch / "small")
    view.run()
    c.wait(lambda: view._job is None)
    yield "inspect-compare"
    page.show_view("map")
    page.findings.click()
    panel = page.views["panel"]
    c.wait(lambda: bool(panel.findings) and not jobs.jobs())
    yield "inspect-findings"
    panel.list.setCurrentRow(0)
    c.wait(lambda: bool(panel.rows) and not jobs.jobs())
    yield "inspect-remedies"
    next(row for row in panel.rows if row.remedy.possible).put.click()
    c.wait(lambda: bool(panel.changes))
    _idle(c)
    yield "inspect-remedied"


def _idle(c: Camera) -> None:
    """Until nothing is being worked out."""
    c.rest(0.15)
    c.wait(lambda: not c.window.services.jobs.jobs())
    c.rest(0.15)


def _open(c: Camera, path: Path) -> None:
    c.window.open_path(path)
    store = c.window.services.session
    c.wait(lambda: store.current.checkpoint is not None and store.current.checkpoint.path == path)
    c.rest(0.2)


def _settle(c: Camera) -> None:
    """Until plan, preview and sample of the present recipe are all there."""
    window = c.window
    page, store = window.page("recipe"), window.services.session
    c.wait(lambda: store.current.plan is not None and page.convert.isEnabled())
    c.wait(
        lambda: page.preview.sample.text() != "" and " of " not in page.preview.sample.text().split("tensors")[0][21:]
    )
    c.rest(0.1)


def main() -> int:
    """Take all pictures without pytest."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from PySide6.QtWidgets import QApplication

    import app  # noqa: F401 - before PySide6, whose first import it prepares
    from app.bootstrap import build_window, start_background
    from app.settings import Settings

    application = QApplication.instance() or QApplication([])
    assert application is not None
    parser = argparse.ArgumentParser(description="Take pictures of the window.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--size", default="x".join(map(str, SIZE)), help="of the window, such as 900x600")
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    folder = arguments.folder
    with tempfile.TemporaryDirectory() as scratch:
        window = build_window(Settings(Path(scratch) / "settings.ini"))
        start_background(window)
        taken = take_all(window, folder, Path(scratch), (width, height))
        window.close()
    print(f"{len(taken)} pictures are in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
