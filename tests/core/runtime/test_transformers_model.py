"""Architectures that are none of ours: built by transformers, multiplied by our products, or refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_models import difference, prompt, reference_logits
from job_help import convert
from tiny_models import byte_tokens, tokenizer_json, write_llama

from core.checkpoint import open_checkpoint
from core.errors import Cancelled as LoadCancelled
from core.errors import UserError
from core.progress import CancelToken
from core.runtime import transformers_model
from core.runtime.arithmetic import ARITHMETICS
from core.runtime.generate import Finish, GenerateRequest, generate
from core.runtime.layers import embedding_rows, layer_shapes, main_format
from core.runtime.load import LoadedModel, decoder_config, load
from core.runtime.speed import BenchSettings, measure
from core.runtime.transformers_engine import TransformersEngine
from kernels.engine import Cancelled

interop = pytest.mark.interop
VOCABULARY, CONTEXT = 288, 128
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
OLD = {"vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 1}
MOE = {"num_experts": 4, "num_experts_per_tok": 2}
SCALED = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
# configuration class → fields
MODELS: dict[str, dict[str, Any]] = {
    "GPT2Config": {**OLD, "n_embd": 64, "n_positions": CONTEXT},  # columns first, tied, learned positions
    "GPTNeoXConfig": {k: v for k, v in SIZES.items() if k != "num_key_value_heads"},  # fused, partly rotated
    "FalconConfig": {k: v for k, v in SIZES.items() if "key_value" not in k and k != "intermediate_size"},
    "BloomConfig": {**OLD, "hidden_size": 64},  # no positions but a slope
    "PhiConfig": SIZES,  # biases, also of the head
    "GraniteConfig": {**SIZES, **SCALED},
    "Olmo2Config": SIZES,
    "StableLmConfig": SIZES,
    "CohereConfig": SIZES,
    "Cohere2Config": {**SIZES, "sliding_window": 16},
    "OlmoeConfig": {**SIZES, **MOE},  # a stack of experts
    "Qwen2MoeConfig": {**SIZES, **MOE, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32},
    "FalconMambaConfig": {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    "Mamba2Config": {  # has an infinite limit, which JSON has no word for
        **{k: SIZES[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers")},
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 1,
    },
    "BambaConfig": {  # takes positions from its caller only
        **SIZES,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "attn_layer_indices": [1],
    },
    "Lfm2Config": {**SIZES, "num_hidden_layers": 3, "full_attn_idxs": [1]},  # attention and convolutions
}


def write(folder: Path, name: str, dtype: str = "float32", **changes: Any) -> Path:
    """Random weights as transformers saves them, and a tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**MODELS[name], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)  # else attention is nearly uniform, and positions hardly matter
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokens = ["<|start|>", "<|end|>", *byte_tokens(), "Ġt", "he"]
    tokens += [f"<|x{i}|>" for i in range(VOCABULARY - len(tokens))]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens)), encoding="utf-8")
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|start|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def load_path(path: Path, **options: Any) -> LoadedModel:
    return load(open_checkpoint(path), **{"arithmetic": ARITHMETICS["exact"], "threads": 2, **options})


def logits(model: LoadedModel, ids: np.ndarray, start: int = 0, sequence: int = 0) -> np.ndarray:
    places = np.arange(len(ids), dtype=np.int32)
    return model.engine.run(ids, np.full(len(ids), sequence, np.int32), places + start, places)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gpt2") / "model", "GPT2Config")


@pytest.fixture
def model(gpt2: Path) -> Iterator[LoadedModel]:
    loaded = load_path(gpt2, sequences=3, capacity=100)
    yield loaded
    loaded.unload()


@interop
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """A prompt, its start again, the rest in one piece, and step by step."""
    folder, ids = write(tmp_path / "model", name), prompt(40)
    want = reference_logits(folder, ids)
    model = load_path(folder)
    assert isinstance(model.engine, TransformersEngine)
    assert difference(logits(model, ids), want) < 1e-4
    assert difference(logits(model, ids[:25]), want[:25]) < 1e-4
    assert difference(logits(model, ids[25:], 25), want[25:]) < 1e-4
    steps = [logits(model, ids[i : i + 1], i)[0] for i in range(25, 40)]
    assert difference(np.stack(steps), want[25:]) < 1e-4
    assert model.conversions == ()
    model.unload()


@interop
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["GPT2Config", "OlmoeConfig"])
def test_16_bits(name: str, dtype: str, tmp_path: Path) -> None:
    """Kept as they are; transformers computes with the same values in float32."""
    folder, ids = write(tmp_path / "model", name, dtype), prompt(30)
    model = load_path(folder)
    assert difference(logits(model, ids), reference_logits(folder, ids)) < 1e-4
    assert {matrix.format for matrix in layer_shapes(model.program)} == {"BF16" if dtype == "bfloat16" else "F16"}
    model.unload()


@interop
@pytest.mark.parametrize("name", ["GraniteConfig", "StableLmConfig"])
def test_quantized(name: str, tmp_path: Path) -> None:
    """Our own W4A16 folder, which transformers reads through compressed-tensors."""
    convert(write(tmp_path / "source", name), "w4a16-g32", tmp_path / "model")
    ids = prompt(30)
    model = load_path(tmp_path / "model")
    assert difference(logits(model, ids), reference_logits(tmp_path / "model", ids)) < 1e-4
    formats = {matrix.format for matrix in layer_shapes(model.program)}
    assert formats == {"int4 g32", "F32"}  # the head
    assert main_format(model.program) == "F32"
    assert model.conversions == ()
    model.unload()


@interop
def test_quantized_experts(tmp_path: Path) -> None:
    """A matrix for each expert is packed where transformers stacks them; codes are checked as the float values."""
    convert(write(tmp_path / "source", "OlmoeConfig"), "w8a16-channel", tmp_path / "model")
    ids = prompt(30)
    models = [load_path(tmp_path / name) for name in ("source", "model")]
    exact, near = (logits(model, ids) for model in models)
    assert 1e-5 < difference(near, exact) < 0.05
    assert models[1].weight_bytes < 0.5 * models[0].weight_bytes
    assert any(use.op == "experts, 2 of 4" and use.kernel.startswith("int8") for use in models[1].engine.report())
    for model in models:
        model.unload()


@interop
def test_nothing_is_kept_twice(model: LoadedModel) -> None:
    """The tied head is the embedding; no float weights are left in layers; the report says what runs."""
    engine, matrices = model.engine, layer_shapes(model.program)
    assert isinstance(engine, TransformersEngine)
    assert embedding_rows(model.program) == VOCABULARY
    steps: dict[str, Any] = dict(zip(model.program.labels, model.program.steps, strict=True))
    assert steps["transformer.wte.weight"].weight is steps["lm_head.weight"].weights[0]
    assert {(m.rows, m.columns) for m in matrices} == {(288, 64), (192, 64), (64, 64), (256, 64), (64, 256)}
    left = sum(p.numel() for p in engine._model.parameters())
    assert left == (CONTEXT + 2) * 64 + 2 * (4 * 64 + 192 + 64 + 256 + 64)  # positions, norms, biases
    uses = engine.report()
    assert {use.op for use in uses} >= {"embedding rows", "linear", "attention, norms, activations"}
    assert all("architecture gpt2 runs through transformers" in use.reason for use in uses)
    assert (model.cache_dtype, model.config.architecture, model.config.model_type) == ("F32", "", "gpt2")
    floats = 4 * (288 * 64 + 2 * 64 * (192 + 64 + 256 + 256))
    assert floats <= engine.bytes_per_token <= floats + 4 * left


@interop
def test_sequences_of_mixed_lengths(model: LoadedModel) -> None:
    ids = [prompt(n) for n in (7, 1, 20)]
    want = [logits(model, each) for each in ids]
    numbers = np.repeat([2, 0, 1], [7, 1, 20]).astype(np.int32)
    places = np.concatenate([np.arange(len(each)) for each in ids]).astype(np.int32)
    mixed = np.random.default_rng(0).permutation(28)
    wanted = np.flatnonzero(np.isin(mixed, [6, 7, 20])).astype(np.int32)
    got = model.engine.run(np.concatenate(ids)[mixed], numbers[mixed], places[mixed], wanted)
    assert difference(got, np.concatenate(want)[mixed[wanted]]) < 1e-5
    assert model.engine.run(ids[0], numbers[:7], places[:7], wanted[:0]).shape == (0, VOCABULARY)


@interop
def test_what_a_cache_does_not_have(model: LoadedModel) -> None:
    ids = prompt(100)
    logits(model, ids)
    for tokens, start, words in (
        (ids[:1], 100, "position is outside of 0 … 99"),
        (ids[:1] + VOCABULARY, 0, "token is outside"),
    ):
        with pytest.raises(ValueError, match=words):
            logits(model, tokens, start)
    with pytest.raises(ValueError, match="comes before"):
        logits(model, ids[:1], 5, sequence=1)
    with pytest.raises(ValueError, match="sequence is outside"):
        logits(model, ids[:1], 0, sequence=3)
    with pytest.raises(ValueError, match="follow one another"):
        model.engine.run(ids[:2], np.zeros(2), np.array([0, 2]), np.zeros(1))


@interop
def test_capacity(gpt2: Path) -> None:
    model = load_path(gpt2)
    assert model.capacity == CONTEXT
    model.unload()
    with pytest.raises(UserError, match="more than the 128"):
        load_path(gpt2, capacity=CONTEXT + 1)
    model = load_path(gpt2, capacity=1)
    assert logits(model, prompt(1)).shape == (1, VOCABULARY)
    model.unload()


@interop
def test_greedy_text_is_that_of_transformers(gpt2: Path, model: LoadedModel) -> None:
    import torch
    import transformers

    ids = model.text.encode("the heat")
    want = transformers.AutoModelForCausalLM.from_pretrained(gpt2, dtype=torch.float32).eval()
    with torch.inference_mode():
        written = want.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False, eos_token_id=None)
    job = generate(model, GenerateRequest(prompt="the heat", max_tokens=30, ignore_end=True))
    while True:
        try:
            next(job)
        except StopIteration as end:
            result = end.value
            break
    assert [*ids, *result.tokens] == written[0].tolist()
    assert result.finish is Finish.LENGTH
    assert result.text == model.text.decode(result.tokens)


@interop
def test_speed(model: LoadedModel) -> None:
    job = measure([model], BenchSettings(prompt_tokens=8, decode_tokens=3, context=20, runs=1))
    while True:
        try:
            next(job)
        except StopIteration as end:
            (result,) = end.value
            break
    assert result.decode_tokens_per_s > 0
    assert result.kernels == model.engine.report()


@interop
def test_cancelled_and_used_again(tmp_path: Path) -> None:
    """A prompt of seconds ends soon after the cancel; what came before it is still there."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "max_position_embeddings": 4096}
    model = load_path(write(tmp_path / "model", "GPTNeoXConfig", **sizes), threads=1)
    ids = prompt(4096)
    first = logits(model, ids[:10])
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(time.monotonic())
        model.engine.cancel()

    timer = threading.Timer(0.3, stop)
    timer.start()
    with pytest.raises(Cancelled):
        logits(model, ids[10:], 10)
    assert time.monotonic() - stopped[0] < 0.2
    timer.join()
    step = logits(model, ids[10:11], 10)
    assert difference(step, logits(model, ids[:11])[10:]) < 1e-5
    assert difference(logits(model, ids[:10]), first) < 1e-5
    token = CancelToken()
    token.cancel()
    job = generate(model, GenerateRequest(prompt="the heat", max_tokens=50), token)
    with pytest.raises(StopIteration) as end:
        next(job)
    assert end.value.value.finish is Finish.CANCELLED
    model.unload()


@interop
def test_cancelled_while_loading(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while transformers starts, builds or computes a first step, which nothing can stop."""
    for name in ("_configuration", "_build", "_listing"):
        ended = threading.Event()
        token = CancelToken()
        stopped: list[float] = []

        def stop(token: CancelToken = token, stopped: list[float] = stopped) -> None:
            stopped.append(time.monotonic())
            token.cancel()

        def slow(*_args: Any, ended: threading.Event = ended, stop: Callable[[], None] = stop) -> Any:
            threading.Timer(0.2, stop).start()  # not before: what comes first may take longer
            time.sleep(1)
            ended.set()
            raise RuntimeError("nobody sees this")

        with monkeypatch.context() as patch:
            patch.setattr(transformers_model, name, slow)
            with pytest.raises(LoadCancelled):
                load(open_checkpoint(gpt2), token=token)
            assert time.monotonic() - stopped[0] < 0.2
            assert ended.wait(5)


@interop
def test_memory_comes_back(tmp_path: Path) -> None:
    """Loaded and unloaded time and again, a process of its own does not grow by a model (13 MB)."""
    folder = write(tmp_path / "model", "StableLmConfig", hidden_size=512, intermediate_size=1024)
    done = subprocess.run([sys.executable, "-c", LOAD_AGAIN, folder], capture_output=True, text=True, check=True)
    sizes = json.loads(done.stdout)
    assert sizes[-1] - sizes[2] < 8 << 20


LOAD_AGAIN = """
import gc, json, sys
from pathlib import Path
import numpy as np, psutil
from core.checkpoint import open_checkpoint
from core.runtime.load import load

sizes, places, zero = [], np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
for _ in range(8):
    model = load(open_checkpoint(Path(sys.argv[1])), threads=2)
    engine = model.engine
    engine.run(places, zero, places, places)
    assert model.weight_bytes > 12e6
    model.unload()
    try:
        engine.run(places, zero, places, places)
        sys.exit("a closed engine ran")
    except RuntimeError as error:
        assert "closed" in str(error)
    gc.collect()
    sizes.append(psutil.Process().memory_info().rss)
print(json.dumps(sizes))
"""


@interop
def test_threads_of_torch_are_given_back(model: LoadedModel) -> None:
    import torch

    before = torch.get_num_threads()
    logits(model, prompt(50))
    assert torch.get_num_threads() == before


@interop
def test_weights_that_do_not_fit(gpt2: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(gpt2 / "model.safetensors")
    name = next(n for n in tensors if n.endswith("h.1.mlp.c_fc.weight"))
    base = name.removesuffix("h.1.mlp.c_fc.weight")
    stray = np.zeros((4, 4), np.float32)
    for number, (change, words) in enumerate(
        (
            ({name: None}, "has no tensor 'transformer.h.1.mlp.c_fc.weight'"),
            ({name: np.ascontiguousarray(tensors[name].T)}, f"'{name}' is 256 × 64, .* means 64 × 256"),
            ({base + "h.1.mlp.gate.weight": stray}, "gate.weight' has no place in a model of the kind 'gpt2'"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
        changed = {k: v for k, v in {**tensors, **change}.items() if v is not None}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=words):
            load_path(folder)


@interop
def test_a_stored_head_that_differs_is_the_models_own(gpt2: Path, tmp_path: Path) -> None:
    """Where config.json says that head and embedding are one."""
    from safetensors.numpy import load_file, save_file

    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((gpt2 / name).read_bytes())
    tensors, ids = load_file(gpt2 / "model.safetensors"), prompt(10)
    plain, embedding = load_path(gpt2), next(n for n in tensors if n.endswith("wte.weight"))
    for factor in (1.0, 2.0):
        changed = {**tensors, "lm_head.weight": factor * tensors[embedding]}
        save_file(changed, tmp_path / "model.safetensors", metadata={"format": "pt"})
        model = load_path(tmp_path)
        assert difference(logits(model, ids), factor * logits(plain, ids)) < 1e-5
        model.unload()
    plain.unload()


@interop
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM does not write text"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "does not write text"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]}, "does not write text"),
        ({"model_type": "own_thing", "auto_map": {"AutoModelForCausalLM": "code.Own"}}, "program code from its own"),
        ({"model_type": "own_thing"}, "'own_thing' is not known"),
        ({"model_type": "gpt2", "n_layer": 10**9}, "a size that no model has"),
        ({"model_type": "gpt2", "n_head": 7}, "can not build a model of the kind 'gpt2'"),
        ({"model_type": "gpt2", "n_layer": "many"}, "'gpt2'"),
    ],
)
def test_refused(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "model", layers=1)
    (folder / "code.py").write_text("raise SystemExit('this must not run')", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=words) as error:
        load_path(folder)
    assert error.value.hint


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_llama(tmp_path / "model", layers=1)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    monkeypatch.setattr(transformers_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="'gpt2' run through the package transformers, which is not installed") as error:
        load_path(folder)
    assert "pip install 'transformers>=5'" in error.value.hint


def test_a_gguf_of_another_architecture(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gptneox")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="GGUF files of the kind 'gptneox' can not be run yet") as error:
        decoder_config(open_checkpoint(tmp_path / "model.gguf"))
    assert "qwen3moe" in error.value.hint
