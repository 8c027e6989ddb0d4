"""Recipes of 2 and 3 bits: that they run, what is said of them, and where they are found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from decoder_models import write_model

from core.calibration.settings import CalibrationText, Domain
from core.checkpoint import open_checkpoint
from core.cli import main
from core.few_bits import FEW_BITS, find, warning
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.record import read_record
from core.plan import make_plan
from core.recipe import Recipe

TEXT = CalibrationText(samples=4, length=24)
EACH = pytest.mark.parametrize("few", FEW_BITS, ids=[few.name for few in FEW_BITS])


@EACH
def test_a_recipe_is_a_method_on_data_with_small_groups(few) -> None:  # type: ignore[no-untyped-def]
    assert find(few.name) is few
    assert Recipe.from_json(few.recipe.to_json()) == few.recipe
    assert few.recipe.calibrated is not None
    assert few.recipe.calibrated.needs_blocks


@EACH
@pytest.mark.parametrize("model", ["llama2", "llama3"])
def test_it_converts_and_says_before_what_it_costs_and_loses(
    few,  # type: ignore[no-untyped-def]
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """llama3's head is its embedding: no rotation gives it another one."""
    source, out = tmp_path / "model", tmp_path / "out"
    write_model(source, model)
    with open_checkpoint(source) as checkpoint:
        few = few.suited(checkpoint)
    assert few.recipe.calibrated.transforms == () or model == "llama2"
    assert main(["plan", str(source), "--recipe", few.name, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert few.loses in plan["warnings"]
    assert plan["expected_seconds"] > 0
    assert {share["name"] for share in plan["calibration"]["shares"]} == {d.value for d in Domain}
    assert {t["chosen_by"] for t in plan["tensors"] if t["action"] == "quantize"} == {few.recipe.calibrated.name}
    assert ("lm_head.weight" in {t["name"] for t in plan["tensors"]}) == (model == "llama2")
    words = ["--samples", "4", "--length", "24", "-o", str(out)]
    assert main(["convert", str(source), "--recipe", few.name, *words]) == 0
    assert few.loses in capsys.readouterr().out
    with open_checkpoint(out) as made:
        assert read_record(made)["method"] == few.recipe.calibrated.name


def test_three_bits_are_rotated_where_that_costs_nothing() -> None:
    """Figures: docs/quality.md."""
    few = find("3-bit")
    assert few is not None
    assert few.recipe.calibrated == Calibrated(DataMethod.GPTQ, (Transform.ROTATION,))
    assert few.tied is not None
    assert few.tied.recipe.calibrated == Calibrated(DataMethod.GPTQ)
    assert few.suited(None) is few
    assert warning(few.recipe) == few.loses != few.tied.loses == warning(few.tied.recipe)


def test_other_recipes_of_so_few_bits_name_the_better_one() -> None:
    for target, name in (("w3a16-channel", "3-bit"), ("gptq-2bit-g64", "2-bit"), ("hqq-3bit-g64", "3-bit")):
        assert f"'{name}' loses least" in warning(Recipe(target))
    assert warning(Recipe("w4a16-g64")) == warning(Recipe("Q2_K")) == warning(Recipe("hf-bf16")) == ""


@EACH
def test_the_same_on_another_text_or_in_another_folder_is_the_same(few) -> None:  # type: ignore[no-untyped-def]
    calibrated = replace(few.recipe.calibrated, text=TEXT)
    assert warning(replace(few.recipe, calibrated=calibrated)) == few.loses
    other = f"mlx-{few.name.replace('-', '')}-g64"
    assert warning(Recipe(other, calibrated=calibrated)) == few.loses


def test_options_win_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model", "llama2")
    words = ["plan", str(tmp_path / "model"), "--recipe", "2-bit", "--to", "mlx-2bit-g32", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "mlx-2bit-g32"
    with open_checkpoint(tmp_path / "model") as checkpoint:
        assert make_plan(checkpoint, FEW_BITS[0].recipe).choosing_seconds > 0
