"""Tensors of which only a part has changed, a fused projection or a stack of experts, and tied heads in a GGUF."""

from pathlib import Path

import numpy as np
import pytest
from decoder_models import write_model
from job_help import convert, drive

from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.scratch import BlockFile, Scratch
from core.methods.view import CalibratedCheckpoint, ChangedTensor, Part
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Misfit, Recipe
from core.run import run
from core.runtime.arithmetic import ARITHMETICS
from core.runtime.load import load
from core.runtime.steps import step

TEXT = CalibrationText(samples=2, length=24)


def test_rows_that_did_not_change_are_the_sources(tmp_path: Path) -> None:
    write_model(tmp_path / "phi3", "phi3")
    scratch = Scratch(tmp_path / "out", "job", False, CancelToken())
    name = "model.layers.1.self_attn.qkv_proj.weight"
    with open_checkpoint(tmp_path / "phi3") as source:
        tensor = source.tensor(name)
        rows = tensor.rows
        k, v = np.full((8, tensor.columns), 3, np.float32), np.full((16, tensor.columns), 4, np.float32)
        scratch.write_block("000001", {"k": k, "v": v}, {})
        file = BlockFile(scratch.block_file("000001"))
        parts = [Part(rows - 16, rows, file, "v"), Part(40, 48, file, "k")]
        view = CalibratedCheckpoint(source, {name: ChangedTensor(parts)}, {})
        wanted = source.read_rows(tensor).copy()
        wanted[40:48], wanted[rows - 16 :] = 3, 4
        for start, stop in ((0, rows), (0, 40), (41, 45), (44, 60), (rows - 20, rows), (50, 52), (47, rows - 15)):
            found = view.read_rows(view.tensor(name), start, stop)
            np.testing.assert_array_equal(found, wanted[start:stop])
        np.testing.assert_array_equal(view.read_rows(view.tensor(name), 30, 60, (3, 9)), wanted[30:60, 3:9])


def logits(path: Path) -> np.ndarray:
    """float32 [16, V], of the bundled engine."""
    ids = np.arange(5, 21, dtype=np.int32)
    with open_checkpoint(path) as checkpoint:
        model = load(checkpoint, capacity=32, arithmetic=ARITHMETICS["exact"])
        try:
            return step(model, ids, np.zeros(16, np.int32), np.arange(16, dtype=np.int32), np.arange(16), CancelToken())
        finally:
            model.unload()


@pytest.mark.parametrize("name", ["phi3", "phi3-long"])
def test_awq_of_fused_projections(tmp_path: Path, name: str) -> None:
    """Some inputs are scaled and some are not, so that a fused weight changes in part."""
    write_model(tmp_path / "model", name)
    with open_checkpoint(tmp_path / "model") as source:
        choice = Calibrated(DataMethod.NONE, (Transform.AWQ,), TEXT)
        plan = make_plan(source, Recipe("w8a16-g32", misfit=Misfit.KEEP, calibrated=choice))
        drive(run(plan, source, tmp_path / "out", CancelToken()))
    convert(tmp_path / "model", "w8a16-g32", tmp_path / "plain")
    found, plain, wanted = (logits(tmp_path / name) for name in ("out", "plain", "model"))
    assert np.linalg.norm(found - wanted) < 1.5 * np.linalg.norm(plain - wanted)


def test_a_tied_gguf_is_rotated(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "llama3")
    convert(tmp_path / "model", "F32", tmp_path / "source.gguf")
    with open_checkpoint(tmp_path / "source.gguf") as source:
        plan = make_plan(source, Recipe("Q8_0", calibrated=Calibrated(DataMethod.NONE, (Transform.ROTATION,), TEXT)))
        drive(run(plan, source, tmp_path / "out.gguf", CancelToken()))
    with open_checkpoint(tmp_path / "out.gguf") as made:
        assert made.tensor("output.weight") is not None
    convert(tmp_path / "source.gguf", "Q8_0", tmp_path / "plain.gguf")
    found, plain, wanted = (logits(tmp_path / name) for name in ("out.gguf", "plain.gguf", "model"))
    assert np.linalg.norm(found - wanted) < 1.5 * np.linalg.norm(plain - wanted)
