"""The support matrix: which runtime runs which kind of format on the chosen device, and why. A click chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QModelIndex, QSize, Qt, Signal
from PySide6.QtGui import QFontMetrics, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QHeaderView,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from app.jobs.plan import with_target
from app.models.matrix import NAME, MatrixModel
from app.session import Session
from app.theme import ROW_HEIGHT, SPACE_2, SPACE_3, mono_font
from app.widgets.basics import label
from app.widgets.calm import CalmCombo
from core.catalog import lossless, stored_numbers
from core.checkpoint import Container
from core.export.ecosystem import LINEAR_ROLES
from core.hardware.matrix import hardware_classes
from core.recipe import Recipe
from core.tensor_info import Role

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint

ICON_ROOM = 20  # of a cell: the icon and the gap behind it
CELL_PADDING = 20
WIDEST_NAME = 176  # px; longer ones are shortened, and are whole in the tooltip
_CHOSEN = "The chosen device"
_Question = tuple[str, tuple[int, ...], bool, frozenset[str], bool]  # what `MatrixModel.judge` is asked
BOLD_ROOM = 8  # of a header: the style sheet, which comes later, makes it bold


class FormatsPanel(QWidget):
    """`edited(recipe)` when a cell is clicked, or Enter is pressed on it. A row is a kind of format; where its members
    differ, the tab Numbers chooses among them."""

    edited = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self._asked: _Question | None = None
        self._checkpoint: Checkpoint | None = None
        self._class = ""
        self.columns: tuple[int, ...] = ()
        self._folders = True
        self.lossless: frozenset[str] = frozenset()
        self._judged = self._asked  # what the cells are for: `_asked`, once they have been seen
        self.model = MatrixModel(self)
        self.view = QTableView()
        self.view.setModel(self.model)
        self.view.setAccessibleName("Support matrix: targets by runtimes")
        self.view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.view.setShowGrid(False)
        self.view.setWordWrap(False)
        self.view.setTabKeyNavigation(False)
        self.view.setIconSize(QSize(14, 14))
        self.view.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.view.verticalHeader().hide()
        self.view.verticalHeader().setDefaultSectionSize(ROW_HEIGHT)
        self.view.horizontalHeader().setHighlightSections(False)
        self.view.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.native = QCheckBox("Only what runs natively on")
        self.native.setToolTip("Leave out formats that no runtime has kernels for on this hardware")
        self.hardware = CalmCombo()
        self.hardware.setAccessibleName("Hardware that the matrix judges")
        self.hardware.setToolTip("Whose kernels the matrix looks at")
        self.hardware.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.hardware.setMinimumContentsLength(10)
        self.hardware.addItem(_CHOSEN, "")
        for key, words in hardware_classes().items():
            self.hardware.addItem(words, key)
        self.none = label("Nothing runs natively there.", "muted", wrap=True)
        self.none.hide()
        self.reason = label("", wrap=True, selectable=True)
        self.reason.setAccessibleName("What the selected cell means")
        self.reason.setMinimumHeight(3 * 18)
        self.reason.setAlignment(Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_2)
        choice = QHBoxLayout()
        choice.setSpacing(SPACE_2)
        choice.addWidget(self.native)
        choice.addWidget(self.hardware, 1)
        layout.addLayout(choice)
        layout.addWidget(self.none)
        layout.addWidget(self.view, 1)
        layout.addWidget(self.reason)
        self.native.toggled.connect(self._ask)
        self.hardware.activated.connect(self._ask)
        self.view.clicked.connect(self._choose)
        self.view.activated.connect(self._choose)
        self.view.selectionModel().currentChanged.connect(lambda index, _old: self._explain(index))
        self.model.modelReset.connect(self._fit_columns)
        self.model.modelReset.connect(self._select)

    def show_session(self, session: Session) -> None:
        """Judge every cell for the session's device and model; not before somebody looks."""
        checkpoint = session.checkpoint
        if checkpoint is None:
            return
        device = session.device.device if session.device is not None else None
        self._class = device.hardware_class if device is not None else ""
        name = session.device.label if session.device is not None else "none yet"
        self.hardware.setItemText(0, f"{_CHOSEN}: {name}")
        if checkpoint is not self._checkpoint:
            self._checkpoint = checkpoint
            roles = LINEAR_ROLES | {Role.EMBED, Role.HEAD}
            columns = {t.columns for t in checkpoint.tensors if len(t.shape) > 1 and t.role in roles}
            self.columns = tuple(sorted(columns))
            self._folders = checkpoint.container is not Container.GGUF
            self.lossless = lossless(stored_numbers(checkpoint), self._folders)
        self._ask()

    def _ask(self, *_: object) -> None:
        hardware = self.hardware.currentData() or self._class
        self._asked = (hardware, self.columns, self._folders, self.lossless, self.native.isChecked())
        if self.isVisible():
            self._judge()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._judge()

    def _judge(self) -> None:
        if self._asked is not None and self._asked != self._judged:
            self._judged = self._asked
            self.model.judge(*self._asked)
            self.none.setVisible(not self.model.rows)

    def show_recipe(self, recipe: Recipe) -> None:
        """Select the recipe's target; nothing is emitted."""
        self._recipe = recipe
        self._select()

    def _fit_columns(self) -> None:
        """Once for each filling: a header that follows its contents asks every cell at every change of anything."""
        metrics, header = self.view.fontMetrics(), self.view.horizontalHeader()
        mono = QFontMetrics(mono_font())
        for column, texts in enumerate(self.model.texts()):
            widest = max((mono if column == NAME else metrics).horizontalAdvance(text) for text in texts)
            width = widest + CELL_PADDING + (0 if column == NAME else ICON_ROOM)
            width = min(width, WIDEST_NAME) if column == NAME else width
            header.resizeSection(column, max(width, header.sectionSizeHint(column) + BOLD_ROOM))

    def _select(self) -> None:
        row = self.model.row_of(self._recipe.target)
        if row < 0:  # left out by the filter
            self.reason.setText("")
            self.view.scrollToTop()
        column = max(self.view.currentIndex().column(), 2)
        if row >= 0 and row != self.view.currentIndex().row():
            place = self.view.horizontalScrollBar().value()
            self.view.setAutoScroll(False)  # the names stay in sight
            self.view.setCurrentIndex(self.model.index(row, min(column, self.model.columnCount() - 1)))
            self.view.scrollTo(self.model.index(row, NAME))
            self.view.setAutoScroll(True)
            self.view.horizontalScrollBar().setValue(place)

    def _explain(self, index: QModelIndex) -> None:
        if not index.isValid():
            self.reason.setText("")
            return
        self.reason.setText(self.model.sentence(index))

    def _choose(self, index: QModelIndex) -> None:
        """Take the row's usual member, unless one of its members is in force already."""
        row = self.model.rows[index.row()]
        if all(t.name != self._recipe.target for t in row.kind.targets):
            self.edited.emit(with_target(self._recipe, row.target.name))
