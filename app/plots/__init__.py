"""Plots. The only place that imports pyqtgraph, and only once there is something to draw."""

from app.plots.histogram import ErrorHistogram, HistogramSeries
from app.plots.panel import PlotPanel

__all__ = ["ErrorHistogram", "HistogramSeries", "PlotPanel"]
