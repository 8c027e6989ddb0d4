"""Activations: what a few hundred tokens give to every linear layer, across depth and channel by channel."""

from __future__ import annotations

import math
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QHBoxLayout,
    QPlainTextEdit,
    QStackedWidget,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from app.jobs.inspect_more import ACTIVATIONS_KEY, activations_work
from app.models.table import RowsModel
from app.pages.inspect.activation_rows import WIDTHS, in_words, layer_columns, layer_name
from app.pages.inspect.measuring import MeasuringView
from app.pages.inspect.narrow_table import NarrowTable
from app.pages.inspect.side_tabs import HIGH_TABS, SideTabs
from app.pages.inspect.state import InspectState
from app.pages.inspect.turns import Turns
from app.plots.activation_plots import ChannelPair, DepthMap, DepthProfile
from app.services import Services
from app.theme import SPACE_2
from app.widgets.basics import EmptyState, label
from app.widgets.calm import CalmCombo
from app.widgets.text import explain, term
from core.inspect.activations import ActivationLayer, Activations
from core.inspect.activations import DepthMap as Depth
from core.runtime.arithmetic import LLM_INT8_THRESHOLD

WIDE = 600  # px from which two pictures stand beside each other
CORNER = 660  # px from which the choices stand beside the tabs
BUNDLED, OWN, FILE = "bundled", "own", "file"
TEXT_HEIGHT = 64
HINT = "Run the model layer by layer over the text"


class ActivationsView(MeasuringView):
    """Runs the model over a text when asked, layer by layer, and shows what was found."""

    def __init__(self, state: InspectState, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(state, services, HINT, parent)
        self.found: Activations | None = None
        self._depth: Depth | None = None
        self._path: Path | None = None
        self.threshold_value = LLM_INT8_THRESHOLD
        self._make_controls()
        self._make_parts()
        self._lay_out()
        self._connect()
        self._turns = Turns(self)
        self._preparing = Turns(self)
        self._on_model()
        self._preparing.prepare((self.profile, self.pair))

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.text_kind = CalmCombo()
        self.text_kind.setAccessibleName("Text")
        self.text_kind.setToolTip("The text whose tokens the model is run over")
        for words, kind in (("Bundled text", BUNDLED), ("My own text", OWN), ("A text file…", FILE)):
            self.text_kind.addItem(words, kind)
        self.own_text = QPlainTextEdit()
        self.own_text.setPlaceholderText("Write or paste a text: a few paragraphs of what the model is used for.")
        self.own_text.setAccessibleName("My own text")
        self.own_text.setTabChangesFocus(True)
        self.own_text.setFixedHeight(TEXT_HEIGHT)
        self.own_text.hide()

    def _make_parts(self) -> None:
        self.place = CalmCombo()
        self.place.setAccessibleName("Which input")
        self.place.setToolTip("Which input of a layer the pictures show")
        self.place.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.threshold = QDoubleSpinBox()
        self.threshold.setRange(0.1, 10_000.0)
        self.threshold.setDecimals(1)
        self.threshold.setSingleStep(0.5)
        self.threshold.setValue(self.threshold_value)
        self.threshold.setAccessibleName("Threshold")
        self.threshold.setToolTip(explain("LLM.int8() threshold") or "Columns that reach it are kept in 16 bits")
        self.threshold.lineEdit().setTextMargins(SPACE_2, 0, 0, 0)
        self.summary = label("", "", wrap=True, selectable=True)
        self.summary.setAccessibleName("What was found")
        self.map = DepthMap()
        self.profile = DepthProfile()
        self.table = NarrowTable(
            RowsModel(layer_columns(lambda: self.threshold_value), explain), "Inputs of all layers", WIDTHS,
            filter_hint="Filter, such as 'down breaks'", totals=False,
        )  # fmt: skip
        self.pair = ChannelPair()

    def _lay_out(self) -> None:
        self.empty = EmptyState(
            "No activations measured yet",
            "A few hundred tokens show which channels of each layer's input stand out, and so what 8-bit activations "
            "and methods such as AWQ and SmoothQuant have to deal with.",
            self.start,
            icon="layers",
        )
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        for words, widget in (("Text", self.text_kind), ("Tokens", self.tokens)):
            word = term(words.casefold(), words, "muted")
            word.setBuddy(widget)
            head.addWidget(word)
            head.addWidget(widget)
        head.addWidget(self.again)
        head.addWidget(self.cancel)
        head.addWidget(self.progress, 1)
        head.addWidget(self.state_text, 1)
        self._choice = QWidget()
        self._choice_words: dict[QWidget, QWidget] = {}
        choice = QHBoxLayout(self._choice)
        choice.setContentsMargins(0, 0, 0, 0)
        choice.setSpacing(SPACE_2)
        fields: tuple[tuple[str, QWidget], ...] = (("Input", self.place), ("Threshold", self.threshold))
        for words, field in fields:
            word = term("LLM.int8() threshold" if field is self.threshold else words.casefold(), words, "muted")
            word.setBuddy(field)
            choice.addWidget(word)
            choice.addWidget(field)
            self._choice_words[field] = word
        self.tabs = QTabWidget()
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setStyleSheet(HIGH_TABS)
        self.tabs.setAccessibleName("Pictures of the activations")
        self.tabs.tabBar().setAccessibleName("Pictures of the activations")
        self._depth_tabs = SideTabs(self.tabs, self.map, self.profile, ("Across depth", "Profile"), WIDE)
        self._layer_tabs = SideTabs(self.tabs, self.table, self.pair, ("Layer by layer", "Channels"), WIDE)
        self.tabs.setTabToolTip(0, "Every channel in every layer, and what each layer's input reaches")
        self.tabs.setTabToolTip(1, "Which inputs break with one INT8 scale, and each one's channels beside its weights")
        shown = QWidget()
        found = QVBoxLayout(shown)
        found.setContentsMargins(0, 0, 0, 0)
        found.setSpacing(SPACE_2)
        found.addWidget(self.summary)
        self._found = found
        found.addWidget(self._choice, 0, Qt.AlignmentFlag.AlignLeft)
        found.addWidget(self.tabs, 1)
        self._stack = QStackedWidget()
        self._stack.addWidget(self.empty)
        self._stack.addWidget(shown)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addLayout(head)
        layout.addWidget(self.own_text)
        layout.addWidget(self.error)
        layout.addWidget(self._stack, 1)

    def _connect(self) -> None:
        self._state.model_changed.connect(self._on_model)
        self._state.tensor_changed.connect(self._on_tensor)
        self.text_kind.activated.connect(lambda _row: self._on_text_kind())
        self.place.activated.connect(lambda _row: self._show_place())
        self.tabs.currentChanged.connect(lambda _tab: self._show_choice())
        self.threshold.valueChanged.connect(self._set_threshold)
        self.profile.threshold_moved.connect(self._on_line)
        self.map.cell_chosen.connect(self._on_cell)
        self.table.row_chosen.connect(self._show_layer)
        self.table.row_activated.connect(self._open_layer)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Measure the activations of the open model over the chosen text."""
        checkpoint = self._state.checkpoint
        if checkpoint is None or self.running:
            return
        kind = self.text_kind.currentData()
        if kind == OWN and not self.own_text.toPlainText().strip():
            self.error.show_text("The text is empty.", "Write a few sentences, or choose the bundled text.")
            self.own_text.setFocus(Qt.FocusReason.OtherFocusReason)
            return
        text = self.own_text.toPlainText() if kind == OWN else None
        path = self._path if kind == FILE else None
        work = activations_work(checkpoint, text, self.tokens.value(), path)
        self._measure("Measure activations", work, ACTIVATIONS_KEY)

    def _on_text_kind(self) -> None:
        kind = self.text_kind.currentData()
        self.own_text.setVisible(kind == OWN)
        if kind == FILE:
            name, _ = QFileDialog.getOpenFileName(self, "Choose a text file", "", "Text (*.txt *.md *.jsonl);;All (*)")
            self._path = Path(name) if name else self._path
            if self._path is None:
                self.text_kind.setCurrentIndex(0)
        shown = str(self._path) if kind == FILE and self._path is not None else ""
        self.text_kind.setToolTip(shown or "The text whose tokens the model is run over")

    # ---- what was found --------------------------------------------------------------------------------------------

    def show_found(self, found: Activations) -> None:
        """Show a measurement of the open model, one part a turn."""
        self.found = found
        self._set_running(False)
        self.place.clear()
        for place in found.places:
            if any(a.place is place and a.layer is not None for a in found.layers):
                words = place.value
                self.place.addItem(words[:1].upper() + words[1:], place)
        worst = next((a.place for a in found.breaking() if a.layer is not None), None)
        self.place.setCurrentIndex(max(0, self.place.findData(worst)))
        self._show_summary()
        self._stack.setCurrentIndex(1)
        self._turns.do(
            (lambda: self.table.model.set_rows(found.layers), self._show_map, self._show_profile, self._on_tensor)
        )

    def _show_summary(self) -> None:
        if self.found is not None:
            self.summary.setText(in_words(self.found, self.threshold_value))

    def _show_choice(self) -> None:
        """The table has the inputs of all places: which one the other tab shows would be misunderstood there."""
        on = self._depth_tabs.in_front()
        for part in (self.place, self._choice_words[self.place]):
            part.setVisible(on)

    def _show_place(self) -> None:
        self._turns.do((self._show_map, self._show_profile))

    def _show_map(self) -> None:
        place = self.place.currentData()
        depth = self._depth = self.found.depth_map(place) if self.found is not None and place is not None else None
        if depth is None or not depth.values.size:
            self.map.clear("No token reached this input." if depth is not None else "There are no decoder layers here.")
            return
        self.map.show_values(f"Across depth: {place.value}", depth.values, depth.layers)

    def _show_profile(self) -> None:
        depth = self._depth
        if depth is None or not depth.values.size:
            self.profile.clear(
                "No token reached this input." if depth is not None else "There are no decoder layers here."
            )
            return
        shares = depth.shares(self.threshold_value)
        title = f"Layers: {self.place.currentData().value}"
        self.profile.show_values(title, depth.layers, depth.maxima, depth.rms, shares, self.threshold_value)

    def _on_line(self, value: float) -> None:
        """The line was dragged; the number field follows, and with it everything else."""
        self.threshold.setValue(min(max(value, self.threshold.minimum()), self.threshold.maximum()))

    def _set_threshold(self, value: float) -> None:
        if math.isclose(value, self.threshold_value, rel_tol=1e-9):
            return
        self.threshold_value = value
        self._show_summary()
        if self._depth is not None and self.profile.has_data:
            self.profile.set_threshold(value, self._depth.shares(value))
        model = self.table.model
        model.replace_rows(dict(enumerate(model.rows())))

    def _on_cell(self, layer: int, channel: int) -> None:
        """A place of the map: show that layer's channels, and choose the channel of its weights."""
        if self.found is None or self._depth is None:
            return
        place = self.place.currentData()
        chosen = next((n for n, a in enumerate(self.found.layers) if a.layer == layer and a.place is place), None)
        if chosen is None:
            return
        self.tabs.setCurrentWidget(self._layer_tabs.together)
        self._select(chosen)
        self._state.choose_channel("input", channel)

    def _select(self, number: int) -> None:
        at = self.table.model.position(number)
        if at is not None:
            self.table.view.selectRow(at)

    def _show_layer(self, layer: ActivationLayer) -> None:
        if not layer.tokens:
            self.pair.clear("No token reached this expert.")
            return
        self.pair.show_values(f"Channels: {layer_name(layer)}", layer.max, layer.weight_max)

    def _open_layer(self, layer: ActivationLayer) -> None:
        """Enter or a double click: the weights of this input in the Tensor view."""
        if layer.tensors:
            self._state.open(layer.tensors[0])

    # ---- state -----------------------------------------------------------------------------------------------------

    def _on_model(self) -> None:
        """Another model, or none: nothing of the one before stays."""
        self._forget(ACTIVATIONS_KEY)
        self._turns.stop()
        self._depth = None
        self.table.model.set_rows(())
        for plot in (self.map, self.profile, self.pair):
            plot.clear()
        self._stack.setCurrentWidget(self.empty)

    def _on_tensor(self) -> None:
        """The input of the chosen tensor, if it was measured."""
        tensor = self._state.tensor
        if self.found is None or tensor is None:
            return
        mine = next((n for n, a in enumerate(self.found.layers) if tensor.name in a.tensors), None)
        if mine is not None:
            self._select(mine)

    # ---- Qt --------------------------------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The choice of input and threshold stands beside the tabs, or above them where there is no room."""
        super().resizeEvent(event)
        if self.width() >= CORNER:
            self.tabs.setCornerWidget(self._choice)
        elif self.tabs.cornerWidget() is self._choice:
            self.tabs.setCornerWidget(None)  # type: ignore[arg-type]
            self._found.insertWidget(1, self._choice, 0, Qt.AlignmentFlag.AlignLeft)
        self._choice.show()
