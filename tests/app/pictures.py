"""Make the pictures in docs/images and docs/guide that show the window, from the window as it is now.

`make pictures` runs this; `python tests/app/pictures.py MODEL` takes another model than the sample. MODEL is shown
under a short name, wherever it lies, and nothing is written beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER, GUIDE = ROOT / "docs" / "images", ROOT / "docs" / "guide" / "images"
SIZE, GUIDE_SIZE = (1280, 800), (1100, 700)
TARGET, SCHEME = "Q4_K_M", "w4a16-g64-asym"


def take_pictures(window: Any, model: Path, folder: Path) -> list[Path]:
    """window.png: a format is chosen; method.png: how its numbers are chosen. Returns the files."""
    from core.methods.choice import Calibrated, DataMethod
    from core.recipe import Recipe

    camera = _screens().Camera(window, folder, folder)
    window.resize(*SIZE)
    window.show()
    window.services.themes.set_mode("light")
    store = window.services.session
    window.open_path(model)
    camera.wait(lambda: store.current.checkpoint is not None and store.current.plan is not None)
    window.show_page("recipe")
    page = window.page("recipe")
    page.more.setChecked(True)
    page._toggle_advanced()

    def show(tab: int, recipe: Recipe, ready: Callable[[], bool], name: str) -> Path:
        page.advanced.tabs.setCurrentIndex(tab)
        page.set_recipe(recipe)
        plan = lambda: store.current.plan is not None and store.current.plan.recipe == recipe  # noqa: E731
        camera.wait(lambda: plan() and ready() and not window.services.jobs.jobs())
        camera.rest(0.5)
        path = folder / f"{name}.png"
        window.grab().save(str(path))
        return path

    known = lambda: page.preview.histogram.has_data  # noqa: E731
    method = DataMethod.GPTQ if model.is_dir() else DataMethod.IMPORTANCE  # a GGUF becomes no folder
    chosen = Recipe(SCHEME if model.is_dir() else TARGET, calibrated=Calibrated(method))
    return [
        show(0, Recipe(TARGET), known, "window"),
        show(2, chosen, lambda: known() and page.advanced.methods.notes[method].isVisible(), "method"),
    ]


def _screens() -> Any:
    screens = _load("screens")
    screens.PATIENCE = 240.0  # nobody waits for them
    return screens


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _linked(model: Path, name: str) -> Iterator[Path]:
    """A short path that leads to the model and says nothing of this computer."""
    place = Path(tempfile.gettempdir()) / "models" / (name + ("" if model.is_dir() else model.suffix))
    place.parent.mkdir(exist_ok=True)
    before = set(place.parent.iterdir())
    place.symlink_to(model.absolute())
    try:
        yield place
    finally:
        for made in set(place.parent.iterdir()) - before:
            shutil.rmtree(made) if made.is_dir() and not made.is_symlink() else made.unlink()
        with contextlib.suppress(OSError):  # others use it
            place.parent.rmdir()


def main() -> int:
    """Take them all."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from PySide6.QtWidgets import QApplication

    import app  # noqa: F401 - before PySide6, whose first import it prepares
    from app.bootstrap import build_window, start_background
    from app.settings import Settings
    from core.sample import sample_path

    parser = argparse.ArgumentParser(description="Make the pictures of the window in docs/images and docs/guide.")
    parser.add_argument("model", nargs="?", type=Path, help="for docs/images; default: the sample model")
    parser.add_argument("--name", default="SmolLM2-135M", help="what the model is called in the pictures")
    arguments = parser.parse_args()
    application = QApplication.instance() or QApplication([])
    assert application is not None
    model = arguments.model or sample_path()
    with tempfile.TemporaryDirectory() as scratch, _linked(model, arguments.name) as place:
        window = build_window(Settings(Path(scratch) / "settings.ini"))
        start_background(window)
        taken = take_pictures(window, place, FOLDER)
        window.close()
    with tempfile.TemporaryDirectory() as scratch, _linked(sample_path(), "SmolLM2-135M") as place:
        window = build_window(Settings(Path(scratch) / "settings.ini"))
        window.resize(*GUIDE_SIZE)
        window.show()
        camera = _screens().Camera(window, Path(scratch), place.parent)  # whose path is the same every time
        taken += _load("guide_pictures").take_guide(camera, place, GUIDE)
        window.close()
    print("\n".join(str(path.relative_to(ROOT)) for path in taken))
    return 0


if __name__ == "__main__":
    sys.exit(main())
