"""Every method that takes data on every family that the engine runs: it says its cost before, and its file runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_models import write_model
from job_help import drive

from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.record import read_record
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.runtime.decoder import FAMILIES
from core.runtime.load import load
from core.verdict.run import scored_logits

TEXT = CalibrationText(samples=2, length=24)
NONE = DataMethod.NONE
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "importance": ("IQ4_NL", {"method": DataMethod.IMPORTANCE}),
    "clipping": ("w4a16-g32-asym", {"method": DataMethod.CLIPPING}),
    "GPTQ": ("w4a16-g32", {"method": DataMethod.GPTQ}),
    "GPTQ aiming": ("Q4_0", {"method": DataMethod.GPTQ, "aim": True}),
    "learned rounding": ("w4a16-g32-asym", {"method": DataMethod.LEARNED}),
    "AWQ": ("w4a16-g32-asym", {"method": NONE, "transforms": (Transform.AWQ,)}),
    "SmoothQuant": ("w8a8", {"method": NONE, "transforms": (Transform.SMOOTHQUANT,)}),
    "rotation": ("Q8_0", {"method": NONE, "transforms": (Transform.ROTATION,)}),
    "rotation + AWQ + GPTQ": (
        "w3a16-g32-asym",
        {"method": DataMethod.GPTQ, "transforms": (Transform.ROTATION, Transform.AWQ)},
    ),
}
MODELS = ("llama2", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("families")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


def plan_of(checkpoint: Any, method: str) -> Plan:
    target, fields = METHODS[method]
    return make_plan(checkpoint, Recipe(target, calibrated=Calibrated(text=TEXT, **fields)))


def test_no_family_is_missing() -> None:
    assert {name.replace("llama2", "llama") for name in MODELS} == {*FAMILIES, "mixtral"}


@pytest.mark.parametrize("name", MODELS)
def test_a_cost_is_said_beforehand(name: str, tiny: Callable[[str], Path]) -> None:
    with open_checkpoint(tiny(name)) as checkpoint:
        for method in METHODS:
            plan = plan_of(checkpoint, method)
            assert plan.choosing_seconds > 0, method
            assert plan.expected_memory > 600_000_000, method
            chosen = {t.chosen_by for t in plan.tensors if t.chosen_by}
            assert chosen or METHODS[method][1]["method"] is NONE, method


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_it_runs(name: str, method: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    target = METHODS[method][0]
    output = tmp_path / ("out.gguf" if target[0] in "QI" else "out")
    with open_checkpoint(tiny(name)) as checkpoint:
        plan = plan_of(checkpoint, method)
        _, result = drive(run(plan, checkpoint, output, CancelToken()))
    assert result.actual_bytes == plan.bytes_total
    with open_checkpoint(output) as written:
        assert plan.recipe.calibrated is not None
        assert read_record(written)["method"] == plan.recipe.calibrated.name
        model = load(written, 16)
        ids = np.array([1, 5, 9, 12], np.int32)
        assert all(np.isfinite(rows).all() for _, rows in scored_logits(model, ids, 0, CancelToken()))
        model.unload()
