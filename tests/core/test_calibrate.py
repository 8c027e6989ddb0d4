"""Static scales of activations: measured before anything is written, or refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_models import write_model
from job_help import convert, digest, drive
from safetensors.torch import load_file
from tiny_models import write_llama

from core.calibrate import calibrate, calibrated
from core.checkpoint import open_checkpoint
from core.errors import Cancelled, UserError
from core.inspect import layerwise
from core.inspect.layerwise import measure_activations
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run, unfinished

STATIC = ("fp8-static", "modelopt-fp8")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test measures for itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("source") / "tiny", layers=2)


def measured(folder: Path) -> dict[str, float]:
    """Largest input of each weight, by the checkpoint's names."""
    with open_checkpoint(folder) as checkpoint:
        job = measure_activations(checkpoint, use_cache=False)
        while True:
            try:
                next(job)
            except StopIteration as stop:
                return {name: a.amax for a in stop.value.layers for name in a.tensors}


@pytest.mark.parametrize("target", STATIC)
def test_the_scale_is_the_range_over_the_bundled_text(folder: Path, target: str, tmp_path: Path) -> None:
    """amax / 448 for every weight, before anything is written; weights that a runtime fuses have one scale."""
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
    assert any("activations of 14 tensors are measured first" in w for w in plan.warnings)
    seen, _ = convert(folder, target, tmp_path / "out")
    phases = list(dict.fromkeys(p.phase for p in seen))
    assert phases == ["calibrating", "writing", "verifying"]
    assert [p.tensor_index for p in seen if p.phase == "calibrating"] == [0, 1, 2]
    shares = [p.share for p in seen]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    arrays, amax = load_file(tmp_path / "out" / "model.safetensors"), measured(folder)
    scales = {n: float(t) for n, t in arrays.items() if n.endswith(".input_scale")}
    assert len(scales) == 14
    for name, scale in scales.items():
        assert scale == pytest.approx(amax[name.replace(".input_scale", ".weight")] / 448, rel=1e-6)
    source = load_file(folder / "model.safetensors")
    for names in (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.gate_proj", "mlp.up_proj"]):
        weights = [f"model.layers.0.{name}.weight" for name in names]
        largest = torch.stack([source[w].float().abs().max() for w in weights]).max() / 448
        for weight in weights:
            scale = arrays[weight + "_scale"]
            assert float(scale) == float(largest.to(scale.dtype))


def test_dynamic_formats_measure_nothing(folder: Path, tmp_path: Path) -> None:
    seen, _ = convert(folder, "fp8-dynamic", tmp_path / "out")
    assert {p.phase for p in seen} == {"writing", "verifying"}


def test_stopped_while_it_measures_or_writes(folder: Path, tmp_path: Path) -> None:
    """Resumed, the same file comes out; a finished one is known as such."""
    convert(folder, "fp8-static", tmp_path / "whole")
    token = CancelToken()
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("fp8-static"))
        (tmp_path / "cache").rename(tmp_path / "elsewhere")
        job = run(plan, checkpoint, tmp_path / "out", token, threads=1)
        assert next(job).phase == "calibrating"
        token.cancel()
        with pytest.raises(Cancelled):
            next(job)
        job = run(plan, checkpoint, tmp_path / "out", CancelToken(), resume=True, threads=1)
        while next(job).phase == "calibrating":
            pass
        for _ in range(5):
            next(job)
        job.close()
        assert unfinished(tmp_path / "out", plan)
        seen, _ = drive(run(plan, checkpoint, tmp_path / "out", CancelToken(), resume=True))
        assert next(p for p in seen).phase == "calibrating"
        assert digest(tmp_path / "out") == digest(tmp_path / "whole")
        _, result = drive(run(plan, checkpoint, tmp_path / "out", CancelToken(), resume=True))
        assert result.was_there


@pytest.mark.parametrize("target", STATIC)
def test_a_model_that_can_not_be_run_is_refused_with_the_plan(target: str, tmp_path: Path) -> None:
    """The dynamic target is the way on."""
    source = write_llama(tmp_path / "odd")
    config = json.loads((source / "config.json").read_text())
    config |= {"model_type": "falcon", "architectures": ["FalconForCausalLM"]}
    (source / "config.json").write_text(json.dumps(config))
    with open_checkpoint(source) as checkpoint:
        with pytest.raises(UserError, match="can not be run to find it") as problem:
            make_plan(checkpoint, Recipe(target))
        assert "fp8-dynamic" in problem.value.hint
        make_plan(checkpoint, Recipe("fp8-dynamic"))


def test_experts_share_their_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no token reaches has that of its layer; where none is reached, the tensor is named."""
    write_model(tmp_path / "model", "mixtral")
    real = layerwise.measure_activations

    def without(chosen):  # the inputs of these experts: none
        def measure(*args, **options):
            found = yield from real(*args, **{**options, "use_cache": False, "text": "A few words."})
            none = np.zeros(1, np.float32)
            layers = [replace(a, tokens=0, max=none) if chosen(a) else a for a in found.layers]
            return replace(found, layers=tuple(layers))

        return measure

    with open_checkpoint(tmp_path / "model") as checkpoint:
        plan = make_plan(checkpoint, Recipe("fp8-static"))
        experts = [t.name for t in plan.tensors if ".experts." in t.name and t.needs_input]
        assert experts
        monkeypatch.setattr(layerwise, "measure_activations", without(lambda a: a.expert == 0))
        found = calibrated(checkpoint, plan.tensors, CancelToken())
        first = [n for n in experts if ".layers.0." in n and (".w1." in n or "gate_proj" in n)]
        assert len({found[n] for n in first}) == 1
        monkeypatch.setattr(layerwise, "measure_activations", without(lambda a: a.expert is not None))
        with pytest.raises(UserError, match=r"reaches '.*experts"):
            list(calibrate(checkpoint, plan.tensors, CancelToken()))


def test_a_preview_needs_no_ranges(folder: Path) -> None:
    """Weights alone are encoded there."""
    from core.preview import sample_model

    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("fp8-static"))
        found = [r for _, _, r in sample_model(checkpoint, plan, CancelToken())]
    assert all(r.error.snr_db > 25 for r in found)
