"""The error histogram: what it says in words, in its read-out and in files; empty, non-finite and themed."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtGui import QGuiApplication, QImage
from PySide6.QtWidgets import QFileDialog, QPushButton

from app.plots import ErrorHistogram, HistogramSeries
from app.services import Services
from app.theme import DARK, LIGHT
from core.units import format_number

TITLE = "Error of layers.0.mlp.down_proj"


def series(
    label: str, values: np.ndarray, detail: str = "", nonfinite: int = 0, source: bool = False
) -> HistogramSeries:
    reach = float(np.abs(values).max())
    counts, edges = np.histogram(values, 61, (-reach, reach))
    return HistogramSeries(label, edges.tolist(), counts.tolist(), detail, nonfinite, source)


@pytest.fixture
def plot(services: Services, qtbot) -> ErrorHistogram:  # type: ignore[no-untyped-def]
    made = ErrorHistogram()
    qtbot.addWidget(made)
    made.resize(560, 340)
    made.show()
    return made


@pytest.fixture
def three() -> list[HistogramSeries]:
    rng = np.random.default_rng(7)
    return [
        series("source", rng.normal(0, 0.3, 5000), source=True, nonfinite=3),
        series("Q4_K", rng.uniform(-0.02, 0.02, 4000), "SNR 20.6 dB"),
        series("Q8_0", rng.normal(0, 0.001, 4000), "SNR 44.1 dB"),
    ]


def test_says_so_while_there_is_no_data(plot: ErrorHistogram) -> None:
    assert not plot.has_data
    assert "No data yet" in plot.accessibleDescription()
    menu = plot.findChild(QPushButton)
    assert menu is not None
    assert not menu.isEnabled()
    assert menu.toolTip()


def test_description_holds_the_key_numbers(plot: ErrorHistogram, three: list[HistogramSeries]) -> None:
    plot.set_series(TITLE, three)
    assert plot.accessibleName() == TITLE == plot.title.text()
    words = plot.accessibleDescription().replace("\u202f", "")
    for part in (
        "SNR 20.6 dB",
        "4000 errors",
        "5000 weights",
        f"between {format_number(three[1].edges[0])} and",
        "3 values are not finite",
    ):
        assert part in words
    assert "3 values" in plot.note.text()


def test_axes_name_their_units(plot: ErrorHistogram) -> None:
    assert "weight units" in plot.x_title
    assert "log" in plot.y_title


def test_series_differ_in_dash_and_are_labelled(plot: ErrorHistogram, three: list[HistogramSeries]) -> None:
    plot.set_series(TITLE, three)
    looks = [curve.look for curve in plot._curves]
    errors = [look for look in looks if look.series >= 0]
    assert len({look.dash for look in errors}) == len(errors) == 2
    assert [look.label for look in looks] == ["source (top axis)", "Q4_K: SNR 20.6 dB", "Q8_0: SNR 44.1 dB"]


def test_read_out_gives_the_exact_count(plot: ErrorHistogram) -> None:
    one = HistogramSeries("Q4_0", [-2.0, -1.0, 0.0, 1.0, 2.0], [1, 5, 12345, 2])
    plot.set_series(TITLE, [one])
    assert "12\u202f345 values in 0 … 1" in plot.read_out(0.5)
    assert "5 values in −1 … 0" in plot.read_out(-0.5)
    assert plot.read_out(9.0) == "No values at 9"


def test_source_has_a_scale_of_its_own(plot: ErrorHistogram, three: list[HistogramSeries]) -> None:
    """Weights reach fifteen times as far as the errors: both fill the width, and the upper axis tells the weights."""
    plot.set_series(TITLE, three)
    widget = plot._plot
    source, error = three[0], three[1]
    reach = max(error.edges)
    left, right = widget.getPlotItem().vb.viewRange()[0]
    assert right == pytest.approx(reach, rel=0.1)
    assert left == pytest.approx(-reach, rel=0.1)
    drawn = [np.abs(item.xData).max() for item in widget.getPlotItem().listDataItems()]
    assert drawn[0] == pytest.approx(reach, rel=1e-6), "the source is as wide as the errors"
    axis = widget.getAxis("top")
    assert axis.isVisible()
    assert reach * axis.scale == pytest.approx(max(source.edges), rel=1e-6)
    place = int(np.argmax(source.counts))
    middle = (source.edges[place] + source.edges[place + 1]) / 2
    assert f"source: {source.counts[place]} values" in plot.read_out(middle / axis.scale)
    plot.set_series(TITLE, [error])
    assert not widget.getAxis("top").isVisible()


def test_picture_bears_the_title(plot: ErrorHistogram, three: list[HistogramSeries]) -> None:
    plot.set_series(TITLE, three)

    def ink() -> int:
        image = plot.picture().toImage()
        return sum(image.pixelColor(x, y).lightness() < 128 for x in range(400) for y in range(36))

    with_title = ink()
    plot.title.setText("")
    assert with_title > ink() + 200


def test_pointer_shows_the_value_under_it(plot: ErrorHistogram, three: list[HistogramSeries], qtbot) -> None:  # type: ignore[no-untyped-def]
    plot.set_series(TITLE, three)
    qtbot.wait(20)
    assert "Point at" in plot.readout.text()
    plot._on_pointer(plot._plot.getPlotItem().vb.sceneBoundingRect().center())
    assert "Q4_K: " in plot.readout.text()
    assert " values in " in plot.readout.text()


def test_csv_holds_every_bin_with_its_exact_edges(plot: ErrorHistogram, three: list[HistogramSeries]) -> None:
    plot.set_series(TITLE, three)
    rows = list(csv.DictReader(io.StringIO(plot.csv())))
    mine = [row for row in rows if row["series"] == "Q8_0"]
    assert [int(row["count"]) for row in mine] == list(three[2].counts)
    assert [float(row["from"]) for row in mine] == list(three[2].edges[:-1])
    widths = [float(row["to"]) - float(row["from"]) for row in mine]
    assert sum(float(row["density"]) * w for row, w in zip(mine, widths, strict=True)) == pytest.approx(1)


def test_saves_picture_and_table(
    plot: ErrorHistogram, three: list[HistogramSeries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot.set_series(TITLE, three)
    for suffix in (".png", ".csv"):
        path = tmp_path / f"plot{suffix}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_args, path=path: (str(path), ""))
        plot._save(suffix)
    assert QImage(str(tmp_path / "plot.png")).width() >= 800
    assert (tmp_path / "plot.csv").read_text(encoding="utf-8") == plot.csv()
    QGuiApplication.clipboard().setText("")


def test_exact_reconstruction_is_said(plot: ErrorHistogram) -> None:
    plot.set_series(TITLE, [HistogramSeries("F32", [-1.0, 0.0, 1.0], [0, 0])])
    assert not plot.has_data
    assert "exactly" in plot.accessibleDescription()
    source = HistogramSeries("source", [-1.0, 0.0, 1.0], [3, 4], source=True)
    plot.set_series(TITLE, [HistogramSeries("F32", [-1.0, 0.0, 1.0], [0, 0]), source])
    assert not plot.has_data, "a source without an error beside it would stand on the error's axis"


def test_one_bin_and_one_value_can_be_drawn(plot: ErrorHistogram, qtbot) -> None:  # type: ignore[no-untyped-def]
    plot.set_series(TITLE, [HistogramSeries("Q8_0", [-0.5, 0.5], [1])])
    assert not plot.note.text()
    plot.set_series(TITLE, [HistogramSeries("Q8_0", [-0.5, 0.5], [1500], values=6000)])
    assert plot.note.text().replace("\u202f", ",") == "Drawn from 1,500 of 6,000 values; SNR is of all."
    qtbot.wait(10)
    assert plot.has_data


def test_clearing_forgets_the_last_tensor(plot: ErrorHistogram, three: list[HistogramSeries]) -> None:
    plot.set_series(TITLE, three)
    plot.clear()
    assert not plot.has_data
    assert TITLE not in plot.accessibleName()
    assert not plot.note.isVisible()


def test_colours_follow_the_theme(
    services: Services, plot: ErrorHistogram, three: list[HistogramSeries], qtbot
) -> None:  # type: ignore[no-untyped-def]
    for theme in (LIGHT, DARK, LIGHT):
        services.themes.set_mode(theme.name)
        plot.set_series(TITLE, three)
        qtbot.wait(30)
        image = plot.picture().toImage()
        assert image.pixelColor(image.width() - 3, 60).name().upper() == theme.surface
        services.themes.set_mode("dark" if theme is LIGHT else "light")
        qtbot.wait(30)
        image = plot.picture().toImage()
        assert image.pixelColor(image.width() - 3, 60).name().upper() == services.themes.theme.surface
