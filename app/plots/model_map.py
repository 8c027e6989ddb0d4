"""The map of a model: a column a layer, a row a role, coloured by one number of each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.plots.figure import FigurePanel
from app.plots.model_canvas import MapTensor, ModelCanvas, ModelPicture
from core.units import format_count

__all__ = ["MapTensor", "ModelMap", "ModelPicture"]


class ModelMap(FigurePanel):
    """`show_map` draws and may be called again and again while numbers come in.

    tensor_pointed(name): the pointer or the keyboard's cursor is on it; tensor_opened(name): a click, or Enter.
    """

    tensor_pointed = Signal(str)
    tensor_opened = Signal(str)

    def __init__(self, name: str = "Map of the model", empty: str = "", parent: QWidget | None = None) -> None:
        self._shown: ModelPicture | None = None
        self.canvas = ModelCanvas()
        super().__init__(name, empty or "No data yet: open a model to see its tensors.", parent)
        self._figure_layout.addWidget(self.canvas)
        self.canvas.pointed.connect(self._on_pointed)
        self.canvas.opened.connect(self.tensor_opened)

    def clear(self, text: str = "") -> None:
        self._shown = None
        super().clear(text)

    def show_map(self, shown: ModelPicture, note: str = "") -> None:
        self._shown = shown
        self.canvas.set_picture(shown)
        readout = self.readout.text() if self.has_data else self.read_hint()
        self.show_figure(shown.title, (), note)
        self.readout.setText(self.canvas.words() or readout)
        self.canvas.setAccessibleName(f"{shown.title}, arrow keys move, Enter opens")

    def arranging(self, tensors: tuple[MapTensor, ...]) -> Iterator[None]:
        """Find the tensors' places before they are shown, a step for some thousand of them."""
        return self.canvas.arranging(tensors)

    def look(self, names: Iterable[str], values: Mapping[str, float | None], falling: bool) -> None:
        """Take over the values of these tensors, which `show_map` then need not name as changed."""
        self.canvas.look(names, values, falling)

    def choose(self, name: str) -> None:
        """Mark the cell of a tensor."""
        self.canvas.choose(name)

    def repaint_figure(self) -> None:
        self.canvas.forget_picture()

    def read_hint(self) -> str:
        return "Point at a cell to read it; click, or arrow keys and Enter, to open the tensor."

    def describe(self) -> str:
        shown = self._shown
        if shown is None:
            return ""
        count, worst, most = 0, "", math.nan
        for name, value in shown.values.items():
            if value is None:
                continue
            count += 1
            if math.isfinite(value) and (not worst or (value < most if shown.falling else value > most)):
                worst, most = name, value
        words = f"{shown.what} of {format_count(count)} of {format_count(len(shown.tensors))} tensors."
        if worst:
            words += f" {'Smallest' if shown.falling else 'Largest'}: {shown.words(worst)}."
        return words

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        shown = self._shown
        if shown is None:
            return ("tensor",), ()
        rows = []
        for t in shown.tensors:
            value = shown.values.get(t.name)
            rows.append((t.name, t.row, "" if t.layer is None else t.layer, "" if value is None else float(value)))
        return ("tensor", "role", "layer", shown.what), rows

    def _on_pointed(self, name: str, words: str) -> None:
        self.readout.setText(words or self.read_hint())
        self.canvas.setAccessibleDescription(words)
        if name:
            self.tensor_pointed.emit(name)
