"""The first page and the first preset: what this computer is, three ways to a model, and the best choice explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel
from tiny_models import write_llama
from window_help import LONG, click, open_recipe

from app.devices import DeviceChoice, choice_of
from app.jobs.plan import reply_for
from app.jobs.plan_best import best_of, runtime_sentence
from app.jobs.plan_presets import BETWEEN, PRESETS, Offer
from core.checkpoint import open_checkpoint
from core.hardware.device import Device
from core.plan import make_plan
from core.recipe import Recipe

pytestmark = pytest.mark.gui
CPU = Device(
    "cpu", "Some CPU", "AMD", "cpu", "x86_avx2", 16_000_000_000, 9_000_000_000, 50e9, "measured",
    instruction_sets=("avx", "avx2"), cores=8,
)  # fmt: skip


def words(page) -> str:  # type: ignore[no-untyped-def]
    return "\n".join(text.text() for text in page.findChildren(QLabel) if text.isVisible())


def test_the_first_page_says_what_this_computer_can_run(window) -> None:  # type: ignore[no-untyped-def]
    page = window.page("model")
    assert "Looking at this computer" in words(page)
    window.services.shell.devices_known.emit((choice_of(CPU), DeviceChoice("x", "Another", 10**12, 1e12, own=False)))
    said = words(page)
    assert "up to about 18 billion weights at 4 bits" in said
    assert "Some CPU, 8 cores, 8 numbers at a time (AVX2); 16.00 GB of memory" in said
    assert "no graphics card" in said
    assert "Another" not in said
    assert "No account, no telemetry" in said
    for one in (page.start.sample, page.start.primary, page.start.get):
        assert one.isVisible()


@pytest.mark.parametrize("size", [(1100, 700), (900, 600)])
def test_no_sentence_is_cut_off(window, qtbot, size: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    window.resize(*size)
    window.services.shell.devices_known.emit((choice_of(replace(CPU, name="A processor with a rather long name")),))
    page = window.page("model")
    page.start.show_sample_state("Getting the sample model (93 MB), once…")
    qtbot.wait(50)
    for text in page.start.findChildren(QLabel):
        if text.isVisible() and text.wordWrap():
            assert text.height() >= text.heightForWidth(text.width()), text.text()


def offers(tmp_path: Path) -> list[Offer]:
    with open_checkpoint(write_llama(tmp_path / "tiny", hidden=256, ffn=512)) as checkpoint:
        made = [(p, make_plan(checkpoint, Recipe(target=p.targets[0]))) for p in (*PRESETS, *BETWEEN)]
    big = max(plan.bytes_total for _, plan in made)
    return [
        Offer(p, plan.recipe, plan, reply_for(plan), fits=True, used=plan.bytes_total, capacity=100 * big)
        for p, plan in made
    ]


def test_the_best_leaves_room_and_answers_quickly(tmp_path: Path) -> None:
    ladder = offers(tmp_path)
    big = max(o.used for o in ladder)

    def best(changed: list[Offer], quantized: bool = False) -> tuple[str, str]:
        chosen, why = best_of(changed, "this computer", quantized)
        return chosen.recipe.target, why

    assert best(ladder) == ("Q8_0", "there is room and speed enough for 8 bits, so nothing needs to be given up")
    half = [replace(o, capacity=2 * big) for o in ladder]
    assert best(half) == ("Q6_K", "the closest to the original here: Q8_0 would take over 25 % of the memory")
    slow = [replace(o, tokens_per_second=1e9 / o.used if o.preset.key == "closest" else 3.0) for o in ladder]
    target, why = best([replace(o, tokens_per_second=3.0) for o in slow])
    assert target == "Q4_K_M"
    assert why.endswith("Q6_K would write at most 3.00 tokens/s")
    tight = [replace(o, fits=o.preset.key in ("three", "smaller")) for o in ladder]
    assert best(tight) == ("IQ4_XS", "the closest to the original that fits")
    assert best([replace(o, fits=False) for o in ladder])[0] == "Q3_K_M"
    assert best(ladder, quantized=True)[0] == "Q8_0"


def test_the_program_that_runs_it_is_named() -> None:
    own = choice_of(CPU)
    assert runtime_sentence("Q4_K_M", own) == (
        "llama.cpp, LM Studio and Ollama run it, with fast code for Some CPU, "
        "which works on 8 numbers at a time (AVX2)."
    )
    assert runtime_sentence("Q4_K_M", None) == "llama.cpp, LM Studio and Ollama run it."


def test_the_first_preset_is_the_best_and_says_why(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    window.services.session.update(device=choice_of(CPU))
    page = open_recipe(window, qtbot, write_llama(tmp_path / "tiny", hidden=256, ffn=512))
    first, *others = page.presets.cards
    assert first.accessibleName().startswith("Best for this computer, recommended: ")
    assert first.isChecked()
    assert not any(card.isChecked() for card in others)
    reason = page.presets.reason.text()
    assert "Fits on Some CPU" in reason
    assert "llama.cpp, LM Studio and Ollama run it, with fast code for Some CPU" in reason
    same = next(card for card in others if card.offer.recipe == first.offer.recipe)
    click(qtbot, same)
    assert same.isChecked()
    assert not first.isChecked()
    window.services.session.update(device=DeviceChoice("card", "A card", 10**11, 1e12, own=False))
    assert first.accessibleName().startswith("Best for A card")
    qtbot.waitUntil(page.convert.isEnabled, timeout=LONG)
