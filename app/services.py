"""What every page is given: the window's shared parts, made once in bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from app.jobs.runner import JobRunner
from app.session import SessionStore
from app.settings import Settings
from app.theme import ThemeManager


class Shell(QObject):
    """How a page asks the window for something without knowing it or another page.

    show_page(name): 'model', 'recipe', 'convert', 'inspect' or 'test'. open_path(path): read a model.
    test_files(source, result): the page Test with these two.
    inspect_tensor(name): show a tensor of the open model on the Inspect page.
    get_model(text): the view that downloads; a name or an address is looked up there at once.
    choose_folder(), choose_file(): the file choosers. problem(error): tell a UserError above the page.
    notice(sentence, next_step): tell something that stops nothing above the page.
    devices_known(choices): what was found in this computer, and the table's devices behind.
    settings_changed(): what is set has changed; sizes may be written otherwise and results go elsewhere.
    queue_changed(count): how many conversions wait or run, for the navigation.
    """

    show_page = Signal(str)
    open_path = Signal(object)
    test_files = Signal(object, object)
    inspect_tensor = Signal(str)
    get_model = Signal(str)
    choose_folder = Signal()
    choose_file = Signal()
    problem = Signal(object)
    notice = Signal(str, str)
    devices_known = Signal(object)
    settings_changed = Signal()
    queue_changed = Signal(int)


@dataclass(frozen=True)
class Services:
    """Shared parts. Pages keep a reference and reach each other only through `session` and `shell`."""

    session: SessionStore
    jobs: JobRunner
    settings: Settings
    themes: ThemeManager
    shell: Shell
