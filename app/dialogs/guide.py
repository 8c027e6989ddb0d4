"""The user's guide inside the program: pages at the left, the text beside them, find, back. Needs no network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QKeySequence, QShortcut, QTextCursor, QTextDocument
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLineEdit, QListWidget, QListWidgetItem, QVBoxLayout, QWidget

from app.theme import ROW_HEIGHT, SPACE_2, SPACE_3, SPACE_4, themes
from app.widgets.basics import label, quiet_button, set_available
from app.widgets.guide_text import GuideText
from core import guide

SIZE = (980, 680)
LIST_WIDTH = 218
FIRST = "index"


@dataclass(frozen=True)
class Place:
    """Where a reader is: a page, a section of it or '', and how far it is scrolled."""

    page: str
    anchor: str = ""
    scrolled: int | None = None


class GuideDialog(QDialog):
    """`show_address('formats#exceptions')` turns to a page. Stands beside the window; Esc closes it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Guide")
        self.setProperty("frameRole", "page")
        self.setModal(False)
        self._place = Place("")
        self._before: list[Place] = []
        self._after: list[Place] = []
        self.pages = QListWidget()
        self.pages.setAccessibleName("Pages of the guide")
        self.pages.setFixedWidth(LIST_WIDTH)
        for name, title in guide.PAGES.items():
            item = QListWidgetItem(title)
            item.setData(Qt.ItemDataRole.UserRole, name)
            item.setSizeHint(QSize(0, ROW_HEIGHT))
            self.pages.addItem(item)
        self.pages.currentItemChanged.connect(self._choose)
        self.text = GuideText()
        self.text.anchorClicked.connect(self._follow)
        self.back = quiet_button("Back", self._go_back, icon="arrow-left", hint="The page read before (Alt+Left)")
        self.forward = quiet_button("", self._go_forward, icon="arrow-right", hint="Forward again (Alt+Right)")
        self.find = QLineEdit()
        self.find.setPlaceholderText("Find in the guide")
        self.find.setAccessibleName("Find in the guide")
        self.find.setToolTip("Words on this page; Enter goes on to the next place, and to the next page (Ctrl+F)")
        self.find.setMaximumWidth(280)
        self.find.textEdited.connect(lambda _text: self._find(again=True))
        self.find.returnPressed.connect(self._find)
        self.found = label("", "muted")
        self._lay_out()
        for keys, what in (
            ("Ctrl+F", self._start_finding),
            ("F3", self._find),
            ("Alt+Left", self._go_back),
            ("Alt+Right", self._go_forward),
        ):
            QShortcut(QKeySequence(keys), self, what)
        self.resize(*SIZE)
        self.text.setFocus()
        themes().dress(self)
        themes().changed.connect(self._repaint)

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        for part in (self.back, self.forward):
            row.addWidget(part)
        row.addStretch(1)
        row.addWidget(self.found)
        row.addWidget(self.find, 1)
        right = QVBoxLayout()
        right.setSpacing(SPACE_2)
        right.addLayout(row)
        right.addWidget(self.text, 1)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(SPACE_4, SPACE_3, SPACE_4, SPACE_4)
        layout.setSpacing(SPACE_4)
        layout.addWidget(self.pages)
        layout.addLayout(right, 1)

    @property
    def place(self) -> Place:
        """Where the reader is."""
        return self._place

    def show_address(self, address: str) -> None:
        """Turn to a page, or a section of it; the first page for a name that there is not."""
        page, _, anchor = address.partition("#")
        place = Place(page if page in guide.PAGES else FIRST, anchor)
        if place.page == self._place.page and not anchor and self._place.page:
            return  # where the reader is already
        if self._place.page:
            self._before.append(self._here())
        self._after.clear()
        self._turn(place)

    def _here(self) -> Place:
        return Place(self._place.page, self._place.anchor, self.text.verticalScrollBar().value())

    def _turn(self, place: Place) -> None:
        if place.page != self._place.page:
            self.text.show_page(guide.page(place.page))
        self._place = place
        names = list(guide.PAGES)
        self.pages.blockSignals(True)
        self.pages.setCurrentRow(names.index(place.page))
        self.pages.blockSignals(False)
        if place.scrolled is not None:
            self.text.verticalScrollBar().setValue(place.scrolled)
        else:
            self.text.go_to(place.anchor)
        self.found.setText("")
        set_available(self.back, "" if self._before else "Nothing was read before this.")
        set_available(self.forward, "" if self._after else "Nothing was left by Back.")

    def _go_back(self) -> None:
        if self._before:
            self._after.append(self._here())
            self._turn(self._before.pop())

    def _go_forward(self) -> None:
        if self._after:
            self._before.append(self._here())
            self._turn(self._after.pop())

    def _choose(self, item: QListWidgetItem | None) -> None:
        if item is not None:
            self.show_address(str(item.data(Qt.ItemDataRole.UserRole)))

    def _follow(self, url: QUrl) -> None:
        if url.scheme() in ("http", "https"):
            QDesktopServices.openUrl(url)
            return
        page = url.path().rpartition("/")[2].removesuffix(".md") or self._place.page
        self.show_address(f"{page}#{url.fragment()}" if url.hasFragment() else page)

    def _start_finding(self) -> None:
        self.find.setFocus()
        self.find.selectAll()

    def _find(self, again: bool = False) -> None:
        """The next place with the words, on this page or a later one; again: from the page's beginning."""
        words = self.find.text().strip()
        if not words:
            self.found.setText("")
            return
        if again:
            self.text.moveCursor(QTextCursor.MoveOperation.Start)
        if self.text.find(words):
            self.found.setText("")
            return
        for name in self._following():
            if words.casefold() in _words(name).casefold():
                self.show_address(name)
                self.text.moveCursor(QTextCursor.MoveOperation.Start)
                if self.text.find(words):
                    return
        self.text.moveCursor(QTextCursor.MoveOperation.Start)
        self.found.setText("" if self.text.find(words) else "Not in the guide")

    def _following(self) -> list[str]:
        names = list(guide.PAGES)
        at = names.index(self._place.page)
        return names[at + 1 :] + names[:at]

    def _repaint(self, _theme: object) -> None:
        if self._place.page:
            here = self._here()
            self.text.show_page(guide.page(here.page))
            self.text.verticalScrollBar().setValue(here.scrolled or 0)


@cache
def _words(name: str) -> str:
    """The words of a page as the reader sees them, without Markdown's marks."""
    document = QTextDocument()
    document.setMarkdown(guide.page(name))
    return str(document.toPlainText())
