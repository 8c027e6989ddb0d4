"""The guide inside the window: the right page by F1, links, back, find, and 'Read more' beside errors."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QImage, QTextDocument

from app import help as window_help
from app.dialogs.guide import GuideDialog
from app.main_window import PAGES
from app.pages.inspect.page import VIEWS
from app.pages.test.page import TABS
from app.widgets.inline_error import InlineError
from core import guide
from core.errors import UserError

pytestmark = pytest.mark.gui


@pytest.fixture
def dialog(services, qtbot) -> GuideDialog:  # type: ignore[no-untyped-def]
    made = GuideDialog()
    qtbot.addWidget(made)
    made.show()
    return made


def test_f1_opens_the_page_about_what_is_shown(window, qtbot) -> None:  # type: ignore[no-untyped-def]
    for key in PAGES:
        window.show_page(key)
        window.actions_by_key["guide"].trigger()
        dialog = window.findChild(GuideDialog)
        assert dialog.isVisible()
        assert not dialog.isModal()
        assert dialog.place.page == window_help.PAGES[key]
    assert window.actions_by_key["guide"].shortcut().toString() == "F1"
    window.show_page("model")
    window.services.shell.get_model.emit("")
    window.actions_by_key["guide"].trigger()
    assert dialog.place.page == "hub"


def test_tabs_have_pages_of_their_own(window) -> None:  # type: ignore[no-untyped-def]
    titles = {
        "recipe": {window.page("recipe").advanced.tabs.tabText(n) for n in range(7)},
        "inspect": {view.title for view in VIEWS},
        "test": set(TABS),
    }
    for (key, title), address in window_help.TABS.items():
        assert title in titles[key], title
        assert_there(address)
    for page in window_help.PAGES.values():
        assert_there(page)


def assert_there(address: str) -> None:
    page, _, anchor = address.partition("#")
    assert not anchor or anchor in guide.sections(guide.page(page)), address


def test_the_tab_in_front_decides(loaded) -> None:  # type: ignore[no-untyped-def]
    loaded.show_page("recipe")
    page = loaded.page("recipe")
    page.more.click()
    page.advanced.tabs.setCurrentIndex(2)
    assert window_help.page_for(page, "recipe") == "methods"


def test_pages_links_and_back(dialog: GuideDialog) -> None:
    dialog.show_address("formats")
    dialog.show_address("trouble#output")
    assert dialog.text.verticalScrollBar().value() > 0
    dialog.text.anchorClicked.emit(QUrl("converting.md#a-small-computer"))
    assert (dialog.place.page, dialog.place.anchor) == ("converting", "a-small-computer")
    dialog.back.click()
    assert dialog.place.page == "trouble"
    assert dialog.text.verticalScrollBar().value() > 0
    dialog.back.click()
    assert dialog.place.page == "formats"
    assert not dialog.back.isEnabled()
    assert dialog.back.toolTip()
    dialog.forward.click()
    assert dialog.place.page == "trouble"
    dialog.pages.setCurrentRow(0)
    assert dialog.place.page == "index"
    dialog.show_address("no-such-page")
    assert dialog.place.page == "index"


def test_every_page_can_be_shown_in_both_themes(dialog: GuideDialog, services, qtbot) -> None:  # type: ignore[no-untyped-def]
    for name, title in guide.PAGES.items():
        dialog.show_address(name)
        assert dialog.text.toPlainText().startswith(title), name
        assert dialog.text.document().size().width() <= dialog.text.viewport().width()
    services.themes.set_mode("dark")
    assert dialog.place.page == name
    assert dialog.text.toPlainText().startswith(title)


def test_find_goes_on_to_other_pages(dialog: GuideDialog) -> None:
    dialog.show_address("install")
    dialog.find.setText("Inno no such words")
    dialog._find(again=True)
    assert dialog.found.text() == "Not in the guide"
    dialog.find.setText("exFAT")
    dialog._find(again=True)
    assert dialog.place.page == "trouble"
    assert dialog.text.textCursor().selectedText() == "exFAT"


def test_pictures_fit_and_follow_the_theme(dialog: GuideDialog, services, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    asked = []

    def picture(name: str) -> bytes:
        asked.append(name)
        return (guide.folder() / ".." / "images" / "window.png").read_bytes()

    monkeypatch.setattr(guide, "picture", picture)
    kind = int(QTextDocument.ResourceType.ImageResource.value)
    image = dialog.text.loadResource(kind, QUrl("images/matrix.png"))
    assert isinstance(image, QImage)
    assert 0 < image.width() / image.devicePixelRatio() <= dialog.text.viewport().width()
    services.themes.set_mode("dark")
    dialog.text.loadResource(kind, QUrl("images/matrix.png"))
    assert asked == ["images/matrix.png", "images/matrix-dark.png"]


def test_errors_lead_to_their_section(window, qtbot) -> None:  # type: ignore[no-untyped-def]
    window.services.shell.problem.emit(UserError("The disk is full.", "Free some space.", topic="output"))
    banner = window.banner
    assert banner.more.isVisible()
    banner.more.click()
    dialog = window.findChild(GuideDialog)
    assert (dialog.place.page, dialog.place.anchor) == ("trouble", "output")
    banner.show_error(ValueError("x"))
    banner.more.click()
    assert dialog.place.anchor == guide.INSIDE
    banner.show_text("It is done.", "Go on.", warning=True)
    assert not banner.more.isVisible()


def test_a_narrow_error_keeps_room_for_its_sentences(services, qtbot) -> None:  # type: ignore[no-untyped-def]
    error = InlineError()
    qtbot.addWidget(error)
    error.show_error(UserError("A sentence.", "A step."))
    error.resize(420, 80)
    qtbot.wait(10)
    assert error.more.text() == ""
    assert error.more.accessibleName() == "Read more"
    error.resize(800, 80)
    qtbot.wait(10)
    assert error.more.text() == "Read more"
