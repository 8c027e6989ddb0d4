"""Everything beyond the presets, in tabs: formats, numbers, methods, what is kept, rules, each tensor's fate, and the
best mix for a size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QTabWidget, QVBoxLayout, QWidget

from app.jobs.plan import RuleMatch
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.models.tensors import plan_columns
from app.pages.recipe.by_size import BySizePanel
from app.pages.recipe.formats import FormatsPanel
from app.pages.recipe.keep import KeepPanel
from app.pages.recipe.methods import MethodsPanel
from app.pages.recipe.numbers import NumbersPanel
from app.pages.recipe.rules import RulesPanel
from app.session import Session
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import button
from app.widgets.inline_error import InlineError
from app.widgets.scrolled import scrolled
from app.widgets.text import explain
from core.errors import UserError
from core.plan import Plan, TensorPlan
from core.recipe import Recipe

FROM_DATA = 4  # column of the tensors' table that says nothing while no data is looked at
FILTER = "Recipes (*.json);;All files (*)"


class AdvancedPanel(QWidget):
    """`edited(recipe)` when anything is changed; `tensor_chosen(name)` when a tensor of the plan is selected;
    `inspect_asked(name)`, a name of the source, when somebody wants to see it."""

    edited = Signal(object)
    tensor_chosen = Signal(str)
    inspect_asked = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self.formats = FormatsPanel()
        self.numbers = NumbersPanel()
        self.methods = MethodsPanel()
        self.keep = KeepPanel()
        self.rules = RulesPanel()
        self.by_size = BySizePanel()
        self.tensors = TablePanel(
            RowsModel(plan_columns(), explain),
            "Tensors of the plan",
            ("", "BF16", "Q4_K", "9 999.999", "AWQ + GPTQ", "a sentence that may be rather long"),
            filter_hint="Filter by name, format or reason",
        )
        self.error = InlineError()
        self.tabs = QTabWidget()
        self.tabs.setAccessibleName("Parts of the recipe")
        self.tabs.tabBar().setAccessibleName("Parts of the recipe")
        self.tabs.tabBar().setProperty("tabRole", "many")
        for title, panel in (
            ("Formats", self.formats),
            ("Numbers", scrolled(self.numbers)),
            ("Method", scrolled(self.methods)),
            ("Keep", scrolled(self.keep)),
            ("Rules", self.rules),
            ("Tensors", _padded(self.tensors)),
            ("Size", scrolled(self.by_size)),
        ):
            self.tabs.addTab(panel, title)
        self.tabs.setTabToolTip(self.tabs.count() - 1, "The best mix of formats for a size")
        self.open_button = button("Open recipe…", self._open, icon="folder-open", hint="Read a recipe from a JSON file")
        self.save_button = button("Save recipe…", self._save, icon="save", hint="Write this recipe to a JSON file")
        files = QHBoxLayout()
        files.setSpacing(SPACE_2)
        files.addWidget(self.open_button)
        files.addWidget(self.save_button)
        files.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self.tabs, 1)
        layout.addWidget(self.error)
        layout.addLayout(files)
        for panel in (self.numbers, self.methods, self.keep, self.rules, self.by_size):
            panel.edited.connect(self.edited)
        self.formats.edited.connect(self._choose_target)
        self.tensors.add_row_action(
            "Inspect", "search", "Show this tensor's weights, channels and error on the Inspect page", self._inspect
        )
        self.tensors.row_activated.connect(self._inspect)
        self.tensors.row_chosen.connect(lambda row: self.tensor_chosen.emit(row.name))

    def show_model(self, session: Session) -> None:
        """Another model, device or context: what the matrix judges."""
        self.formats.show_session(session)
        self.numbers.show_model(self.formats.columns, self.formats.lossless)

    def show_recipe(self, recipe: Recipe) -> None:
        """Set every control; nothing is emitted."""
        self._recipe = recipe
        self.formats.show_recipe(recipe)
        self.numbers.show_recipe(recipe)
        self.methods.show_recipe(recipe)
        self.keep.show_recipe(recipe)
        self.rules.show_recipe(recipe, [])

    def show_plan(self, plan: Plan, rules: tuple[RuleMatch, ...]) -> None:
        """Each tensor's fate and each rule's share."""
        self.tensors.model.set_rows(plan.tensors)
        self.tensors.view.setColumnHidden(FROM_DATA, plan.recipe.calibrated is None)
        self.tensors.fit_first_column()
        self.rules.show_recipe(plan.recipe, list(rules))

    def _choose_target(self, recipe: Recipe) -> None:
        """Rules of a mix by size name every weight: with them another target would change nothing."""
        self.edited.emit(replace(recipe, rules=()) if self.by_size.is_point(self._recipe) else recipe)

    def show_no_plan(self) -> None:
        """The recipe gives no file: nothing of another one stays in view."""
        self.tensors.model.set_rows(())
        self.keep.show_costs({})

    def _inspect(self, tensor: TensorPlan) -> None:
        if tensor.source.sources:
            self.inspect_asked.emit(tensor.source.sources[0].name)

    def read_recipe(self, path: Path) -> None:
        """Take a recipe from a file. What is wrong with it is said in place."""
        try:
            recipe = Recipe.from_json(path.read_text(encoding="utf-8"))
        except UserError as error:
            self.error.show_error(error)
        except (OSError, UnicodeDecodeError) as error:
            self.error.show_error(UserError(f"{path.name} could not be read: {error}.", "Choose another file."))
        else:
            self.error.hide()
            self.edited.emit(recipe)

    def write_recipe(self, path: Path) -> None:
        """Write the recipe in force."""
        try:
            path.write_text(self._recipe.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            self.error.show_error(
                UserError(f"{path.name} could not be written: {error.strerror or error}.", "Choose another folder.")
            )
        else:
            self.error.hide()

    def _open(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open a recipe", "", FILTER)
        if name:
            self.read_recipe(Path(name))

    def _save(self) -> None:
        name, _ = QFileDialog.getSaveFileName(self, "Save the recipe", f"{self._recipe.target}.json", FILTER)
        if name:
            self.write_recipe(Path(name))

    def minimumSizeHint(self) -> QSize:
        """Wide enough for the names of all tabs."""
        least = super().minimumSizeHint()
        return QSize(max(least.width(), self.tabs.tabBar().sizeHint().width()), least.height())


def _padded(panel: QWidget) -> QWidget:
    outer = QWidget()
    layout = QVBoxLayout(outer)
    layout.setContentsMargins(0, SPACE_3, 0, 0)
    layout.addWidget(panel)
    return outer
