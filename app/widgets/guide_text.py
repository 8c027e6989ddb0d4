"""A page of the guide as rich text in the theme's colours: headings, tables, code, pictures."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from PySide6.QtCore import QSize, Qt, QTimer, QUrl
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QImage,
    QResizeEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFrameFormat,
    QTextLength,
    QTextTable,
)
from PySide6.QtWidgets import QTextBrowser, QWidget

from app.theme import (
    BASE,
    DISPLAY,
    HEADING,
    SPACE_1,
    SPACE_2,
    SPACE_3,
    SPACE_4,
    SPACE_6,
    TITLE,
    current,
    mono_font,
    ui_font,
)
from core import guide

SIZES = {1: DISPLAY, 2: TITLE, 3: HEADING}  # of headings, by level
LINE_HEIGHT = 145  # per cent
WIDEST = 760  # px of a picture, and about what a line of text should have


class GuideText(QTextBrowser):
    """`show_page(markdown)`; `go_to(slug)` scrolls to a heading. `anchorClicked` follows when a link is."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setOpenLinks(False)
        self.setAccessibleName("Text of the guide")
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(SPACE_4)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)  # else its coming would lay all out anew
        self._markdown = ""
        self._width = 0
        self._again = QTimer(self, singleShot=True, interval=30)
        self._again.timeout.connect(self._fit)

    def show_page(self, markdown: str) -> None:
        """Lay out a page and scroll to its beginning."""
        self._markdown = markdown
        self._width = self._picture_width()
        document = self.document()
        document.clear()
        document.setDefaultFont(self.font())
        document.setMarkdown(markdown, QTextDocument.MarkdownFeature.MarkdownDialectGitHub)
        _style(document)
        self.moveCursor(QTextCursor.MoveOperation.Start)
        self.verticalScrollBar().setValue(0)

    def go_to(self, anchor: str) -> None:
        """Scroll to the heading with this slug; to the page's beginning without one."""
        block = self.document().begin()
        while anchor and block.isValid():
            if block.blockFormat().headingLevel() and guide.slug(block.text()) == anchor:
                top = self.document().documentLayout().blockBoundingRect(block).top()
                self.verticalScrollBar().setValue(int(top) - SPACE_2)
                return
            block = block.next()
        self.verticalScrollBar().setValue(0)

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        """Pictures come from the guide's folder, in the theme's own version where there is one."""
        path = name.path() if isinstance(name, QUrl) else str(name)
        if kind != int(QTextDocument.ResourceType.ImageResource.value):
            return super().loadResource(kind, name)
        image = QImage()
        for wanted in (_in_theme(path), path):
            data = guide.picture(wanted)
            if data is not None and image.loadFromData(data):
                break
        if image.isNull():
            return super().loadResource(kind, name)
        ratio = self.devicePixelRatioF()
        width = min(self._width or self._picture_width(), image.width())
        scaled = image.scaledToWidth(round(width * ratio), Qt.TransformationMode.SmoothTransformation)
        scaled.setDevicePixelRatio(ratio)
        return scaled

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._again.start()  # not now: the document may be in the middle of being laid out

    def _fit(self) -> None:
        """Pictures as wide as there is room now."""
        if self._markdown and self._picture_width() != self._width:
            bar = self.verticalScrollBar()
            place = bar.value() / max(bar.maximum(), 1)
            self.show_page(self._markdown)
            bar.setValue(round(place * bar.maximum()))

    def sizeHint(self) -> QSize:
        return QSize(WIDEST, 480)

    def _picture_width(self) -> int:
        room = self.viewport().width() - 2 * SPACE_4 - SPACE_2
        return max(160, min(WIDEST, room))


def _in_theme(path: str) -> str:
    """images/matrix.png → images/matrix-dark.png in dark colours."""
    if not current().dark:
        return path
    pure = PurePosixPath(path)
    return str(pure.with_name(f"{pure.stem}-dark{pure.suffix}"))


def _style(document: QTextDocument) -> None:
    """Sizes and colours of the theme over what Markdown's reader has set."""
    theme = current()
    cursor = QTextCursor(document)
    cursor.beginEditBlock()
    block = document.begin()
    while block.isValid():
        level = block.blockFormat().headingLevel()
        shape = QTextBlockFormat()
        words = QTextCharFormat()
        inside = QTextCursor(block).currentTable() is not None
        if level:
            words.setFont(ui_font(SIZES.get(level, BASE), bold=True))
            shape.setTopMargin(0 if level == 1 else SPACE_6 if level == 2 else SPACE_4)
            shape.setBottomMargin(SPACE_2 if level > 1 else SPACE_3)
        elif inside:
            shape.setTopMargin(0)
            shape.setBottomMargin(0)
        elif block.textList() is not None:
            shape.setTopMargin(0)
            shape.setBottomMargin(SPACE_1)
            shape.setLineHeight(LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        elif block.blockFormat().hasProperty(QTextBlockFormat.Property.BlockCodeLanguage) or _is_code(block):
            shape.setBackground(QBrush(QColor(theme.sunken)))
            shape.setLeftMargin(SPACE_3)
            shape.setTopMargin(0)
            shape.setBottomMargin(0)
        else:
            shape.setBottomMargin(SPACE_3)
            if "\ufffc" not in block.text():  # a picture's height is its own
                shape.setLineHeight(LINE_HEIGHT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.setPosition(block.position())
        cursor.mergeBlockFormat(shape)
        if level:
            cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
            cursor.setCharFormat(words)  # not merged: Markdown's reader sets steps of size, which win
        _style_words(block, cursor)
        block = block.next()
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _style_table(frame)
    cursor.endEditBlock()


def _is_code(block: Any) -> bool:
    iterator = block.begin()
    return (
        not iterator.atEnd()
        and iterator.fragment().charFormat().fontFixedPitch()
        and bool(block.blockFormat().nonBreakableLines())
    )


def _style_words(block: Any, cursor: QTextCursor) -> None:
    """Code in its font, links in the accent colour, bold in the weight that there is."""
    theme, pieces, level = current(), [], block.blockFormat().headingLevel()
    iterator = block.begin()
    while not iterator.atEnd():
        piece = iterator.fragment()
        pieces.append((piece.position(), piece.length(), piece.charFormat()))
        iterator += 1
    for start, length, found in pieces:
        changed = QTextCharFormat()
        if found.fontFixedPitch():
            changed.setFont(mono_font(BASE - 1))
        elif found.fontWeight() > QFont.Weight.DemiBold and not level:  # of which there is no cut here
            changed.setFontWeight(QFont.Weight.DemiBold)
        if found.isAnchor():
            changed.setForeground(QBrush(QColor(theme.accent)))
            changed.setFontUnderline(True)
        if changed.propertyCount():
            cursor.setPosition(start)
            cursor.setPosition(start + length, QTextCursor.MoveMode.KeepAnchor)
            cursor.mergeCharFormat(changed)


def _style_table(table: QTextTable) -> None:
    theme = current()
    form = table.format()
    form.setBorder(1)
    form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    form.setBorderBrush(QBrush(QColor(theme.hairline)))
    form.setBorderCollapse(True)
    form.setCellPadding(SPACE_2 - 2)
    form.setCellSpacing(0)
    form.setTopMargin(SPACE_1)
    form.setBottomMargin(SPACE_4)
    form.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    table.setFormat(form)
    for column in range(table.columns()):
        head = table.cellAt(0, column)
        shape = head.format()
        shape.setBackground(QBrush(QColor(theme.sunken)))
        head.setFormat(shape)
