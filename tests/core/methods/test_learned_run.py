"""Learned rounding and clipping from a recipe to a file, and what GPTQ is told when it aims at the unchanged model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from decoder_models import write_model
from job_help import digest, drive

from core.calibration.imatrix_file import read_imatrix
from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import UserError
from core.formats import EncodeOptions, Method
from core.formats.numbers import Codes, Numbers
from core.methods import prepare
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.problem import Problem
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.verify import verify_against

TEXT = CalibrationText(samples=4, length=24)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned") / "llama2"
    write_model(folder, "llama2")
    return folder


def made(source: Path, output: Path, calibrated: Calibrated) -> Path:
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, Recipe("w4a16-g32-asym", calibrated=calibrated))
        _, result = drive(run(plan, checkpoint, output, CancelToken()))
        assert result.actual_bytes == plan.bytes_total
        assert {t.chosen_by for t in plan.tensors if t.chosen_by} == {calibrated.name}
    return output


@pytest.mark.parametrize(
    "calibrated",
    [
        Calibrated(DataMethod.LEARNED, text=TEXT),
        Calibrated(DataMethod.CLIPPING, text=TEXT),
        Calibrated(DataMethod.NONE, (Transform.AWQ,), text=TEXT),
        Calibrated(DataMethod.LEARNED, (Transform.AWQ,), text=TEXT),
    ],
    ids=lambda c: c.name,
)
def test_from_recipe_to_file_and_the_same_again(calibrated: Calibrated, llama: Path, tmp_path: Path) -> None:
    first, second = (made(llama, tmp_path / name, calibrated) for name in ("first", "second"))
    assert digest(first) == digest(second)


def test_changed_weights_are_not_compared_one_by_one(llama: Path, tmp_path: Path) -> None:
    clipped = Calibrated(DataMethod.CLIPPING, text=TEXT)
    learned = Calibrated(DataMethod.LEARNED, text=TEXT)
    made(llama, tmp_path / "clipped", clipped)
    with open_checkpoint(llama) as source, open_checkpoint(tmp_path / "clipped") as output:
        plan = make_plan(source, Recipe("w4a16-g32-asym", calibrated=clipped))
        assert len(list(verify_against(plan, source, output, CancelToken()))) == len(plan.tensors)
        plan = make_plan(source, Recipe("w4a16-g32-asym", calibrated=learned))
        with pytest.raises(UserError, match="fit together"):
            list(verify_against(plan, source, output, CancelToken()))


def test_an_importance_matrix_from_the_command_line(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "matrix.gguf"
    words = ["imatrix", str(llama), "-o", str(output), "--samples", "2", "--length", "24", "--json"]
    assert main(words) == 0
    assert '"entries": 22' in capsys.readouterr().out
    assert main(words) == 1
    with open_checkpoint(llama) as checkpoint:
        found = read_imatrix(output).for_checkpoint(checkpoint, "llama")
    assert all((v > 0).all() for v in found.values())


class Listening:
    """Rounds, and keeps what it was shown."""

    follows_full = True

    def __init__(self) -> None:
        self.seen: dict[str, Problem] = {}

    def why_not(self, numbers: Numbers) -> str:
        return ""

    def seconds_for(self, rows: int, columns: int) -> float:
        return 0.0

    def solve(self, problem: Problem, token: CancelToken) -> Codes:
        self.seen[problem.name] = problem
        return problem.numbers.quantize(problem.weight, EncodeOptions(Method.ROUND))


def test_what_the_residual_stream_lacks_is_told(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing before the first codes; and only for weights that add to the stream."""
    listening = Listening()
    monkeypatch.setattr(prepare, "_solver", lambda method, aim=False: listening)
    made(llama, tmp_path / "out", Calibrated(DataMethod.GPTQ, text=TEXT, aim=True))
    seen = listening.seen
    assert seen["blk.1.attn_q.weight"].missing is None
    first, second = (seen[f"blk.{i}.attn_output.weight"].missing for i in (0, 1))
    assert first is not None
    assert not first.any()
    assert second is not None
    assert second.shape == seen["blk.1.attn_output.weight"].weight.shape
    assert np.abs(second).max() > 0


def test_only_gptq_aims() -> None:
    with pytest.raises(UserError, match="Only GPTQ"):
        Calibrated(DataMethod.LEARNED, aim=True)
    assert Calibrated.from_dict(Calibrated(aim=True).to_dict()) == Calibrated(aim=True)
