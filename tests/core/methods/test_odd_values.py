"""Values and activations that are no numbers end in a sentence; static ranges are those of the smoothed model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from job_help import drive
from safetensors import safe_open
from tiny_models import write_llama

from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.inspect.layerwise import measure_activations
from core.methods.choice import Calibrated, DataMethod, Transform
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Misfit, Recipe
from core.run import run

TEXT = CalibrationText(samples=2, length=24)
AWQ, SMOOTH, ROTATION = (Transform.AWQ,), (Transform.SMOOTHQUANT,), (Transform.ROTATION,)
RECIPES = [
    ("Q4_0", DataMethod.IMPORTANCE, ()),
    ("w4a16-g32", DataMethod.GPTQ, ()),
    ("w4a16-g32", DataMethod.CLIPPING, ROTATION),
    ("w4a16-g32", DataMethod.LEARNED, ()),
    ("w4a16-g32", DataMethod.NONE, AWQ),
    ("w8a8", DataMethod.NONE, SMOOTH),
]


def nan_norm(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.input_layernorm.weight"][3] = float("nan")


def overflow(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.gate_proj.weight"] *= 1e20
    tensors["model.layers.0.mlp.up_proj.weight"] *= 1e20


@pytest.mark.parametrize(
    ("change", "said"), [(nan_norm, "input_layernorm.weight' holds NaN"), (overflow, "What comes into 'blk.0.ffn_down")]
)
def test_what_is_no_number_ends_in_a_sentence(tmp_path, change, said):
    write_llama(tmp_path / "model", hidden=64, ffn=96, layers=1, change=change)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        for number, (target, method, transforms) in enumerate(RECIPES):
            choice = Calibrated(method, transforms, TEXT)
            plan = make_plan(checkpoint, Recipe(target, misfit=Misfit.KEEP, calibrated=choice))
            with pytest.raises(UserError, match=said), np.errstate(all="ignore"):
                drive(run(plan, checkpoint, tmp_path / f"out{number}", CancelToken()))


def outliers(tensors: dict[str, torch.Tensor]) -> None:
    for name in tensors:
        if "layernorm" in name:
            tensors[name][5:9] *= 40
        if name.endswith("up_proj.weight"):
            tensors[name][7] *= 60


def amax(folder: Path) -> dict[str, float]:
    """Of what comes into each weight, measured anew."""
    with open_checkpoint(folder) as checkpoint:
        job = measure_activations(checkpoint, use_cache=False)
        while True:
            try:
                next(job)
            except StopIteration as stop:
                return {name: a.amax for a in stop.value.layers for name in a.tensors}


def test_static_ranges_are_those_of_the_smoothed_model(tmp_path):
    write_llama(tmp_path / "model", hidden=64, ffn=96, layers=2, change=outliers)
    with open_checkpoint(tmp_path / "model") as checkpoint:
        choice = Calibrated(DataMethod.NONE, SMOOTH, TEXT, alpha=0.7)
        drive(
            run(
                make_plan(checkpoint, Recipe("fp8-static", calibrated=choice)),
                checkpoint,
                tmp_path / "out",
                CancelToken(),
            )
        )
    before, after = amax(tmp_path / "model"), amax(tmp_path / "out")
    moved = []
    with safe_open(next((tmp_path / "out").glob("*.safetensors")), "np") as file:
        for name in [n for n in file.keys() if n.endswith(".input_scale")]:  # noqa: SIM118 - no mapping
            weight = name.removesuffix(".input_scale") + ".weight"
            found = float(file.get_tensor(name).reshape(-1)[0]) * 448
            assert found == pytest.approx(after[weight], rel=0.1)
            moved.append(before[weight] / after[weight])
    assert max(moved) > 2
