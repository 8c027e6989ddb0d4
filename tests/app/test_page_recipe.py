"""The Recipe page: presets, warnings, every control of Advanced, the preview, and the output's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PySide6.QtCore import QPoint, Qt
from tiny_models import write_llama
from window_help import LONG, click, open_model, open_recipe, wait_plan

from app.devices import DeviceChoice
from app.jobs.plan import match_rules, reply_for, with_target
from app.jobs.plan_best import best_of
from app.jobs.plan_presets import PRESETS, Offer, context_text
from app.pages.recipe.contract_card import contract_fields
from app.pages.recipe.numbers import NumbersPanel
from core.catalog import Knob, kind_of, use_of, uses
from core.checkpoint import open_checkpoint
from core.contract import NumericContract
from core.formats import FORMATS, Method
from core.plan import Action, make_plan
from core.recipe import KeepGroup, Misfit, Recipe, Rule
from core.targets import TARGETS, find_target
from core.units import format_bytes

pytestmark = pytest.mark.gui


@pytest.fixture
def recipe(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The Recipe page with a tiny model whose rows 256 divides."""
    return open_recipe(window, qtbot, write_llama(tmp_path / "tiny", tied=False))


def put(page, window, qtbot, recipe: Recipe):  # type: ignore[no-untyped-def]
    """Put a recipe in force and wait for its plan."""
    page.set_recipe(recipe)
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe == recipe, timeout=LONG)
    return store.current.plan


def warnings(page) -> list[str]:  # type: ignore[no-untyped-def]
    layout = page.outcome._warnings
    return [layout.itemAt(i).widget().accessibleName() for i in range(layout.count())]


# ---- presets -------------------------------------------------------------------------------------------------------


def test_a_preset_is_recommended_with_its_reason(recipe, window) -> None:  # type: ignore[no-untyped-def]
    chosen = [c for c in recipe.presets.cards if c.isChecked()]
    assert len(chosen) == 1
    offer = chosen[0].offer
    assert offer.recommended
    assert "recommended" in chosen[0].accessibleName()
    assert "Recommended:" in recipe.presets.reason.text()
    assert format_bytes(offer.plan.bytes_total) in chosen[0]._size.text()
    assert window.services.session.current.plan is offer.plan
    assert recipe.outcome.size.text() == format_bytes(offer.plan.bytes_total)


def test_the_main_action_says_in_sight_why_it_is_off(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    own = recipe.convert.toolTip()
    assert not recipe.reason.isVisible()
    recipe.set_recipe(Recipe(target="Q5_1"))
    assert not recipe.convert.isEnabled()
    assert recipe.reason.isVisible()
    assert recipe.convert.toolTip() == recipe.reason.text() != own
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    assert recipe.convert.toolTip() == own


def test_the_memory_bar_keeps_the_last_plan_until_the_next(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    """A control that moves must not make the bar jump to the source's size and back."""
    put(recipe, window, qtbot, Recipe(target="Q8_0"))
    before = window.memory_bar.estimate.used
    recipe.set_recipe(Recipe(target="Q4_0"))
    assert window.memory_bar.estimate.used == before
    qtbot.waitUntil(lambda: window.memory_bar.estimate.used < before, timeout=LONG)
    recipe.set_recipe(Recipe(target="Q6_K", rules=(Rule("no_such", "keep"),)))
    qtbot.waitUntil(lambda: window.services.session.current.plan is not None, timeout=LONG)


def test_presets_are_judged_anew_for_another_device(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    window.services.session.update(device=DeviceChoice("tiny", "A tiny card", 1000, 1e9, own=False))
    assert {c._fits.text for c in recipe.presets.cards} == {"too large"}
    assert "A tiny card" in recipe.presets.reason.text()
    window.services.session.update(device=DeviceChoice("big", "A big card", 10**12, 1e12, own=False))
    assert {c._fits.text for c in recipe.presets.cards} == {"fits"}


def test_presets_take_shorter_blocks_where_rows_do_not_divide(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "narrow", hidden=288, ffn=576))
    smaller = page.presets.cards[1].offer
    assert smaller.recipe.target == "IQ4_NL"
    assert smaller.plan.fallback_share <= 0.1


def test_recommendation_follows_fit_room_and_source(tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        plans = [make_plan(checkpoint, Recipe(target=p.targets[0])) for p in PRESETS]
    big = plans[-1].bytes_total
    pairs = zip(PRESETS, plans, strict=True)
    offers = [
        Offer(p, plan.recipe, plan, reply_for(plan), fits=True, used=big, capacity=100 * big) for p, plan in pairs
    ]

    def key(*judged: Offer, quantized: bool = False) -> str:
        return best_of(judged, "card", quantized)[0].preset.key

    assert key(*offers) == "closest"
    assert key(*(replace(o, capacity=2 * big) for o in offers)) == "balanced"
    assert key(*(replace(o, tokens_per_second=3.0) for o in offers)) == "balanced"
    assert key(offers[0], replace(offers[1], fits=False), replace(offers[2], fits=False)) == "smaller"
    assert key(*(replace(o, fits=False) for o in offers)) == "smaller"
    assert key(*offers, quantized=True) == "closest"


def test_context_is_written_short() -> None:
    assert context_text(8192) == " with 8k context"
    assert context_text(1000) == " with 1\u202f000 context"


# ---- truth before the run ------------------------------------------------------------------------------------------


def test_exact_bytes_change_and_counts(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    plan = put(recipe, window, qtbot, Recipe(target="Q4_0"))
    changed = sum(t.action is Action.QUANTIZE for t in plan.tensors)
    assert recipe.outcome.size.text() == format_bytes(plan.bytes_total)
    assert f"{plan.bytes_total:,}".replace(",", "\u202f") in recipe.outcome.size.toolTip()
    assert recipe.outcome.facts.value("Quantized") == f"{changed} of {len(plan.tensors)}"
    assert recipe.outcome.facts.value("Change") == f"−{-100 * plan.change:.1f} %"


def test_rows_of_576_in_blocks_of_256_are_warned_of(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "narrow", hidden=576, heads=9, kv_heads=3, ffn=1536))
    plan = put(page, window, qtbot, Recipe(target="Q4_K_M"))
    assert plan.fallback_share > 0.1
    text = " ".join(warnings(page))
    assert "576" in text
    assert "do not divide" in text
    assert all(w.startswith("Warning:") for w in warnings(page))
    click(qtbot, page.more)  # the matrix is judged when it is seen
    formats = page.advanced.formats
    assert formats.model.index(formats.model.row_of("Q4_K_M"), 1).data() == "in part"


@pytest.mark.parametrize("target", ["Q4_K_M", "w4a16-g64-asym", "w8a16-channel-asym", "Q8_0"])
def test_nothing_is_cut_at_the_side_in_the_smallest_window(target: str, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "odd", hidden=576, heads=9, kv_heads=3, ffn=1536))
    window.resize(900, 600)
    click(qtbot, page.more)
    put(page, window, qtbot, Recipe(target=target))
    qtbot.wait(50)
    inside = page._results.widget()
    assert inside.width() <= page._results.viewport().width(), f"{inside.minimumSizeHint().width()} px are needed"
    tabs = page.advanced.tabs.tabBar()
    assert tabs.sizeHint().width() <= page.advanced.tabs.width()


def test_output_that_is_not_smaller_is_warned_of(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="F32"))
    assert any("not smaller" in w for w in warnings(recipe))


def test_a_recipe_that_can_not_be_carried_out(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "narrow", hidden=288, ffn=576))
    page.set_recipe(Recipe(target="Q4_K_M", misfit=Misfit.STOP))
    qtbot.waitUntil(lambda: page.outcome.error.isVisible(), timeout=LONG)
    assert not page.convert.isEnabled()
    assert page.convert.toolTip()
    assert page.reason.isVisible()
    assert page.outcome.error.hint.text()
    assert page.advanced.tensors.model.rowCount() == 0, "another plan's tensors"
    put(page, window, qtbot, Recipe(target="Q8_0"))
    assert page.convert.isEnabled()
    assert not page.outcome.error.isVisible()
    assert not page.reason.isVisible()


# ---- advanced ------------------------------------------------------------------------------------------------------


def tick(qtbot, box) -> None:  # type: ignore[no-untyped-def]
    """Click a check box or radio button on its mark; the middle of a wide one is empty."""
    qtbot.mouseClick(box, Qt.MouseButton.LeftButton, pos=QPoint(12, box.height() // 2))


def advanced(page, qtbot, tab: int):  # type: ignore[no-untyped-def]
    if not page.more.isChecked():
        click(qtbot, page.more)
    page.advanced.tabs.setCurrentIndex(tab)
    return page.advanced


def test_a_click_in_the_matrix_chooses_and_explains(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    formats = advanced(recipe, qtbot, 0).formats
    row = formats.model.row_of("Q8_0")
    put(recipe, window, qtbot, Recipe(target="Q4_0"))
    index = formats.model.index(row, 2)
    formats.view.scrollTo(index)
    qtbot.mouseClick(formats.view.viewport(), Qt.MouseButton.LeftButton, pos=formats.view.visualRect(index).center())
    wait_plan(window, qtbot, "Q8_0")
    assert formats.reason.text().startswith(f"Q8_0 in {formats.model.runtimes[0]}: ")
    assert recipe.convert.text() == "Convert to Q8_0"
    row = formats.model.row_of("Q4_K_M")
    assert "Q5_K_S" in formats.model.index(row, 0).data(Qt.ItemDataRole.ToolTipRole)
    put(recipe, window, qtbot, Recipe(target="Q5_K_S"))
    assert formats.view.currentIndex().row() == row
    formats._choose(formats.model.index(row, 2))
    assert window.services.session.current.recipe.target == "Q5_K_S", "a member of the row is in force already"
    put(recipe, window, qtbot, Recipe(target="Q4_0"))
    formats._choose(formats.model.index(row, 2))
    wait_plan(window, qtbot, "Q4_K_M")
    put(recipe, window, qtbot, Recipe(target="Q5_0"))
    assert not any(c.isChecked() for c in recipe.presets.cards)
    assert "Your own recipe" in recipe.presets.reason.text()


def test_only_what_runs_natively(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    formats = advanced(recipe, qtbot, 0).formats
    every = formats.model.rowCount()
    assert every == len(formats.model.rows) > 10
    row = formats.hardware.findData("nvidia_sm89")
    formats.hardware.setCurrentIndex(row)
    formats.hardware.activated.emit(row)
    tick(qtbot, formats.native)
    assert 0 < formats.model.rowCount() < every
    assert all(any(c.state.value == "native" for c in r.cells) for r in formats.model.rows)
    assert formats.model.row_of("TQ1_0") < 0
    put(recipe, window, qtbot, Recipe(target="TQ1_0"))
    assert formats.reason.text() == "", "nothing is said of a row that is not there"
    assert formats.model.row_of("w4a16-g64") >= 0
    tip = formats.model.index(formats.model.row_of("w4a16-g64"), 2).data(Qt.ItemDataRole.ToolTipRole)
    assert "As of 20" in tip
    assert "from " in tip
    formats.native.setFocus()
    qtbot.keyClick(formats.native, Qt.Key.Key_Space)
    assert formats.model.rowCount() == every


def test_numbers_of_a_scheme(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    numbers = advanced(recipe, qtbot, 1).numbers
    granularity, symmetric, double = (numbers.knobs[k] for k in (Knob.GRANULARITY, Knob.SYMMETRIC, Knob.DOUBLE))
    assert not granularity.isEnabled()
    assert "GGUF" in granularity.toolTip()
    assert numbers.note.isVisible(), "the reason is readable without a pointer"
    use(numbers.use, numbers.use.findData("compressed-tensors"))
    wait_plan(window, qtbot, "w4a16-g128")
    assert granularity.isEnabled()
    assert symmetric.isEnabled()
    assert not double.isEnabled()
    assert "double" in double.toolTip()
    use(granularity, granularity.findData("one scale for 32 values"))
    wait_plan(window, qtbot, "w4a16-g32")
    tick(qtbot, symmetric)
    wait_plan(window, qtbot, "w4a16-g32-asym")
    use(numbers.knobs[Knob.BITS], numbers.knobs[Knob.BITS].findData(8))
    wait_plan(window, qtbot, "w8a16-g32-asym")
    use(numbers.knobs[Knob.BITS], numbers.knobs[Knob.BITS].findData(4))
    wait_plan(window, qtbot, "w4a16-g32-asym")
    assert numbers.contract.fields.value("Zero point") == "4-bit integer"
    assert "32" in numbers.contract.fields.value("Granularity")
    methods = advanced(recipe, qtbot, 2).methods
    tick(qtbot, methods.methods[Method.ROUND])
    qtbot.waitUntil(lambda: window.services.session.current.recipe.method is Method.ROUND)


def use(chooser, row: int) -> None:  # type: ignore[no-untyped-def]
    """Choose a row, as the user does."""
    assert row >= 0
    chooser.setCurrentIndex(row)
    chooser.activated.emit(row)


def test_every_target_can_be_chosen_and_shown(qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = NumbersPanel()
    qtbot.addWidget(panel)
    for target in TARGETS:
        panel.show_recipe(Recipe(target=target.name))
        assert panel.use.currentData() == use_of(target).key
        assert panel.kind.currentData() == kind_of(target).key
        assert panel.target.currentData() == target.name
        for knob, control in panel.knobs.items():
            assert control.isEnabled() == (not kind_of(target).fixed(knob))
            assert control.isEnabled() or control.toolTip()
    asked: list[Recipe] = []
    panel.edited.connect(asked.append)
    panel.show_recipe(Recipe(target="Q4_K_M"))
    for row in range(1, len(uses())):
        use(panel.use, row)
        assert use_of(find_target(asked[-1].target)) == uses()[row]


def test_contract_card_has_every_field_of_every_format() -> None:
    fields = set(NumericContract.__dataclass_fields__)
    assert fields == {
        "name", "element", "bits", "granularity", "code_min", "code_max", "scale", "zero", "zero_bits", "symmetric",
        "block", "packing", "levels", "tensor_scale", "outer_scale", "outer_group",
    }  # fmt: skip
    for f in FORMATS:
        shown = contract_fields(f.contract)
        assert all(shown.values()), f.name
        assert f"{f.contract.effective_bits:.4g}" in shown["Effective bits"]


def test_keeping_tensors_and_the_cost_of_each_policy(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "narrow", hidden=288, ffn=576))
    put(page, window, qtbot, Recipe(target="Q4_K_M"))
    keep = advanced(page, qtbot, 3).keep
    qtbot.waitUntil(lambda: keep._costs[Misfit.KEEP].text() not in ("", "…"), timeout=LONG)
    assert keep._costs[Misfit.SMALLER].text() == format_bytes(window.services.session.current.plan.bytes_total)
    assert keep._costs[Misfit.STOP].text() == "stops"
    before = window.services.session.current.plan.bytes_total
    tick(qtbot, keep.groups[KeepGroup.ATTENTION])
    wanted = Recipe(target="Q4_K_M", keep=frozenset({KeepGroup.ATTENTION}))
    store = window.services.session
    qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe == wanted, timeout=LONG)
    assert window.services.session.current.plan.bytes_total > before
    keep.first.setValue(1)
    qtbot.waitUntil(lambda: window.services.session.current.recipe.keep_first == 1)
    tick(qtbot, keep.policies[Misfit.KEEP])
    qtbot.waitUntil(lambda: window.services.session.current.recipe.misfit is Misfit.KEEP)


def test_rules_are_added_counted_and_refused_in_place(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="Q4_0"))
    rules = advanced(recipe, qtbot, 4).rules
    assert not rules.add.isEnabled()
    assert rules.add.toolTip()
    qtbot.keyClicks(rules.pattern, "ffn_down")
    rules.format.setCurrentIndex(rules.format.findData("Q8_0"))
    click(qtbot, rules.add)
    qtbot.waitUntil(lambda: [r.count for r in rules.table.model.rows()] == [2], timeout=LONG)
    plan = window.services.session.current.plan
    assert {t.format_name for t in plan.tensors if "ffn_down" in t.name} == {"Q8_0"}
    assert rules.pattern.text() == ""
    for text, words in (("no_such_tensor", "matches no tensor"), ("(", "not a valid pattern")):
        rules.pattern.setText(text)
        click(qtbot, rules.add)
        qtbot.waitUntil(rules.error.isVisible, timeout=LONG)
        assert words in rules.error.text()
        assert rules.pattern.text() == text, "what was typed stays"
        qtbot.waitUntil(lambda: window.services.session.current.plan is not None, timeout=LONG)
        assert len(window.services.session.current.recipe.rules) == 1
    rules.table.view.selectRow(0)
    click(qtbot, rules.remove)
    qtbot.waitUntil(lambda: window.services.session.current.recipe.rules == ())


def test_rules_survive_another_target_of_the_same_container() -> None:
    recipe = Recipe("Q4_0", rules=(Rule("a", "Q8_0"), Rule("b", "keep")))
    assert with_target(recipe, "Q6_K").rules == recipe.rules
    assert with_target(recipe, "w4a16-g32").rules == (Rule("b", "keep"),)
    folder = Recipe("w4a16-g32", rules=(Rule("a", "w8a16-g32"),))
    assert with_target(folder, "w3a16-g32").rules == folder.rules
    assert with_target(folder, "gptq-4bit-g32").rules == (), "another kind of folder"


def test_a_rule_behind_another_that_takes_all(tmp_path: Path) -> None:
    recipe = Recipe("Q8_0", rules=(Rule("ffn", "Q5_0"), Rule("ffn_down", "Q4_0")))
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        first, second = match_rules(recipe, make_plan(checkpoint, recipe))
    assert first.count == 6
    assert not first.error
    assert second.count == 0
    assert second.error


def test_each_tensors_fate_is_listed(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    plan = put(recipe, window, qtbot, Recipe(target="Q5_0"))
    panel = advanced(recipe, qtbot, 5)
    qtbot.waitUntil(lambda: panel.tensors.model.rows() == list(plan.tensors), timeout=LONG)
    panel.tensors.view.selectRow(3)
    assert recipe.preview.tensor.currentText() == plan.tensors[3].name or plan.tensors[3].action is not Action.QUANTIZE


def test_recipe_files(recipe, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wanted = Recipe("Q5_0", Method.ROUND, (Rule("ffn_down", "Q8_0"),), frozenset({KeepGroup.EMBEDDING}), 1, 0)
    plan = put(recipe, window, qtbot, wanted)
    file = tmp_path / "recipe.json"
    recipe.advanced.write_recipe(file)
    put(recipe, window, qtbot, Recipe("Q8_0"))
    recipe.advanced.read_recipe(file)
    qtbot.waitUntil(lambda: window.services.session.current.recipe == wanted, timeout=LONG)
    assert wait_plan(window, qtbot, "Q5_0").bytes_total == plan.bytes_total
    click(qtbot, recipe.more)
    for text in ("{", '{"schema": 99}', '{"schema": 1, "target": "Q9"}'):
        file.write_text(text)
        recipe.advanced.read_recipe(file)
        assert recipe.advanced.error.isVisible()
        assert recipe.advanced.error.message.text()
        assert window.services.session.current.recipe == wanted
        recipe.advanced.error.hide()


# ---- preview -------------------------------------------------------------------------------------------------------


def test_preview_shows_the_chosen_tensor_and_the_whole_model(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    plan = put(recipe, window, qtbot, Recipe(target="Q4_0"))
    preview = recipe.preview
    qtbot.waitUntil(lambda: preview.histogram.has_data, timeout=LONG)
    name = next(t.name for t in plan.tensors if "attn_q" in t.name)
    preview.choose(name)
    qtbot.waitUntil(lambda: name in preview.histogram.title.text(), timeout=LONG)
    assert preview.facts.value("Effective bits") == "4.50"
    coarse = float(preview.facts.value("SNR").removesuffix(" dB"))
    put(recipe, window, qtbot, Recipe(target="Q8_0"))
    qtbot.waitUntil(lambda: preview.facts.value("Effective bits") == "8.50", timeout=LONG)
    assert name in preview.histogram.title.text(), "the tensor stays chosen"
    assert float(preview.facts.value("SNR").removesuffix(" dB")) > coarse + 15
    count = sum(t.action is Action.QUANTIZE for t in plan.tensors)
    qtbot.waitUntil(lambda: f"sample of {count} tensors" in preview.sample.text(), timeout=LONG)
    assert "dB" in preview.histogram.accessibleDescription()


def test_stale_results_never_overwrite_newer(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    preview = recipe.preview
    for target in ("Q8_0", "Q4_0", "Q5_0", "Q5_1", "Q4_1", "Q8_0", "Q4_0"):
        recipe.set_recipe(Recipe(target=target))
        qtbot.wait(15)
    wait_plan(window, qtbot, "Q4_0")
    qtbot.waitUntil(lambda: preview.facts.value("Effective bits") == "4.50", timeout=LONG)
    qtbot.wait(500)
    assert preview.facts.value("Effective bits") == "4.50"
    assert window.services.session.current.plan.recipe.target == "Q4_0"


def test_preview_of_values_that_can_not_be_stored(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for name, t in tensors.items():
            if "down_proj" in name:
                t[0, 0] = float(np.nan)

    page = open_recipe(window, qtbot, write_llama(tmp_path / "nan", change=spoil))
    put(page, window, qtbot, Recipe(target="Q8_0"))
    qtbot.waitUntil(page.preview.error.isVisible, timeout=LONG)
    assert "NaN" in page.preview.error.message.text()
    assert not page.preview.histogram.has_data


def test_another_model_leaves_nothing_of_the_one_before(recipe, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = recipe.outcome.size.text()
    open_model(window, qtbot, write_llama(tmp_path / "other", layers=5))
    assert recipe.outcome.state.text() == "working it out…"
    assert not recipe.convert.isEnabled()
    window.show_page("recipe")
    qtbot.waitUntil(recipe.convert.isEnabled, timeout=LONG)
    assert recipe.outcome.size.text() != first
    assert "other" in recipe.output.text()


# ---- output --------------------------------------------------------------------------------------------------------


def test_output_follows_the_target_until_somebody_chooses(recipe, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="Q5_0"))
    assert recipe.output.text() == str(tmp_path / "tiny-Q5_0.gguf")
    put(recipe, window, qtbot, Recipe(target="w8a16-g64"))
    assert recipe.output.text() == str(tmp_path / "tiny-w8a16-g64")
    assert find_target("w8a16-g64").is_folder
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put(recipe, window, qtbot, Recipe(target="Q8_0"))
    recipe.set_output(elsewhere / "mine.gguf")
    assert recipe.output.text() == str(elsewhere / "mine.gguf")
    put(recipe, window, qtbot, Recipe(target="Q4_0"))
    assert recipe.output.text() == str(elsewhere / "tiny-Q4_0.gguf"), "the folder stays, the name says the target"


def test_what_was_used_last_time_is_offered(services, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from app.main_window import MainWindow

    services.session.update(target="Q5_1")
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.show()
    window.page("recipe")
    page = open_recipe(window, qtbot, write_llama(tmp_path / "tiny"))
    assert page.again.isVisible()
    assert page.again.text() == "Use Q5_1 as last time"
    click(qtbot, page.again)
    wait_plan(window, qtbot, "Q5_1")
    assert not page.again.isVisible()
