"""Two parts beside each other where there is room; else the second has a tab of its own."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QTabWidget, QVBoxLayout, QWidget

from app.theme import SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import Card, Splitter

HIGH_TABS = "QTabBar::tab { min-height: 22px; }"  # as high as the controls at their right, which are cut off otherwise


def low_card() -> Card:
    """A card that leaves its content the height: a tab and what is around it take enough."""
    card = Card()
    layout = card.layout()
    assert layout is not None
    layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
    return card


def in_card(widget: QWidget, *below: QWidget) -> QWidget:
    """A page of tabs: `widget` in a card that takes the room, the others under it."""
    page, card = QWidget(), low_card()
    card.add(widget, 1)
    layout = QVBoxLayout(page)
    layout.setContentsMargins(0, SPACE_2, 0, 0)
    layout.setSpacing(SPACE_2)
    layout.addWidget(card, 1)
    for part in below:
        layout.addWidget(part)
    return page


class SideTabs(QObject):
    """Puts `first` and `second` into `tabs`. width: px of the tabs from which both stand beside each other."""

    def __init__(self, tabs: QTabWidget, first: QWidget, second: QWidget, titles: tuple[str, str], width: int) -> None:
        super().__init__(tabs)
        self._tabs, self._second, self._title, self._width = tabs, second, titles[1], width
        self.alone = False
        self.split = Splitter(SPACE_4)
        self.together, self._own_tab = in_card(self.split), QWidget()
        self._own_card = low_card()
        layout = QVBoxLayout(self._own_tab)
        layout.setContentsMargins(0, SPACE_2, 0, 0)
        layout.addWidget(self._own_card)
        for part in (first, second):
            policy = part.sizePolicy()
            policy.setHorizontalPolicy(policy.Policy.Ignored)  # each gets half, whatever it would like
            part.setSizePolicy(policy)
            self.split.addWidget(part)
        self.split.setSizes([500, 500])
        tabs.addTab(self.together, titles[0])
        tabs.installEventFilter(self)

    def in_front(self) -> bool:
        """Whether the tab of either part is the current one."""
        return self._tabs.currentWidget() in (self.together, self._own_tab)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._tabs and event.type() == QEvent.Type.Resize:
            self._fit()
        return False

    def _fit(self) -> None:
        alone = self._tabs.width() < self._width
        if alone == self.alone:
            return
        self.alone = alone
        if alone:
            self._own_card.add(self._second)
            self._tabs.insertTab(self._tabs.indexOf(self.together) + 1, self._own_tab, self._title)
        else:
            self._tabs.removeTab(self._tabs.indexOf(self._own_tab))
            self.split.addWidget(self._second)
        self._second.show()
