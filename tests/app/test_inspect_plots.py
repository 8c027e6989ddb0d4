"""What Inspect draws with: colours, heat map, profiles, distribution and the map of a model, without any model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from color_science import VISIONS, ciede2000, lab
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QLabel

from app.plots.colors import DAMAGED, ERRORS, SHADES, WEIGHTS, Scale, scale_for, shades
from app.plots.distribution import Distribution, DistributionPlot, Levels
from app.plots.heat_map import CellsMatrix, HeatMap, HeatPicture
from app.plots.heat_view import HeatView
from app.plots.model_map import MapTensor, ModelMap, ModelPicture
from app.plots.profiles import Profile, ProfilePlot
from app.services import Services
from app.theme import LIGHT
from app.widgets.flow import FlowRow

pytestmark = pytest.mark.gui
ROWS, COLUMNS = 300, 700
OUTLIER = 123, 457


class Values:
    """A matrix whose cells are computed from all values each time: what a picture must show."""

    def __init__(self, values: np.ndarray) -> None:
        self.array = values
        self.rows, self.columns = values.shape

    def pooled(self, rows: tuple[int, int], columns: tuple[int, int], height: int, width: int) -> np.ndarray:
        window = np.abs(self.array[rows[0] : rows[1], columns[0] : columns[1]])
        down, over = (np.arange(n) * size // n for n, size in zip((height, width), window.shape, strict=True))
        return np.maximum.reduceat(np.maximum.reduceat(window, down, 0), over, 1)

    def values(self, rows: tuple[int, int], columns: tuple[int, int]) -> np.ndarray:
        return self.array[rows[0] : rows[1], columns[0] : columns[1]]


@pytest.fixture
def values() -> np.ndarray:
    made = np.random.default_rng(3).normal(0, 0.02, (ROWS, COLUMNS)).astype(np.float32)
    made[OUTLIER] = -1.5
    return made


@pytest.fixture
def heat(services: Services, qtbot, values: np.ndarray) -> HeatMap:  # type: ignore[no-untyped-def]
    made = HeatMap()
    qtbot.addWidget(made)
    made.resize(560, 320)
    made.show()
    made.show_picture(HeatPicture("|w| of layers.0.mlp.down_proj", Values(values)))
    return made


def color_at(heat: HeatMap, row: int, column: int) -> QColor:
    canvas = heat.canvas
    return canvas.grab().toImage().pixelColor(int(canvas._x(column + 0.5)), int(canvas._y(row + 0.5)))


# ---- colours -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [WEIGHTS, ERRORS])
@pytest.mark.parametrize("vision", VISIONS)
def test_maps_keep_their_order_for_every_vision(name: str, vision: str) -> None:
    """Lightness rises all the way, and steps that are equally far apart look equally far apart."""
    table = ["#{:02X}{:02X}{:02X}".format(*c) for c in shades(name)]
    light = np.array([lab(color, vision)[0] for color in table])
    assert (np.diff(light[::4]) > 0).all()
    assert light[-1] - light[0] > 65
    steps = [ciede2000(lab(a, vision), lab(b, vision)) for a, b in zip(table[:-16:16], table[16::16], strict=False)]
    assert min(steps) > 2.0, "a sixteenth of the scale must be seen"


@pytest.mark.parametrize("vision", VISIONS)
def test_red_of_damaged_values_is_told_from_every_magnitude(vision: str) -> None:
    red = lab(DAMAGED.name(), vision)
    for name in (WEIGHTS, ERRORS):
        assert min(ciede2000(red, lab("#{:02X}{:02X}{:02X}".format(*c), vision)) for c in shades(name)[::6]) > 13.5


def test_scale_covers_its_ends_and_never_drops_a_value() -> None:
    scale = Scale(0.01, 10.0)
    found = scale.indices(np.array([0.0, 0.001, 0.01, 10.0, 100.0, math.inf, math.nan], np.float32))
    assert found.tolist() == [0, 0, 0, SHADES - 1, SHADES - 1, 254, 254]
    falling = Scale(0.0, 50.0, log=False, falling=True)
    assert falling.indices(np.array([0.0, 50.0])).tolist() == [SHADES - 1, 0]
    assert scale_for(np.zeros(4, np.float32)).low < scale_for(np.zeros(4, np.float32)).high
    assert scale_for(np.full(4, 0.25, np.float32)).high == 0.25


# ---- which part is shown -----------------------------------------------------------------------------------------


@given(
    rows=st.integers(1, 5000), columns=st.integers(1, 20000),
    moves=st.lists(st.tuples(st.floats(0.2, 8), st.floats(0, 1), st.floats(0, 1)), max_size=12),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_view_stays_inside_and_cells_cover_it(rows: int, columns: int, moves: list[tuple[float, ...]]) -> None:
    px = (420.0, 260.0)
    view = HeatView.whole(rows, columns)
    for factor, down, over in moves:
        view = view.zoomed(factor, view.top + down * view.height, view.left + over * view.width, px)
        view = view.moved(view.height * (down - 0.5), view.width * (over - 0.5))
        assert -1e-6 <= view.top < view.bottom <= rows + 1e-6
        assert -1e-6 <= view.left < view.right <= columns + 1e-6
        cells = view.cells(px)
        assert cells.rows[0] <= view.top + 1e-6
        assert cells.rows[1] >= min(view.bottom, rows) - 1e-6
        assert cells.columns[0] <= view.left + 1e-6
        assert cells.columns[1] >= min(view.right, columns) - 1e-6
        assert cells.height <= px[1] / 1.5 + 2
        assert cells.width <= px[0] / 1.5 + 2
        assert (cells.rows[1] - cells.rows[0]) <= cells.height * cells.row_step


def test_zoom_keeps_the_place_under_the_pointer() -> None:
    view = HeatView.whole(4096, 14336).zoomed(5.0, 1000.0, 3000.0, (400.0, 300.0))
    before = (1000.0 - view.top) / view.height, (3000.0 - view.left) / view.width
    closer = view.zoomed(3.0, 1000.0, 3000.0, (400.0, 300.0))
    after = (1000.0 - closer.top) / closer.height, (3000.0 - closer.left) / closer.width
    assert after == pytest.approx(before)
    rows_only = view.zoomed(3.0, 1000.0, 3000.0, (400.0, 300.0), "rows")
    assert (rows_only.left, rows_only.right) == (view.left, view.right)


# ---- heat map ----------------------------------------------------------------------------------------------------


def test_one_outlier_is_seen_at_every_zoom(heat: HeatMap) -> None:
    brightest = QColor(*(int(c) for c in shades(WEIGHTS)[-1]))
    canvas = heat.canvas
    for _ in range(9):
        assert canvas.largest()[2] == 1.5
        row, column, _ = canvas.largest()
        step = canvas.cells_shown()[0]
        assert step is not None
        assert row <= OUTLIER[0] < row + step.row_step
        assert column <= OUTLIER[1] < column + step.column_step
        image = canvas.grab().toImage()
        area = canvas.area()
        seen = any(
            image.pixelColor(x, y) == brightest
            for x in range(int(area.left()), int(area.right()))
            for y in range(int(canvas._y(OUTLIER[0])) - 4, int(canvas._y(OUTLIER[0])) + 5)
            if area.contains(x, y)
        )
        assert seen
        canvas.zoom(1.7, QPointF(canvas._x(OUTLIER[1] + 0.5), canvas._y(OUTLIER[0] + 0.5)))


def test_single_values_are_written_in_their_cells(heat: HeatMap, values: np.ndarray) -> None:
    canvas = heat.canvas
    for _ in range(30):
        canvas.zoom(1.6, QPointF(canvas._x(OUTLIER[1] + 0.5), canvas._y(OUTLIER[0] + 0.5)))
    cells, _ = canvas.cells_shown()
    assert cells is not None
    assert cells.single
    assert canvas.words_at(*OUTLIER) == "Row 123, column 457: −1.5"
    other = OUTLIER[0], OUTLIER[1] + 1
    assert f"{values[other]:.5g}".replace("-", "−") in canvas.words_at(*other)
    box = (
        canvas.grab()
        .toImage()
        .copy(int(canvas._x(OUTLIER[1])), int(canvas._y(OUTLIER[0])), int(canvas._x(1) - canvas._x(0)), 20)
    )
    assert len({box.pixel(x, y) for x in range(box.width()) for y in range(box.height())}) > 5, "no number in the cell"


def test_wheel_zooms_about_the_pointer_and_a_drag_moves(heat: HeatMap, qtbot) -> None:  # type: ignore[no-untyped-def]
    from PySide6.QtCore import QPoint as Point
    from PySide6.QtGui import QWheelEvent
    from PySide6.QtWidgets import QApplication

    canvas = heat.canvas
    at = QPointF(canvas.area().center())
    before = canvas._place(at)
    event = QWheelEvent(
        at, QPointF(canvas.mapToGlobal(at.toPoint())), Point(), Point(0, 480), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(canvas, event)
    assert not canvas.view.is_whole
    assert canvas._place(at) == pytest.approx(before)
    left = canvas.view.left
    start = at.toPoint()
    qtbot.mousePress(canvas, Qt.MouseButton.LeftButton, pos=start)
    for moved in (10, 30, 50):
        qtbot.mouseMove(canvas, start + QPoint(moved, 0))
    qtbot.mouseRelease(canvas, Qt.MouseButton.LeftButton, pos=start + QPoint(50, 0))
    assert canvas.view.left < left


def test_keyboard_moves_a_cursor_tells_it_and_chooses(heat: HeatMap, qtbot) -> None:  # type: ignore[no-untyped-def]
    canvas, chosen = heat.canvas, []
    heat.cell_chosen.connect(lambda row, column: chosen.append((row, column)))
    canvas.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(canvas.hasFocus)
    assert "1.5" in canvas.accessibleDescription(), "the cursor starts at the largest weight"
    row, column = canvas._cursor
    qtbot.keyClick(canvas, Qt.Key.Key_Right)
    qtbot.keyClick(canvas, Qt.Key.Key_Down)
    assert canvas._cursor > (row, column)
    assert heat.readout.text().startswith("Rows ")
    for _ in range(12):
        qtbot.keyClick(canvas, Qt.Key.Key_Plus)
    assert canvas.cells_shown()[0].single
    qtbot.keyClick(canvas, Qt.Key.Key_Return)
    assert chosen == [canvas._cursor]
    qtbot.keyClick(canvas, Qt.Key.Key_0)
    assert canvas.view.is_whole


def test_a_click_chooses_row_and_column(heat: HeatMap, qtbot) -> None:  # type: ignore[no-untyped-def]
    canvas = heat.canvas
    place = QPoint(int(canvas._x(200.5)), int(canvas._y(50.5)))
    with qtbot.waitSignal(heat.cell_chosen) as signal:
        qtbot.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=place)
    assert signal.args == pytest.approx([50, 200], abs=2)


def test_next_picture_of_the_same_shape_keeps_the_view(heat: HeatMap, values: np.ndarray) -> None:
    heat.canvas.zoom(6.0)
    view = heat.canvas.view
    heat.show_picture(HeatPicture("|error|", Values(values / 50), "|error|", ERRORS))
    assert heat.canvas.view == view
    heat.show_picture(HeatPicture("other", Values(values[:, :100])))
    assert heat.canvas.view.is_whole


def test_damaged_values_are_red_and_said(heat: HeatMap, values: np.ndarray) -> None:
    values[40:44, 100:110] = np.nan
    values[200, 300] = np.inf
    heat.show_picture(HeatPicture("|w|", Values(values), note="41 values are not finite."))
    assert color_at(heat, 42, 105) == DAMAGED
    assert color_at(heat, 200, 300) == DAMAGED
    assert "not a number" in heat.canvas.words_at(42, 105)
    assert "41 values" in heat.accessibleDescription()


def test_cells_not_looked_at_yet_are_neutral() -> None:
    cells = np.array([[0.5, np.nan], [np.nan, np.nan], [0.25, 2.0]], np.float32)
    matrix = CellsMatrix(cells, np.array([0, 10, 20, 25]), np.array([0, 50, 100]))
    assert (matrix.rows, matrix.columns) == (25, 100)
    whole = matrix.pooled((0, 25), (0, 100), 5, 4)
    assert whole[0].tolist()[:2] == [0.5, 0.5]
    assert np.isnan(whole[2:4]).all()
    assert whole[4].tolist() == [0.25, 0.25, 2.0, 2.0]
    assert matrix.pooled((0, 25), (0, 100), 1, 1)[0, 0] == 2.0
    assert matrix.values((0, 1), (0, 1))[0, 0] == 0.5


def test_pan_and_zoom_paint_in_a_thirtieth_of_a_second(heat: HeatMap) -> None:
    heat.resize(900, 620)
    canvas = heat.canvas
    canvas.repaint()
    frames = []
    for number in range(40):
        begin = time.thread_time()
        canvas.zoom(1.2 if number < 20 else 1 / 1.2)
        canvas._set_view(canvas.view.moved(0.7, 3.1))
        canvas.repaint()
        frames.append(time.thread_time() - begin)
    assert sorted(frames)[len(frames) // 2] < 1 / 30


def test_picture_and_values_can_be_taken_along(heat: HeatMap, tmp_path: Path) -> None:
    for suffix in (".png", ".svg", ".csv"):
        heat.save(tmp_path / f"heat{suffix}")
    assert QImage(str(tmp_path / "heat.png")).width() > 800
    assert QSvgRenderer(str(tmp_path / "heat.svg")).isValid()
    lines = (tmp_path / "heat.csv").read_text(encoding="utf-8").splitlines()
    cells, _ = heat.canvas.cells_shown()
    assert cells is not None
    assert len(lines) == 1 + cells.width * cells.height
    assert lines[0].endswith("largest |w|")
    assert max(float(line.rsplit(",", 1)[1]) for line in lines[1:]) == 1.5


# ---- profiles ----------------------------------------------------------------------------------------------------


@pytest.fixture
def profile(services: Services, qtbot) -> ProfilePlot:  # type: ignore[no-untyped-def]
    made = ProfilePlot()
    qtbot.addWidget(made)
    made.resize(560, 260)
    made.show()
    largest = np.full(400, 0.1, np.float32)
    largest[77] = 3.0
    made.show_profile(
        Profile(
            "Input channels of x", "input", "|w|", (("max", largest), ("RMS", largest / 4)), (77,), 0.6, "6 × median"
        )
    )
    return made


def test_profile_tells_its_outlier(profile: ProfilePlot) -> None:
    words = profile.accessibleDescription()
    assert "400 input channels" in words
    assert "3 in channel 77" in words
    assert "1 channels are at or above 6 × median" in words
    assert profile.read_out(77.2).startswith("channel 77 · max 3")
    assert len(profile.table()[1]) == 400
    assert profile.x_title == "Input channel (column)"


def test_click_near_an_outlier_chooses_it(profile: ProfilePlot, qtbot) -> None:  # type: ignore[no-untyped-def]
    qtbot.wait(30)

    class Click:
        @staticmethod
        def scenePos() -> QPointF:
            return profile._plot.getPlotItem().vb.mapViewToScene(QPointF(77.6, -0.5))

    with qtbot.waitSignal(profile.channel_chosen) as signal:
        profile._on_click(Click())
    assert signal.args == [77]
    profile.choose(77)
    assert profile._line.isVisible()
    assert profile._line.value() == 77


# ---- distribution ------------------------------------------------------------------------------------------------


def test_distribution_counts_before_and_after_and_levels(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    plot = DistributionPlot()
    qtbot.addWidget(plot)
    plot.resize(520, 280)
    plot.show()
    edges = 2.0 ** np.arange(-10, 3)
    before = np.array([1, 3, 10, 30, 100, 300, 900, 500, 100, 10, 2, 0])
    after = np.zeros(12, np.int64)
    after[6:9] = (700, 300, 50)
    levels = Levels("levels: typical", np.array([0.0, 0.25, 0.5], np.float32), np.array([True, True, False]))
    plot.show_distribution(Distribution("D", edges, before, 44, 2, after, "Q4_0", 950, 0.5, (levels,)))
    assert "2 values are not finite" in plot.note.text()
    assert "2.2 % of the weights" in plot.readout.text()
    assert "after Q4_0" in plot.readout.text()
    at = plot.read_out(float(np.log10(0.3)))
    assert "|w| in 0.25 … 0.5" in at
    assert "about 50" not in at
    assert "1 levels, 1 used" in at
    assert "levels: typical: 2 of 3 are used." in plot.accessibleDescription()
    rows = plot.table()[1]
    assert [row[2] for row in rows] == [1, 3, 10, 30, 100, 300, 900, 500, 100, 10, 2]
    plot.show_distribution(Distribution("D", edges, np.zeros(12, np.int64), 44))
    assert not plot.has_data


# ---- the map of a model ------------------------------------------------------------------------------------------


@pytest.fixture
def model_map(services: Services, qtbot) -> ModelMap:  # type: ignore[no-untyped-def]
    made = ModelMap()
    qtbot.addWidget(made)
    made.resize(640, 260)
    made.show()
    return made


def show(model_map: ModelMap, known: dict[str, float | None], **more: Any) -> None:
    tensors = [MapTensor("embed", "embedding", None)]
    tensors += [MapTensor(f"{i}.down", "feed-forward down", i) for i in range(12)]
    tensors += [MapTensor(f"{i}.expert.{e}", "experts", i) for i in range(12) for e in range(4)]
    words: Callable[[str], str] = lambda name: f"{name}: {known.get(name)}"  # noqa: E731
    model_map.show_map(ModelPicture("Outlier ratio: m", "outlier ratio", tuple(tensors), known, words, **more))


def test_map_fills_while_numbers_come_in(model_map: ModelMap) -> None:
    show(model_map, {})
    canvas = model_map.canvas
    box = canvas._box(1, 4).center().toPoint()
    assert canvas.grab().toImage().pixelColor(box) == LIGHT.color("sunken")
    show(model_map, {"3.down": 20.0, "4.down": 2.0, "embed": None})
    assert canvas.grab().toImage().pixelColor(box) == QColor(*(int(c) for c in shades(WEIGHTS)[-1]))
    assert "of 2 of 61 tensors" in model_map.accessibleDescription()
    assert "Largest: 3.down: 20.0" in model_map.accessibleDescription()
    assert len(model_map.table()[1]) == 61


def test_experts_share_a_cell_with_the_most_striking_in_front(model_map: ModelMap, qtbot) -> None:  # type: ignore[no-untyped-def]
    show(model_map, {"5.expert.0": 2.0, "5.expert.2": 9.0, "1.expert.1": 1.0})
    canvas = model_map.canvas
    place = canvas._box(2, 6).center().toPoint()
    qtbot.mouseMove(canvas, place)
    canvas._tell((2, 6))
    assert model_map.readout.text() == "4 tensors, the most striking: 5.expert.2: 9.0"
    with qtbot.waitSignal(model_map.tensor_opened) as signal:
        qtbot.mouseClick(canvas, Qt.MouseButton.LeftButton, pos=place)
    assert signal.args == ["5.expert.2"]


def test_small_is_bright_where_small_is_bad(model_map: ModelMap) -> None:
    show(model_map, {"0.down": 10.0, "1.down": 50.0, "2.down": math.inf}, log=False, falling=True)
    image = model_map.canvas.grab().toImage()
    light = [image.pixelColor(model_map.canvas._box(1, c).center().toPoint()).lightnessF() for c in (1, 2, 3)]
    assert light[0] > light[1] == light[2]


def test_map_is_walked_by_keyboard(model_map: ModelMap, qtbot) -> None:  # type: ignore[no-untyped-def]
    show(model_map, {"0.down": 10.0, "1.down": 50.0})
    canvas = model_map.canvas
    model_map.choose("0.down")
    canvas.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(canvas.hasFocus)
    assert model_map.readout.text() == "0.down: 10.0"
    qtbot.keyClick(canvas, Qt.Key.Key_Right)
    assert canvas.accessibleDescription() == "1.down: 50.0"
    qtbot.keyClick(canvas, Qt.Key.Key_Up)
    assert canvas.accessibleDescription() == "embed: None"
    qtbot.keyClick(canvas, Qt.Key.Key_Down)
    with qtbot.waitSignal(model_map.tensor_opened) as signal:
        qtbot.keyClick(canvas, Qt.Key.Key_Return)
    assert signal.args == ["0.down"]


# ---- legends -----------------------------------------------------------------------------------------------------


def test_a_row_of_parts_breaks_its_line(services: Services, qtbot) -> None:  # type: ignore[no-untyped-def]
    row = FlowRow()
    qtbot.addWidget(row)
    row.resize(1000, 10)
    row.set_parts([QLabel("a rather long part of a legend") for _ in range(4)])
    row.show()
    one = row.height()
    row.resize(400, row.height())
    qtbot.waitUntil(lambda: row.height() > 1.5 * one)
    assert all(part.x() + part.width() <= 400 for part in row.findChildren(QLabel))


def test_every_axis_and_colour_bar_writes_numbers_in_one_style(qtbot) -> None:  # type: ignore[no-untyped-def]
    from app.plots.color_bar import short
    from app.plots.group_picture import GroupPicture
    from app.plots.ticks import linear_labels, powers_of_ten

    assert [short(v) for v in (2412.0, 0.05, 1e-7, -3.5)] == ["2\u202f400", "0.05", "10⁻⁷", "−3.5"]
    assert linear_labels([-1000.0, 0.0, 2000.0], 1000.0) == ["−1\u202f000", "0", "2\u202f000"]
    assert linear_labels([-0.5, 0.0, 0.5], 0.5) == ["−0.5", "0.0", "0.5"]
    assert powers_of_ten([0.0, 0.5, 3.0, 7.0], 1.0, 1.0) == ["1", "", "1\u202f000", "10⁷"]
    plot = GroupPicture()
    qtbot.addWidget(plot)
    plot.show_group("group", np.array([-1500.0, 2500.0]), np.array([-1500.0, 2500.0]), np.zeros(0), ["a", "b"])
    axis = plot._plot.getAxis("left")
    assert axis.tickStrings([-1000.0, 1000.0], 1.0, 1000.0) == ["−1\u202f000", "1\u202f000"]
