"""Which part of a matrix a heat map shows, and in which cells: arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass, replace

Span = tuple[int, int]  # first … last, the last not included
LEAST_CELL = 1.5  # px: a cell is 1.5 to 3 px wide while it stands for several values
WIDEST, TALLEST = 84.0, 26.0  # px of one value at the largest zoom: its number fits in


@dataclass(frozen=True)
class Cells:
    """What to draw: the window rows × columns of the matrix in height × width cells, of `row_step` × `column_step`
    values each (the last may be smaller)."""

    rows: Span
    columns: Span
    height: int
    width: int
    row_step: int
    column_step: int

    @property
    def single(self) -> bool:
        """Whether each cell is one value."""
        return self.row_step == self.column_step == 1


@dataclass(frozen=True)
class HeatView:
    """The visible part of a matrix of rows × columns, in rows and columns and fractions of them.

    Every change gives a new view that lies inside the matrix.
    """

    rows: int
    columns: int
    top: float = 0.0
    bottom: float = 0.0
    left: float = 0.0
    right: float = 0.0

    @staticmethod
    def whole(rows: int, columns: int) -> HeatView:
        return HeatView(rows, columns, 0.0, float(rows), 0.0, float(columns))

    @property
    def is_whole(self) -> bool:
        return self == HeatView.whole(self.rows, self.columns)

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left

    def zoomed(self, factor: float, row: float, column: float, px: tuple[float, float], axes: str = "both") -> HeatView:
        """Shown `factor` times as large with this place where it is. px: width and height of the picture.

        axes: 'both', 'rows' or 'columns'.
        """
        top, bottom = (self.top, self.bottom) if axes == "columns" else _scaled(
            self.top, self.bottom, row, factor, px[1] / TALLEST, self.rows
        )  # fmt: skip
        left, right = (self.left, self.right) if axes == "rows" else _scaled(
            self.left, self.right, column, factor, px[0] / WIDEST, self.columns
        )  # fmt: skip
        return replace(self, top=top, bottom=bottom, left=left, right=right)

    def moved(self, rows: float, columns: float) -> HeatView:
        """Moved on by so many rows and columns, as far as there are any."""
        rows = min(max(rows, -self.top), self.rows - self.bottom)
        columns = min(max(columns, -self.left), self.columns - self.right)
        return replace(
            self, top=self.top + rows, bottom=self.bottom + rows, left=self.left + columns, right=self.right + columns
        )

    def showing(self, row: float, column: float) -> HeatView:
        """Moved as little as needed so that this place is inside."""
        down = min(0.0, row - self.top) + max(0.0, row + 1 - self.bottom)
        over = min(0.0, column - self.left) + max(0.0, column + 1 - self.right)
        return self.moved(down, over)

    def around(self, row: float, column: float, rows: float, columns: float) -> HeatView:
        """So many rows and columns with this place in the middle, as far as the matrix goes."""
        rows, columns = min(rows, self.rows), min(columns, self.columns)
        whole = replace(self, top=0.0, bottom=rows, left=0.0, right=columns)
        return whole.moved(row + 0.5 - rows / 2, column + 0.5 - columns / 2)

    def cells(self, px: tuple[float, float]) -> Cells:
        """Cells for a picture of that width and height.

        Their borders stand at multiples of a power of two, so that they do not shimmer when the view moves.
        """
        row_step, column_step = _step(self.height, px[1]), _step(self.width, px[0])
        rows, columns = (
            _span(self.top, self.bottom, row_step, self.rows),
            _span(self.left, self.right, column_step, self.columns),
        )
        return Cells(
            rows, columns, -(-(rows[1] - rows[0]) // row_step), -(-(columns[1] - columns[0]) // column_step),
            row_step, column_step,
        )  # fmt: skip


def _scaled(first: float, last: float, place: float, factor: float, least: float, count: int) -> tuple[float, float]:
    span = last - first
    new = min(float(count), max(min(least, float(count)), span / factor))
    start = place - (place - first) * new / span
    start = min(max(0.0, start), count - new)
    return start, start + new


def _step(span: float, px: float) -> int:
    step = 1
    while span / step * LEAST_CELL > px:
        step *= 2
    return step


def _span(first: float, last: float, step: int, count: int) -> Span:
    start = int(first // step) * step
    stop = min(count, -int(-last // step) * step)
    return start, max(stop, start + 1)
