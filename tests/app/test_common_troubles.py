"""What users of such programs report again and again, tried in the window: names, parts of models, folders, screens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent
from tiny_models import write_llama
from window_help import LONG, click, open_recipe, wait_end

from app.jobs.runner import JobState
from core.checkpoint import open_checkpoint

pytestmark = pytest.mark.gui

ODD = "\u041c\u043e\u0434\u0435\u043b\u0438 \u6a21\u578b\u3000caf\u00e9 'quoted' & 100 % #1 [x]"


def drop(window, *paths: Path) -> None:  # type: ignore[no-untyped-def]
    """These files and folders dropped together into the middle of the window."""
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    window.dropEvent(
        QDropEvent(
            QPointF(400, 300), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
        )
    )


def read(window, qtbot):  # type: ignore[no-untyped-def]
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.checkpoint is not None or store.current.problem is not None, timeout=LONG)
    return store.current


@pytest.mark.parametrize("name", [ODD, "m" * 180])
def test_names_with_any_letters_and_long_ones(window, qtbot, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / name
    folder.mkdir()
    source = write_llama(folder / "tiny", layers=1)
    recipe = open_recipe(window, qtbot, source)
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    click(qtbot, recipe.convert)
    (entry,) = window.page("convert").queue.entries
    wait_end(qtbot, entry)
    assert entry.state is JobState.DONE, entry.error
    assert entry.result.output.parent == folder
    with open_checkpoint(entry.result.output) as written:
        assert written.tensors
    window.show_page("convert")
    card = next(iter(window.page("convert")._cards.values()))
    assert card.name.toolTip() == str(entry.result.output)
    assert card.width() <= window.page("convert").width()  # a long name takes no room from others


def test_any_part_of_a_model_and_all_of_them_at_once(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = write_llama(tmp_path / "m", shards=3)
    parts = sorted(source.glob("*.safetensors"))
    assert len(parts) == 3
    whole = len(open_checkpoint(source).tensors)
    for dropped in ((parts[1],), (parts[2], parts[0], parts[1]), (source / "config.json",), (source,)):
        window.services.session.update(checkpoint=None, problem=None)
        drop(window, *dropped)
        found = read(window, qtbot)
        assert found.problem is None
        assert len(found.checkpoint.tensors) == whole, dropped


def test_a_model_of_which_a_part_is_missing_names_it(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source = write_llama(tmp_path / "m", shards=3)
    parts = sorted(source.glob("*.safetensors"))
    parts[1].unlink()
    drop(window, parts[2])
    problem = read(window, qtbot).problem
    assert problem is not None
    assert parts[1].name in problem.message
    assert problem.hint
    assert window.page("model").start.error.isVisible()


def test_what_is_no_model_says_so(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no model here")
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html><html>Sign in</html>")
    for name in ("empty", "notes.txt", "page.gguf"):
        window.services.session.update(checkpoint=None, problem=None)
        drop(window, tmp_path / name)
        problem = read(window, qtbot).problem
        assert problem is not None, name
        assert problem.message.endswith(".")
        assert problem.hint
        assert "Error" not in problem.message


def test_an_output_that_can_not_be_written_is_one_sentence(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A file stands where the folder should be: also root can not write there."""
    source = write_llama(tmp_path / "tiny", layers=1)
    (tmp_path / "taken").write_text("a file")
    recipe = open_recipe(window, qtbot, source)
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    recipe.set_output(tmp_path / "taken" / "out.gguf")
    click(qtbot, recipe.convert)
    (entry,) = window.page("convert").queue.entries
    wait_end(qtbot, entry)
    assert entry.state is JobState.FAILED
    assert entry.error.message.endswith(".")
    assert entry.error.hint
    assert (tmp_path / "taken").read_text() == "a file"
    assert {p.name for p in tmp_path.iterdir()} <= {"cache", "settings.ini", "taken", "tiny"}


TWO_SCREENS = """
import sys
from pathlib import Path
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication
application = QApplication([])
from app.bootstrap import build_window
from app.settings import Settings
settings = Settings(Path(sys.argv[1]) / "s.ini")
window = build_window(settings)
window.show()
print([s.geometry().getRect() for s in application.screens()])
if sys.argv[2] == "move":
    window.resize(1100, 700)
    window.move(2100, 60)
application.processEvents()
print(window.frameGeometry().getRect())
window.close()
"""


def screens(tmp_path: Path, word: str, *rectangles: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Where the window stands after a start on these screens."""
    known = [
        {"name": f"s{n}", "x": x, "y": y, "width": w, "height": h, "logicalDpi": 96, "logicalBaseDpi": 96, "dpr": 1}
        for n, (x, y, w, h) in enumerate(rectangles)
    ]
    path = tmp_path / "screens.json"
    path.write_text(json.dumps({"synchronousWindowSystemEvents": False, "windowFrameMargins": True, "screens": known}))
    environment = {**os.environ, "QT_QPA_PLATFORM": f"offscreen:configfile={path}"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_SCREENS, str(tmp_path), word],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    first, last = done.stdout.strip().split("\n")
    assert len(json.loads(first.replace("(", "[").replace(")", "]"))) == len(rectangles), done.stderr
    return tuple(json.loads(last.replace("(", "[").replace(")", "]")))  # type: ignore[return-value]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the screens are those of Qt's offscreen platform")
def test_the_window_stays_on_its_screen_and_comes_back_when_that_is_gone(tmp_path: Path) -> None:
    left, right = (0, 0, 1920, 1080), (1920, 0, 1920, 1080)
    moved = screens(tmp_path, "move", left, right)
    assert moved[0] >= 1920
    assert screens(tmp_path, "stay", left, right) == moved
    x, y, width, height = screens(tmp_path, "stay", left)
    frame = 8  # px, known only once the window is shown
    assert 0 <= x <= 1920 - width + frame
    assert 0 <= y <= 1080 - height + frame
