"""A repository before it is fetched: which model, which files and why, how much, and where to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.jobs.hub import Listed, Reach
from app.jobs.reveal import browse
from app.models.hub import file_columns
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.pages.model.hub_settings import TokenRow
from app.services import Services
from app.theme import ROW_HEIGHT, SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import Card, IconLabel, PrimaryButton, button, label, set_available
from app.widgets.calm import CalmCombo
from app.widgets.text import ElidedLabel, explain
from core import units

if TYPE_CHECKING:
    from core.hub.download import Order

MANY = 16  # files from which a filter is of use
WIDTHS = ("", "999.99 MB", "Fetched", "the same weights in PyTorch's format, once more")


class GatedCard(Card):
    """Why a repository's files do not come yet: the page where its conditions are, and a field for a token."""

    again = Signal()

    def __init__(self, services: Services, reach: Callable[[], Reach]) -> None:
        super().__init__()
        self._page = ""
        self.message = label("", "warning", wrap=True, selectable=True)
        self.hint = label("", "muted", wrap=True, selectable=True)
        self.page = button("Open its page", self._open, icon="external-link", hint="Show the page in the browser")
        self.token = TokenRow(services, reach)
        self.token.kept.connect(self.again)
        self.token.told.connect(self.hint.setText)
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(self.message)
        words.addWidget(self.hint)
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(IconLabel("shield-check", "warning"))
        head.addLayout(words, 1)
        row = QHBoxLayout()
        row.setSpacing(SPACE_3)
        row.addWidget(self.page)
        row.addWidget(self.token, 1)
        self.body.setSpacing(SPACE_2)
        self.add(head)
        self.add(row)

    def show_problem(self, message: str, hint: str, page: str) -> None:
        self.message.setText(message)
        self.hint.setText(hint)
        self._page = page
        self.page.setToolTip(page)
        self.page.setVisible(bool(page))

    def _open(self) -> None:
        if not browse(self._page):
            self.hint.setText(f"No browser could be opened; the page is {self._page}")


class ListingView(QWidget):
    """`show_listed`; `asked(order)` follows the Download button, `again` when a token has been given."""

    asked = Signal(object)
    again = Signal()

    def __init__(self, services: Services, reach: Callable[[], Reach]) -> None:
        super().__init__()
        self._services = services
        self._listed: Listed | None = None
        self._order: Order | None = None
        self.name = ElidedLabel(role="heading")
        self.about = ElidedLabel(role="muted")
        self.choice = CalmCombo()
        self.choice.setAccessibleName("Which model of the repository")
        self.choice.setToolTip("A repository may hold one model in several forms; the first loses least when converted")
        self.choice.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.choice.currentIndexChanged.connect(self._choose)
        self.gated = GatedCard(services, reach)
        self.gated.again.connect(self.again)
        self.files = TablePanel(RowsModel(file_columns(), explain), "Files", WIDTHS, filter_hint="Filter files")
        self.files.view.setMinimumHeight(3 * ROW_HEIGHT)
        self.room = label("", wrap=True)
        self.room.setAccessibleName("Size and room")
        self.folder = ElidedLabel(role="muted")
        self.change = button(
            "Change…", self._change_folder, icon="folder", hint="Choose the folder that holds all models"
        )
        self.download = PrimaryButton("Download", self._ask, icon="download", hint="Fetch these files (Ctrl+Enter)")
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(self.name)
        words.addWidget(self.about)
        head = QHBoxLayout()
        head.setSpacing(SPACE_3)
        head.addLayout(words, 1)
        head.addWidget(self.choice)
        where = QVBoxLayout()
        where.setSpacing(SPACE_1)
        where.addWidget(self.room)
        where.addWidget(self.folder)
        foot = QHBoxLayout()
        foot.setSpacing(SPACE_2)
        foot.addLayout(where, 1)
        foot.addWidget(self.change)
        foot.addWidget(self.download)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addLayout(head)
        layout.addWidget(self.gated)
        layout.addWidget(self.files, 1)
        layout.addLayout(foot)

    def take_focus(self) -> None:
        """To the next step: the button, or the token's field while the button is off."""
        target = self.download if self.download.isEnabled() else self.gated.token.field
        (target if target.isVisible() else self.change).setFocus()

    @property
    def listed(self) -> Listed | None:
        return self._listed

    def show_listed(self, listed: Listed) -> None:
        """Fill everything."""
        self._listed = listed
        about = listed.repository
        self.name.setText(about.name)
        facts = [f"licence {about.licence or 'not said'}", f"{units.format_count(about.downloads)} downloads"]
        facts += [f"revision {about.revision}"] if about.revision != "main" else []
        facts += ["gated"] if about.gated else []
        if about.ignored:
            facts.append(f"{units.format_count(about.ignored)} files with impossible names are left out")
        self.about.setText(" · ".join(facts))
        self.choice.blockSignals(True)
        self.choice.clear()
        for one in listed.choices:
            self.choice.addItem(f"{one.title} · {units.format_decimal(one.bytes)}")
        self.choice.setCurrentIndex(listed.choices.index(listed.choice))
        self.choice.blockSignals(False)
        self.choice.setVisible(len(listed.choices) > 1)
        self.gated.setVisible(about.blocked is not None)
        if about.blocked is not None:
            self.gated.show_problem(about.blocked.message, about.blocked.hint, about.blocked.page)
        self.files.filter.clear()
        self.files.filter.setVisible(len(about.files) > MANY and about.blocked is None)
        self.refresh()

    def refresh(self) -> None:
        """Sums, room and folder anew: another choice or folder, or files that are there now."""
        from core.disk import free_bytes
        from core.hub.disk import RESERVE
        from core.hub.download import bytes_there, make_order
        from core.hub.files import fates

        listed = self._listed
        if listed is None:
            return
        order = make_order(listed.repository, listed.choice, self._services.settings.models_folder)
        self._order = order
        self.files.model.set_rows(fates(listed.repository.files, listed.choice))
        total, there, free = listed.choice.bytes, bytes_there(order), free_bytes(order.folder)
        parts = [f"{units.format_bytes(total)} to fetch"]
        if there:
            parts.append(f"{units.format_decimal(there)} of it there already")
        if free >= 0:
            parts.append(f"{units.format_bytes(free)} free")
        self.room.setText(", ".join(parts))
        self.folder.setText(str(order.folder))
        reason = ""
        if listed.repository.blocked is not None:
            reason = "This repository is gated: accept its conditions and give a token first."
        elif free >= 0 and total - there + RESERVE > free and there < total:
            missing = units.format_decimal(total - there + RESERVE - free)
            reason = f"The disk lacks {missing}: choose another folder, or free some space."
            self.room.setText(f"{self.room.text()}. {reason}")
        self.download.setText("Open" if there >= total > 0 else "Go on" if there else "Download")
        set_available(self.download, reason)

    def _choose(self, number: int) -> None:
        if self._listed is not None and number >= 0:
            self._listed = replace(self._listed, choice=self._listed.choices[number])
            self.refresh()

    def _change_folder(self) -> None:
        start = str(self._services.settings.models_folder)
        chosen = QFileDialog.getExistingDirectory(self, "Choose the folder that holds all models", start)
        if chosen:
            from pathlib import Path

            self._services.settings.models_folder = Path(chosen)
            self.refresh()

    def _ask(self) -> None:
        if self._order is not None:
            self.asked.emit(self._order)
