"""Tables: natural order, filter, totals, alignment, long names, and ten thousand rows without a blocked frame."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from PySide6.QtCore import QModelIndex, QRect, Qt
from PySide6.QtTest import QAbstractItemModelTester
from PySide6.QtWidgets import QApplication, QStyleOptionViewItem
from window_help import longest_block

from app.models.matrix import MatrixModel
from app.models.names import PADDING, short_name
from app.models.table import Column, RowsModel, natural_key
from app.models.table_view import TablePanel
from app.models.tensors import TensorRun, plan_columns, run_columns, shape_text, source_columns
from core.hardware.matrix import State, cell_for_model
from core.progress import ErrorStats, TensorResult
from core.targets import TARGETS
from core.tensor_info import Role, TensorInfo

pytestmark = pytest.mark.gui
ASCENDING, DESCENDING = Qt.SortOrder.AscendingOrder, Qt.SortOrder.DescendingOrder


def tensors(count: int) -> list[TensorInfo]:
    return [
        TensorInfo(
            f"model.layers.{i // 9}.part_{i % 9}.weight", (64 + i % 7, 128), "BF16", (64 + i % 7) * 256, layer=i // 9
        )
        for i in range(count)
    ]


def texts(model: RowsModel, column: int) -> list[str]:
    return [model.index(r, column).data() for r in range(model.rowCount())]


def test_natural_order_puts_layer_two_before_ten() -> None:
    names = ["layers.10.a", "layers.2.a", "Layers.1.b", "layers.2", "a2b10", "a2b9"]
    assert sorted(names, key=natural_key) == ["a2b9", "a2b10", "Layers.1.b", "layers.2", "layers.2.a", "layers.10.a"]


def test_sorting_filter_and_totals(qapp: QApplication) -> None:
    model = RowsModel(source_columns())
    QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    rows = tensors(100)
    model.set_rows(rows[::-1])
    model.sort(0, ASCENDING)
    assert model.shown() == rows
    model.sort(3, DESCENDING)  # shapes sort by how many values they have, not by their text
    assert [t.values for t in model.shown()] == sorted((t.values for t in rows), reverse=True)
    model.set_filter("layers.3. PART_1")
    assert texts(model, 0) == ["model.layers.3.part_1.weight"]
    total = model.totals()
    assert total[0] == "1 tensors"
    assert total[5] == f"{rows[28].nbytes / 1e6:.3f}"
    model.set_filter("")
    model.sort(-1)
    assert model.shown() == rows[::-1]


def test_a_tied_tensor_is_counted_once(qapp: QApplication) -> None:
    model = RowsModel(source_columns())
    first = TensorInfo("embed", (1000, 1000), "BF16", 2_000_000, role=Role.EMBED)
    model.set_rows([first, TensorInfo("head", (1000, 1000), "BF16", 2_000_000, role=Role.HEAD, tied_to="embed")])
    assert model.totals()[5] == "2.000"
    assert "embed" in model.index(1, 0).data(Qt.ItemDataRole.ToolTipRole)


def test_selection_follows_its_row_through_sorting(qapp: QApplication, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = TablePanel(RowsModel(source_columns()), "tensors", ("",) * 6)
    qtbot.addWidget(panel)
    panel.model.set_rows(tensors(30))
    panel.view.selectRow(7)
    chosen = panel.current_row()
    panel.view.sortByColumn(0, DESCENDING)
    assert panel.current_row() == chosen


def test_numbers_are_right_aligned_with_fixed_decimals(qapp: QApplication) -> None:
    for columns in (source_columns(), plan_columns(), run_columns()):
        model = RowsModel(columns)
        for number, column in enumerate(columns):
            wanted = Qt.AlignmentFlag.AlignRight if column.number else Qt.AlignmentFlag.AlignLeft
            header = model.headerData(number, Qt.Orientation.Horizontal, Qt.ItemDataRole.TextAlignmentRole)
            assert header & wanted
    model = RowsModel(source_columns())
    model.set_rows([TensorInfo("a", (1,), "F32", 4), TensorInfo("b", (10**9,), "F32", 4 * 10**9)])
    assert texts(model, 5) == ["0.000", "4\u202f000.000"]
    assert model.index(0, 5).data(Qt.ItemDataRole.TextAlignmentRole) & Qt.AlignmentFlag.AlignRight
    assert shape_text((49152, 576)) == "49\u202f152 × 576"


def test_every_column_title_has_a_tooltip(qapp: QApplication) -> None:
    from app.widgets.text import explain

    for columns in (source_columns(), plan_columns(), run_columns()):
        for column in columns:
            if column.term:
                assert explain(column.term), f"{column.term} is not in the glossary"


def test_long_name_is_elided_in_the_middle_and_whole_in_the_tooltip(qapp: QApplication, qtbot) -> None:  # type: ignore[no-untyped-def]
    name = "model." + "very_long_" * 11 + "end"
    assert len(name) >= 119
    panel = TablePanel(RowsModel(source_columns()), "tensors", ("", "role", "99", "1 × 1", "BF16", "9.999"))
    qtbot.addWidget(panel)
    panel.model.set_rows([TensorInfo(name, (4, 4), "BF16", 32)])
    panel.resize(600, 300)
    panel.show()
    index = panel.model.index(0, 0)
    assert panel.view.textElideMode() == Qt.TextElideMode.ElideMiddle
    assert panel.view.columnWidth(0) < panel.fontMetrics().horizontalAdvance(name)
    assert index.data(Qt.ItemDataRole.ToolTipRole) == name
    panel.view.selectRow(0)
    panel.copy_selection()
    assert QApplication.clipboard().text().startswith(name)


def test_ten_thousand_rows_never_block_a_frame(qapp: QApplication, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = TablePanel(RowsModel(source_columns()), "tensors", ("", "feed-forward", "99", "64 × 128", "BF16", "9.999"))
    qtbot.addWidget(panel)
    panel.resize(900, 500)
    panel.show()
    rows = tensors(10_000)
    steps = [
        lambda: panel.model.set_rows(rows),
        lambda: panel.view.sortByColumn(0, DESCENDING),
        lambda: panel.view.sortByColumn(5, ASCENDING),
        lambda: panel.filter.setText("layers.7"),
        lambda: panel.filter.clear(),
        lambda: panel.view.scrollToBottom(),
    ]
    for step in steps:
        best = 1.0
        for _ in range(3):  # the machine is shared: the quickest of three tries is what the code needs
            end = time.perf_counter() + 0.06
            best = min(best, longest_block(step, lambda end=end: time.perf_counter() > end))
        assert best < 0.050, f"step {steps.index(step)} blocked for {1000 * best:.0f} ms"


def test_totals_row_shows_the_sums_of_the_rows_shown(qapp: QApplication, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = TablePanel(RowsModel(source_columns()), "tensors", ("",) * 6)
    qtbot.addWidget(panel)
    panel.show()
    panel.model.set_rows(tensors(18))
    qtbot.waitUntil(lambda: panel.totals.texts()[0] == "18 tensors")
    panel.filter.setText("layers.1.")
    qtbot.waitUntil(lambda: panel.totals.texts()[0] == "9 tensors")
    qtbot.waitUntil(lambda: "9 tensors" in panel.totals.accessibleDescription())
    panel.filter.setFocus()
    qtbot.keyClick(panel.filter, Qt.Key.Key_Escape)
    assert panel.filter.text() == ""


def test_run_rows_change_where_they_stand(qapp: QApplication) -> None:
    model = RowsModel(run_columns())
    model.set_rows([TensorRun(f"t{i}", "Q8_0", 100) for i in range(5)])
    stats = ErrorStats(10, 31.4159, 0.001, 0.01234567)
    with_result = TensorRun("t2", "Q8_0", 100, "written", TensorResult("t2", "Q8_0", 1_500_000, stats))
    changes: list[tuple[int, int]] = []
    model.dataChanged.connect(lambda a, b: changes.append((a.row(), b.row())))
    model.replace_rows({2: with_result})
    assert changes == [(2, 2)]
    assert [model.index(2, c).data() for c in range(6)] == ["t2", "written", "Q8_0", "31.42", "0.01235", "1.500"]
    assert model.totals() == ["1 of 5 tensors", "", "", "", "", "1.500"]


def test_matrix_says_state_and_reason_and_judges_the_model(qapp: QApplication) -> None:
    model = MatrixModel()
    QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    model.judge("x86_avx2", {576, 1536})
    assert sorted(t.name for r in model.rows for t in r.kind.targets) == sorted(t.name for t in TARGETS)
    row, column = model.row_of("Q4_K_M"), 2 + model.runtimes.index("llama.cpp")
    assert model.index(row, 1).data() == "in part"
    assert "576" in model.index(row, 1).data(Qt.ItemDataRole.ToolTipRole)
    cell = cell_for_model("Q4_K_M", "llama.cpp", "x86_avx2", {576, 1536})
    tip = model.index(row, column).data(Qt.ItemDataRole.ToolTipRole)
    assert cell.state.value in tip
    assert "576" in tip
    assert model.index(model.row_of("Q8_0"), 1).data() == "fits"
    assert model.index(model.row_of("w4a16-g64"), 1).data() == "fits"
    row = model.rows[model.row_of("w4a16-g128")]
    assert row.target.name == "w4a16-g64", "the member whose groups divide the rows"
    model.judge("x86_avx2", {576, 1536}, lossless={"w4a16-g32-asym"})
    row = model.rows[model.row_of("w4a16-g64-asym")]
    assert (row.target.name, row.lossless) == ("w4a16-g32-asym", ("w4a16-g32-asym",))
    assert model.index(model.row_of("w4a16-g64-asym"), 1).data() == "lossless"
    model.judge("x86_avx2", {576, 1536}, folders=False)
    assert model.index(model.row_of("w4a16-g64"), 1).data() == "not from GGUF"
    assert "original" in model.index(model.row_of("w4a16-g64"), 1).data(Qt.ItemDataRole.ToolTipRole)
    words = dict.fromkeys(State)
    from app.models.matrix import LOOKS

    assert len({LOOKS[s][0] for s in words}) == len(words), "states must differ in glyph"


@dataclass(frozen=True)
class Word:
    text: str


def test_a_model_of_any_rows(qapp: QApplication) -> None:
    model = RowsModel([Column("Word", lambda w: w.text, term="unknown")], explain=lambda term: f"about {term}")
    model.set_rows([Word("b"), Word("a")])
    model.sort(0)
    assert model.row_at(0) == Word("a")
    assert model.rowCount(QModelIndex()) == 2
    assert model.headerData(0, Qt.Orientation.Horizontal, Qt.ItemDataRole.ToolTipRole) == "about unknown"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (39, "model.layers.29.self_attn.q_proj.weight"),
        (33, "model.layers.29.self_attn.q_proj…"),
        (21, "…29.self_attn.q_proj…"),
        (20, "…29…q_proj…"),
        (10, "model.layers.29.self_attn.q_proj.weight"),
    ],
)
def test_names_that_differ_in_the_middle_can_be_told_apart(room: int, text: str) -> None:
    assert short_name("model.layers.29.self_attn.q_proj.weight", lambda shown: len(shown) <= room) == text


def test_the_name_column_paints_the_part_that_tells_rows_apart(qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = TablePanel(RowsModel((Column("Tensor", lambda r: r, mono=True),), str), "Names", ("",))
    qtbot.addWidget(panel)
    panel.model.set_rows([f"model.layers.{n}.self_attn.q_proj.weight" for n in range(3)])
    index = panel.model.index(2, 0)
    option = QStyleOptionViewItem()
    option.rect = QRect(0, 0, option.fontMetrics.horizontalAdvance("…2.self_attn.q_proj…") + PADDING, 28)
    delegate = panel.view.itemDelegateForColumn(0)
    delegate.initStyleOption(option, index)
    assert option.text.startswith("…2")
    assert option.text.endswith("q_proj…")
    assert short_name("token_embd.weight", lambda _text: False) == "token_embd.weight"
    assert short_name("blk.0.attn_norm.weight", lambda text: len(text) <= 16) == "blk.0.attn_norm…"
