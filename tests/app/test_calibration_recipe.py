"""Methods that need data on the Recipe page: choosing them, what they cost, why some can not be, and the text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QFileDialog
from tiny_models import write_llama
from window_help import LONG, click, controls, longest_block, open_recipe, wait_plan

from app.jobs.calibration import about, cost_text, for_format, methods_work
from app.jobs.plan import with_target
from core.calibration.imatrix import Importance, ImportanceMatrix
from core.calibration.imatrix_file import write_imatrix
from core.calibration.settings import CalibrationText, Domain
from core.catalog import base_of
from core.checkpoint import open_checkpoint
from core.formats import Method
from core.methods.choice import Calibrated, DataMethod, Transform
from core.progress import CancelToken
from core.recipe import Recipe
from core.targets import find_target

pytestmark = pytest.mark.gui
METHOD_TAB = 2
FRAME = 0.050
SMALL = CalibrationText(samples=2, length=16)


@pytest.fixture
def recipe(window, qtbot, tmp_path: Path):  # type: ignore[no-untyped-def]
    """The Recipe page with a tiny model, the tab Method open, costs known."""
    page = open_recipe(window, qtbot, write_llama(tmp_path / "tiny", tied=False))
    click(qtbot, page.more)
    page.advanced.tabs.setCurrentIndex(METHOD_TAB)
    put(page, window, qtbot, Recipe(target="Q4_0"))
    return page


def put(page, window, qtbot, recipe: Recipe):  # type: ignore[no-untyped-def]
    """Put a recipe in force; wait for its plan and for all that is said of it."""
    page.set_recipe(recipe)
    return settle(window, qtbot, recipe)


def settle(window, qtbot, recipe: Recipe | None = None):  # type: ignore[no-untyped-def]
    store, jobs = window.services.session, window.services.jobs
    wanted = recipe or store.current.recipe
    qtbot.waitUntil(lambda: store.current.plan is not None and store.current.plan.recipe == wanted, timeout=LONG)
    timer = window.page("recipe").calibrating._timer
    qtbot.waitUntil(lambda: not jobs.jobs() and not timer.isActive(), timeout=LONG)
    return store.current.plan


def tick(qtbot, box) -> None:  # type: ignore[no-untyped-def]
    """Click a box on its mark, once it is in sight."""
    area = box.parentWidget()
    while area is not None and not hasattr(area, "ensureWidgetVisible"):
        area = area.parentWidget()
    if area is not None:
        area.ensureWidgetVisible(box)
    assert box.isVisible()
    assert box.isEnabled(), box.toolTip()
    qtbot.mouseClick(box, Qt.MouseButton.LeftButton, pos=QPoint(12, box.height() // 2))


# ---- choosing ------------------------------------------------------------------------------------------------------


def test_importance_by_a_click(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel, store = recipe.advanced.methods, window.services.session
    assert panel.methods[Method.SEARCH].isChecked()
    assert not panel.calibration.isVisible(), "nothing needs data"
    assert panel.notes[DataMethod.IMPORTANCE].text().startswith("About ")
    assert not recipe.preview.note.isVisible()
    plain = store.current.plan
    tick(qtbot, panel.methods[DataMethod.IMPORTANCE])
    plan = settle(window, qtbot)
    assert plan.recipe.calibrated == Calibrated(DataMethod.IMPORTANCE)
    assert sum(t.bytes.total for t in plan.tensors) == sum(t.bytes.total for t in plain.tensors)
    assert plain.bytes_total < plan.bytes_total < plain.bytes_total + 4096, "how they were chosen is written down"
    assert plan.choosing_seconds > 0
    assert recipe.outcome.calibration.isVisible()
    assert recipe.outcome.calibration.text() == cost_text(plan)
    assert recipe.outcome.calibration.text().startswith("Importance takes about ")
    assert recipe.preview.note.isVisible(), "the preview says that it knows no data"
    card = panel.calibration
    assert card.isVisible()
    assert not card.settings.isVisible(), "the defaults do: folded"
    assert "64 samples of 512 tokens" in card.summary.text()
    assert "prose" in card.found.text()
    panel.methods[DataMethod.IMPORTANCE].setFocus()
    tick(qtbot, panel.methods[Method.ROUND])
    settle(window, qtbot)
    assert store.current.recipe == Recipe(target="Q4_0", method=Method.ROUND)
    assert not card.isVisible()
    assert not recipe.outcome.calibration.isVisible()


def test_by_keyboard(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel, store = recipe.advanced.methods, window.services.session
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    panel.methods[Method.SEARCH].setFocus()
    for _ in range(len(panel.methods)):
        if store.current.recipe.calibrated is not None:
            break
        QTest.keyClick(window.focusWidget(), Qt.Key.Key_Down)
    assert store.current.recipe.calibrated == Calibrated(DataMethod.IMPORTANCE), "what is off is passed over"
    settle(window, qtbot)
    change = panel.calibration.change
    change.setFocus()
    QTest.keyClick(change, Qt.Key.Key_Space)
    assert panel.calibration.settings.isVisible()
    samples = panel.calibration.samples
    samples.setFocus()
    samples.selectAll()
    QTest.keyClicks(samples, "8")
    assert store.current.recipe.calibrated.text.samples == 64, "not at every digit"
    QTest.keyClick(samples, Qt.Key.Key_Return)
    assert store.current.recipe.calibrated.text.samples == 8
    chat = panel.calibration.domains[Domain.CHAT]
    chat.setFocus()
    QTest.keyClick(chat, Qt.Key.Key_Space)
    settle(window, qtbot)
    assert store.current.recipe.calibrated.text.domains == (Domain.PROSE, Domain.ENCYCLOPAEDIC, Domain.CODE)
    assert "chat" not in panel.calibration.found.text()


@pytest.mark.parametrize("method", [DataMethod.GPTQ, DataMethod.IMPORTANCE])
def test_methods_with_transforms(recipe, window, qtbot, method: DataMethod) -> None:  # type: ignore[no-untyped-def]
    panel = recipe.advanced.methods
    put(recipe, window, qtbot, Recipe(target="w4a16-g64"))
    tick(qtbot, panel.methods[method])
    settle(window, qtbot)
    tick(qtbot, panel.transforms[Transform.AWQ])
    plan = settle(window, qtbot)
    assert plan.recipe.calibrated == Calibrated(method, (Transform.AWQ,))
    assert {t.chosen_by for t in plan.tensors} == {"", plan.recipe.calibrated.name}
    assert "room on the disk" in recipe.outcome.calibration.text()
    table = recipe.advanced.tensors
    recipe.advanced.tabs.setCurrentIndex(5)
    assert not table.view.isColumnHidden(4)
    assert plan.recipe.calibrated.name in {table.model.index(row, 4).data() for row in range(table.model.rowCount())}
    recipe.advanced.tabs.setCurrentIndex(METHOD_TAB)
    tick(qtbot, panel.methods[Method.SEARCH])
    settle(window, qtbot)
    assert window.services.session.current.recipe.calibrated == Calibrated(DataMethod.NONE, (Transform.AWQ,))
    tick(qtbot, panel.transforms[Transform.AWQ])
    settle(window, qtbot)
    assert window.services.session.current.recipe.calibrated is None
    assert table.view.isColumnHidden(4)


def test_rotation_while_the_model_runs(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel, store = recipe.advanced.methods, window.services.session
    assert "Q4_0 has no place for a rotation that happens while the model runs." in panel.online.toolTip()
    assert not panel.online.isEnabled()
    put(recipe, window, qtbot, Recipe(target="w4a16-g64"))
    assert "Check Rotation first" in panel.online.toolTip()
    assert not panel.online.isEnabled()
    tick(qtbot, panel.transforms[Transform.ROTATION])
    settle(window, qtbot)
    tick(qtbot, panel.online)
    plan = settle(window, qtbot)
    assert plan.recipe.calibrated == Calibrated(DataMethod.NONE, (Transform.ROTATION,), online=True)
    assert any("transformers 5 does not yet" in words for words in plan.warnings)
    assert any(t.name.endswith("layers.0.mlp.down_proj.R4_input.weight") for t in plan.tensors)
    tick(qtbot, panel.transforms[Transform.ROTATION])
    settle(window, qtbot)
    assert store.current.recipe.calibrated is None
    assert not panel.online.isChecked()
    assert with_target(plan.recipe, "w8a8").calibrated == plan.recipe.calibrated
    for other in ("Q4_0", "gptq-4bit-g64"):
        assert with_target(plan.recipe, other).calibrated == Calibrated(DataMethod.NONE, (Transform.ROTATION,))


def test_smoothquant_and_its_alpha(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel, store = recipe.advanced.methods, window.services.session
    box = panel.transforms[Transform.SMOOTHQUANT]
    assert not box.isEnabled()
    assert "16 bits" in panel.notes[Transform.SMOOTHQUANT].text(), "readable without a pointer"
    assert "w8a8" in box.toolTip()
    put(recipe, window, qtbot, Recipe(target="w8a8"))
    tick(qtbot, box)
    settle(window, qtbot)
    assert store.current.recipe.calibrated == Calibrated(DataMethod.NONE, (Transform.SMOOTHQUANT,))
    assert panel.alpha_kind.isVisible()
    assert not panel.alpha.isVisible()
    panel.alpha_kind.setCurrentIndex(1)
    panel.alpha_kind.activated.emit(1)
    settle(window, qtbot)
    assert store.current.recipe.calibrated.alpha == 0.5
    panel.alpha.setValue(0.75)
    settle(window, qtbot)
    assert store.current.recipe.calibrated.alpha == 0.75


# ---- what can not be -----------------------------------------------------------------------------------------------


def test_refused_combinations_say_why_in_sight(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    panel = recipe.advanced.methods
    put(recipe, window, qtbot, Recipe(target="Q4_K"))
    for method in (DataMethod.GPTQ, Method.HALF_QUADRATIC):
        assert not panel.methods[method].isEnabled()
        assert panel.notes[method].isVisible()
        assert "Q4_K" in panel.notes[method].text()
        assert panel.methods[method].toolTip().startswith(panel.notes[method].text())
    assert panel.methods[DataMethod.IMPORTANCE].isEnabled()
    put(recipe, window, qtbot, Recipe(target="BF16"))
    assert not any(radio.isEnabled() for radio in panel.methods.values())
    assert all(panel.notes[m].text() for m in panel.methods)
    put(recipe, window, qtbot, Recipe(target="w4a16-g64-asym"))
    assert panel.methods[Method.HALF_QUADRATIC].isEnabled()


def test_a_recipe_that_can_not_be_is_explained_at_the_result(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    recipe.set_recipe(Recipe(target="Q6_K", calibrated=Calibrated(DataMethod.GPTQ)))
    qtbot.waitUntil(recipe.outcome.error.isVisible, timeout=LONG)
    assert "GPTQ can not choose the numbers of" in recipe.outcome.error.message.text()
    assert not recipe.convert.isEnabled()
    assert not recipe.outcome.calibration.isVisible()


def test_another_target_keeps_what_it_can() -> None:
    every = Calibrated(DataMethod.GPTQ, (Transform.SMOOTHQUANT, Transform.AWQ), SMALL)
    assert for_format(every, base_of(find_target("w8a8"))) == every
    left = for_format(every, base_of(find_target("Q4_K_M")))
    assert left == Calibrated(DataMethod.NONE, (Transform.AWQ,), SMALL)
    assert for_format(Calibrated(DataMethod.GPTQ), base_of(find_target("Q4_K_M"))) is None
    assert for_format(every, base_of(find_target("BF16"))) is None
    kept = Calibrated(DataMethod.IMPORTANCE, imatrix="a.gguf")
    assert for_format(kept, base_of(find_target("Q6_K"))) == kept
    assert for_format(None, base_of(find_target("Q6_K"))) is None


def test_a_target_that_needs_importance_turns_it_on() -> None:
    for before in (Recipe("Q4_K_M"), Recipe("w4a16-g64", calibrated=Calibrated(DataMethod.GPTQ, aim=True))):
        after = with_target(before, "IQ2_M")
        assert after.calibrated == Calibrated(DataMethod.IMPORTANCE)
        assert with_target(after, "Q6_K").calibrated == after.calibrated


def test_estimates_are_no_more_exact_than_they_are() -> None:
    assert [about(s) for s in (0.2, 34.8, 59.7, 97, 185, 598, 3590, 7900)] == [
        "about 1 s", "about 35 s", "about 1 min", "about 1 min 40 s", "about 3 min", "about 10 min", "about 1 h 00 min",
        "about 2 h 10 min",
    ]  # fmt: skip


# ---- the text ------------------------------------------------------------------------------------------------------


def test_the_text_can_be_read_before_it_is_used(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE, text=SMALL)))
    card = recipe.advanced.methods.calibration
    tick(qtbot, card.change)
    click(qtbot, card.show_text)
    dialog = recipe.calibrating.dialog
    qtbot.waitUntil(dialog.isVisible)
    assert not dialog.isModal()
    assert "[Sample 1 of 2]" in dialog.text.toPlainText()
    assert dialog.settings.text() == "2 samples of 16 tokens, 32 in all, of the bundled text."
    assert dialog.shares.text().startswith("Consists of ")
    assert "fewer than" in dialog.warnings.text(), "32 tokens are said to be too few"
    assert "fewer than" in card._warnings.itemAt(0).widget().accessibleName(), "on the card, too"
    before = dialog.text.toPlainText()
    card.samples.setValue(3)
    settle(window, qtbot)
    assert "of 3]" in dialog.text.toPlainText() != before, "it follows the settings"
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    assert not dialog.isVisible()


def test_a_text_of_ones_own(recipe, window, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE, text=SMALL)))
    card, store = recipe.advanced.methods.calibration, window.services.session
    tick(qtbot, card.change)
    own = tmp_path / "own.txt"
    own.write_text("The heron stands in the shallow water and waits. " * 40)
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))
    choose(card.text_kind, "file")
    assert card.text_kind.currentData() == "bundled", "nothing was chosen"
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(own), ""))
    choose(card.text_kind, "file")
    settle(window, qtbot)
    assert store.current.recipe.calibrated.text.path == str(own)
    assert card.path.isVisible()
    assert not card.domains[Domain.PROSE].isVisible()
    assert "own.txt" in card.summary.text()
    assert "own.txt" in card.found.text()
    other = tmp_path / "texts"
    other.mkdir()
    (other / "a.txt").write_text("Snow lies on the hills. " * 80)
    assert recipe.take_drop(other, card.mapTo(recipe, QPoint(20, 20))), "a folder dropped on the card is a text"
    settle(window, qtbot)
    assert store.current.recipe.calibrated.text.path == str(other)
    assert card.text_kind.currentData() == "folder"
    assert not recipe.take_drop(other, QPoint(5, 5)), "elsewhere it is a model"
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    card.take_path(empty)
    settle(window, qtbot)
    assert card.error.isVisible()
    assert card.error.message.text()
    choose(card.text_kind, "bundled")
    settle(window, qtbot)
    assert not card.error.isVisible()
    assert store.current.recipe.calibrated.text.path == ""


def choose(chooser, data: str) -> None:  # type: ignore[no-untyped-def]
    row = chooser.findData(data)
    chooser.setCurrentIndex(row)
    chooser.activated.emit(row)


def test_an_importance_matrix_of_llama_cpp(
    recipe, window, qtbot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE)))
    panel, store = recipe.advanced.methods, window.services.session
    card = panel.calibration
    tick(qtbot, card.change)
    names = [f"blk.{layer}.{part}.weight" for layer in range(2) for part in ("attn_q", "ffn_up")]
    entry = Importance(np.ones((1, 256), np.float32), np.array([8], np.int64))
    file = tmp_path / "matrix.gguf"
    write_imatrix(file, ImportanceMatrix(dict.fromkeys(names, entry), 7, 512))
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(file), ""))
    choose(card.importance, "file")
    settle(window, qtbot)
    assert store.current.recipe.calibrated.imatrix == str(file)
    assert "importance of " in card.found.text()
    assert "7 pieces" in card.found.text()
    assert not card.samples.isVisible()
    assert not card.show_text.isEnabled()
    assert "no time of its own" in recipe.outcome.calibration.text()
    tick(qtbot, panel.transforms[Transform.AWQ])
    settle(window, qtbot)
    assert store.current.recipe.calibrated.imatrix == "", "transformed weights are measured anew"
    assert not card.importance.isEnabled()
    tick(qtbot, panel.transforms[Transform.AWQ])
    settle(window, qtbot)
    file.write_bytes(b"no matrix")
    card.take_path(file)
    settle(window, qtbot)
    assert card.error.isVisible()
    tick(qtbot, panel.methods[DataMethod.GPTQ])
    settle(window, qtbot)
    assert store.current.recipe.calibrated.imatrix == ""


def test_another_model_leaves_nothing_of_the_text(recipe, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE, text=SMALL)))
    tick(qtbot, recipe.advanced.methods.calibration.show_text)
    dialog = recipe.calibrating.dialog
    open_recipe(window, qtbot, write_llama(tmp_path / "other", layers=3))
    assert not dialog.isVisible()
    assert recipe.calibrating._samples is None


# ---- presets, files, and the window as a whole ---------------------------------------------------------------------


def test_presets_can_measure_first(window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = open_recipe(window, qtbot, write_llama(tmp_path / "tiny"))
    store, presets = window.services.session, page.presets
    smaller, balanced, closest = presets.cards[1:]
    click(qtbot, balanced)
    settle(window, qtbot)
    box = presets.calibrated
    qtbot.waitUntil(lambda: box.isEnabled() and "(about " in box.text(), timeout=LONG)
    tick(qtbot, box)
    plan = settle(window, qtbot)
    assert plan.recipe == Recipe(target=balanced.offer.recipe.target, calibrated=Calibrated(DataMethod.IMPORTANCE))
    assert balanced.isChecked(), "it is the preset still"
    click(qtbot, smaller)
    settle(window, qtbot)
    assert store.current.recipe.calibrated is not None, "and stays measured with another"
    tick(qtbot, box)
    settle(window, qtbot)
    assert store.current.recipe == smaller.offer.recipe
    click(qtbot, closest)
    settle(window, qtbot)
    qtbot.waitUntil(lambda: not box.isEnabled(), timeout=LONG)
    assert "8 bits" in box.toolTip()


def test_recipe_files_keep_the_calibration(recipe, window, qtbot, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wanted = Recipe(
        "w8a8", calibrated=Calibrated(DataMethod.NONE, (Transform.SMOOTHQUANT,), CalibrationText(seed=5), alpha=0.25)
    )
    put(recipe, window, qtbot, wanted)
    file = tmp_path / "recipe.json"
    recipe.advanced.write_recipe(file)
    assert json.loads(file.read_text())["calibrated"]["alpha"] == 0.25
    put(recipe, window, qtbot, Recipe("Q8_0"))
    recipe.advanced.read_recipe(file)
    settle(window, qtbot, wanted)
    panel = recipe.advanced.methods
    assert panel.transforms[Transform.SMOOTHQUANT].isChecked()
    assert panel.alpha.value() == 0.25
    assert panel.calibration.seed.value() == 5


def test_everything_has_a_name_a_reason_and_room(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    put(recipe, window, qtbot, Recipe(target="w8a8", calibrated=Calibrated(DataMethod.NONE, (Transform.SMOOTHQUANT,))))
    panel = recipe.advanced.methods
    tick(qtbot, panel.calibration.change)
    for size in ((900, 600), (1100, 700), (1920, 1080)):
        window.resize(*size)
        qtbot.wait(30)
        for control in controls(panel):
            assert control.accessibleName() or control.text(), control
            assert control.toolTip(), control
            assert control.isEnabled() or control.toolTip(), control
        area = recipe.advanced.tabs.widget(METHOD_TAB)
        assert panel.width() <= area.viewport().width(), f"cut off at {size}"


def test_the_event_loop_is_not_blocked(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    """The quickest of three counts: the machine may be shared."""
    store, jobs = window.services.session, window.services.jobs
    runs = []
    for samples in (8, 9, 10):
        text = CalibrationText(samples=samples, length=128)
        wanted = Recipe(target="Q4_0", calibrated=Calibrated(DataMethod.IMPORTANCE, text=text))

        def done(wanted: Recipe = wanted) -> bool:
            plan = store.current.plan
            found = recipe.advanced.methods.calibration.found.text()
            return plan is not None and plan.recipe == wanted and not jobs.jobs() and "Consists" in found

        runs.append(longest_block(lambda wanted=wanted: recipe.set_recipe(wanted), done))
        if runs[-1] < FRAME:
            break
        put(recipe, window, qtbot, Recipe(target="Q4_0"))
    assert min(runs) < FRAME, f"blocked for {1000 * min(runs):.0f} ms"


def test_waiting_for_a_plan_of_the_target(recipe, window, qtbot) -> None:  # type: ignore[no-untyped-def]
    """A target that knows no such method gives way to the usual one, as the plain methods do."""
    put(recipe, window, qtbot, Recipe(target="w4a16-g64", calibrated=Calibrated(DataMethod.GPTQ)))
    numbers = recipe.advanced.numbers
    row = numbers.use.findData("gguf")
    numbers.use.setCurrentIndex(row)
    numbers.use.activated.emit(row)
    plan = wait_plan(window, qtbot, window.services.session.current.recipe.target)
    assert plan.recipe.calibrated is None or plan.recipe.calibrated.method is DataMethod.GPTQ


@pytest.mark.parametrize(
    ("target", "words"),
    [("nvfp4a16", "one scale of the whole matrix"), ("Q4_K", "chosen as a whole"), ("mxfp4a16", ""), ("w4a16-g64", "")],
)
def test_what_gptq_can_not_choose_is_off_and_says_why(target: str, words: str, tmp_path: Path) -> None:
    with open_checkpoint(write_llama(tmp_path / "tiny", hidden=256, ffn=256)) as checkpoint:
        choice = methods_work(checkpoint, Recipe(target))(CancelToken()).methods[DataMethod.GPTQ]
    assert words in choice.problem
    assert bool(choice.problem) == bool(words) == bool(choice.hint)
