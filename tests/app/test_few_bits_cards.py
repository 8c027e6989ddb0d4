"""The cards of 2 and 3 bits on the Recipe page: closed until asked for, sized, with what they lose and take."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoder_models import write_model
from tiny_models import write_llama
from window_help import LONG, click, open_recipe

from core.few_bits import FEW_BITS

pytestmark = pytest.mark.gui


def test_few_bits_are_offered_on_request(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_model(tmp_path / "model", "llama2")
    page = open_recipe(window, qtbot, tmp_path / "model")
    cards, store = page.presets.few, window.services.session
    assert not any(card.isVisible() for card in cards)
    before = store.current.recipe
    click(qtbot, page.presets.fewer)
    qtbot.waitUntil(lambda: all(card.offer is not None for card in cards), timeout=LONG)
    assert all(card.isVisible() and card.isEnabled() for card in cards)
    for card, few in zip(cards, FEW_BITS, strict=True):
        assert few.loses in card.accessibleDescription()
        assert "Takes about" in card.accessibleDescription()
        assert few.recipe.target in card.accessibleName()
    click(qtbot, cards[0])
    qtbot.waitUntil(lambda: store.current.recipe == FEW_BITS[0].recipe, timeout=LONG)
    assert cards[0].isChecked()
    assert not page.presets.calibrated.isVisible()
    qtbot.waitUntil(page.convert.isEnabled, timeout=LONG)
    layout = page.outcome._warnings
    said = [layout.itemAt(i).widget().accessibleName() for i in range(layout.count())]
    assert any(FEW_BITS[0].loses in words for words in said)
    name = FEW_BITS[0].recipe.calibrated.name
    assert page.outcome.calibration.text().lower().startswith(f"{name.lower()} takes about")
    click(qtbot, page.presets.cards[0])
    qtbot.waitUntil(lambda: store.current.recipe == before, timeout=LONG)
    assert page.presets.calibrated.isVisible()


def test_another_model_has_its_own_sizes(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_model(tmp_path / "model", "llama2")
    page = open_recipe(window, qtbot, tmp_path / "model")
    click(qtbot, page.presets.fewer)
    qtbot.waitUntil(lambda: page.presets.few[0].offer is not None, timeout=LONG)
    first = page.presets.few[0].offer.plan.bytes_total
    page = open_recipe(window, qtbot, write_llama(tmp_path / "other", hidden=256, ffn=512))
    few = page.presets.few[0]
    qtbot.waitUntil(lambda: few.offer is not None, timeout=LONG)
    assert few.offer.plan is None or few.offer.plan.bytes_total != first
