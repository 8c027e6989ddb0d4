"""The switch for scales of an 8-bit key-value cache: where it is on offer, what it changes, and why it is off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel
from tiny_models import write_llama
from window_help import LONG, click, open_recipe, wait_plan

from app.jobs.plan import with_target
from app.memory_view import estimate_for
from core.checkpoint import open_checkpoint
from core.export.cache_scales import why_no_cache
from core.plan import make_plan
from core.recipe import Recipe
from core.serving import serving
from core.targets import TARGETS, find_target
from resources import glossary

pytestmark = pytest.mark.gui


def test_the_switch_puts_scales_into_the_plan_and_halves_the_cache(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "tiny"))
    store = window.services.session
    click(qtbot, page.more)
    page.advanced.tabs.setCurrentIndex(1)
    switch = page.advanced.numbers.cache
    assert not switch.isEnabled()
    assert find_target(store.current.recipe.target).container == "gguf"
    assert "compressed-tensors or ModelOpt" in switch.toolTip()
    assert "8-bit cache" in page.advanced.numbers.note.text(), "the reason is readable without a pointer"
    page.set_recipe(Recipe("w4a16-g64"))
    wait_plan(window, qtbot, "w4a16-g64")
    assert switch.isEnabled()
    before = estimate_for(store.current)
    switch.click()
    qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe.cache == "fp8", timeout=LONG)
    assert any(w.startswith("The ranges of keys and values are measured") for w in store.current.plan.warnings)
    names = {t.name for t in store.current.plan.tensors}
    assert "model.layers.0.self_attn.k_scale" in names
    after = estimate_for(store.current)
    sizes = [next(s.bytes for s in e.segments if s.key == "kv") for e in (before, after)]
    scales = 2 * 4 * store.current.shape.layers  # one for keys and one for values, in float32
    assert 2 * (sizes[1] - scales) == sizes[0] > 0
    page.set_recipe(with_target(store.current.recipe, "Q4_0"))
    wait_plan(window, qtbot, "Q4_0")
    assert not switch.isEnabled()
    assert not switch.isChecked()
    name = next(w for w in page.advanced.numbers.findChildren(QLabel) if w.text() == "KV cache")
    assert name.toolTip() == glossary()["8-bit cache"]


def test_another_target_keeps_the_scales_where_it_has_a_place_for_them() -> None:
    recipe = Recipe("w4a16-g64", cache="fp8")
    for target in TARGETS:
        assert with_target(recipe, target.name).cache == ("" if why_no_cache(target) else "fp8")
    assert with_target(recipe, "modelopt-fp8").cache == "fp8"


def test_commands_for_servers_say_that_the_cache_has_8_bits(tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny")) as checkpoint:
        plan = make_plan(checkpoint, Recipe("w4a16-g64"))
        plain = {c.runtime: c.text for c in serving(plan, tmp_path)}
        eight = {c.runtime: c.text for c in serving(replace(plan, recipe=Recipe("w4a16-g64", cache="fp8")), tmp_path)}
    assert eight["vLLM"] == f"{plain['vLLM']} --kv-cache-dtype fp8"
    assert eight["SGLang"] == f"{plain['SGLang']} --kv-cache-dtype fp8_e4m3"
    assert eight["Transformers"] == plain["Transformers"]
