"""Crash reports and the log: what is written when a slot or a thread raises, when Qt complains, and after a kill."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer, qCritical, qWarning
from tiny_models import write_llama
from window_help import LONG, click

from app.bootstrap import note_conversions
from app.jobs.convert import Order, convert_work
from app.jobs.convert_queue import UNFINISHED, ConversionQueue
from app.jobs.crash import MOST_REPORTS, CrashReporter, Ended
from app.jobs.runner import JobState
from app.log_file import BYTES, NAME, OLDER, start_log, stop_log
from core.errors import Cancelled
from core.progress import CancelToken
from core.recipe import Recipe

pytestmark = pytest.mark.gui
HOLD = "import time; time.sleep(60)"


@pytest.fixture
def reporter(tmp_path: Path, qapp, monkeypatch: pytest.MonkeyPatch) -> Iterator[CrashReporter]:
    home = tmp_path / "Jörg Karl Müller"
    home.mkdir()
    for key, value in {"HOME": str(home), "USERPROFILE": str(home), "USER": "jörg"}.items():
        monkeypatch.setenv(key, value)
    made = CrashReporter(tmp_path / "state", "1.2.3")
    assert made.begin() is None
    yield made
    made.end()


def reports(folder: Path) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted(folder.glob("crash-*.txt"))]


def kill_while(code: str, until, **environment: str) -> None:
    """Run a program until something is so, then kill it as the system does when memory runs out."""
    child = subprocess.Popen([sys.executable, "-c", code], env=os.environ | environment)
    try:
        for _ in range(2400):  # turns, not a time: the whole machine may stand still for a while
            if until():
                break
            assert child.poll() is None
            time.sleep(0.05)
        assert until()
    finally:
        child.kill()
        child.wait()


def test_an_error_in_a_slot_is_written_and_told(reporter, tmp_path: Path, qapp) -> None:
    told: list[BaseException] = []
    reporter.tell = told.append
    output = Path.home() / "out.gguf"
    reporter.set_conversions([str(output)], [f"{output}: journal {output}.partial.journal"])
    sys.excepthook(*raised(ZeroDivisionError(f"no {output}")))
    (text,) = reports(tmp_path / "state")
    for part in (
        "Bitsmith 1.2.3",
        "Traceback",
        "ZeroDivisionError: no ~/out.gguf",
        "journal ~/out.gguf.partial.journal",
    ):
        assert part in text
    for word in ("Jörg", "Karl", str(tmp_path / "Jörg")):
        assert word not in text
    assert "nothing is sent" in text
    assert isinstance(told[0], ZeroDivisionError)


def raised(error: BaseException):
    try:
        raise error
    except BaseException:  # noqa: BLE001
        return sys.exc_info()


def test_a_slot_that_raises_in_the_program_reaches_the_reporter(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from PySide6.QtCore import QCoreApplication, QTimer
from app.jobs.crash import CrashReporter
app = QCoreApplication([])
reporter = CrashReporter(Path({str(tmp_path)!r}), "1")
reporter.begin()
QTimer.singleShot(0, lambda: 1 / 0)
QTimer.singleShot(100, app.quit)
app.exec()
reporter.end()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
    (text,) = reports(tmp_path)
    assert "ZeroDivisionError" in text
    assert not list(tmp_path.glob("running-*"))


def test_an_error_in_a_thread_is_written(reporter, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(threading, "__excepthook__", lambda _found: None)

    def work() -> None:
        raise KeyError("lost")

    thread = threading.Thread(target=work, name="worker-7")
    thread.start()
    thread.join()
    (text,) = reports(tmp_path / "state")
    assert "worker-7" in text
    assert "KeyError: 'lost'" in text


def test_what_qt_finds_grave_is_written_and_warnings_are_logged(reporter, tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        qWarning("odd but harmless")
        qCritical("something broke")
    (text,) = reports(tmp_path / "state")
    assert "something broke" in text
    assert "odd but harmless" in caplog.text


def test_the_same_error_again_and_again_is_one_file_and_old_ones_go(reporter, tmp_path: Path) -> None:
    for _ in range(50):
        reporter.write("again", "the same")
    assert len(reports(tmp_path / "state")) == 1
    for number in range(50):
        reporter.write("other", f"number {number}")
    assert len(reports(tmp_path / "state")) == MOST_REPORTS


def test_an_orderly_end_leaves_no_mark_and_hooks_as_they_were(tmp_path: Path, qapp) -> None:
    before = (sys.excepthook, threading.excepthook)
    made = CrashReporter(tmp_path, "1")
    made.begin()
    made.end()
    assert (sys.excepthook, threading.excepthook) == before
    assert not list(tmp_path.iterdir())
    assert CrashReporter(tmp_path, "1")._look_back() is None


def test_a_kill_is_found_at_the_next_start(tmp_path: Path, qapp) -> None:
    code = f"""
from pathlib import Path
from app.jobs.crash import CrashReporter
reporter = CrashReporter(Path({str(tmp_path)!r}), "1")
reporter.begin()
reporter.set_conversions(["/m/out.gguf"], ["/m/out.gguf: journal /m/out.gguf.partial.journal"])
{HOLD}
"""
    mark = lambda: any("out.gguf" in m.read_text() for m in tmp_path.glob("running-*.json"))  # noqa: E731
    kill_while(code, mark)
    made = CrashReporter(tmp_path, "1")
    ended = made.begin()
    made.end()
    assert ended is not None
    assert ended.outputs == ("/m/out.gguf",)
    text = ended.report.read_text(encoding="utf-8")
    assert "ended without a word" in text
    assert "journal /m/out.gguf.partial.journal" in text
    made = CrashReporter(tmp_path, "1")
    assert made.begin() is None  # told once
    made.end()


def test_a_fault_in_compiled_code_is_in_the_report(tmp_path: Path, qapp) -> None:
    code = f"""
import faulthandler
from pathlib import Path
from app.jobs.crash import CrashReporter
CrashReporter(Path({str(tmp_path)!r}), "1").begin()
faulthandler._sigsegv()
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True)
    assert done.returncode != 0
    made = CrashReporter(tmp_path, "1")
    ended = made.begin()
    made.end()
    text = ended.report.read_text(encoding="utf-8")
    assert "fault in compiled code" in text
    assert "most recent call first" in text


def test_another_window_that_still_runs_has_not_ended(tmp_path: Path, qapp) -> None:
    (tmp_path / "running-1.json").write_text(json.dumps({"pid": os.getppid(), "time": time.time()}))
    (tmp_path / "running-2.json").write_text("{broken")
    made = CrashReporter(tmp_path, "1")
    ended = made.begin()
    assert ended is not None  # of the broken one
    assert (tmp_path / "running-1.json").exists()
    assert not (tmp_path / "running-2.json").exists()
    made.end()


def test_a_folder_that_can_not_be_written_stops_nothing(tmp_path: Path, qapp) -> None:
    (tmp_path / "file").write_text("")
    made = CrashReporter(tmp_path / "file" / "deep", "1")
    assert made.begin() is None
    assert made.write("x", "y") is None
    made.set_conversions(["a"], ["b"])
    made.end()
    assert start_log(tmp_path / "file" / "deep") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG's folders are Linux's")
def test_the_program_itself_is_killed_and_says_so_at_its_next_start(tmp_path: Path) -> None:
    places = {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("STATE", "CONFIG", "CACHE")}
    state = tmp_path / "STATE" / "bitsmith"
    kill_while(
        "from app.bootstrap import main; main([])",
        lambda: any((state / "crashes").glob("running-*.json")),
        QT_QPA_PLATFORM="offscreen",
        **places,
    )
    code = """
from PySide6.QtCore import QTimer
from app import bootstrap
from app.main_window import MainWindow
def show(window, ended, old=MainWindow.show_ended):
    line = old(window, ended)
    QTimer.singleShot(0, lambda: (print("LINE", line.text.text(), flush=True), window.close()))
    return line
MainWindow.show_ended = show
bootstrap.main([])
"""
    environment = os.environ | places | {"QT_QPA_PLATFORM": "offscreen", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, timeout=90, capture_output=True, encoding="utf-8"
    )
    assert "LINE Bitsmith ended unexpectedly last time." in done.stdout, done.stderr
    assert "nothing is sent anywhere" in done.stdout
    assert len(reports(state / "crashes")) == 1
    assert not list((state / "crashes").glob("running-*"))
    assert (state / NAME).read_text(encoding="utf-8").count("starts") == 2


def test_the_line_offers_to_go_on_and_does(services, qtbot, tmp_path: Path) -> None:
    from app.main_window import MainWindow

    source = write_llama(tmp_path / "tiny")
    order = Order(source, Recipe(target="Q8_0"), tmp_path / "out.gguf")
    token = CancelToken()
    steps = convert_work(order)(token)
    for _ in range(8):
        next(steps)
    token.cancel()
    with pytest.raises(Cancelled):
        list(steps)
    saved = [{"source": str(source), "output": str(order.output), "recipe": order.recipe.to_json()}]
    services.settings.set_text(UNFINISHED, json.dumps(saved))
    window = MainWindow(services)
    qtbot.addWidget(window)
    line = window.show_ended(Ended(tmp_path / "crash.txt", (str(order.output),)))
    window.resize(1100, 700)
    window.show()
    window.page("convert")
    assert not window.banner.isVisible(), "it has been said"
    assert "out.gguf can be resumed" in line.text.text()
    reporter = CrashReporter(tmp_path / "state", "1")
    click(qtbot, line.resume_button)
    assert not line.isVisible()
    (entry,) = ConversionQueue.of(services.jobs, services.settings).entries
    note_conversions(reporter, services)
    assert reporter._outputs == ((str(order.output),) if entry.pending else ())
    qtbot.waitUntil(lambda: entry.state.final, timeout=LONG)
    assert entry.state is JobState.DONE, entry.error
    assert entry.resumed
    qtbot.waitUntil(lambda: not services.jobs.jobs(), timeout=LONG)


def test_the_line_without_anything_to_resume_has_no_such_button(services, qtbot) -> None:
    from app.main_window import MainWindow

    window = MainWindow(services)
    qtbot.addWidget(window)
    line = window.show_ended(Ended(None, ("/gone/out.gguf",)))
    assert line.resume_button.isHidden()
    assert line.report_button.isHidden()


def test_the_log_turns_over_and_names_nobody(tmp_path: Path, reporter) -> None:
    handler = start_log(tmp_path / "log")
    try:
        log = logging.getLogger("bitsmith.test")
        log.info("opened %s", Path.home() / "models" / "a.gguf")
        log.info("opened /media/jörg/disk/b.gguf")
        first = (tmp_path / "log" / NAME).read_text(encoding="utf-8")
        assert "opened ~/models/a.gguf" in first.replace("\\", "/")
        assert "opened /media/user/disk/b.gguf" in first
        for _ in range(9):
            log.info("x" * (BYTES // 2))
    finally:
        stop_log(handler)
    files = list((tmp_path / "log").iterdir())
    assert len(files) == OLDER + 1
    assert all(file.stat().st_size <= BYTES for file in files)


def test_a_timer_of_qt_goes_on_after_an_error(reporter, qtbot) -> None:
    done: list[int] = []
    sys.excepthook(*raised(ValueError("x")))
    QTimer.singleShot(0, lambda: done.append(1))
    qtbot.waitUntil(lambda: bool(done), timeout=LONG)
