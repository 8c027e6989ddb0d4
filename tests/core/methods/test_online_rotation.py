"""Rotation of down projections' inputs from the recipe to the file: what is asked, said, written, and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decoder_models import MODELS, difference, prompt, reference_logits, write_model
from job_help import digest, drive

from core.calibration.settings import CalibrationText
from core.checkpoint import open_checkpoint
from core.cli import main
from core.errors import UserError
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.rotation import run_of, why_not_online
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import command_line, run
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import decoder_config, load
from core.serving import serving, serving_target
from core.targets import TARGETS, find_target
from kernels.matrix import Activations
from kernels.program import Hadamard
from kernels.rotation import sylvester

TEXT = CalibrationText(samples=2, length=24)
ROTATED = Calibrated(DataMethod.NONE, (Transform.ROTATION,), TEXT, online=True)
LENGTH = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("online") / "llama3"
    write_model(path, "llama3")
    return path


def written(source: Path, output: Path, target: str, calibrated: Calibrated = ROTATED) -> Plan:
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target, calibrated=calibrated))
        _, result = drive(run(plan, checkpoint, output, CancelToken()))
    assert result.actual_bytes == plan.bytes_total
    return plan


def logits(path: Path, activations: Activations = Activations.EXACT) -> np.ndarray:
    with open_checkpoint(path) as checkpoint:
        model = load(checkpoint, LENGTH, 1, Arithmetic(activations), threads=1, cache_dtype="F32")
        assert any(isinstance(step, Hadamard) for step in model.program.steps)
        assert any(use.op == "rotation" and "Hadamard 32" in use.kernel for use in model.engine.report())
        places = np.arange(LENGTH, dtype=np.int32)
        found = model.engine.run(prompt(LENGTH), np.zeros(LENGTH, np.int32), places, places)
        model.unload()
    return found


def test_settings_go_there_and_back(tmp_path: Path) -> None:
    recipe = Recipe("w4a16-g64", calibrated=ROTATED)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert '"online"' not in Recipe("w4a16-g64", calibrated=replace(ROTATED, online=False)).to_json()
    assert ROTATED.name == "online rotation"
    assert replace(ROTATED, method=DataMethod.GPTQ).name == "online rotation + GPTQ"
    assert "--transform rotation --samples 2 --length 24 --online" in command_line(recipe, tmp_path, tmp_path / "o")
    with pytest.raises(UserError, match="without the rotation of its weights"):
        Calibrated(DataMethod.GPTQ, online=True)
    with pytest.raises(UserError, match="online is 1"):
        Calibrated.from_dict({"transforms": ["rotation"], "online": 1})


@pytest.mark.parametrize("target", ["w8a16-channel", "w8a8", "fp8-dynamic"])
def test_the_file_computes_what_the_model_did(target: str, folder: Path, tmp_path: Path) -> None:
    plan = written(folder, tmp_path / "out", target)
    want = reference_logits(folder, prompt(LENGTH))
    assert difference(logits(tmp_path / "out"), want) < (0.25 if target == "fp8-dynamic" else 0.1)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (group,) = config["quantization_config"]["transform_config"]["config_groups"].values()
    assert (group["type"], group["head_dim"]) == ("hadamard", 32)
    assert [(a["location"], a["inverse"]) for a in group["apply"]] == [("input", False), ("weight_input", True)]
    assert config["bitsmith"]["online"] is True
    with open_checkpoint(tmp_path / "out") as checkpoint:
        (matrix,) = (t for t in checkpoint.stored.tensors if "R4" in t.name)
        assert matrix.name == "model.layers.0.mlp.down_proj.R4_input.weight"
        np.testing.assert_array_equal(checkpoint.stored.read_rows(matrix), sylvester(32))
        assert [c.runtime for c in serving(plan, tmp_path)] == ["vLLM"]
    assert {c.runtime for c in serving_target(find_target(target), tmp_path)} > {"vLLM"}


def test_weights_that_stay_in_16_bits_are_rotated_too(folder: Path, tmp_path: Path) -> None:
    """A loader rotates the inputs of every down projection that the config names."""
    with open_checkpoint(folder) as checkpoint:
        config = decoder_config(checkpoint)
    from core.recipe import KeepGroup

    recipe = Recipe("w8a16-channel", calibrated=ROTATED, keep=frozenset({KeepGroup.FFN_DOWN}))
    with open_checkpoint(folder) as checkpoint:
        drive(run(make_plan(checkpoint, recipe), checkpoint, tmp_path / "out", CancelToken()))
    with open_checkpoint(folder) as source, open_checkpoint(tmp_path / "out") as made:
        for layer in range(config.layers):
            name = f"model.layers.{layer}.mlp.down_proj.weight"
            stored = made.stored.read_rows(made.stored.tensor(name))
            seen = made.read_rows(made.tensor(name))
            assert np.abs(stored - seen).max() > 1e-2
            # The rows are rotated with the residual stream; their lengths stay.
            want = source.read_rows(source.tensor(name))
            np.testing.assert_allclose(np.linalg.norm(seen, axis=0), np.linalg.norm(want, axis=0), rtol=1e-3)
        model = load(made, LENGTH, 1, Arithmetic(Activations.EXACT), threads=1, cache_dtype="F32")
        places = np.arange(LENGTH, dtype=np.int32)
        found = model.engine.run(prompt(LENGTH), np.zeros(LENGTH, np.int32), places, places)
        model.unload()
    assert difference(found, reference_logits(folder, prompt(LENGTH))) < 0.1


@pytest.mark.parametrize("method", [DataMethod.GPTQ, DataMethod.CLIPPING, DataMethod.LEARNED, DataMethod.IMPORTANCE])
def test_methods_see_rotated_inputs(method: DataMethod, folder: Path, tmp_path: Path) -> None:
    calibrated = replace(ROTATED, method=method, aim=method is DataMethod.GPTQ)
    written(folder, tmp_path / "out", "w8a16-g32", calibrated)
    assert difference(logits(tmp_path / "out"), reference_logits(folder, prompt(LENGTH))) < 0.1


def test_awq_after_it_leaves_down_projections_alone(folder: Path, tmp_path: Path) -> None:
    """Their columns are no channels of up any more; the others are scaled."""
    both = replace(ROTATED, transforms=(Transform.ROTATION, Transform.AWQ))
    written(folder, tmp_path / "out", "w8a16-g32", both)
    written(folder, tmp_path / "one", "w8a16-g32", ROTATED)
    assert difference(logits(tmp_path / "out"), reference_logits(folder, prompt(LENGTH))) < 0.1
    with open_checkpoint(tmp_path / "out") as a, open_checkpoint(tmp_path / "one") as b:
        norm = "model.layers.1.input_layernorm.weight"
        assert np.abs(a.read_rows(a.tensor(norm)) - b.read_rows(b.tensor(norm))).max() > 0


def test_a_killed_run_gives_the_same_bytes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.methods.pipeline.STATE_SECONDS", 0.0)
    calibrated = replace(ROTATED, method=DataMethod.GPTQ)
    written(folder, tmp_path / "whole", "w4a16-g32", calibrated)
    written(folder, tmp_path / "again", "w4a16-g32", calibrated)
    assert digest(tmp_path / "again") == digest(tmp_path / "whole")
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("w4a16-g32", calibrated=calibrated))
        job = run(plan, checkpoint, tmp_path / "out", CancelToken())
        while next(job).tensor_index < 1:
            pass
        job.close()
        drive(run(plan, checkpoint, tmp_path / "out", CancelToken(), resume=True))
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_a_rotated_source_is_calibrated_as_it_was(folder: Path, tmp_path: Path) -> None:
    """Into a container that has no word for it, and into one that has, with the same weights."""
    written(folder, tmp_path / "first", "w8a16-channel")
    plain = replace(ROTATED, method=DataMethod.GPTQ, transforms=(), online=False)
    written(tmp_path / "first", tmp_path / "out.gguf", "Q8_0", plain)
    written(tmp_path / "first", tmp_path / "second", "w8a16-channel", ROTATED)
    want = logits(tmp_path / "first")
    assert difference(logits(tmp_path / "second"), want) < 0.1
    with open_checkpoint(tmp_path / "out.gguf") as checkpoint:
        model = load(checkpoint, LENGTH, 1, Arithmetic(Activations.EXACT), threads=1, cache_dtype="F32")
        assert not any(isinstance(step, Hadamard) for step in model.program.steps)
        places = np.arange(LENGTH, dtype=np.int32)
        found = model.engine.run(prompt(LENGTH), np.zeros(LENGTH, np.int32), places, places)
        model.unload()
    assert difference(found, want) < 0.1


def test_static_ranges_are_those_of_rotated_inputs(folder: Path, tmp_path: Path) -> None:
    """A runtime rounds what it has rotated; keys and values are those of the model."""
    from core.inspect.layerwise import measure_activations, text_for

    online = replace(ROTATED, method=DataMethod.NONE)
    recipe = Recipe("fp8-static", calibrated=online, cache="fp8")
    with open_checkpoint(folder) as checkpoint:
        drive(run(make_plan(checkpoint, recipe), checkpoint, tmp_path / "out", CancelToken()))
        job, (config, ids, _) = measure_activations(checkpoint, use_cache=False), text_for(checkpoint, None, 512)
        assert ids
        while True:
            try:
                next(job)
            except StopIteration as stop:
                plain = stop.value
                break
    ranges = {}
    with open_checkpoint(tmp_path / "out") as made:
        stored = made.stored
        for layer in range(config.layers):
            at = f"model.layers.{layer}"
            ranges[layer] = float(stored.read_rows(stored.tensor(f"{at}.mlp.down_proj.input_scale"))[0, 0]) * 448
            keys, values = (
                float(stored.read_rows(stored.tensor(f"{at}.self_attn.{n}_scale"))[0, 0]) * 448 for n in "kv"
            )
            assert keys == pytest.approx(plain.cache[layer][0], rel=0.01)  # BF16; heads' values are rotated
            assert values < 3 * plain.cache[layer][1]
        job = measure_activations(made, use_cache=False, rotated=True)
        while True:
            try:
                next(job)
            except StopIteration as stop:
                again = {a.layer: a.amax for a in stop.value.layers if "ffn_down" in a.name}
                break
    unrotated = {a.layer: a.amax for a in plain.layers if "ffn_down" in a.name}
    for layer, largest in ranges.items():
        assert largest == pytest.approx(again[layer], rel=0.15)  # of quantized weights, with quantized ones before
        assert abs(largest / unrotated[layer] - 1) > 0.02


def test_targets_that_have_no_place_for_it_say_so(folder: Path) -> None:
    able = set()
    with open_checkpoint(folder) as checkpoint:
        for target in TARGETS:
            if target.ecosystem == "compressed-tensors":
                able.add(target.name)
                continue
            with pytest.raises(UserError, match="no place for a rotation"):
                make_plan(checkpoint, Recipe(target.name, calibrated=ROTATED))
    assert {"w4a16-g64", "w8a8", "fp8-dynamic", "w3a16-g64-asym", "w2a16-g32-asym", "nvfp4a16"} <= able


def test_widths_that_mix_nothing_are_said_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = MODELS["llama2"]
    MODELS["llama2"] = (*kept[:2], {**kept[2], "intermediate_size": 88})
    write_model(tmp_path / "odd", "llama2")
    MODELS["llama2"] = kept
    with open_checkpoint(tmp_path / "odd") as checkpoint:
        config = decoder_config(checkpoint)
        assert (
            why_not_online(config)
            == "the 88 inputs of its down projections divide into runs of 8, and a rotation spreads "
            "outliers over runs of a power of two, from 16 on"
        )
    words = ["plan", str(tmp_path / "odd"), "--to", "w8a16-channel", "--transform", "rotation"]
    assert main(words) == 0
    assert main([*words, "--online"]) == 1
    assert "divide into runs of 8" in capsys.readouterr().err
    widths = {14336: 1024, 11008: 256, 8192: 1024, 1536: 512, 18944: 512, 4864: 256, 9728: 512, 27648: 1024}
    assert {w: run_of(replace(config, intermediate=w)) for w in widths} == widths
    experts = replace(config, experts=8, expert_intermediate=768, intermediate=6144)
    assert run_of(experts) == run_of(replace(experts, dense_layers=True)) == 256
    assert run_of(replace(experts, dense_layers=True, intermediate=6144 + 64)) == 64


def test_models_with_experts_say_who_runs_them(tmp_path: Path) -> None:
    write_model(tmp_path / "experts", "qwen3moe")
    with open_checkpoint(tmp_path / "experts") as checkpoint:
        plan = make_plan(checkpoint, Recipe("w8a16-channel", calibrated=ROTATED))
    assert any("runs here only" in words for words in plan.warnings)
