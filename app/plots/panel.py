"""The plots that pyqtgraph draws, and the library itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.figure import NO_DATA, FigurePanel
from app.plots.series import LegendItem
from app.plots.ticks import write_numbers
from app.theme import CAPTION, Theme, current, ui_font
from core.units import format_number

if TYPE_CHECKING:
    import pyqtgraph


def load_library() -> None:
    """Import pyqtgraph, which takes half a second, before the first plot needs it. Any thread."""
    import pyqtgraph  # noqa: F401


class PlotPanel(FigurePanel):
    """Base of the plots. A plot overrides `draw`, `read_out`, `table` and `describe`, and calls `redraw` on new data.

    pyqtgraph is loaded with the first data.
    """

    x_title = ""
    y_title = ""

    def __init__(self, name: str, empty: str = NO_DATA, parent: QWidget | None = None) -> None:
        self._plot: pyqtgraph.PlotWidget | None = None
        self._painted = False
        self._styled: tuple[Theme, str, str] | None = None
        self._cursor: pyqtgraph.InfiniteLine | None = None
        super().__init__(name, empty, parent)

    # ---- for plots to override -------------------------------------------------------------------------------------

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        """Put the items on the cleared plot."""

    def read_out(self, x: float) -> str:
        """The exact values at a place of the horizontal axis, in its units."""
        return f"{format_number(x)}"

    # ---- content ---------------------------------------------------------------------------------------------------

    @property
    def prepared(self) -> bool:
        """Whether the plot itself exists already and has been painted."""
        return self._painted

    def redraw(self, title: str, legend: Sequence[LegendItem] = (), note: str = "") -> None:
        """Draw what `draw` draws, under this title. note: what is not in the plot, such as values left out."""
        self._ensure_plot()
        self.repaint_figure()
        self.show_figure(title, legend, note)

    def repaint_figure(self) -> None:
        plot = self._plot
        if plot is not None:
            plot.clear()
            self._style(plot, current())
            self.draw(plot, current())
            self._add_cursor(plot, current())

    def prepare(self) -> None:
        """Make the empty plot ahead of its first data and, when called again, paint it once out of sight."""
        if self._plot is None:
            self._style(self._ensure_plot(), current())
        elif not self._painted:
            self._painted = True
            if not self.has_data:
                brush = current().color("muted")
                self._plot.plot([0.0, 1.0, 2.0], [1.0, 2.0], stepMode="center", fillLevel=0.0, brush=brush)
                self._plot.grab()
                self._plot.clear()

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _ensure_plot(self) -> pyqtgraph.PlotWidget:
        if self._plot is None:
            import pyqtgraph

            plot = self._plot = pyqtgraph.PlotWidget(enableMenu=False)
            plot.setFrameShape(plot.Shape.NoFrame)
            plot.setAccessibleName(f"{self._name}, plot")
            plot.setFocusPolicy(
                Qt.FocusPolicy.NoFocus
            )  # the panel's description and menu are what the keyboard reaches
            plot.hideButtons()
            for side in ("left", "bottom"):
                write_numbers(plot.getAxis(side))
            plot.getAxis("bottom").setTickDensity(0.7)  # labels such as −0.0005 touch each other in a narrow plot
            plot.scene().sigMouseMoved.connect(self._on_pointer)
            self._figure_layout.insertWidget(0, plot, 1)
        return self._plot

    def _style(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        """Colours, grid and axes, where they are not those of the last time: each costs a layout of the axes."""
        styled = (theme, self.x_title, self.y_title)
        if styled == self._styled:
            return
        self._styled = styled
        plot.setBackground(theme.surface)
        plot.showGrid(x=True, y=True, alpha=0.12)
        self.style_axis(plot.getAxis("bottom"), self.x_title, theme)
        self.style_axis(plot.getAxis("left"), self.y_title, theme)

    @staticmethod
    def style_axis(axis: pyqtgraph.AxisItem, title: str, theme: Theme) -> None:
        """Give an axis its title, and the theme's colours and font."""
        axis.setPen(QPen(theme.color("hairline"), 1))
        axis.setTextPen(theme.color("muted"))
        axis.setStyle(tickFont=ui_font(CAPTION), tickLength=0)
        axis.label.setFont(ui_font(CAPTION))
        # No range: pyqtgraph works out a prefix even while it is told to use none, and then shows 800 for 0.8.
        axis.setLabel(title, siPrefixEnableRanges=((0.0, 0.0),), **{"color": theme.muted, "font-size": f"{CAPTION}px"})

    def _add_cursor(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        pen = QPen(theme.color("muted"), 1)
        pen.setCosmetic(True)
        self._cursor = pyqtgraph.InfiniteLine(angle=90, pen=pen)
        self._cursor.setVisible(False)
        plot.addItem(self._cursor, ignoreBounds=True)

    def _on_pointer(self, place: QPointF) -> None:
        if self._plot is None or self._cursor is None or not self.has_data:
            return
        inside = self._plot.getPlotItem().vb.sceneBoundingRect().contains(place)
        self._cursor.setVisible(inside)
        if not inside:
            self.readout.setText(self.read_hint())
            return
        point = self._plot.getPlotItem().vb.mapSceneToView(place)
        self._cursor.setPos(point.x())
        self.readout.setText(self.read_out(point.x()))
