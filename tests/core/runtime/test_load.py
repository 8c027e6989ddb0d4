"""A checkpoint becomes a model that runs, or is refused in one sentence."""

from __future__ import annotations

import gc
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from decoder_models import difference, prompt, reference_logits, write_model
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import Cancelled, UserError
from core.models import gguf_config
from core.progress import CancelToken
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import LoadedModel, decoder_config, load, loading
from core.runtime.weights import ReadProgress, plan_weights
from kernels.matrix import Activations


def load_path(path: Path, **options: object) -> LoadedModel:
    return load(open_checkpoint(path), **options)  # type: ignore[arg-type]


def logits(model: LoadedModel, ids: np.ndarray) -> np.ndarray:
    count = len(ids)
    places = np.arange(count, dtype=np.int32)
    return model.engine.run(ids, np.zeros(count, np.int32), places, places)


@pytest.mark.parametrize(
    ("cache", "activations", "tolerance"),
    [
        ("F32", Activations.EXACT, 1e-4),
        ("F16", Activations.EXACT, 5e-3),
        ("BF16", Activations.EXACT, 4e-2),
        ("F16", Activations.FAST, 5e-3),
        ("Q8_0", Activations.EXACT, 3e-2),
        ("Q8_0/Q4_0", Activations.EXACT, 0.4),
        ("INT8,window=8,sinks=2,first=1,rotate", Activations.EXACT, 3e-2),
        ("INT8,before-rope", Activations.EXACT, 3e-2),
    ],
)
def test_load_and_run(cache: str, activations: Activations, tolerance: float, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "qwen3")
    seen: list[ReadProgress] = []
    model = load_path(
        tmp_path / "model",
        cache_dtype=cache,
        arithmetic=Arithmetic(activations),
        threads=2,
        progress=seen.append,
        capacity=30,
    )
    assert seen[-1].bytes_done == seen[-1].bytes_total == model.weight_bytes
    ids = prompt(30)
    assert difference(logits(model, ids), reference_logits(tmp_path / "model", ids)) < tolerance
    assert (model.capacity, model.sequences, model.config.layers, model.conversions) == (30, 1, 3, ())
    assert model.program.cache.dtype == cache.split(",")[0]
    assert model.cache_dtype == cache
    assert model.text.decode(model.text.encode("the fox")) == "the fox"
    model.unload()
    model.unload()
    with pytest.raises(RuntimeError, match="unloaded"):
        _ = model.engine


@pytest.mark.parametrize("wrong", ["Q9_0", "Q8_0/", "Q8_0/F16/F16", "F16/U2-t32", " "])
def test_caches_that_there_are_not(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load_path(write_llama(tmp_path / "model"), cache_dtype=wrong)


def test_the_capacity_is_the_models_context_at_most(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    model = load_path(folder)
    assert model.capacity == 512
    ids = prompt(512)
    assert logits(model, ids[:1]).shape == (1, 288)
    last = np.array([511], np.int32)
    model.engine.run(ids[:1], np.zeros(1, np.int32), last, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"position|capacity"):
        model.engine.run(ids[:1], np.zeros(1, np.int32), last + 1, np.zeros(1, np.int32))
    model.unload()
    for wanted, words in ((513, "more than the 512"), (0, "holds no text")):
        with pytest.raises(UserError, match=words):
            load_path(folder, capacity=wanted)


def test_two_models_side_by_side(tmp_path: Path) -> None:
    write_model(tmp_path / "one", "llama3")
    convert(tmp_path / "one", "F32", tmp_path / "two.gguf")
    ids = prompt(12)
    models = [load_path(p, cache_dtype="F32") for p in (tmp_path / "one", tmp_path / "two.gguf")]
    first, second = (logits(m, ids) for m in models)
    models[0].unload()
    third = logits(models[1], ids)
    models[1].unload()
    assert difference(second, first) < 1e-5
    assert np.array_equal(second, third)


def test_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_llama(tmp_path / "model")
    monkeypatch.setattr("core.runtime.load.memory", lambda: (1 << 40, 1_000_000))
    with pytest.raises(UserError) as error:
        load_path(folder)
    assert "1.00 MB" in error.value.message
    assert "context of 512 tokens" in error.value.message


def test_an_architecture_outside_the_list(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for change, words in (
        ({"model_type": "falcon_mamba", "architectures": ["FalconMambaForCausalLM"]}, "'falcon_mamba'"),
        ({"hidden_act": "relu2"}, "'relu2'"),
        ({"num_key_value_heads": 3}, "4 query heads can not share 3"),
        ({"rms_norm_eps": float("inf")}, "epsilon of the norms is inf"),
        ({"rms_norm_eps": -1.0}, "epsilon of the norms is -1"),
        ({"query_pre_attn_scalar": -256}, "scale of the attention is -256"),
        ({"attn_logit_softcapping": float("nan")}, "soft cap of the attention is nan"),
        ({"final_logit_softcapping": -30.0}, "soft cap of the output is -30"),
        ({"partial_rotary_factor": 2.0}, "2 of each head's values"),
        ({"partial_rotary_factor": -0.5}, "-0.5 of each head's values"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": float("nan")}}, "no numbers"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": float("nan")}}, "no numbers"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": -1.0}}, "no numbers"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "'spiral'"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}, "1 rope factors"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
        with pytest.raises(UserError) as error:
            load_path(folder)
        assert words in error.value.message
        assert error.value.hint
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json"):
        load_path(folder)


def test_cancelled_while_loading(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model", hidden=512, heads=8, ffn=2048, layers=4)
    token = CancelToken()
    steps = loading(open_checkpoint(folder), token=token)
    next(steps)
    token.cancel()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        list(steps)
    assert time.monotonic() - start < 0.2


def test_memory_comes_back(tmp_path: Path) -> None:
    """Loaded and unloaded time and again, what stays is a small part of the model (46 MB)."""
    folder = write_llama(tmp_path / "model", hidden=512, heads=8, ffn=2048, layers=6)
    checkpoint = open_checkpoint(folder)
    load(checkpoint, capacity=16).unload()
    before, sizes = psutil.Process().memory_info().rss, []
    for _ in range(4):
        model = load(checkpoint, capacity=16)
        assert model.weight_bytes > 45e6
        logits(model, prompt(4))
        model.unload()
        gc.collect()
        sizes.append(psutil.Process().memory_info().rss)
    assert max(sizes) - before < 20e6


def test_gguf_keys_that_no_model_can_have(tmp_path: Path, rewrite: Callable[[Path, dict[str, object]], Path]) -> None:
    convert(write_llama(tmp_path / "source", layers=1), "F32", tmp_path / "plain.gguf")
    for keys, words in (
        ({"llama.attention.head_count": 0}, "'llama.attention.head_count' is 0"),
        ({"llama.block_count": None}, "does not say 'llama.block_count'"),
        ({"llama.rope.dimension_count": 65}, "65 of a head's 64"),
        ({"llama.attention.value_length": 32}, "differ in width"),
        ({"llama.attention.head_count_kv": [1, 2]}, "'llama.attention.head_count_kv' differs between layers"),
        ({"llama.rope.scaling.type": "spiral"}, "'spiral'"),
        ({"llama.rope.scaling.type": [1, 2]}, "'llama.rope.scaling.type' is no name"),
        ({"tokenizer.ggml.tokens": 3}, "no list of texts"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "no list of texts"),
        ({"llama.attention.layer_norm_rms_epsilon": 1e30}, "epsilon of the norms is 1e+30"),
    ):
        path = rewrite(tmp_path / "plain.gguf", keys)
        with pytest.raises(UserError) as error, open_checkpoint(path) as checkpoint:
            decoder_config(checkpoint)
        assert words in error.value.message


@pytest.fixture
def rewrite(tmp_path: Path) -> Callable[[Path, dict[str, object]], Path]:
    """rewrite(path, keys) → a copy of a GGUF with keys replaced, added or (None) left out, by the package gguf."""
    import gguf

    def write(path: Path, keys: dict[str, object]) -> Path:
        reader = gguf.GGUFReader(path)
        writer = gguf.GGUFWriter(tmp_path / "changed.gguf", "llama")
        for field in reader.fields.values():
            if not field.name.startswith(("GGUF.", "general.architecture")) and field.name not in keys:
                sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), field.types[0], sub)
        for name, value in keys.items():
            if isinstance(value, str):
                writer.add_string(name, value)
            elif isinstance(value, list):
                writer.add_array(name, value)
            elif isinstance(value, float):
                writer.add_float32(name, value)
            elif value is not None:
                writer.add_uint32(name, value)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data).reshape(tuple(reversed(tensor.shape.tolist()))))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "changed.gguf"

    return write


SMALL = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ffn": 32}
NUMBERS = (0, 1, 2, 3, 7, 1 << 20, (1 << 32) - 1)


@pytest.mark.parametrize(
    "key",
    [
        *("block_count", "context_length", "embedding_length", "feed_forward_length"),
        *(
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.layer_norm_rms_epsilon",
        ),
        *("rope.freq_base", "rope.dimension_count", "expert_count", "rope.scaling.factor"),
    ],
)
def test_a_damaged_key_of_a_gguf(key: str, tmp_path: Path, rewrite: Callable[[Path, dict[str, object]], Path]) -> None:
    """Whatever stands there, the file loads or is refused in a sentence."""
    convert(write_llama(tmp_path / "source", **SMALL), "F32", tmp_path / "plain.gguf")
    refused = 0
    for value in (*NUMBERS, float("nan"), float("inf"), -1.0, 1e-30, 1e30, "text"):
        path = rewrite(tmp_path / "plain.gguf", {f"llama.{key}": value})
        with open_checkpoint(path) as checkpoint:
            try:
                plan_weights(checkpoint, decoder_config(checkpoint))
            except UserError:
                refused += 1
    assert refused


def test_a_damaged_config(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model", **SMALL)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = ("factor", "original_max_position_embeddings", "beta_fast", "low_freq_factor", "attention_factor")
    changes = [{k: v} for k in config if k != "architectures" for v in (*NUMBERS, -1, 1e-30, 1e30, "text", [], None)]
    changes += [
        {"rope_scaling": {"rope_type": kind, "factor": 2.0, name: value}}
        for kind in ("linear", "llama3", "yarn", "dynamic")
        for name in rope
        for value in (0, 1, -1, 1e-30, 1e30)
    ]
    refused = 0
    for change in changes:
        (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
        with open_checkpoint(folder) as checkpoint:
            try:
                plan_weights(checkpoint, decoder_config(checkpoint))
            except UserError:
                refused += 1
    assert 100 < refused < len(changes)


@pytest.mark.parametrize("window", [-1, 1 << 40])
def test_a_window_that_no_model_has(window: int, tmp_path: Path) -> None:
    write_model(tmp_path / "model", "mistral-window")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"sliding_window": window}), encoding="utf-8")
    with pytest.raises(UserError, match="The sliding window is"):
        decoder_config(open_checkpoint(tmp_path / "model"))


@pytest.mark.parametrize("pattern", [float("nan"), float("inf"), "text", [1.5, 2.5]])
def test_a_window_pattern_that_is_none(pattern: object, tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "gemma3",
        "gemma3.attention.sliding_window": 16,
        "gemma3.attention.sliding_window_pattern": np.array(pattern) if isinstance(pattern, list) else pattern,
    }
    with pytest.raises(UserError, match="sliding_window_pattern"):
        gguf_config._windows(gguf_config._Keys(metadata), 7)


@pytest.mark.parametrize("shape", [(288 * 256,), (1,)])
def test_an_embedding_that_is_no_matrix(shape: tuple[int, ...], tmp_path: Path) -> None:
    def flatten(tensors: dict) -> None:
        tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].reshape(-1)[: shape[0]].clone()

    folder = write_llama(tmp_path / "model", change=flatten)
    with pytest.raises(UserError, match=r"'model\.embed_tokens\.weight' is .* means 288 × 256"):
        load_path(folder)


@pytest.mark.parametrize("container", ["folder", "gguf"])
def test_a_loaded_model_needs_its_files_no_more(container: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model")
    if container == "gguf":
        path = tmp_path / "model.gguf"
        convert(tmp_path / "model", "F32", path)
    with open_checkpoint(path) as checkpoint:
        model = load(checkpoint, capacity=16)
    shutil.rmtree(path) if path.is_dir() else path.write_bytes(b"")
    assert model.text.decode(model.text.encode("the fox")) == "the fox"
    assert np.isfinite(logits(model, prompt(16))).all()
    model.unload()


def test_without_a_tokenizer_a_model_loads_and_says_so_when_asked_for_text(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    model = load_path(folder)
    for _ in range(2):
        with pytest.raises(UserError, match="has no tokenizer"):
            _ = model.text
    model.unload()


def test_cancelled_while_a_tokenizer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("core.runtime.tokenizer.open_text", lambda _: release.wait(5))
    folder, token = write_llama(tmp_path / "model"), CancelToken()
    threading.Timer(0.3, token.cancel).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        load_path(folder, token=token)
    assert 0.25 < time.monotonic() - began < 0.5
    release.set()


def test_dynamic_rope_that_shrinks_leaves_the_context(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"rope_scaling": {"rope_type": "dynamic", "factor": 1e-9}}
    path.write_text(json.dumps(config), encoding="utf-8")
    model = load_path(folder)
    assert model.capacity == 512
    model.unload()
