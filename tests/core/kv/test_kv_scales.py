"""Scales of a cache in FP8 that a file has: used when it runs, and refused where they contradict what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_models import prompt
from job_help import drive
from safetensors.torch import load_file, save_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.doctor import examine
from core.errors import UserError
from core.kv.compare import compare_schemes
from core.kv.scales import FileScales, file_scales, own_cache
from core.kv.scheme import CacheScheme
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.run import run
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import LoadedModel, load
from kernels.matrix import Activations
from kernels.reference.program import ReferenceProgram

LAYERS, HEADS = 2, 2
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each ecosystem with scales of its cache, as this program writes them."""
    root = tmp_path_factory.mktemp("scales")
    source = write_llama(root / "tiny", layers=LAYERS)
    found = {}
    with pytest.MonkeyPatch.context() as patch, open_checkpoint(source) as checkpoint:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        for target in ("fp8-dynamic", "modelopt-fp8"):
            plan = make_plan(checkpoint, Recipe(target, cache="fp8"))
            drive(run(plan, checkpoint, root / target, CancelToken()))
            found[target] = root / target
    return found


def changed(folder: Path, to: Path, change: Callable[[Tensors], None], **scheme: object) -> Path:
    """A copy with other tensors, and other words about the cache; None takes a word away."""
    to.mkdir()
    for file in folder.iterdir():
        if file.name not in ("model.safetensors", "config.json"):
            (to / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    about = config["quantization_config"]
    if "whole" in scheme:
        about["kv_cache_scheme"] = scheme["whole"]
    else:
        about["kv_cache_scheme"] |= scheme
    (to / "config.json").write_text(json.dumps(config))
    return to


def read(folder: Path) -> FileScales:
    with open_checkpoint(folder) as checkpoint:
        return file_scales(checkpoint, LAYERS, HEADS)


def running(folder: Path, cache: str = "fp8") -> LoadedModel:
    return load(open_checkpoint(folder), 40, 1, Arithmetic(Activations.EXACT), 1, cache)


def logits(engine: object, ids: np.ndarray) -> np.ndarray:
    places = np.arange(len(ids), dtype=np.int32)
    return engine.run(ids, np.zeros_like(places), places, places)  # type: ignore[attr-defined, no-any-return]


def by_head(tensors: Tensors) -> None:
    """Each head's own, the second one twice as large; in compressed-tensors' shape [heads, 1, 1]."""
    for name in [n for n in tensors if n.endswith((".k_scale", ".v_scale"))]:
        tensors[name] = tensors[name].reshape(1).repeat(HEADS).mul(torch.tensor([1.0, 2.0])).to(torch.bfloat16)
        tensors[name] = tensors[name].reshape(HEADS, 1, 1).contiguous()


@pytest.mark.parametrize("target", ["fp8-dynamic", "modelopt-fp8"])
def test_a_file_with_them_runs_with_them(target: str, made: dict[str, Path]) -> None:
    """They are the default of such a file, and what the engine computes is what numpy does with these scales."""
    stored = load_file(made[target] / "model.safetensors")
    inside = {"k": "k_proj.", "v": "v_proj."} if target.startswith("modelopt") else {"k": "", "v": ""}
    want = tuple(
        tuple((float(stored[f"model.layers.{i}.self_attn.{inside[s]}{s}_scale"]),) for s in "kv") for i in range(LAYERS)
    )
    model, plain, wide = running(made[target], ""), running(made[target], "fp8"), running(made[target], "f16")
    assert model.cache_dtype == plain.cache_dtype == "FP8"
    assert model.program.cache.scales == plain.program.cache.scales == want
    assert model.contract.endswith("cache FP8 with the file's scales")
    assert wide.program.cache.scales == ()
    assert wide.contract.endswith("cache F16")
    ids = prompt(40)
    got = logits(model.engine, ids)
    np.testing.assert_allclose(got, logits(ReferenceProgram(model.program), ids), rtol=0, atol=2e-3 * np.abs(got).max())
    assert np.abs(got - logits(wide.engine, ids)).max() > 0
    for each in (model, plain, wide):
        each.unload()


def test_scales_of_heads(made: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(made["fp8-dynamic"], tmp_path / "heads", by_head, strategy="attn_head")
    model = running(folder)
    for pair in model.program.cache.scales:
        for side in pair:
            assert len(side) == HEADS
            assert side[1] == pytest.approx(2 * side[0], rel=2**-7)
    assert "the file's scales of heads" in model.contract
    ids = prompt(40)
    got = logits(model.engine, ids)
    np.testing.assert_allclose(got, logits(ReferenceProgram(model.program), ids), rtol=0, atol=2e-3 * np.abs(got).max())
    model.unload()


def test_which_caches_they_are_for(made: dict[str, Path]) -> None:
    """Those in E4M3 whose values are as they were measured."""
    found = read(made["fp8-dynamic"])
    keys, values = found.layers[0]
    for text, want, words in (
        ("fp8", (keys, values), "with the file's scales"),
        ("fp8-head", (keys, values), "with the file's scales"),
        ("fp8/f16", (keys, ()), "with the file's scales"),
        ("fp8/fp8-e5m2", (keys, ()), "keys with the file's scales, the rest with scale 1"),
        ("fp8,window=16", (keys, values), "with the file's scales"),
        ("fp8,rotate-keys", ((), values), "values with the file's scales, the rest with scale 1"),
        ("fp8,before-rope", ((), values), "values with the file's scales, the rest with scale 1"),
        ("fp8,rotate", None, "with scale 1"),
        ("fp8-e5m2", None, "with scale 1"),
        ("q8_0", None, ""),
    ):
        scheme = CacheScheme.parse(text)
        assert found.of(scheme) == (() if want is None else (want, found.of(scheme)[1])), text
        assert found.words(scheme) == words, text
    assert FileScales().words(CacheScheme("FP8")) == "with scale 1"


def test_measuring_caches_uses_them(made: dict[str, Path]) -> None:
    """Beside the same model without: the scheme's own cost is another."""
    model = running(made["fp8-dynamic"], "f16")
    ids, scheme = [int(i) for i in prompt(40)], CacheScheme("FP8")
    (with_them,) = compare_schemes(model, ids, [scheme], threads=1)
    model.file_scales = FileScales()
    (without,) = compare_schemes(model, ids, [scheme], threads=1)
    assert 0 < with_them.kl != without.kl
    model.unload()


def spoilt(name: str, value: torch.Tensor | None) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        full = f"model.layers.1.self_attn.{name}"
        if value is None:
            del tensors[full]
        else:
            tensors[full] = value

    return change


@pytest.mark.parametrize(
    ("change", "scheme", "words"),
    [
        (spoilt("k_scale", torch.tensor([0.0], dtype=torch.bfloat16)), {}, "holds 0, and a scale is"),
        (spoilt("v_scale", torch.tensor([-0.5])), {}, "holds -0.5"),
        (spoilt("v_scale", torch.tensor([float("nan")])), {}, "holds nan"),
        (spoilt("k_scale", torch.tensor([float("inf")])), {}, "holds inf"),
        (spoilt("k_scale", torch.ones(3)), {}, "is 3 of F32, and should be 1 floats"),
        (spoilt("k_scale", torch.ones(1, dtype=torch.int32)), {}, "is 1 of I32"),
        (spoilt("k_scale", torch.ones(HEADS)), {"strategy": "tensor"}, "should be 1 floats"),
        (spoilt("k_scale", torch.ones(1)), {"strategy": "attn_head"}, "should be 2 floats"),
        (spoilt("k_scale", None), {}, "Layer 1 has no scale for the keys"),
        (spoilt("kv_scale", torch.ones(1)), {}, "both are the scale of one layer's keys"),
        (lambda _t: None, {"num_bits": 4}, "scheme 4-bit float, which is not FP8"),
        (lambda _t: None, {"type": "int"}, "scheme 8-bit int, which is not FP8"),
        (lambda _t: None, {"dynamic": True}, "found while it runs"),
        (lambda _t: None, {"symmetric": False}, "zero points"),
        (lambda _t: None, {"strategy": "channel"}, "a scale of the cache for each channel"),
        (lambda _t: None, {"whole": None}, "says that its cache has no scheme"),
    ],
)
def test_what_contradicts_itself_is_refused(
    change: Callable[[Tensors], None], scheme: dict[str, object], words: str, made: dict[str, Path], tmp_path: Path
) -> None:
    """When FP8 is asked for, be it as the file's own; another cache runs as ever."""
    folder = changed(made["fp8-dynamic"], tmp_path / "wrong", change, **scheme)
    assert words in str(read(folder).problem)
    for cache in ("fp8", "", "fp8/f16"):
        with pytest.raises(UserError, match="F16") as caught:
            running(folder, cache)
        assert words in caught.value.message
    model = running(folder, "q8_0")
    with pytest.raises(UserError, match="F16"):
        compare_schemes(model, [1, 2, 3], [CacheScheme("FP8")], threads=1)
    model.unload()


def test_a_layer_that_the_model_has_not(made: dict[str, Path]) -> None:
    with open_checkpoint(made["modelopt-fp8"]) as checkpoint:
        problem = file_scales(checkpoint, LAYERS - 1, HEADS).problem
    assert "is of no layer of the model's 1" in str(problem)


def test_older_names_and_words(made: dict[str, Path], tmp_path: Path) -> None:
    """One scale for both; ModelOpt's word in a file of its own; a folder without scales."""

    def one_for_both(tensors: Tensors) -> None:
        for i in range(LAYERS):
            at = f"model.layers.{i}.self_attn."
            del tensors[at + "v_scale"]
            tensors[at + "kv_scale"] = tensors.pop(at + "k_scale")

    found = read(changed(made["fp8-dynamic"], tmp_path / "both", one_for_both))
    assert [keys for keys, _ in found.layers] == [values for _, values in found.layers]
    assert found.problem is None
    beside = changed(made["modelopt-fp8"], tmp_path / "beside", lambda _t: None)
    config = json.loads((beside / "config.json").read_text())
    del config["quantization_config"]
    (beside / "config.json").write_text(json.dumps(config))
    assert read(beside) == read(made["modelopt-fp8"])
    quant = json.loads((beside / "hf_quant_config.json").read_text())
    quant["quantization"]["kv_cache_quant_algo"] = "NVFP4"
    (beside / "hf_quant_config.json").write_text(json.dumps(quant))
    assert "NVFP4" in str(read(beside).problem)
    plain = write_llama(tmp_path / "plain")
    assert read(plain) == FileScales()
    with open_checkpoint(plain) as checkpoint, open_checkpoint(made["fp8-dynamic"]) as scaled:
        assert (own_cache(checkpoint), own_cache(scaled)) == ("F16", "FP8")
        assert next(f for f in examine(scaled) if f.code == "cache-scales").severity == "info"
