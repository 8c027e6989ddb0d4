"""The window: navigation at the left, a page beside it, the memory bar below. Assembles; decides nothing."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QHBoxLayout, QMainWindow, QStackedWidget, QVBoxLayout, QWidget

from app import companions
from app.actions import ACTIONS, make_actions
from app.dialogs.open_model import choose_model
from app.help import help_desk, page_for
from app.jobs import Job
from app.jobs.opening import open_in_background
from app.jobs.precedence import window_first
from app.menus import RECENT, build_menus, fill_recent
from app.navigation import Navigation
from app.pages.base import Page
from app.placing import dropped_path, let_drops_through, place
from app.services import Services
from app.widgets.inline_error import InlineError
from app.widgets.memory_bar import MemoryBar

if TYPE_CHECKING:
    from app.dialogs.guide import GuideDialog
    from app.dialogs.self_check import SelfCheckDialog
    from app.dialogs.settings import SettingsDialog
    from app.jobs.crash import Ended
    from app.widgets.ended_line import EndedLine

PAGES = {  # key → its class; a page's module is imported with the page, which keeps the first picture quick
    "model": "app.pages.model:ModelPage",
    "recipe": "app.pages.recipe:RecipePage",
    "convert": "app.pages.convert:ConvertPage",
    "inspect": "app.pages.inspect:InspectPage",
    "test": "app.pages.test:TestPage",
}


class MainWindow(QMainWindow):
    """Pages are built when first shown, or ahead of that by app/ahead.py once the window is on the screen."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self.setWindowTitle("Bitsmith")
        self.setAcceptDrops(True)
        self.actions_by_key = make_actions(self)
        self._pages: dict[str, Page] = {}
        self._pieces: dict[str, dict[str, QWidget]] = {}  # of pages that are still to be built
        self._current = ""
        self._build()
        menus = build_menus(self, self.actions_by_key)
        self.recent_menu = menus[RECENT]
        menus["Run"].aboutToShow.connect(self._update_run)
        for part in (self.menuBar(), self.navigation, self.banner, self.memory_bar):
            services.themes.dress(part)
        self._connect()
        place(self, services.settings.geometry)
        self.show_page("model")

    def page(self, key: str, *, styled_later: bool = False) -> Page:
        """The page with that key, built if this is the first time it is asked for."""
        if key not in self._pages:
            page = _page_class(key)(self.services, self, made=self._pieces.pop(key, None))
            self._pages[key] = page
            self._stack.addWidget(page)
            for part in page.parts():
                self.services.themes.dress(part, later=styled_later or not part.isVisibleTo(page))
            let_drops_through(page)
        return self._pages[key]

    @property
    def current_page(self) -> Page:
        return self._pages[self._current]

    def show_page(self, key: str) -> None:
        page = self.page(key)
        if key == "convert" and self.banner.is_warning:
            self.banner.hide()  # it has led here
        self._current = key
        self._stack.setCurrentWidget(page)
        self.navigation.set_current(key)
        self.actions_by_key[f"page_{key}"].setChecked(True)
        page.shown()

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.UpdateRequest:  # the whole picture is painted
            with window_first:
                return super().event(event)
        return super().event(event)

    def open_path(self, path: Path) -> None:
        """Read a model in the background; the Model page shows how it goes."""
        self.banner.hide()
        self.show_page("model")
        open_in_background(self.services, Path(path))

    def show_ended(self, ended: Ended) -> EndedLine:
        """Say that the last run died, and offer to go on with what it converted."""
        from app.jobs.convert_queue import ConversionQueue
        from app.widgets.ended_line import EndedLine

        queue = ConversionQueue.of(self.services.jobs, self.services.settings)
        entries = [e for e in queue.entries if e.resumable and str(e.order.output) in ended.outputs]
        queue.told = queue.told or bool(entries)

        def resume() -> None:
            self.show_page("convert")
            for entry in entries:
                queue.resume(entry)

        line = EndedLine(ended.report, [entry.title for entry in entries], resume)
        self._column.insertWidget(0, line)
        self.services.themes.dress(line)
        return line

    def self_check(self) -> SelfCheckDialog:
        """Open what says whether this computer can do the work."""
        return companions.self_check(self)

    def show_settings(self) -> SettingsDialog:
        """Open what can be set."""
        return companions.show_settings(self)

    def show_guide(self, address: str = "") -> GuideDialog:
        """Open the guide at a page or section, or at what it says about the page in front."""
        page = self.current_page
        return companions.show_guide(self, address or page.help_page() or page_for(page, self._current))

    def inspect_tensor(self, name: str) -> None:
        """Show a tensor of the open model on the Inspect page."""
        self.show_page("inspect")
        self.page("inspect").look_at(name)

    def test_files(self, source: Path, result: Path) -> None:
        """Show the Test page with these two."""
        self.show_page("test")
        self.page("test").look_at(source, result)

    def _build(self) -> None:
        self.navigation = Navigation()
        self._stack = QStackedWidget()
        self.banner = InlineError()
        self.banner.hide()
        self.memory_bar = MemoryBar(self.services)
        for spec in ACTIONS:
            if spec.group == "page":
                key = spec.key.removeprefix("page_")
                self.navigation.add(key, spec.text, spec.icon, self.actions_by_key[spec.key])

        self.navigation.add_below(self.actions_by_key["guide"], "Help", "book-open")

        column = self._column = QVBoxLayout()
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.banner)
        column.addWidget(self._stack, 1)
        upper = QHBoxLayout()
        upper.setSpacing(0)
        upper.addWidget(self.navigation)
        upper.addLayout(column, 1)
        central = QWidget()
        layout = QVBoxLayout(central)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(upper, 1)
        layout.addWidget(self.memory_bar)
        self.setCentralWidget(central)

    def _connect(self) -> None:
        actions, shell = self.actions_by_key, self.services.shell
        actions["open"].triggered.connect(self._choose_file)
        actions["open_folder"].triggered.connect(self._choose_folder)
        actions["get_model"].triggered.connect(lambda: self.services.shell.get_model.emit(""))
        actions["quit"].triggered.connect(self.close)
        actions["run"].triggered.connect(self._run_primary)
        actions["self_check"].triggered.connect(self.self_check)
        actions["settings"].triggered.connect(self.show_settings)
        for asked in (self.memory_bar.planner_asked, actions["cache"].triggered):
            asked.connect(lambda *_: companions.plan_cache(self))
        actions["guide"].triggered.connect(lambda: self.show_guide())
        actions["guide_first"].triggered.connect(lambda: self.show_guide("first-conversion"))
        actions["guide_trouble"].triggered.connect(lambda: self.show_guide("trouble"))
        help_desk().asked.connect(self.show_guide)
        for key in PAGES:
            actions[f"page_{key}"].triggered.connect(lambda _checked=False, key=key: self.show_page(key))
        for mode in ("system", "light", "dark"):
            actions[f"theme_{mode}"].triggered.connect(lambda _checked=False, mode=mode: self._set_theme(mode))
        actions[f"theme_{self.services.themes.mode}"].setChecked(True)
        self.navigation.chosen.connect(self.show_page)
        shell.show_page.connect(self.show_page)
        shell.test_files.connect(self.test_files)
        shell.open_path.connect(self.open_path)
        shell.get_model.connect(lambda _text: self.show_page("model"))
        shell.inspect_tensor.connect(self.inspect_tensor)
        shell.choose_file.connect(self._choose_file)
        shell.choose_folder.connect(self._choose_folder)
        shell.problem.connect(self.banner.show_error)
        shell.notice.connect(lambda message, hint: self.banner.show_text(message, hint, warning=True))
        shell.queue_changed.connect(self._show_queue)
        shell.devices_known.connect(self.memory_bar.set_devices)
        shell.settings_changed.connect(self._follow_settings)
        self.services.jobs.failed.connect(self._show_failure)
        self.recent_menu.aboutToShow.connect(
            lambda: fill_recent(self.recent_menu, self.services.settings, self.open_path)
        )

    def _update_run(self) -> None:
        button = self.current_page.primary()
        reason = "This page has no main action." if button is None else button.toolTip()
        ready = button is not None and button.isEnabled()
        self.actions_by_key["run"].setText(button.text() if button is not None else "Run the page's main action")
        self.actions_by_key["run"].setToolTip("" if ready else reason)

    def _run_primary(self) -> None:
        button = self.current_page.primary()
        if button is not None and button.isEnabled() and button.isVisible():
            button.click()

    def _follow_settings(self) -> None:
        self.actions_by_key[f"theme_{self.services.themes.mode}"].setChecked(True)
        self.memory_bar.refresh()

    def _show_queue(self, count: int) -> None:
        self.navigation.set_count("convert", count)

    def _show_failure(self, _job: Job, error: BaseException) -> None:
        self.banner.show_error(error)

    def _choose_file(self) -> None:
        self._choose(folder=False)

    def _choose_folder(self) -> None:
        self._choose(folder=True)

    def _choose(self, folder: bool) -> None:
        start = self.services.settings.text("last/folder")
        path = choose_model(self, start, folder=folder)
        if path is not None:
            self.services.settings.set_text("last/folder", str(path.parent))
            self.open_path(path)

    def _set_theme(self, mode: str) -> None:
        self.services.themes.set_mode(mode)
        self.services.settings.theme = mode

    def unbuilt(self) -> list[str]:
        """Pages that nobody has asked for yet."""
        return [key for key in PAGES if key not in self._pages]

    def build_piece(self, key: str) -> bool:
        """The next large part of a page, and at last the page. True."""
        made, pieces = self._pieces.setdefault(key, {}), _page_class(key).pieces()
        name = next((name for name in pieces if name not in made), None)
        if name is not None:
            made[name] = pieces[name]()
        else:
            self.page(key, styled_later=True)
        return True

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped_path(event) is not None:
            event.setDropAction(Qt.DropAction.CopyAction)
            event.accept()

    def dropEvent(self, event: QDropEvent) -> None:
        path = dropped_path(event)
        if path is not None:
            event.setDropAction(Qt.DropAction.CopyAction)
            event.accept()
            page = self.current_page
            if not page.take_drop(path, page.mapFrom(self, event.position().toPoint())):
                self.open_path(path)

    def closeEvent(self, event: QCloseEvent) -> None:
        settings, session = self.services.settings, self.services.session.current
        settings.geometry = self.saveGeometry()
        self.hide()  # at once, though jobs may need a moment to write where they can go on
        if session.target:
            settings.set_text("last/target", session.target)
        if session.device is not None:
            settings.set_text("last/device", session.device.key)
        settings.set_number("last/context", session.wanted_context or session.context)
        settings.set_number("last/batch", session.batch)
        settings.set_text("last/cache", session.cache)
        settings.sync()
        self.services.jobs.shutdown()
        super().closeEvent(event)


def _page_class(key: str) -> type[Page]:
    module, name = PAGES[key].split(":")
    found: type[Page] = getattr(import_module(module), name)
    return found
