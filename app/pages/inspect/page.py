"""The Inspect page: what is looked at, and one view of it at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from PySide6.QtCore import QStringListModel, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QComboBox,
    QHBoxLayout,
    QListView,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from app.pages.base import Page
from app.pages.inspect.state import KEEP, InspectState
from app.services import Services
from app.theme import PAGE_MARGIN, SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import EmptyState, PrimaryButton, button, label, number_box, set_available
from app.widgets.calm import CalmCombo
from app.widgets.text import term

PANEL_WIDTH = 280  # px of findings and remedies beside a view …
NARROW = 860  # … and of the page below which they stand in its place: both together would be cut off
NO_LIMIT = (1 << 24) - 1  # px, Qt's largest width


@dataclass(frozen=True)
class ViewSpec:
    """A tab. made: 'module:class' of a QWidget that is called with (state, services, parent) when first shown."""

    key: str
    title: str
    hint: str
    made: str


VIEWS = (
    ViewSpec("map", "Map", "All tensors of the model, coloured by one measure", "map_view:MapView"),
    ViewSpec("tensor", "Tensor", "One tensor: heat map, channels, distribution and error", "tensor_view:TensorView"),
    ViewSpec("activations", "Activations", "What flows into each layer", "activations_view:ActivationsView"),
    ViewSpec("cache", "Cache", "Which keys and values stand out in the KV cache", "cache_view:CacheView"),
    ViewSpec("group", "Quantization map", "One group of one row, down to its bits", "group_view:GroupView"),
    ViewSpec("compare", "Compare", "Two files, tensor by tensor", "compare_view:CompareView"),
)
PANEL = "remedies:RemediesPanel"  # beside every view


class InspectPage(Page):
    """Tabs over one `InspectState`; a view is made when it is first shown."""

    key = "inspect"
    title = "Inspect"
    icon = "search"

    def __init__(
        self, services: Services, parent: QWidget | None = None, made: Mapping[str, QWidget] | None = None
    ) -> None:
        super().__init__(services, parent, made)
        self.state = InspectState(services.session, self)
        self.views: dict[str, QWidget] = {}
        self._places: dict[str, int] = {}  # number of each tensor in the chooser
        self._make_parts()
        self._lay_out()
        state = self.state
        state.model_changed.connect(self._on_model)
        state.plan_changed.connect(self._show_formats)
        state.tensor_changed.connect(self._on_tensor)
        state.format_changed.connect(self._show_formats)
        state.teaching_changed.connect(self._on_teaching)
        state.opened.connect(lambda _name: self.show_view("tensor"))
        self._on_model()

    # ---- what the window and other pages ask -----------------------------------------------------------------------

    def primary(self) -> QAbstractButton | None:
        return self.empty_button if self._stack.currentWidget() is self._empty else None

    def parts(self) -> tuple[QWidget, ...]:
        return self._empty, self._head, self.tabs.tabBar()

    def shown(self) -> None:
        self._show_formats()
        QTimer.singleShot(1, self, self._make_current)  # the page is painted before
        if self.findings.isChecked():
            self._survey()

    def look_at(self, name: str) -> None:
        """Show a tensor of the open model."""
        self.state.open(name)

    def show_view(self, key: str) -> None:
        """'map', 'tensor', 'activations', 'cache', 'group' or 'compare'."""
        self.tabs.setCurrentIndex([spec.key for spec in VIEWS].index(key))
        if self.findings.isChecked() and self.width() < NARROW:
            self.findings.click()  # they stand where the view is wanted

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_parts(self) -> None:
        self.empty_button = PrimaryButton("Open a model…", self.services.shell.choose_file.emit, icon="folder-open")
        self.tensor = CalmCombo()
        self.tensor.setAccessibleName("Tensor to inspect")
        self.tensor.setToolTip("The tensor that is looked at; on the Map a click chooses it")
        self.tensor.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.tensor.setMinimumContentsLength(12)
        names = self.tensor.view()
        assert isinstance(names, QListView)
        names.setUniformItemSizes(True)  # measured one by one, ten thousand names take a tenth of a second
        self.tensor.activated.connect(lambda row: self.state.choose(self.tensor.itemText(row)))
        self.expert_word = term("expert", "Expert", "muted")
        self.expert = number_box("Expert", 0, 0, 0, hint="Which matrix of the stack of experts")
        self.expert_word.setBuddy(self.expert)
        self.expert.valueChanged.connect(self._choose_expert)
        self.format = CalmCombo()
        self.format.setAccessibleName("Format under inspection")
        self.format.setToolTip("The format whose error and levels are shown; the recipe stays as it is")
        self.format.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.format.setMinimumContentsLength(16)
        self.format.activated.connect(lambda row: self.state.choose_format(self.format.itemData(row)))
        self.findings = button("Findings", self._toggle_panel, icon="list", hint="What stands out, and remedies for it")
        self.findings.setCheckable(True)

    def _lay_out(self) -> None:
        self._empty = EmptyState(
            "No model is open yet",
            "Here you see which tensors and channels a format breaks and why, down to single bits, and what can be "
            "done about it.",
            self.empty_button,
            icon=self.icon,
        )
        self._head = QWidget()
        head = QHBoxLayout(self._head)
        head.setContentsMargins(0, 0, 0, 0)
        head.setSpacing(SPACE_2)
        word, format_word = label("Tensor", "muted"), term("format", "Format", "muted")
        word.setBuddy(self.tensor)
        format_word.setBuddy(self.format)
        head.addWidget(label("Inspect", "title"))
        head.addSpacing(SPACE_2)
        head.addWidget(word)
        head.addWidget(self.tensor, 1)
        head.addWidget(self.expert_word)
        head.addWidget(self.expert)
        head.addWidget(format_word)
        head.addWidget(self.format)
        head.addWidget(self.findings)
        self.tabs = QTabWidget()
        self.tabs.setAccessibleName("Views of the model")
        self.tabs.tabBar().setAccessibleName("Views of the model")
        self.tabs.setDocumentMode(True)  # no frame, whether or not the style sheet has come
        self.tabs.tabBar().setDrawBase(False)
        for number, spec in enumerate(VIEWS):
            self.tabs.addTab(_Holder(), spec.title)
            self.tabs.setTabToolTip(number, spec.hint)
        self.tabs.currentChanged.connect(lambda _number: self._make_current())
        self._panel_place = _Holder()
        self._panel_place.setFixedWidth(PANEL_WIDTH)
        self._panel_place.hide()
        below = QHBoxLayout()
        below.setSpacing(SPACE_4)
        below.addWidget(self.tabs, 1)
        below.addWidget(self._panel_place)
        self._loaded = QWidget()
        layout = QVBoxLayout(self._loaded)
        layout.setContentsMargins(PAGE_MARGIN, SPACE_3, PAGE_MARGIN, SPACE_3)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self._head)
        layout.addLayout(below, 1)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self._loaded)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._stack)

    # ---- views -----------------------------------------------------------------------------------------------------

    def _make_current(self) -> None:
        """Make the view in front, if somebody looks at it and it does not exist yet."""
        number = self.tabs.currentIndex()
        if not self._loaded.isVisible() or number < 0 or VIEWS[number].key in self.views:
            return
        spec = VIEWS[number]
        self.views[spec.key] = self._make(spec.made, self.tabs.widget(number))

    def _make(self, made: str, holder: QWidget | None) -> QWidget:
        assert isinstance(holder, _Holder)
        module, name = made.split(":")
        view: QWidget = getattr(import_module(f"app.pages.inspect.{module}"), name)(self.state, self.services, holder)
        for field in view.findChildren(QWidget):
            if field.acceptDrops():
                field.setAcceptDrops(False)  # a dropped file is a model to open
        self.services.themes.dress(view)
        holder.column.addWidget(view)
        return view

    def _toggle_panel(self) -> None:
        on = self.findings.isChecked()
        if on and "panel" not in self.views:
            self.views["panel"] = self._make(PANEL, self._panel_place)
        self._panel_place.setVisible(on)
        self._share_room()
        if on:
            self._survey()

    def _share_room(self) -> None:
        """View and findings beside each other, or the findings alone where that would cut off both."""
        alone = self.findings.isChecked() and self.width() < NARROW
        self._panel_place.setMinimumWidth(0 if alone else PANEL_WIDTH)
        self._panel_place.setMaximumWidth(NO_LIMIT if alone else PANEL_WIDTH)
        self.tabs.setVisible(not alone)

    def _survey(self) -> None:
        """Findings follow the Map's pass over the model, whichever view is in front."""
        if "map" not in self.views:
            self.views["map"] = self._make(VIEWS[0].made, self.tabs.widget(0))
        self.views["map"].follow(self._panel_place)  # type: ignore[attr-defined]

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._share_room()

    # ---- state -----------------------------------------------------------------------------------------------------

    def _on_model(self) -> None:
        checkpoint = self.state.checkpoint
        self._stack.setCurrentWidget(self._loaded if checkpoint is not None else self._empty)
        names = [t.name for t in checkpoint.tensors] if checkpoint is not None else []
        self._places = {name: place for place, name in enumerate(names)}
        self.tensor.setModel(QStringListModel(names, self.tensor))
        self._on_tensor()
        if self.isVisible():
            self._make_current()

    def _on_tensor(self) -> None:
        tensor = self.state.tensor
        if tensor is not None:
            self.tensor.setCurrentIndex(self._places.get(tensor.name, -1))
        experts = tensor.experts if tensor is not None else 0
        for part in (self.expert_word, self.expert):
            part.setVisible(experts > 0)
        self.expert.blockSignals(True)
        self.expert.setRange(0, max(0, experts - 1))
        self.expert.setValue(self.state.expert)
        self.expert.blockSignals(False)
        self._show_formats()

    def _choose_expert(self, number: int) -> None:
        if self.state.tensor is not None:
            self.state.choose(self.state.tensor.name, number)

    def _on_teaching(self) -> None:
        why = "Teaching data is shown; untick it to look at the model again." if self.state.teaching else ""
        for chooser in (self.tensor, self.format, self.expert):
            set_available(chooser, why)

    def _show_formats(self) -> None:
        if not self.isVisible():
            return  # it is asked again when the page is shown
        from core.formats import FORMATS  # loads the kernels, which the first picture does not wait for

        planned = self.state.planned()
        as_planned = f"as planned: {planned.format_name}" if planned is not None else "as planned"
        names = list(dict.fromkeys(f.name for f in FORMATS))
        if self.format.count() != len(names) + 1:
            self.format.clear()
            self.format.addItem(as_planned, KEEP)
            for name in names:
                self.format.addItem(name, name)
        self.format.setItemText(0, as_planned)
        self.format.setCurrentIndex(max(0, self.format.findData(self.state.format_name)))


class _Holder(QWidget):
    """The place of a view that is made later."""

    def __init__(self) -> None:
        super().__init__()
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(0, SPACE_2, 0, 0)
