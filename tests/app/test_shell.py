"""The window as a whole: keys, names, reasons, sizes, dropping, remembering. Walks whatever the pages contain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, QRect, Qt, QUrl
from PySide6.QtGui import QAction, QDragEnterEvent, QDropEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QScrollBar,
    QTabBar,
    QTextEdit,
    QWidget,
)

from app.actions import ACTIONS
from app.jobs import opening
from app.main_window import PAGES, MainWindow
from app.services import Services
from core.errors import UserError

pytestmark = pytest.mark.gui
INTERACTIVE = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QTextEdit,
)
OUTER = (QComboBox, QAbstractSpinBox, QAbstractItemView, QLineEdit, QMenu, QTabBar)


@pytest.fixture(params=["empty", "loaded"])
def either(request: pytest.FixtureRequest) -> MainWindow:
    """The window without a model, and with one."""
    window: MainWindow = request.getfixturevalue("window" if request.param == "empty" else "loaded")
    return window


def interactive(window: MainWindow) -> list[QWidget]:
    """What a person can operate on any page, without the parts that Qt itself builds inside of controls."""
    found = []
    for key in PAGES:
        window.show_page(key)
        found += [w for w in window.findChildren(QWidget) if w.isVisible() and isinstance(w, INTERACTIVE) and _own(w)]
    return list(dict.fromkeys(found))


def _own(widget: QWidget) -> bool:
    corner = type(widget) is QAbstractButton  # of a table
    if widget.objectName().startswith("qt_") or isinstance(widget, (QHeaderView, QScrollBar)) or corner:
        return False
    above = widget.parentWidget()
    while above is not None and not isinstance(above, OUTER):
        above = above.parentWidget()
    return above is None


def menus(window: MainWindow) -> list[QMenu]:
    """Every menu, the one that Qt keeps for bars that are too narrow left out."""
    return [menu for menu in window.menuBar().findChildren(QMenu) if menu.title()]


def describe(widget: QWidget) -> str:
    text = widget.text() if isinstance(widget, (QAbstractButton, QLineEdit)) else ""
    return f"{type(widget).__name__} '{text}' in {type(widget.parentWidget()).__name__}"


def test_every_interactive_widget_has_an_accessible_name(either: MainWindow) -> None:
    nameless = [describe(w) for w in interactive(either) if not (w.accessibleName() or _spoken_text(w))]
    assert not nameless, nameless


def _spoken_text(widget: QWidget) -> str:
    return widget.text() if isinstance(widget, QAbstractButton) else ""


def test_every_disabled_control_says_why(either: MainWindow) -> None:
    silent = [describe(w) for w in interactive(either) if not w.isEnabled() and not w.toolTip()]
    assert not silent, silent
    actions = [a.text() for a in either.findChildren(QAction) if a.text() and not a.isEnabled() and not a.toolTip()]
    assert not actions, actions
    assert all(menu.toolTipsVisible() for menu in menus(either))


def test_no_shortcut_is_bound_twice(either: MainWindow) -> None:
    wide = (Qt.ShortcutContext.WindowShortcut, Qt.ShortcutContext.ApplicationShortcut)
    bound: Counter[str] = Counter()
    for action in either.findChildren(QAction):
        if action.shortcutContext() in wide:
            bound.update(keys.toString() for keys in action.shortcuts())
    bound.update(s.key().toString() for s in either.findChildren(QShortcut) if s.context() in wide)
    assert [keys for keys, times in bound.items() if times > 1] == []
    for keys in ("Ctrl+1", "Ctrl+2", "Ctrl+3", "Ctrl+4", "Ctrl+5", "Ctrl+O", "Ctrl+Return"):
        assert bound[QKeySequence(keys).toString()] == 1, keys


def test_every_action_stands_in_a_menu_with_an_explanation(window: MainWindow) -> None:
    shown = {action for menu in menus(window) for action in menu.actions()}
    for spec in ACTIONS:
        action = window.actions_by_key[spec.key]
        assert action in shown, spec.key
        assert action.toolTip() == spec.hint != ""


def test_keys_turn_the_pages(window: MainWindow, qtbot) -> None:  # type: ignore[no-untyped-def]
    with qtbot.waitActive(window):
        window.activateWindow()
    for number, key in enumerate(PAGES, start=1):
        qtbot.keyClick(window, str(number), Qt.KeyboardModifier.ControlModifier)
        assert window.current_page.key == key
        assert window.current_page.isVisible()


def test_every_page_has_a_name_a_title_and_at_most_one_accent_button(either: MainWindow) -> None:
    for key in PAGES:
        either.show_page(key)
        page = either.current_page
        assert page.accessibleName() == f"{page.title} page"
        accents = [b for b in page.findChildren(QPushButton) if b.property("buttonRole") == "primary" and b.isVisible()]
        assert len(accents) <= 1, (key, [b.text() for b in accents])
        assert page.primary() in (None, *accents)


def test_run_presses_the_accent_button(window: MainWindow, qtbot) -> None:  # type: ignore[no-untyped-def]
    window.show_page("model")
    button = window.current_page.primary()
    assert button is not None
    with qtbot.waitSignal(button.clicked):
        button.blockSignals(False)
        _without_dialog(window)
        window.actions_by_key["run"].trigger()


def _without_dialog(window: MainWindow) -> None:
    window.services.shell.choose_file.disconnect(window._choose_file)


def test_fits_1100_by_700_without_sideways_scrolling(either: MainWindow, qtbot) -> None:  # type: ignore[no-untyped-def]
    assert either.minimumSizeHint().width() <= 1100
    assert either.minimumSizeHint().height() <= 700
    for key in PAGES:
        either.show_page(key)
        qtbot.wait(5)
        page = either.current_page
        assert either.size().toTuple() == (1100, 700)
        for area in page.findChildren(QScrollArea):
            if area.isVisible():
                assert area.horizontalScrollBar().maximum() == 0, key
                inner = [a for a in area.findChildren(QAbstractScrollArea) if a.isVisible() and _scrolls(a)]
                assert not (_scrolls(area) and inner), f"scrolling inside of scrolling on {key}"
        button = page.primary()
        if button is not None:
            where = QRect(button.mapTo(either, QPoint(0, 0)), button.size())
            assert either.rect().contains(where), key


def _scrolls(area: QAbstractScrollArea) -> bool:
    return area.verticalScrollBar().maximum() > 0


def test_never_opens_larger_than_the_screen(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.resize(5000, 4000)
    services.settings.geometry = window.saveGeometry()
    again = MainWindow(services)
    qtbot.addWidget(again)
    available = again.screen().availableGeometry()
    least = again.minimumSizeHint()  # the offscreen test screen is smaller than the smallest supported window
    assert again.width() <= max(available.width(), least.width())
    assert again.height() <= max(available.height(), least.height())


def test_size_and_choices_are_remembered(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    window = MainWindow(services)
    qtbot.addWidget(window)
    size = window.screen().availableGeometry().size().boundedTo(window.size()) * 0.95
    window.resize(size)
    before = window.size()
    services.session.update(target="Q5_K_M", context=4096, batch=3)
    window.actions_by_key["theme_dark"].trigger()
    window.close()
    assert services.settings.theme == "dark"
    assert services.settings.text("last/target") == "Q5_K_M"
    assert services.settings.number("last/context", 0) == 4096
    again = MainWindow(services)
    qtbot.addWidget(again)
    assert again.size() == before
    assert again.actions_by_key["theme_dark"].isChecked()


@pytest.mark.filterwarnings("ignore:Function.*QDragEnterEvent:DeprecationWarning")  # there is no other way
def test_a_file_can_be_dropped_anywhere(window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in PAGES:
        accepting = [w for w in window.page(key).findChildren(QWidget) if w.acceptDrops()]
        assert not accepting, f"{key}: a drop on {accepting} would not open the file"
    opened: list[Path] = []
    monkeypatch.setattr("app.main_window.open_in_background", lambda _services, path: opened.append(path))
    model = tmp_path / "model with spaces é.gguf"
    model.write_bytes(b"GGUF")
    data = QMimeData()
    data.setUrls([QUrl("https://example.org/a.gguf"), QUrl.fromLocalFile(str(model))])
    arguments = (Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    assert entered(window, data)
    QApplication.sendEvent(window, QDropEvent(QPointF(400, 300), *arguments))
    assert opened == [model]
    nothing = QMimeData()
    nothing.setText("just words")
    assert not entered(window, nothing)


def entered(window: MainWindow, data: QMimeData) -> bool:
    """Whether the window would take a drag of this data."""
    action, button, keys = Qt.DropAction.CopyAction, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    event = QDragEnterEvent(QPoint(400, 300), action, data, button, keys)
    event.ignore()
    QApplication.sendEvent(window, event)
    return event.isAccepted()


def test_what_can_not_be_opened_is_told_by_the_session(window: MainWindow, tmp_path: Path, qtbot) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "empty.gguf"
    path.write_bytes(b"")
    window.open_path(path)
    session = window.services.session
    assert session.current.opening == path
    qtbot.waitUntil(lambda: session.current.problem is not None)
    assert isinstance(session.current.problem, UserError)
    assert session.current.problem.hint
    assert session.current.opening is None
    assert window.services.settings.recent == ()


def test_newest_opening_wins(window: MainWindow, tmp_path: Path, qtbot, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    read: list[str] = []

    def slow(path: Path, token: object) -> opening.Opened:
        read.append(path.name)
        raise UserError(f"{path.name} is no model.", "Choose another.")

    monkeypatch.setattr(opening, "open_model", slow)
    first, second = tmp_path / "first", tmp_path / "second"
    window.open_path(first)
    window.open_path(second)
    session = window.services.session
    qtbot.waitUntil(lambda: session.current.problem is not None)
    qtbot.waitUntil(lambda: not window.services.jobs.jobs())
    assert session.current.problem is not None
    assert session.current.problem.message == "second is no model."


def test_unexpected_failure_of_a_job_is_shown_above_the_page(window: MainWindow, qtbot) -> None:  # type: ignore[no-untyped-def]
    def broken(_token: object) -> None:
        raise ValueError("boom")

    window.services.jobs.run("broken", broken)
    qtbot.waitUntil(window.banner.isVisible)
    assert "ValueError" in window.banner.message.text()


def test_queue_length_is_said_in_the_navigation(window: MainWindow) -> None:
    window.services.shell.queue_changed.emit(2)
    button = next(b for b in window.navigation.findChildren(QPushButton) if b.text().startswith("Convert"))
    assert button.text() == "Convert (2)"
    assert "2 in progress" in button.accessibleName()


def test_recent_models_are_listed(window: MainWindow, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"")
    window.services.settings.add_recent(model)
    window.services.settings.add_recent(model)
    window.recent_menu.aboutToShow.emit()
    assert [(a.text(), a.toolTip()) for a in window.recent_menu.actions()] == [("model.gguf", str(model))]
    model.unlink()
    window.recent_menu.aboutToShow.emit()
    assert [a.isEnabled() for a in window.recent_menu.actions()] == [False]


def test_escape_closes_menus(window: MainWindow, qtbot) -> None:  # type: ignore[no-untyped-def]
    for menu in menus(window):
        menu.popup(QPoint(10, 10))
        qtbot.keyClick(menu, Qt.Key.Key_Escape)
        assert not menu.isVisible()


def test_terms_shown_are_explained_in_at_most_25_words(loaded: MainWindow) -> None:
    from app.widgets.text import explain

    explained = set()
    for key in PAGES:
        loaded.show_page(key)
        for label in loaded.findChildren(QLabel):
            word = label.property("term")
            if word and label.isVisible():
                explained.add(word)
                assert label.toolTip() or label.parentWidget().toolTip(), word
                assert 0 < len(explain(word).split()) <= 25, word
    assert explained >= {"weights", "scales and zeros", "kept tensors", "KV cache", "workspace", "Context", "Batch"}
