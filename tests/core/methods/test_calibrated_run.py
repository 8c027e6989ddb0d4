"""From a recipe with data to a finished file: what was chosen is what is stored, for every packing; kill and resume."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from decoder_models import write_model
from job_help import digest, drive

from core.calibration.imatrix import ImportanceMatrix
from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.checkpoint.base import Checkpoint
from core.errors import Cancelled, UserError
from core.formats import EncodeOptions, Method
from core.formats.numbers import Codes, Numbers
from core.inspect.cache import cache_folder
from core.methods import prepare
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.importance import importance_of
from core.methods.problem import Problem
from core.methods.scratch import scratch_path
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run

TEXT = CalibrationText(samples=2, length=24)


@dataclass
class Odd:
    """Chooses codes that no rounding would: one more where the input is large. Remembers what it was shown."""

    follows_full: bool = False
    seen: dict[str, tuple[Problem, np.ndarray]] = field(default_factory=dict)

    def why_not(self, numbers: Numbers) -> str:
        return ""

    def seconds_for(self, rows: int, columns: int) -> float:
        return 0.0

    def solve(self, problem: Problem, token: CancelToken) -> Codes:
        token.check()
        found = problem.numbers.quantize(problem.weight, EncodeOptions(Method.ROUND))
        wide = np.diag(problem.gram) > np.median(np.diag(problem.gram))
        found.codes[:, wide] = np.maximum(found.codes[:, wide], 1) - 1
        self.seen[problem.name] = (problem, problem.numbers.values(found))
        return found


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> Odd:
    odd = Odd()
    monkeypatch.setattr(prepare, "_solver", lambda method, aim=False: odd if method is DataMethod.GPTQ else None)
    return odd


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("calibrated")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


@pytest.fixture
def llama(tiny: Callable[[str], Path]) -> Iterator[Checkpoint]:
    with open_checkpoint(tiny("llama2")) as checkpoint:
        yield checkpoint


def plan_of(checkpoint: Checkpoint, target: str, **fields: object) -> Plan:
    return make_plan(checkpoint, Recipe(target, calibrated=Calibrated(text=TEXT, **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("llama2", "w4a16-g32"),
        ("llama2", "w3a16-g32-asym"),
        ("llama2", "gptq-4bit-g32"),
        ("llama2", "awq-g32"),
        ("llama2", "mlx-4bit-g32"),
        ("llama2", "Q4_0"),
        ("llama2", "mxfp4a16"),
        ("smollm", "Q8_0"),
        ("qwen3moe", "Q4_0"),
        ("qwen3moe", "w4a16-g32"),
        ("phi3", "w8a16-channel"),
        ("gemma3", "Q8_0"),
    ],
)
def test_what_was_chosen_is_what_is_stored(
    name: str, target: str, tiny: Callable[[str], Path], tmp_path: Path, solver: Odd
) -> None:
    output = tmp_path / ("out.gguf" if target.startswith("Q") else "out")
    with open_checkpoint(tiny(name)) as checkpoint:
        plan = plan_of(checkpoint, target)
        steps, result = drive(run(plan, checkpoint, output, CancelToken()))
        count = sum(bool(t.chosen_by) for t in plan.tensors)
    assert result.actual_bytes == plan.bytes_total
    assert {s.phase for s in steps} >= {"calibrating", "writing", "verifying"}
    assert not scratch_path(output).exists()
    assert count
    stored = {}
    with open_checkpoint(output) as written:
        for t in written.tensors:
            rows = written.read_rows(t)
            stored[t.name] = rows.reshape(t.shape)
    wanted = [values for _, values in solver.seen.values()]
    if name == "phi3":  # which keeps them as one
        fused = [("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("attn_output",), ("ffn_down",)]
        parts = [[solver.seen[f"blk.{i}.{p}.weight"][1] for p in some] for i in range(2) for some in fused]
        wanted = [np.concatenate(p) for p in parts]
    kept = [np.sort(m.reshape(-1)) for v in stored.values() for m in (v if v.ndim == 3 else [v])]
    for values in wanted:  # by their values, since rows and names differ between containers
        flat = np.sort(values.reshape(-1))
        assert any(flat.shape == k.shape and np.array_equal(flat, k) for k in kept)
    finite = [r.error.snr_db for r in result.tensors if r.error is not None and r.name.endswith("weight")]
    assert any(np.isfinite(snr) for snr in finite)  # errors are against the source, not against what was chosen


def test_room_for_what_waits_is_asked_for_beforehand(
    llama: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(llama, "w4a16-g32")
    needed = plan.layout.total_bytes + plan.scratch_bytes
    room = shutil._ntuple_diskusage(10**12, 0, needed - 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    with pytest.raises(UserError, match="beside it until it is done") as refused:
        drive(run(plan, llama, tmp_path / "out", CancelToken()))
    assert refused.value.hint.startswith("Free 1.00 kB ")
    assert not list(tmp_path.iterdir())
    room = shutil._ntuple_diskusage(10**12, 0, needed)
    drive(run(plan, llama, tmp_path / "out", CancelToken()))


def test_a_folder_on_another_disk_is_asked_for_its_own_room(
    llama: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, other = plan_of(llama, "w4a16-g32"), tmp_path / "other"
    monkeypatch.setattr("core.methods.scratch.scratch_folder", lambda: other)
    monkeypatch.setattr("core.output._on_one_disk", lambda a, b: False)
    monkeypatch.setattr("core.output.free_bytes", lambda folder: 1000 if folder == other else 10**9)
    with pytest.raises(UserError, match=r"other has 1\.00 kB"):
        drive(run(plan, llama, tmp_path / "out", CancelToken()))


def test_inputs_are_those_of_the_quantized_model(llama: Checkpoint, tmp_path: Path, solver: Odd) -> None:
    """The second block sees what the first one's codes give, and `drift` says how far that is from the original."""
    solver.follows_full = True
    drive(run(plan_of(llama, "w4a16-g32"), llama, tmp_path / "out", CancelToken()))
    first, second = (solver.seen[f"blk.{i}.attn_q.weight"][0] for i in (0, 1))
    assert first.drift is not None
    assert not first.drift.any()
    assert second.drift is not None
    assert second.drift.any()
    np.testing.assert_allclose(first.gram, first.gram.T, rtol=1e-5, atol=1e-6)
    assert first.tokens == TEXT.tokens


def test_a_killed_run_goes_on_at_its_block_with_the_same_bytes(
    llama: Checkpoint, tmp_path: Path, solver: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.methods.pipeline.STATE_SECONDS", 0.0)
    plan = plan_of(llama, "w4a16-g32")
    drive(run(plan, llama, tmp_path / "whole", CancelToken()))
    output = tmp_path / "out"
    job = run(plan, llama, output, CancelToken())
    while next(job).tensor_index < 1:
        pass
    job.close()
    assert scratch_path(output).is_dir()
    solver.seen.clear()
    drive(run(plan, llama, output, CancelToken(), resume=True))
    assert "blk.0.attn_q.weight" not in solver.seen
    assert solver.seen
    assert digest(output) == digest(tmp_path / "whole")


def test_experts_with_few_tokens_are_shown_the_others_and_said(
    tiny: Callable[[str], Path], tmp_path: Path, solver: Odd
) -> None:
    with open_checkpoint(tiny("qwen3moe")) as checkpoint:
        _, result = drive(run(plan_of(checkpoint, "w4a16-g32"), checkpoint, tmp_path / "out", CancelToken()))
    assert any("experts met fewer than 512 tokens" in note for note in result.notes)
    first = [p for name, (p, _) in solver.seen.items() if name.startswith("blk.0.ffn_gate.")]
    assert sum(p.tokens for p in first) == 2 * TEXT.tokens  # each is sent to two
    assert all(np.diag(p.gram).min() > 0 for p in first)  # also of one that met none


def test_another_text_starts_anew(llama: Checkpoint, tmp_path: Path, solver: Odd) -> None:
    output = tmp_path / "out"
    job = run(plan_of(llama, "w4a16-g32"), llama, output, CancelToken())
    while next(job).tensor_index < 1:
        pass
    job.close()
    solver.seen.clear()
    other = make_plan(llama, Recipe("w4a16-g32", calibrated=Calibrated(text=CalibrationText(samples=3, length=24))))
    drive(run(other, llama, output, CancelToken()))
    assert "blk.0.attn_q.weight" in solver.seen


def test_a_folder_that_no_job_made_is_left_alone(llama: Checkpoint, tmp_path: Path, solver: Odd) -> None:
    output = tmp_path / "out"
    scratch_path(output).mkdir()
    (scratch_path(output) / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="no job made it"):
        drive(run(plan_of(llama, "w4a16-g32"), llama, output, CancelToken()))
    assert (scratch_path(output) / "mine.txt").read_text() == "mine"


def test_cancelled(llama: Checkpoint, tmp_path: Path, solver: Odd) -> None:
    token = CancelToken()
    job = run(plan_of(llama, "w4a16-g32"), llama, tmp_path / "out", token)
    next(job)
    token.cancel()
    with pytest.raises(Cancelled):
        drive(job)
    assert not (tmp_path / "out").exists()


def both(name: str, target: str, tiny: Callable[[str], Path], folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """A file with importance, one without, and the importance by the source's names."""
    suffix = ".gguf" if target[0] == "Q" else ""
    with open_checkpoint(tiny(name)) as checkpoint:
        calibrated = Calibrated(DataMethod.IMPORTANCE, text=TEXT)
        weighed, plain = folder / f"weighed{suffix}", folder / f"plain{suffix}"
        plan = make_plan(checkpoint, Recipe(target, calibrated=calibrated))
        assert any(t.chosen_by == "importance" for t in plan.tensors)
        for output, one in ((weighed, plan), (plain, make_plan(checkpoint, Recipe(target)))):
            drive(run(one, checkpoint, output, CancelToken()))
        job = importance_of(checkpoint, calibrated, CancelToken())
        while True:
            try:
                next(job)
            except StopIteration as stop:
                return weighed, plain, stop.value.for_checkpoint(checkpoint, checkpoint.architecture)


def test_a_damaged_importance_is_measured_anew_and_said(
    llama: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calibrated = Calibrated(DataMethod.IMPORTANCE, text=TEXT)

    def measure() -> ImportanceMatrix:
        return drive(importance_of(llama, calibrated, CancelToken()))[1]

    first = measure()
    (path,) = cache_folder().glob("importance-*")
    data = bytearray(path.read_bytes())
    for wrong in (data[:-7], data[:200], b"", data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]):
        path.write_bytes(wrong)
        again = measure()
        assert "damaged" in again.notes[-1]
        assert again.entries.keys() == first.entries.keys()
        for name, entry in first.entries.items():
            np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        assert path.read_bytes() == data
    assert measure().notes == first.notes


@pytest.mark.parametrize("target", ["Q4_0", "w4a16-g32", "Q4_K"])
def test_importance_lowers_the_weighed_error(target: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    weighed, plain, importance = both("llama2", target, tiny, tmp_path)
    errors = []
    for path in (weighed, plain):
        with open_checkpoint(tiny("llama2")) as source, open_checkpoint(path) as written:
            total = 0.0
            for layer in range(2):
                name = f"model.layers.{layer}.mlp.down_proj.weight"
                stored = f"blk.{layer}.ffn_down.weight" if target[0] == "Q" else name
                lost = source.read_rows(source.tensor(name)) - written.read_rows(written.tensor(stored))
                total += float((importance[name][0] * lost.astype(np.float64) ** 2).sum())
            errors.append(total)
    assert errors[0] < errors[1]


def test_experts_have_an_importance_of_their_own(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    weighed, plain, _ = both("qwen3moe", "Q4_0", tiny, tmp_path)
    assert digest(weighed) != digest(plain)


def test_what_can_not_be_chosen_is_said_beforehand(llama: Checkpoint, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(UserError, match="can not choose the numbers of"):
        plan_of(llama, "IQ4_NL", method=DataMethod.GPTQ)
    with pytest.raises(UserError, match="Nothing is quantized"):
        plan_of(llama, "BF16", method=DataMethod.IMPORTANCE)
    with pytest.raises(UserError, match="neither"):
        Calibrated(DataMethod.NONE)
    with pytest.raises(UserError, match="importance"):
        Calibrated(DataMethod.GPTQ, imatrix="x.dat")
    with pytest.raises(UserError, match="does not hold after a transform"):
        Calibrated(DataMethod.IMPORTANCE, (Transform.ROTATION,), imatrix="x.dat")
    assert Calibrated(DataMethod.NONE, (Transform.AWQ, Transform.ROTATION)).name == "rotation + AWQ"
