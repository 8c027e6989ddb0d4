"""The window's commands as data: what they are called, where they stand, which keys they have."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QKeySequence

from app.icons import set_icon
from app.language import say


@dataclass(frozen=True)
class ActionSpec:
    """key: stable name. keys: shortcuts. menu: its menu's title, '' for none. group: checkable, one of the group."""

    key: str
    text: str
    menu: str
    icon: str = ""
    keys: tuple[str, ...] = ()
    hint: str = ""
    group: str = ""


ACTIONS = (
    ActionSpec("open", "Open a model…", "File", "folder-open", ("Ctrl+O",), "Choose a model file or a model folder"),
    ActionSpec("open_folder", "Open a folder…", "File", "", ("Ctrl+Shift+O",), "Choose a folder that holds a model"),
    ActionSpec(
        "get_model",
        "Get a model…",
        "File",
        "download",
        ("Ctrl+G",),
        "Search Hugging Face or a mirror, and download a model",
    ),
    ActionSpec("settings", "Settings…", "File", "settings", ("Ctrl+,",), "Folders, threads, memory, units, mirror"),
    ActionSpec("quit", "Quit", "File", "", ("Ctrl+Q",), "Close the window; a running conversion can be resumed"),
    ActionSpec("page_model", "Model", "View", "box", ("Ctrl+1",), "What is opened and what is wrong with it", "page"),
    ActionSpec("page_recipe", "Recipe", "View", "sliders-horizontal", ("Ctrl+2",), "Choose format and method", "page"),
    ActionSpec("page_convert", "Convert", "View", "play", ("Ctrl+3",), "Queue, progress and results", "page"),
    ActionSpec("page_inspect", "Inspect", "View", "search", ("Ctrl+4",), "Weights, channels and outliers", "page"),
    ActionSpec("page_test", "Test", "View", "flask-conical", ("Ctrl+5",), "Quality and speed of a result", "page"),
    ActionSpec(
        "cache",
        "Plan the KV cache…",
        "View",
        "memory-stick",
        ("Ctrl+K",),
        "What keys and values take, and how many tokens fit",
    ),
    ActionSpec("theme_system", "Colours of the system", "View", "monitor", (), "Light or dark as the desktop", "theme"),
    ActionSpec("theme_light", "Light colours", "View", "sun", (), "Always light", "theme"),
    ActionSpec("theme_dark", "Dark colours", "View", "moon", (), "Always dark", "theme"),
    ActionSpec(
        "run", "Run the page's main action", "Run", "", ("Ctrl+Return", "Ctrl+Enter"), "Press the page's accent button"
    ),
    ActionSpec("guide", "Guide to this page", "Help", "book-open", ("F1",), "What is on this page, and how to use it"),
    ActionSpec("guide_first", "First conversion", "Help", "", (), "Step by step, with a small model to try"),
    ActionSpec("guide_trouble", "Trouble", "Help", "", (), "What messages mean, and what to do"),
    ActionSpec(
        "self_check", "Check this computer…", "Help", "shield-check", (), "Memory, disks, kernels, GPU, with remedies"
    ),
)


def make_actions(parent: QObject) -> dict[str, QAction]:
    """A QAction for each entry of ACTIONS, by key."""
    made: dict[str, QAction] = {}
    for spec in ACTIONS:
        action = QAction(say(spec.text), parent)
        action.setObjectName(f"action_{spec.key}")
        action.setShortcuts([QKeySequence(keys) for keys in spec.keys])
        action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        action.setToolTip(say(spec.hint))
        action.setStatusTip(say(spec.hint))
        action.setCheckable(bool(spec.group))
        action.setIconVisibleInMenu(not spec.group)  # an icon would stand where the check mark belongs
        if spec.icon:
            set_icon(action, spec.icon)
        made[spec.key] = action
    return made
