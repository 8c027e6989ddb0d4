"""Sources that are quantized already: each method works on what they stand for and says so, or says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_help import convert, drive
from tiny_models import write_llama

from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod, Transform
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run

TEXT = CalibrationText(samples=2, length=24)
GPTQ: dict[str, Any] = {"method": DataMethod.GPTQ}
IMPORTANCE: dict[str, Any] = {"method": DataMethod.IMPORTANCE}
LEARNED: dict[str, Any] = {"method": DataMethod.LEARNED}
CLIPPING: dict[str, Any] = {"method": DataMethod.CLIPPING}
AWQ: dict[str, Any] = {"method": DataMethod.NONE, "transforms": (Transform.AWQ,)}
SMOOTH: dict[str, Any] = {"method": DataMethod.NONE, "transforms": (Transform.SMOOTHQUANT,)}
ROTATED: dict[str, Any] = {"method": DataMethod.GPTQ, "transforms": (Transform.ROTATION,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quantized")
    write_llama(root / "original", hidden=256, ffn=256, layers=2, tied=False)
    return root


def source(folder: Path, target: str) -> Path:
    path = folder / (f"{target}.gguf" if target.startswith("Q") else target)
    if not path.exists():
        convert(folder / "original", target, path)
    return path


@pytest.mark.parametrize(
    ("stored", "target", "fields"),
    [
        ("gptq-4bit-g64", "w3a16-g64", GPTQ),
        ("gptq-4bit-g64", "Q4_K", IMPORTANCE),
        ("awq-g64", "gptq-4bit-g64", GPTQ),
        ("awq-g64", "w8a8", SMOOTH),
        ("Q4_K", "Q4_0", ROTATED),
        ("Q8_0", "Q4_K", IMPORTANCE),
        ("bnb-nf4", "awq-g64", AWQ),
        ("bnb-int8", "w4a16-g64", LEARNED),
        ("fp8-block", "w8a8", SMOOTH),
        ("fp8-dynamic", "w4a16-g64", GPTQ),
        ("mlx-4bit-g64", "Q4_0", ROTATED),
        ("hqq-4bit-g64", "w4a16-g64-asym", CLIPPING),
        ("nvfp4a16", "w4a16-g64", AWQ),
        ("mxfp4a16", "gptq-4bit-g64", GPTQ),
        ("w8a8", "w4a16-g64", LEARNED),
    ],
)
def test_methods_see_what_a_source_stands_for(
    stored: str, target: str, fields: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / ("out.gguf" if target.startswith("Q") else "out")
    with open_checkpoint(source(folder, stored)) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target, calibrated=Calibrated(text=TEXT, **fields)))
        assert any("already quantized" in words for words in plan.warnings)
        assert fields is SMOOTH or any(t.chosen_by for t in plan.tensors)
        _, result = drive(run(plan, checkpoint, output, CancelToken()))
    errors = [t.error.snr_db for t in result.tensors if t.error is not None and np.isfinite(t.error.snr_db)]
    assert errors
    assert min(errors) > 8, "what was chosen is near what the source stands for"
    assert result.actual_bytes == plan.bytes_total


@pytest.mark.parametrize(
    ("stored", "target", "fields", "said"),
    [
        ("gptq-4bit-g64", "gptq-4bit-g64", GPTQ, "has the numbers of .* already, which move as they are"),
        ("w4a16-g64", "gptq-4bit-g64", GPTQ, "already, which move as they are"),
        ("awq-g64", "awq-g64", AWQ, "already, which move as they are"),
        ("w8a8", "w8a8", SMOOTH, "already, which move as they are"),
        ("Q4_K", "Q4_K", IMPORTANCE, "already, which move as they are"),
        ("Q4_K", "gptq-4bit-g64", GPTQ, "needs the original Hugging Face folder"),
    ],
)
def test_what_can_not_be_chosen_anew_is_said(
    stored: str, target: str, fields: dict[str, Any], said: str, folder: Path
) -> None:
    with open_checkpoint(source(folder, stored)) as checkpoint, pytest.raises(UserError, match=said):
        make_plan(checkpoint, Recipe(target, calibrated=Calibrated(text=TEXT, **fields)))
