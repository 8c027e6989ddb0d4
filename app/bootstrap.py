"""Start the window: the only place where settings, jobs, session, theme and window are put together."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.assets import RESOURCES
from app.system_check import why_not

if TYPE_CHECKING:
    from app.jobs.crash import CrashReporter, Ended
    from app.main_window import MainWindow
    from app.services import Services
    from app.settings import Settings

CONTROLS = "BITSMITH_CONTROLS"  # names a file for the tests of an installed program: see app/controls.py


def main(argv: list[str] | None = None) -> int:
    """`bitsmith [PATH]`: open the window and, if given, the model. 1 with one sentence when there can be no window."""
    parser = argparse.ArgumentParser(prog="bitsmith", description="Quantize language models in a window.")
    parser.add_argument("path", nargs="?", type=Path, help="a model file or folder to open")
    arguments = parser.parse_args(sys.argv[1:] if argv is None else argv)
    reason = why_not()
    if reason:
        sys.stderr.write(reason + "\n")
        return 1
    try:
        from PySide6.QtCore import QTimer
        from PySide6.QtGui import QIcon
        from PySide6.QtWidgets import QApplication
    except ImportError as error:
        sys.stderr.write(f"The window can not start: {error}.\n")
        return 1

    from app.language import install as install_language

    app = QApplication.instance() or QApplication(sys.argv[:1])
    app.setApplicationName("Bitsmith")
    app.setApplicationDisplayName("Bitsmith")
    app.setDesktopFileName("bitsmith")
    install_language()
    app.setWindowIcon(QIcon(str(RESOURCES / "bitsmith.svg")))
    reporter, ended, log = start_reports()
    app.aboutToQuit.connect(reporter.end)
    window = build_window()
    window.services.shell.queue_changed.connect(lambda _count: note_conversions(reporter, window.services))
    reporter.tell = window.services.shell.problem.emit
    if ended is not None:
        window.show_ended(ended)
    window.show()
    if place := os.environ.get(CONTROLS):
        from app.controls import tell

        tell(window, Path(place))
    QTimer.singleShot(0, lambda: start_background(window))
    if arguments.path is not None:
        QTimer.singleShot(0, lambda: window.open_path(arguments.path.absolute()))
    # Python sees a signal only when it gets to run, so a timer gives it the floor a few times a second.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: window.close())
    alive = QTimer()
    alive.timeout.connect(lambda: None)
    alive.start(250)
    from app.log_file import stop_log

    status = app.exec()
    reporter.end()
    stop_log(log)
    return status


def start_reports(folder: Path | None = None) -> tuple[CrashReporter, Ended | None, logging.Handler | None]:
    """Log file and crash reports from here on; and the last run, if it died. folder: the platform's place when None."""
    from app.jobs.crash import CrashReporter
    from app.log_file import start_log, state_folder
    from core.version import version

    folder = folder or state_folder()
    log = start_log(folder)
    logging.getLogger(__name__).info("Bitsmith %s starts", version())
    reporter = CrashReporter(folder / "crashes", version())
    return reporter, reporter.begin(), log


def note_conversions(reporter: CrashReporter, services: Services) -> None:
    """Let the reporter know what is being made, for the time when nobody can be asked."""
    from app.jobs.convert_queue import ConversionQueue
    from core.journal import journal_path

    outputs = [entry.order.output for entry in ConversionQueue.of(services.jobs, services.settings).pending]
    reporter.set_conversions(map(str, outputs), (f"{o}: journal {journal_path(o)}" for o in outputs))


def build_services(settings: Settings | None = None) -> Services:
    """The parts that pages share, with the theme applied. Needs a QApplication."""
    from app.jobs import JobRunner
    from app.jobs.retire import Retirement
    from app.memory_view import known_cache
    from app.services import Services, Shell
    from app.session import Session, SessionStore
    from app.settings import Settings
    from app.theme import themes

    settings = settings or Settings()
    manager = themes()
    manager.set_mode(settings.theme)
    session = Session(
        target=settings.text("last/target"),
        context=max(settings.number("last/context", 8192), 1),
        batch=max(settings.number("last/batch", 1), 1),
        cache=known_cache(settings.text("last/cache")),
    )
    services = Services(SessionStore(session), JobRunner(), settings, manager, Shell())
    Retirement(services.session, services.jobs)
    return services


def build_window(settings: Settings | None = None) -> MainWindow:
    """The window, not yet shown."""
    services = build_services(settings)
    from app.main_window import MainWindow

    window = MainWindow(services)
    if services.settings.problem is not None:
        services.shell.notice.emit(*services.settings.problem)
    return window


def start_background(window: MainWindow) -> None:
    """What the first picture does not need: the devices, and the other pages once their libraries are loaded."""
    from app.ahead import Ahead
    from app.devices import load_devices
    from app.garbage import Garbage

    Garbage(window)
    load_devices(window.services)
    Ahead(window).start()
