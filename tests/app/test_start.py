"""The start of the window: threads that import at once, jobs that end in any order, parts that do not load."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest
from PySide6.QtWidgets import QPushButton
from tiny_models import write_llama
from window_help import LONG, click

from app import ahead, devices
from app.bootstrap import start_background
from app.jobs import opening
from app.jobs.importing import one_at_a_time
from app.main_window import PAGES, MainWindow

pytestmark = pytest.mark.gui

# Two threads; one imports a package, and the other a module in it while the package is found and not yet known. A
# file's loader waits there for as long as it takes, which is what a slow disk does. Without turns Python ends one of
# the two imports with _DeadlockError.
PAIR = """
import sys, threading, time
from importlib.machinery import SourceFileLoader
import PySide6.QtWidgets  # has an `import` of its own
from app.jobs.importing import one_at_a_time
package, module = sys.argv[1:]
one_at_a_time()
found = threading.Event()
def create(loader, spec):
    if spec.name == package:
        found.set()
        time.sleep(0.3)
SourceFileLoader.create_module = create
said = []
def work(name):
    try:
        exec(f"import {name}")
    except BaseException as error:
        said.append(repr(error))
first = threading.Thread(target=work, args=(package,))
second = threading.Thread(target=work, args=(module,))
first.start()
found.wait(20)
second.start()
first.join(60); second.join(60)
print(said, first.is_alive(), second.is_alive(), module in sys.modules)
"""
PAIRS = (
    ("core.checkpoint", "core.checkpoint.base"),
    ("core.hardware", "core.hardware.matrix"),
    ("core.models", "core.models.shape"),
    ("core.formats", "core.formats.base"),
    ("app.pages.recipe", "app.pages.recipe.page"),
)


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("package", "module"), PAIRS)
def test_a_package_and_a_module_in_it_by_two_threads(package: str, module: str) -> None:
    done = run(PAIR, package, module)
    assert done.stdout.strip() == "[] False False True", done.stderr


# The whole start, with every package slow to come.
START = """
import sys, threading, time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from PySide6.QtWidgets import QApplication
application = QApplication([])
from app.bootstrap import build_window, start_background
from app.settings import Settings
model, scratch, slow = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split()
def create(loader, spec):
    if spec.name in slow and threading.current_thread() is not threading.main_thread():
        time.sleep(0.8)
SourceFileLoader.create_module = create
window = build_window(Settings(scratch / "s.ini"))
said = []
window.services.jobs.failed.connect(lambda job, error: said.append(repr(error)))
window.services.shell.problem.connect(lambda error: said.append(repr(error)))
window.show()
start_background(window)
window.open_path(model)
session = window.services.session
until = time.monotonic() + 90
while not (session.current.plan and not window.unbuilt()) and time.monotonic() < until and not said:
    application.processEvents()
    time.sleep(0.002)
print(said, session.current.plan is not None, window.unbuilt())
window.close()
"""


# PySide exchanges `__import__` for all threads while it imports: two threads that import much, and a third that does.
MANY = """
import builtins, sys, threading, time
from PySide6.QtWidgets import QApplication
from app.jobs.importing import one_at_a_time
one_at_a_time()
sys.setswitchinterval(0.0001)
said = []
def work(names):
    for name in names.split():
        try:
            exec(f"import {name}")
        except BaseException as error:
            said.append((name, repr(error)))
threads = [threading.Thread(target=work, args=(names,), daemon=True) for names in (
    "core.checkpoint core.models core.plan app.pages.recipe", "core.models.read_shape core.hardware app.plots.panel",
    "app.pages.model app.pages.convert core.formats.base core.checkpoint.base core.hardware.matrix",
)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
print(said, [thread.is_alive() for thread in threads])
"""


def test_three_threads_and_the_way_that_pyside_imports() -> None:
    done = run(MANY)
    assert done.stdout.strip() == "[] [False, False, False]", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["core.models", "core.checkpoint core.hardware", "core.formats app.plots core.models"])
def test_a_model_gets_its_plan_however_slow_the_packages_come(tmp_path: Path, slow: str) -> None:
    done = run(START, str(write_llama(tmp_path / "tiny")), str(tmp_path), slow)
    assert done.stdout.strip() == "[] True []", done.stdout + done.stderr


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_an_import_that_fails_leaves_the_turn_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_at_a_time()
    (tmp_path / "breaks_at_once.py").write_text("raise ValueError('broken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, kind in (("breaks_at_once", ValueError), ("no_such_module_anywhere", ModuleNotFoundError)):
        with pytest.raises(kind):
            __import__(name)
        with pytest.raises(kind):
            import_module(name)
    seen: list[str] = []
    other = threading.Thread(target=lambda: seen.append(import_module("colorsys").__name__))
    other.start()
    other.join(5)
    assert seen == ["colorsys"]


def test_what_is_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a library takes its time, modules of ours come, and what is loaded is imported anew at once."""
    one_at_a_time()
    monkeypatch.syspath_prepend(str(tmp_path))
    begun, end = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "slow_library", (begun, end), raising=False)
    (tmp_path / "takes_its_time.py").write_text("import sys\nsys.slow_library[0].set()\nsys.slow_library[1].wait(30)")
    (tmp_path / "asked_for_meanwhile.py").write_text("there = True")
    slow = threading.Thread(target=__import__, args=("takes_its_time",))
    slow.start()
    assert begun.wait(10)
    seen: list[str] = []

    def work() -> None:
        from json import decoder

        seen.append(decoder.__name__)
        sys.modules.pop("app.icons", None)
        seen.append(import_module("app.icons").__name__)
        seen.append(import_module("asked_for_meanwhile").__name__)

    kept = sys.modules.get("app.icons")
    other = threading.Thread(target=work)
    other.start()
    other.join(1)
    waits, so_far = other.is_alive(), list(seen)
    end.set()
    other.join(10)
    slow.join(10)
    if kept is not None:
        sys.modules["app.icons"] = kept
    assert waits
    assert so_far == ["json.decoder", "app.icons"]
    assert seen[-1] == "asked_for_meanwhile"


def test_relative_imports_and_names_out_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_at_a_time()
    monkeypatch.syspath_prepend(str(tmp_path))
    inner = tmp_path / "outer_of_test" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outer_of_test" / "__init__.py").write_text("")
    (tmp_path / "outer_of_test" / "beside.py").write_text("value = 3")
    (inner / "__init__.py").write_text("from . import leaf\nfrom ..beside import value\n")
    (inner / "leaf.py").write_text("from .. import beside\nfrom ..inner import __name__ as name\n")
    from outer_of_test.inner import leaf, value  # type: ignore[import-not-found]

    assert (value, leaf.beside.value, leaf.name) == (3, 3, "outer_of_test.inner")
    with pytest.raises(ImportError, match="no_such_name"):
        from outer_of_test.inner import no_such_name  # type: ignore[import-not-found]  # noqa: F401


# ---- jobs in every order ---------------------------------------------------------------------------------------------


class Gates:
    """The three jobs of a start wait here, each for its own word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = {name: threading.Event() for name in ("devices", "libraries", "model")}
        for name, (where, what) in {
            "devices": (devices, "find_devices"),
            "libraries": (ahead, "load_libraries"),
            "model": (opening, "open_model"),
        }.items():
            monkeypatch.setattr(where, what, self._waiting(self.open[name], getattr(where, what)))

    @staticmethod
    def _waiting(event: threading.Event, work):  # type: ignore[no-untyped-def]
        def wait(*arguments):  # type: ignore[no-untyped-def]
            assert event.wait(60)
            return work(*arguments)

        return wait

    def release(self) -> None:
        for event in self.open.values():
            event.set()


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    made = Gates(monkeypatch)
    yield made
    made.release()


@pytest.fixture
def fresh(services, qtbot):  # type: ignore[no-untyped-def]
    """The window as it is at the start: only the first page is there."""
    made = MainWindow(services)
    qtbot.addWidget(made)
    with qtbot.waitExposed(made):
        made.show()
    return made


def settled(window: MainWindow) -> bool:
    return not window.unbuilt() and not window.services.jobs.jobs()


@pytest.mark.parametrize("order", list(itertools.permutations(("devices", "libraries", "model"))))
def test_the_plan_comes_in_whatever_order_the_jobs_end(fresh, qtbot, gates, tmp_path: Path, order) -> None:  # type: ignore[no-untyped-def]
    jobs, session = fresh.services.jobs, fresh.services.session
    start_background(fresh)
    fresh.open_path(write_llama(tmp_path / "tiny"))
    for name in order:
        count = len(jobs.jobs())
        gates.open[name].set()
        qtbot.waitUntil(lambda count=count: len(jobs.jobs()) < count or session.current.plan is not None, timeout=LONG)
    qtbot.waitUntil(lambda: session.current.plan is not None and settled(fresh), timeout=LONG)
    assert session.current.device is not None
    assert fresh.memory_bar.device.count() > 0
    assert "Looking" not in fresh.page("model").start.computer.rows["largest"][1].text()
    assert not fresh.banner.isVisible()


def test_pages_that_are_asked_for_before_they_exist(fresh, qtbot, gates, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Whoever is quicker than the loading gets the page at once, with the model that is open."""
    gates.open["model"].set()
    gates.open["devices"].set()
    start_background(fresh)
    session = fresh.services.session
    fresh.open_path(write_llama(tmp_path / "tiny"))
    qtbot.waitUntil(lambda: session.current.checkpoint is not None, timeout=LONG)
    name = session.current.checkpoint.tensors[3].name
    fresh.services.shell.inspect_tensor.emit(name)
    assert fresh.page("inspect").state.tensor.name == name
    fresh.services.shell.show_page.emit("recipe")
    qtbot.waitUntil(lambda: session.current.plan is not None, timeout=LONG)
    gates.release()
    qtbot.waitUntil(lambda: settled(fresh), timeout=LONG)


def test_closing_while_everything_is_under_way(fresh, qtbot, gates, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    start_background(fresh)
    fresh.open_path(write_llama(tmp_path / "tiny"))
    gates.release()
    fresh.close()
    qtbot.wait(300)
    assert not fresh.isVisible()
    assert fresh.services.session.current.checkpoint is None  # nothing was told to a window that is gone


# ---- what fails ------------------------------------------------------------------------------------------------------


def fails_once(monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
    work, left = getattr(where, name), [1]

    def first_fails(*arguments, **named):  # type: ignore[no-untyped-def]
        if left:
            left.pop()
            raise ImportError("cannot import name 'x' from partially initialized module 'y'")
        return work(*arguments, **named)

    monkeypatch.setattr(where, name, first_fails)


def try_again(window: MainWindow, qtbot) -> None:  # type: ignore[no-untyped-def]
    qtbot.waitUntil(window.banner.isVisible, timeout=LONG)
    assert window.banner.message.text() == "A part of the program could not be loaded."
    button: QPushButton = window.banner.action
    assert button.isVisible()
    assert button.text() == "Try again"
    click(qtbot, button)
    assert not window.banner.isVisible()


def test_libraries_that_do_not_load_can_be_tried_again(fresh, qtbot, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fails_once(monkeypatch, ahead, "load_libraries")
    start_background(fresh)
    try_again(fresh, qtbot)
    qtbot.waitUntil(lambda: settled(fresh), timeout=LONG)
    fresh.open_path(write_llama(tmp_path / "tiny"))
    qtbot.waitUntil(lambda: fresh.services.session.current.plan is not None, timeout=LONG)


def test_a_page_that_can_not_be_built_leaves_the_others(fresh, qtbot, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from app.pages.convert.page import ConvertPage

    fails_once(monkeypatch, ConvertPage, "_lay_out")  # stands for anything in it
    start_background(fresh)
    qtbot.waitUntil(lambda: fresh.banner.isVisible() and len(fresh.unbuilt()) == 1, timeout=LONG)
    assert fresh.unbuilt() == ["convert"]
    try_again(fresh, qtbot)
    qtbot.waitUntil(lambda: settled(fresh), timeout=LONG)
    assert set(PAGES) == set(fresh._pages)


def test_devices_that_can_not_be_found_out_are_said(fresh, qtbot, monkeypatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fails_once(monkeypatch, devices, "find_devices")
    start_background(fresh)
    qtbot.waitUntil(fresh.banner.isVisible, timeout=LONG)
    assert fresh.banner.is_warning
    assert "could not be found out" in fresh.banner.message.text()
    assert "not known" in fresh.page("model").start.computer.rows["largest"][1].text()
    fresh.open_path(write_llama(tmp_path / "tiny"))
    qtbot.waitUntil(lambda: fresh.services.session.current.plan is not None, timeout=LONG)
