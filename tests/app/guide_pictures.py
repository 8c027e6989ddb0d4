"""The pictures of docs/guide, from the window as it is now, in light and dark.

`make pictures` makes them with the sample model. What would differ from run to run or computer to computer is fixed:
the device, the times, the engine's answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

SIZE = (1100, 700)
LOOKED_AT = "blk.27.ffn_gate.weight"  # of the sample: the tensor with its largest outliers
COLOURS, FREQUENT = 256, 96
THEMES = ("light", "dark")
# A name for each picture that a page of the guide may show.
NAMES = (
    "start", "hub", "settings", "model", "recipe", "matrix", "method", "histogram", "convert", "answers", "verdict",
    "sweep", "budget", "map", "tensor", "remedies",
)  # fmt: skip


class Photographer:
    """Takes a widget, or a part of it, in both themes, and writes NAME.png and NAME-dark.png."""

    def __init__(self, camera: Any, folder: Path) -> None:
        self.c, self.folder = camera, folder
        self.taken: list[Path] = []

    def take(self, name: str, widget: Any = None) -> None:
        """widget: the window when None."""
        themes = self.c.window.services.themes
        for theme in THEMES:
            themes.set_mode(theme)
            self.c.wait(lambda: not themes.dressing)
            self.c.rest(0.15)
            image = (widget or self.c.window).grab().toImage()
            path = self.folder / f"{name}{'-dark' if theme == 'dark' else ''}.png"
            few_colours(image).save(str(path), "PNG", 0)  # the smallest that zlib can
            self.taken.append(path)
        themes.set_mode("light")
        self.c.wait(lambda: not themes.dressing)


def few_colours(image: Any) -> Any:
    """The picture in 256 colours: the most frequent ones, and of the others those that are furthest from any chosen."""
    import numpy as np
    from PySide6.QtCore import Qt
    from PySide6.QtGui import QImage

    image = image.convertToFormat(QImage.Format.Format_RGB32)
    pixels = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), -1)[:, : image.width()]
    colours, counts = np.unique(pixels, return_counts=True)
    parts = np.stack([(colours >> shift & 255).astype(np.int32) for shift in (16, 8, 0)], axis=1)
    table = list(np.argsort(-counts, kind="stable")[:FREQUENT])
    away = np.min(((parts[:, None] - parts[None, table]) ** 2).sum(axis=2), axis=1)
    while len(table) < COLOURS and away.max() > 0:
        table.append(int(away.argmax()))
        away = np.minimum(away, ((parts - parts[table[-1]]) ** 2).sum(axis=1))
    chosen = [int(colours[n]) for n in table]
    return image.convertToFormat(QImage.Format.Format_Indexed8, chosen, Qt.ImageConversionFlag.ThresholdDither)


def take_guide(camera: Any, model: Path, folder: Path) -> list[Path]:
    """All of NAMES; returns the files. model: under the path that is to be read in the pictures."""
    from app.main_window import PAGES

    folder.mkdir(parents=True, exist_ok=True)
    by = Photographer(camera, folder)
    for key in PAGES:
        camera.window.page(key)
    with _fixed(camera):
        for part in (_hub, _start, _model, _convert, _inspect, _test, _budget):
            part(camera, by, model)
    return by.taken


@contextmanager
def _fixed(c: Any) -> Iterator[None]:
    """A computer of the pictures' own, for the window's device and the forecasts alike."""
    from app.devices import choice_of
    from core.hardware.device import Device

    laptop = Device(
        "cpu", "Laptop processor", "AMD", "cpu", "x86_avx2", 16_000_000_000, 11_000_000_000, 60e9, "measured",
        instruction_sets=("avx", "avx2"), cores=8, threads=16,
    )  # fmt: skip
    choice = choice_of(laptop)
    c.window.services.session.update(device=choice, context=8192)
    c.window.services.shell.devices_known.emit((choice,))
    with mock.patch("core.plan.worker_count", return_value=8):
        yield


def _hub(c: Any, by: Photographer, _model: Path) -> None:
    from get_screens import get_states

    states = get_states(c)
    for name in states:
        if name == "get-listing":
            c.window.page("model").get.field.setText("HuggingFaceTB/SmolLM2-135M-Instruct")
            by.take("hub")
            break
    states.close()
    c.window.page("model").get.back.click()


def _start(c: Any, by: Photographer, _model: Path) -> None:
    window = c.window
    window.services.session.update(checkpoint=None, problem=None, opening=None)
    window.show_page("model")
    start = window.page("model").start
    c.rest(0.5)
    start.show_recent(())
    start.show_local(())
    by.take("start")
    dialog = window.show_settings()
    dialog.threads.clearFocus()
    c.rest(0.2)
    by.take("settings", dialog)
    dialog.close()


def _model(c: Any, by: Photographer, model: Path) -> None:
    window, store = c.window, c.window.services.session
    window.open_path(model)
    c.wait(lambda: store.current.checkpoint is not None and store.current.plan is not None)
    _idle(c)
    by.take("model")
    window.show_page("recipe")
    page = window.page("recipe")
    c.wait(lambda: page.preview.histogram.has_data and page.convert.isEnabled())
    _idle(c)
    by.take("recipe")
    by.take("histogram", page.preview)
    page.more.click()
    for tab, name in ((0, "matrix"), (2, "method")):
        page.advanced.tabs.setCurrentIndex(tab)
        _idle(c)
        by.take(name)
    page.more.click()


def _convert(c: Any, by: Photographer, _model: Path) -> None:
    window = c.window
    page, convert = window.page("recipe"), window.page("convert")
    page.convert.click()
    entry = convert.queue.entries[-1]
    c.wait(lambda: entry.state.final)
    assert entry.result is not None, entry.error
    entry.result = replace(entry.result, seconds=8.4, peak_rss_bytes=612_000_000)
    window.show_page("convert")
    c.rest(0.3)
    convert.queue.changed.emit(entry)
    c.rest(0.5)
    by.take("convert")
    entry.order.output.unlink()


def _inspect(c: Any, by: Photographer, _model: Path) -> None:
    window = c.window
    window.page("recipe").set_recipe(_recipe("Q4_0"))
    _idle(c)
    window.show_page("inspect")
    page = window.page("inspect")
    page.show_view("map")
    c.wait(lambda: "map" in page.views and bool(page.views["map"]._rows))
    c.wait(lambda: page.views["map"].settled)
    _idle(c)
    by.take("map")
    page.look_at(_outlying(c))
    c.wait(lambda: "tensor" in page.views and page.views["tensor"].heat.has_data)
    c.wait(lambda: page.views["tensor"].settled)
    _idle(c)
    by.take("tensor")
    page.findings.click()
    panel = page.views["panel"]
    c.wait(lambda: bool(panel.findings) and not window.services.jobs.jobs())
    panel.list.setCurrentRow(0)
    c.wait(lambda: bool(panel.rows) and not window.services.jobs.jobs())
    _idle(c)
    by.take("remedies")
    page.findings.click()


def _outlying(c: Any) -> str:
    names = [t.name for t in c.window.services.session.current.checkpoint.tensors]
    return LOOKED_AT if LOOKED_AT in names else next(n for n in names if "down" in n)


def _test(c: Any, by: Photographer, _model: Path) -> None:
    from fake_backend import FakeBackend

    window, page = c.window, c.window.page("test")
    bench = page.bench
    engine = bench.backend = FakeBackend()
    window.show_page("test")
    folder = c.scratch / "answers"  # apart: the model may be a link, and these files are empty
    folder.mkdir()
    for side, name in enumerate(("SmolLM2-135M.gguf", "SmolLM2-135M-Q6_K.gguf")):
        path = folder / name
        path.touch(exist_ok=False)
        bench.choose(side, path)
    page.tabs.setCurrentIndex(0)
    c.rest(0.2)
    page.generate.click()
    c.wait(lambda: not bench.busy)
    by.take("answers")
    page.tabs.setCurrentIndex(4)
    page.judge_button.click()
    c.wait(lambda: not bench.busy and page.quality.result.settled)
    by.take("verdict")
    page.tabs.setCurrentIndex(3)
    c.rest(0.3)
    engine.pause = 0.01
    page.sweep_button.click()
    c.wait(lambda: len(bench.partial.points) > 5)
    engine.pause = 0.0
    c.wait(lambda: not bench.busy)
    c.rest(0.3)
    by.take("sweep")
    assert not engine.broken


def _budget(c: Any, by: Photographer, _model: Path) -> None:
    """On a tiny model: to measure the sample's weights takes minutes."""
    from tiny_models import write_llama

    from core.calibration.settings import CalibrationText
    from core.methods.choice import Calibrated, DataMethod

    window, store = c.window, c.window.services.session
    window.open_path(write_llama(c.scratch / "tiny", tied=False))
    c.wait(lambda: store.current.plan is not None and store.current.checkpoint.path.name == "tiny")
    window.show_page("recipe")
    page = window.page("recipe")
    page.more.click()
    page.advanced.tabs.setCurrentIndex(6)
    text = CalibrationText(samples=2, length=16)
    page.set_recipe(_recipe("Q4_0", Calibrated(DataMethod.IMPORTANCE, text=text)))
    _idle(c)
    page.advanced.by_size.measure.click()
    c.wait(page.advanced.by_size.slider.isVisible)
    page.advanced.by_size.slider.setValue(4)
    _idle(c)
    by.take("budget")
    page.more.click()


def _recipe(target: str, calibrated: Any = None) -> Any:
    from core.recipe import Recipe

    return Recipe(target=target, calibrated=calibrated)


def _idle(c: Any) -> None:
    """Until nothing is being worked out."""
    c.rest(0.2)
    c.wait(lambda: not c.window.services.jobs.jobs())
    c.rest(0.2)
