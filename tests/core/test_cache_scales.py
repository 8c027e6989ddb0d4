"""Scales of a cache in FP8: measured as transformers computes keys and values, written as loaders read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from decoder_models import write_model
from job_help import drive
from safetensors.torch import load_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.doctor import examine
from core.errors import UserError
from core.inspect.layerwise import measure_activations
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import command_line, run
from core.verify import verify_against

COMPRESSED = ("fp8-dynamic", "w4a16-g32", "nvfp4a16")
MODELOPT = ("modelopt-fp8", "modelopt-nvfp4")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test measures for itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("source") / "tiny", layers=2)


def convert(source: Path, target: str, output: Path) -> Path:
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target, cache="fp8"))
        seen, result = drive(run(plan, checkpoint, output, CancelToken()))
        assert "calibrating" in {p.phase for p in seen}
        assert result.actual_bytes == result.predicted_bytes
        assert result.snr_db > 5  # the scales have no part in it
    return output


def ids_of(folder: Path) -> torch.Tensor:
    """The tokens that are measured."""
    with open_checkpoint(folder) as checkpoint:
        job = measure_activations(checkpoint)
        while True:
            try:
                next(job)
            except StopIteration as stop:
                return torch.tensor([stop.value.tokens])


def theirs(folder: Path) -> list[tuple[float, float]]:
    """Largest |key| and |value| of each layer that transformers caches; keys are turned by their positions then."""
    from transformers import AutoModelForCausalLM
    from transformers.cache_utils import DynamicCache

    found: dict[int, tuple[float, float]] = {}

    class Watched(DynamicCache):  # what is left in it at the end may be a window only
        def update(self, keys, values, layer, *rest, **more):  # type: ignore[no-untyped-def]
            found[layer] = float(keys.abs().max()), float(values.abs().max())
            return super().update(keys, values, layer, *rest, **more)

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        model(ids_of(folder), past_key_values=Watched(config=model.config), use_cache=True)
    return [found[layer] for layer in sorted(found)]


@pytest.mark.parametrize("target", [*COMPRESSED, *MODELOPT])
def test_scales_are_the_range_of_keys_and_values(target: str, folder: Path, tmp_path: Path) -> None:
    arrays = load_file(convert(folder, target, tmp_path / "out") / "model.safetensors")
    found = {name: t for name, t in arrays.items() if name.endswith((".k_scale", ".v_scale"))}
    assert len(found) == 4
    for layer, ranges in enumerate(theirs(folder)):
        for letter, amax in zip("kv", ranges, strict=True):
            inside = f"{letter}_proj." if target in MODELOPT else ""
            scale = found[f"model.layers.{layer}.self_attn.{inside}{letter}_scale"]
            assert float(scale) == pytest.approx(amax / 448, rel=1e-5 if target in MODELOPT else 2**-8)
            kind = (torch.float32, []) if target in MODELOPT else (torch.bfloat16, [1])
            assert (scale.dtype, list(scale.shape)) == kind


@pytest.mark.parametrize("name", ["phi3", "gemma3", "qwen3moe"])
def test_other_families_have_them_too(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / name, name)
    arrays = load_file(convert(tmp_path / name, "fp8-dynamic", tmp_path / "out") / "model.safetensors")
    for layer, (keys, values) in enumerate(theirs(tmp_path / name)):
        at = f"model.layers.{layer}.self_attn."
        assert float(arrays[at + "k_scale"]) == pytest.approx(keys / 448, rel=1e-2)
        assert float(arrays[at + "v_scale"]) == pytest.approx(values / 448, rel=1e-2)


def test_configurations_say_so(folder: Path, tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    made = convert(folder, "fp8-dynamic", tmp_path / "out")
    config = json.loads((made / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(config).kv_cache_scheme
    assert (scheme.num_bits, scheme.type, scheme.strategy, scheme.dynamic) == (8, "float", "tensor", False)
    made = convert(folder, "modelopt-fp8", tmp_path / "modelopt")
    config = json.loads((made / "config.json").read_text())["quantization_config"]
    assert config["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    beside = json.loads((made / "hf_quant_config.json").read_text())["quantization"]
    assert beside["kv_cache_quant_algo"] == "FP8"


@pytest.mark.parametrize("target", COMPRESSED)
def test_the_loader_reads_the_same_scales(
    target: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """compressed-tensors, through transformers, puts them where its cache looks for them.

    It knows attention by the argument `past_key_values`, which transformers calls `cache` from 5.24 on: with that pair
    no folder's scales are looked at, so the loader is told that this is attention.
    """
    from compressed_tensors.quantization.lifecycle import apply, initialize
    from transformers import AutoModelForCausalLM

    for module in (apply, initialize):
        monkeypatch.setattr(module, "is_cached_attention_module", initialize._is_attention_module)
    made = convert(folder, target, tmp_path / "out")
    ours = {n: t for n, t in load_file(made / "model.safetensors").items() if n.endswith((".k_scale", ".v_scale"))}
    loaded = dict(AutoModelForCausalLM.from_pretrained(made, dtype="auto").named_parameters())
    assert len(ours) == 4
    for name, scale in ours.items():
        assert torch.equal(loaded[name], scale), name
        assert float(scale) != 1.0, "1 is what it has without a file's"


@pytest.mark.parametrize("target", ["w4a16-g32", "modelopt-nvfp4"])
def test_a_folder_with_them_opens_verifies_and_converts(target: str, folder: Path, tmp_path: Path) -> None:
    made = convert(folder, target, tmp_path / "out")
    with open_checkpoint(folder) as source, open_checkpoint(made) as output:
        names = {t.name for t in source.tensors}
        assert {t.name for t in output.tensors} == names
        assert [f.code for f in examine(output)].count("cache-scales") == 1
        plan = make_plan(source, Recipe(target, cache="fp8"))
        assert len(list(verify_against(plan, source, output, CancelToken()))) == len(plan.tensors)
        again = make_plan(output, Recipe("w4a16-g32"))
        assert {t.name for t in again.tensors} == names
        assert any("key-value cache" in w for w in again.warnings)
        _, result = drive(run(plan, source, made, CancelToken(), resume=True))
        assert result.was_there


@pytest.mark.parametrize("target", ["Q8_0", "mlx-4bit-g32", "hf-bf16"])
def test_other_targets_have_no_place_for_them(target: str, folder: Path) -> None:
    with open_checkpoint(folder) as checkpoint, pytest.raises(UserError, match="no place for scales"):
        make_plan(checkpoint, Recipe(target, cache="fp8"))


def test_a_recipe_says_it_in_json_and_as_a_command(tmp_path: Path) -> None:
    recipe = Recipe("fp8-dynamic", cache="fp8")
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert "cache" not in json.loads(Recipe("fp8-dynamic").to_json())
    assert "--kv-cache fp8" in command_line(recipe, tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="no type of a cache"):
        Recipe.from_json(recipe.to_json().replace('"fp8"', '"int8"'))
