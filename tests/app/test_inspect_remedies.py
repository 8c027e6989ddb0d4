"""Findings and remedies: a planted outlier is found, its remedy clicked, the recipe says why, and it can be undone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_recipe, wait_plan

from app.pages.inspect.remedies import Change
from app.theme import current
from core.errors import UserError
from core.formats import Method
from core.recipe import Recipe, Rule

pytestmark = pytest.mark.gui
SPOILT, CHANNEL = "model.layers.1.mlp.down_proj.weight", 37


def plant(tensors: dict[str, Any]) -> None:
    """One input channel of one tensor is 40 times the others."""
    tensors[SPOILT][:, CHANNEL] *= 40


def open_panel(window: Any, qtbot: Any, folder: Path, change: Any, target: str = "Q4_0") -> Any:
    """The panel beside the map, with findings."""
    recipe = open_recipe(window, qtbot, write_llama(folder, change=change))
    recipe.set_recipe(Recipe(target=target))
    wait_plan(window, qtbot, target)
    window.show_page("inspect")
    page = window.page("inspect")
    qtbot.wait(10)
    page.show_view("map")
    click(qtbot, page.findings)
    made = page.views["panel"]
    qtbot.waitUntil(lambda: bool(made.findings) and idle(window), timeout=LONG)
    return made


@pytest.fixture
def panel(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Of a model of 4 bits with a planted outlier."""
    return open_panel(window, qtbot, tmp_path / "planted", plant)


def idle(window: Any) -> bool:
    return not window.services.jobs.jobs()


def choose(window: Any, qtbot: Any, panel: Any, number: int = 0) -> None:
    panel.list.setCurrentRow(number)
    qtbot.waitUntil(lambda: bool(panel.rows) and idle(window), timeout=LONG)
    qtbot.wait(20)  # the rows are laid out


def remedy_row(panel: Any, kind: str) -> Any:
    return next(r for r in panel.rows if r.remedy.kind.value == kind and r.remedy.possible)


def test_planted_outlier_comes_first_and_is_chosen_everywhere(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    first = panel.findings[0]
    assert (first.axis, first.channel) == ("input", CHANNEL)
    assert str(CHANNEL) in panel.list.item(0).text()
    choose(window, qtbot, panel)
    state = window.page("inspect").state
    assert state.tensor.name == SPOILT
    assert (state.axis, state.channel) == ("input", CHANNEL)


@pytest.mark.parametrize("kind", ["keep in 16 bits", "8 bits here"])
def test_remedy_changes_the_plan_by_the_bytes_it_said(window, qtbot, panel, kind: str) -> None:  # type: ignore[no-untyped-def]
    store = window.services.session
    before, plan = store.current.recipe, store.current.plan
    choose(window, qtbot, panel)
    row = remedy_row(panel, kind)
    assert row.bytes.text().startswith("+")
    price, gain = row.bytes.text(), row.gain.text()
    click(qtbot, row.put)
    qtbot.waitUntil(lambda: store.current.plan is not plan and idle(window), timeout=LONG)
    assert store.current.plan.bytes_total - plan.bytes_total == row.remedy.bytes_change > 0
    rule = store.current.recipe.rules[0]
    assert str(CHANNEL) in rule.reason
    assert "× the median" in rule.reason
    planned = next(t for t in store.current.plan.tensors if any(s.name == SPOILT for s in t.source.sources))
    assert planned.reason == rule.reason
    assert Recipe.from_json(store.current.recipe.to_json()).rules[0].reason == rule.reason
    assert str(CHANNEL) in panel.done.text()
    assert f"{price}, {gain}" in panel.done.text(), "price and gain stay in sight"
    recipe_page = window.page("recipe")
    shown = recipe_page.advanced.rules.table.model
    follows = [(1, rule.reason)]  # the Recipe page, once it has counted what the rule meets
    qtbot.waitUntil(lambda: [(r.count, r.reason) for r in shown.rows()] == follows, timeout=LONG)
    assert recipe_page.convert.isEnabled()
    click(qtbot, panel.undo)
    qtbot.waitUntil(lambda: store.current.recipe == before and idle(window), timeout=LONG)
    assert store.current.plan.bytes_total == plan.bytes_total
    assert recipe_page.advanced.rules.table.model.rows() == []
    assert not panel.undo.isVisible()


def test_what_a_remedy_gains_is_said_and_impossible_ones_say_why(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    choose(window, qtbot, panel)
    eight = remedy_row(panel, "8 bits here")
    assert eight.remedy.after.snr_db > eight.remedy.before.snr_db + 10
    assert f"{eight.remedy.after.snr_db:.2f} dB" in eight.gain.text()
    possible = [r.remedy.possible for r in panel.rows]
    assert possible == sorted(possible, reverse=True), "what can not be done comes last"
    for row in panel.rows:
        assert row.put.isHidden() != row.remedy.possible
        assert row.why_not.isHidden() == row.remedy.possible


def test_a_remedy_that_makes_it_worse_says_so(panel) -> None:  # type: ignore[no-untyped-def]
    from app.pages.inspect.remedy_row import gain_text
    from core.inspect.remedies import Remedy, RemedyKind
    from core.progress import ErrorStats

    before, after = ErrorStats(100, 22.3, 0.01, 0.1), ErrorStats(100, 21.8, 0.011, 0.1)
    remedy = Remedy(RemedyKind.GROUP, "groups of 16", "NVFP4", (), None, True, "", 96, before, after, False)
    assert gain_text(remedy).endswith("error +6 %: worse than now")
    assert "worse" not in gain_text(replace(remedy, before=after, after=before))


def test_another_finding_drops_what_was_priced_for_the_one_before(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    assert len(panel.findings) > 1
    panel.list.setCurrentRow(0)
    panel.list.setCurrentRow(1)
    assert panel.rows == []
    qtbot.waitUntil(lambda: bool(panel.rows) and idle(window), timeout=LONG)
    wanted = panel.findings[1]
    patterns = {rule.pattern for row in panel.rows for rule in row.remedy.rules}
    source = window.services.session.current.plan.tensors[wanted.index].source.sources[0].name
    assert patterns
    assert all(source.replace(".", "\\.") in p for p in patterns)
    assert all(wanted.because in rule.reason for row in panel.rows for rule in row.remedy.rules)


def test_another_target_prices_the_same_tensor(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    choose(window, qtbot, panel)
    window.page("recipe").set_recipe(Recipe(target="w4a16-g128"))
    wait_plan(window, qtbot, "w4a16-g128")
    qtbot.waitUntil(lambda: bool(panel.rows) and idle(window), timeout=LONG)
    assert panel.chosen.tensor == SPOILT
    assert {row.remedy.format for row in panel.rows if row.remedy.possible} >= {"w8a16-g128"}


def test_a_remedy_without_a_plan_is_an_error_in_place(window, qtbot, panel, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def fail(*_args: object) -> None:
        raise UserError("This can not be planned.", "Choose another format.")

    choose(window, qtbot, panel)
    recipe = window.services.session.current.recipe
    monkeypatch.setattr("core.plan.make_plan", fail)
    click(qtbot, remedy_row(panel, "8 bits here").put)
    qtbot.waitUntil(panel.error.isVisible, timeout=LONG)
    assert "can not be planned" in panel.error.message.text()
    assert window.services.session.current.recipe is recipe
    assert remedy_row(panel, "8 bits here").put.isEnabled()


def test_what_the_tensor_keeps_as_planned_is_said_beside_the_median(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    choose(window, qtbot, panel)
    found = window.page("inspect").state.survey[SPOILT].predicted
    assert panel.now.isVisible()
    assert f"In Q4_0 the tensor keeps {found.snr_db:.1f} dB" in panel.now.text()


def test_in_a_narrow_window_the_findings_stand_alone(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    page = window.page("inspect")
    window.resize(900, 600)
    qtbot.waitUntil(lambda: not page.tabs.isVisible() and panel.width() > 600, timeout=LONG)
    choose(window, qtbot, panel)
    panel.list.itemActivated.emit(panel.list.currentItem())
    qtbot.waitUntil(lambda: "tensor" in page.views and page.views["tensor"].isVisible(), timeout=LONG)
    assert not panel.isVisible()
    assert page.state.tensor.name == SPOILT


def test_findings_come_whichever_view_is_in_front(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    recipe = open_recipe(window, qtbot, write_llama(tmp_path / "planted", change=plant))
    recipe.set_recipe(Recipe(target="Q4_0"))
    wait_plan(window, qtbot, "Q4_0")
    page = window.page("inspect")
    page.show_view("group")
    window.show_page("inspect")
    qtbot.waitUntil(lambda: "group" in page.views, timeout=LONG)
    click(qtbot, page.findings)
    made = page.views["panel"]
    qtbot.waitUntil(lambda: bool(made.findings) and idle(window), timeout=LONG)
    assert made.findings[0].channel == CHANNEL
    recipe.set_recipe(Recipe(target="Q8_0"))
    qtbot.waitUntil(
        lambda: all(row.predicted is None or row.predicted.format != "Q4_0" for row in page.state.survey.values()),
        timeout=LONG,
    )


def test_without_a_model_or_plan_the_next_step_is_said(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    window.services.session.update(plan=None)
    qtbot.waitUntil(panel.none.isVisible, timeout=LONG)
    assert "Recipe page" in panel.none.text()


def test_choosing_and_applying_never_block(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    store = window.services.session
    plan = store.current.plan
    blocked = longest_block(lambda: panel.list.setCurrentRow(0), lambda: bool(panel.rows) and idle(window))
    assert blocked < 0.05
    row = remedy_row(panel, "keep in 16 bits")
    blocked = longest_block(row.put.click, lambda: store.current.plan is not plan and idle(window))
    assert blocked < 0.05


def test_everything_has_a_name(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    choose(window, qtbot, panel)
    for widget in controls(panel):
        assert widget.accessibleName() or getattr(widget, "text", str)(), widget


def test_undo_keeps_what_was_changed_since() -> None:
    before = Recipe(target="Q4_0", rules=(Rule("attn_v", "Q8_0"),), method=Method.ROUND)
    mine = Rule("^blk\\.0\\.$", "keep", "kept: channel 3 is 9 × the median")
    after = Recipe(target="Q4_0", rules=(mine, *before.rules), method=Method.ROUND)
    change = Change(before, after, "kept")
    assert change.undone(after) == before
    later = Recipe(target="Q5_0", rules=(mine, *before.rules, Rule("head", "keep")), method=Method.ROUND, keep_first=1)
    undone = change.undone(later)
    assert undone.rules == (Rule("attn_v", "Q8_0"), Rule("head", "keep"))
    assert (undone.target, undone.keep_first) == ("Q5_0", 1)


def test_after_a_remedy_the_next_finding_is_chosen_and_undo_goes_back(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def plant_two(tensors: dict[str, Any]) -> None:
        plant(tensors)
        tensors["model.layers.0.mlp.up_proj.weight"][:, 5] *= 20

    panel = open_panel(window, qtbot, tmp_path / "planted", plant_two)
    store, plan = window.services.session, window.services.session.current.plan
    choose(window, qtbot, panel)
    first = panel.findings[0]
    following = next(f for f in panel.findings[1:] if f.tensor != first.tensor)
    click(qtbot, remedy_row(panel, "keep in 16 bits").put)
    qtbot.waitUntil(lambda: store.current.plan is not plan, timeout=LONG)
    qtbot.waitUntil(lambda: panel.chosen is not None and panel.chosen.tensor != first.tensor, timeout=LONG)
    assert panel.chosen.tensor == following.tensor
    assert panel.list.currentRow() == 0
    assert panel.done.text().startswith(f"Put into the recipe: {first.tensor}: Keep in 16 bits")
    assert panel.done.text().endswith("The next finding is chosen.")
    assert panel.undo.isVisible()
    qtbot.waitUntil(lambda: bool(panel.rows) and idle(window), timeout=LONG)
    click(qtbot, panel.undo)
    qtbot.waitUntil(lambda: panel.chosen is not None and panel.chosen.tensor == first.tensor, timeout=LONG)
    assert (panel.chosen.axis, panel.chosen.channel) == (first.axis, first.channel)
    assert not panel.undo.isVisible()


def test_findings_that_hardly_matter_say_so_in_the_list(
    window: Any, qtbot: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.inspect.findings.NEARLY_EXACT", 20.0)
    made = open_panel(window, qtbot, tmp_path / "planted", plant, "Q8_0")
    qtbot.waitUntil(lambda: "none of which matters much" in made.count.text(), timeout=LONG)
    assert all("so this hardly matters" in made.list.item(n).text() for n in range(made.list.count()))
    assert made.list.item(0).foreground().color() == current().color("muted")


def test_beside_the_findings_the_maps_table_shows_whole_names_and_its_last_column(window, qtbot, panel) -> None:  # type: ignore[no-untyped-def]
    table = window.page("inspect").views["map"].table
    window.resize(1100, 700)
    qtbot.waitUntil(lambda: table.view.isColumnHidden(1), timeout=LONG)
    assert table.view.horizontalScrollBar().maximum() == 0
    names = [table.model.columns[0].text(row) for row in table.model.rows() if "layernorm" not in row.name]
    width = table.view.fontMetrics().horizontalAdvance(max(names, key=len))
    assert "layers.1.mlp.down_proj" in names
    assert table.view.columnWidth(0) >= width
    window.page("inspect").findings.click()
    window.resize(1280, 800)
    qtbot.waitUntil(lambda: not table.view.isColumnHidden(1), timeout=LONG)
