"""Inputs of every linear layer as transformers' modules are given them, for every family, folders and GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoder_models import FOLDER_ONLY, MODELS, write_model
from job_help import convert

from core.checkpoint import open_checkpoint
from core.errors import Cancelled, UserError
from core.inspect import layerwise
from core.inspect.activation_cache import cache_path
from core.inspect.activations import Activations, Place
from core.inspect.layerwise import ActivationProgress, measure_activations
from core.progress import CancelToken
from core.runtime.tokenizer import open_text

TEXT = "Then the tide went out, and the boats lay on the mud."  # more tokens than every window of MODELS
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("activations")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


def measured(path: Path, **options: Any) -> tuple[Activations, list[ActivationProgress]]:
    with open_checkpoint(path) as checkpoint:
        steps = measure_activations(checkpoint, TEXT, **{"use_cache": False, **options})
        seen = []
        while True:
            try:
                seen.append(next(steps))
            except StopIteration as stop:
                return stop.value, seen


def hooked(folder: Path, tokens: tuple[int, ...]) -> dict[tuple[int | None, str, int | None], np.ndarray]:
    """(layer, module, expert) → the input of each linear layer, float32 [tokens, channels], by transformers."""
    sees = folder.name == "gemma3-images"
    loader = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    inputs: dict[tuple[int | None, str, int | None], np.ndarray] = {}

    def keep(key: tuple[int | None, str, int | None]) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            inputs[key] = args[0].reshape(-1, args[0].shape[-1]).numpy().copy()

        return hook

    def keep_experts(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: tuple[torch.Tensor, ...]) -> None:
            x, chosen = args[0].reshape(-1, args[0].shape[-1]), args[1]
            for e, (both, down) in enumerate(zip(module.gate_up_proj, module.down_proj, strict=True)):
                assert down.shape[0] == x.shape[1]
                rows = x[(chosen == e).any(-1)]
                gate, up = (rows @ both.T).chunk(2, -1)
                inputs[layer, "gate_up", e] = rows.numpy().copy()
                inputs[layer, "down_proj", e] = (module.act_fn(gate) * up).numpy()

        return hook

    for name, module in model.named_modules():
        if "vision" in name or "projector" in name:
            continue
        at = re.search(r"layers\.(\d+)\.", name)
        layer, last = int(at[1]) if at else None, name.rpartition(".")[2]
        if last == "experts":
            module.register_forward_pre_hook(keep_experts(int(at[1])))
        elif isinstance(module, torch.nn.Linear) or "Router" in type(module).__name__:
            module.register_forward_pre_hook(keep((layer, last, None)))
    with torch.inference_mode():
        model(torch.tensor([tokens]))
    return inputs


MODULES = {
    Place.ATTENTION: ("q_proj", "qkv_proj"),
    Place.ATTENTION_OUT: ("o_proj",),
    Place.FFN: ("gate_proj", "gate_up_proj", "gate_up"),
    Place.FFN_DOWN: ("down_proj",),
    Place.ROUTER: ("gate", "router"),
    Place.HEAD: ("lm_head",),
}


@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_those_of_the_modules(name: str, tiny: Callable[[str], Path]) -> None:
    found, _ = measured(tiny(name))
    expected = hooked(tiny(name), found.tokens)
    met = set()
    for layer in found.layers:
        key = next(k for m in MODULES[layer.place] if (k := (layer.layer, m, layer.expert)) in expected)
        met.add(key)
        x = expected[key].astype(np.float64)
        assert layer.tokens == len(x), layer.name
        if not len(x):
            assert layer.amax == 0
            assert np.isnan(layer.tensor_snr_db)
            continue
        largest = np.abs(x).max()
        assert np.abs(layer.max - np.abs(x).max(0)).max() < TOLERANCE * largest
        assert np.abs(layer.rms - np.sqrt(np.mean(x * x, 0))).max() < TOLERANCE * largest
        assert np.abs(layer.token_max - np.abs(x).max(1)).max() < TOLERANCE * largest
    shared = {"k_proj", "v_proj", "up_proj"}
    assert {k for k in expected if k[1] not in shared} == met
    assert any(layer.place is Place.HEAD for layer in found.layers)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in FOLDER_ONLY])
def test_gguf_is_as_its_folder(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    convert(tiny(name), "F32", tmp_path / "model.gguf")
    (one, _), (other, _) = measured(tiny(name)), measured(tmp_path / "model.gguf")
    assert [a.name for a in one.layers] == [b.name for b in other.layers]
    for a, b in zip(one.layers, other.layers, strict=True):
        assert a.tokens == b.tokens
        np.testing.assert_allclose(b.max, a.max, atol=TOLERANCE * a.amax)
        np.testing.assert_allclose(b.weight_max, a.weight_max, rtol=1e-6)


@pytest.mark.parametrize("name", ["smollm", "phi3", "mixtral", "gemma2"])
def test_weights_maxima_are_the_tensors_columns(name: str, tiny: Callable[[str], Path]) -> None:
    found, _ = measured(tiny(name))
    with open_checkpoint(tiny(name)) as checkpoint:
        for layer in found.layers:
            if not layer.tokens:
                continue
            assert layer.tensors
            both = [np.abs(checkpoint.read_rows(checkpoint.tensor(t))) for t in layer.tensors]
            want = np.max([w.reshape(-1, layer.channels).max(0) for w in both], axis=0)
            if layer.expert is None:
                np.testing.assert_array_equal(layer.weight_max, want)


def test_progress_goes_by_layer_and_counts_everything_once(tiny: Callable[[str], Path]) -> None:
    found, seen = measured(tiny("qwen3moe"))
    assert [step.done for step in seen] == [1, 2, 3, 4]
    assert {step.total for step in seen} == {4}
    assert tuple(a for step in seen for a in step.found) == found.layers
    assert {a.layer for a in seen[1].found} == {1}
    assert seen[3].found[0].place is Place.HEAD
    experts = [a for a in found.layers if a.layer == 0 and a.place is Place.FFN]
    assert sum(a.tokens for a in experts) == 2 * len(found.tokens)  # each token has two experts


def test_a_kept_result_is_the_same(tiny: Callable[[str], Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    first, _ = measured(tiny("mixtral"), use_cache=True)
    second, seen = measured(tiny("mixtral"), use_cache=True)
    assert [step.cached for step in seen] == [True]
    assert second.tokens == first.tokens
    for a, b in zip(first.layers, second.layers, strict=True):
        assert vars(a).keys() == vars(b).keys()
        for key, value in vars(a).items():
            np.testing.assert_array_equal(getattr(b, key), value)
    with open_checkpoint(tiny("mixtral")) as checkpoint:
        path = cache_path(checkpoint, first.tokens)
    path.write_bytes(path.read_bytes()[:-200])
    third, seen = measured(tiny("mixtral"), use_cache=True)
    assert len(seen) == 4  # damaged: measured again
    np.testing.assert_array_equal(third.layers[0].max, first.layers[0].max)
    assert len(measured(tiny("mixtral"), use_cache=True, limit=5)[1]) == 4  # other tokens are another result
    assert len(list(path.parent.iterdir())) == 2
    config = tiny("mixtral") / "config.json"
    text = config.read_text()
    try:
        config.write_text(text.replace('"rope_theta": ', '"rope_theta": 1'))
        assert len(measured(tiny("mixtral"), use_cache=True)[1]) == 4  # so is another configuration
    finally:
        config.write_text(text)


def test_cancelled_between_blocks(tiny: Callable[[str], Path]) -> None:
    token = CancelToken()
    with open_checkpoint(tiny("llama2")) as checkpoint:
        steps = measure_activations(checkpoint, TEXT, token=token, use_cache=False)
        next(steps)
        token.cancel()
        with pytest.raises(Cancelled):
            next(steps)


def test_as_many_tokens_as_are_wanted(tiny: Callable[[str], Path]) -> None:
    with open_checkpoint(tiny("llama2")) as checkpoint:
        ids = open_text(checkpoint).encode(TEXT)
    whole, few = measured(tiny("llama2"))[0], measured(tiny("llama2"), limit=7)[0]
    assert whole.tokens == tuple(ids)
    assert not whole.cut
    assert few.tokens == tuple(ids[:7])
    assert few.cut
    assert len(measured(tiny("llama-dynamic"))[0].tokens) == 32  # its context


@pytest.mark.parametrize(
    ("options", "sentence"), [({"text": "  \n"}, "The text is empty."), ({"limit": 0}, "Activations of 0 tokens")]
)
def test_what_can_not_be_measured(tiny: Callable[[str], Path], options: dict[str, Any], sentence: str) -> None:
    with open_checkpoint(tiny("llama2")) as checkpoint, pytest.raises(UserError, match=re.escape(sentence)):
        next(measure_activations(checkpoint, **options))


def test_a_tokenizer_that_knows_nothing_of_the_text_is_told(tiny: Callable[[str], Path], monkeypatch) -> None:
    monkeypatch.setattr("core.runtime.tokenizer.text.Text.encode", lambda *a, **k: [])
    with open_checkpoint(tiny("llama2")) as checkpoint, pytest.raises(UserError, match="finds no token"):
        next(measure_activations(checkpoint, TEXT, use_cache=False))


def test_other_kinds_of_models_are_named(tmp_path: Path) -> None:
    from tiny_models import write_llama

    folder = write_llama(tmp_path / "other")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"gpt_neox"').replace("Llama", "GPTNeoX"))
    with open_checkpoint(folder) as checkpoint, pytest.raises(UserError, match="can not be measured yet"):
        next(measure_activations(checkpoint, TEXT, use_cache=False))


def test_damaged_weights_are_told_by_layer(tmp_path: Path) -> None:
    from tiny_models import write_llama

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.self_attn.o_proj.weight"][3, 5] = torch.nan

    folder = write_llama(tmp_path / "damaged", change=damage)
    with open_checkpoint(folder) as checkpoint, pytest.raises(UserError, match=r"blk\.1\.ffn_gate\+ffn_up"):
        list(measure_activations(checkpoint, TEXT, use_cache=False))


@pytest.mark.slow
def test_smollm2(smollm2_folder: Path) -> None:
    """bf16 weights, float32 in between, as transformers computes them from the same files."""
    found, _ = measured(smollm2_folder, limit=96)
    expected = hooked(smollm2_folder, found.tokens)
    worst = 0.0
    for layer in found.layers:
        x = next(expected[k] for m in MODULES[layer.place] if (k := (layer.layer, m, None)) in expected)
        worst = max(worst, float(np.abs(layer.max - np.abs(x).max(0)).max() / np.abs(x).max()))
    print(f"largest difference of a channel's maximum: {worst:.1e} of the input's largest")
    assert worst < TOLERANCE


def test_packed_weights_are_nearly_the_plain_ones(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    convert(tiny("llama2"), "w8a16-g32", tmp_path / "packed")
    (plain, _), (packed, _) = measured(tiny("llama2")), measured(tmp_path / "packed")
    for a, b in zip(plain.layers, packed.layers, strict=True):
        assert a.name == b.name
        np.testing.assert_allclose(b.weight_max, a.weight_max, rtol=0.02)
        assert np.abs(b.rms - a.rms).max() < 0.05 * a.rms.max()


@pytest.mark.parametrize("name", ["llama3", "mistral-window", "gemma2", "gemma3", "qwen3moe"])
def test_scores_of_a_long_text_are_there_block_by_block(name: str, tiny: Callable[[str], Path], monkeypatch) -> None:
    whole, _ = measured(tiny(name))
    sizes: list[int] = []

    def softmax(scores: np.ndarray) -> np.ndarray:
        sizes.append(scores.size)
        return layerwise.softmax.original(scores)

    softmax.original = layerwise.softmax  # type: ignore[attr-defined]
    monkeypatch.setattr(layerwise, "softmax", softmax)
    monkeypatch.setattr(layerwise, "SCORES", 1000)
    blocks, _ = measured(tiny(name))
    assert 0 < max(sizes) <= 1000 < len(whole.tokens) ** 2
    for one, other in zip(whole.layers, blocks.layers, strict=True):
        for figure in ("max", "rms", "token_max"):
            np.testing.assert_allclose(getattr(other, figure), getattr(one, figure), rtol=1e-4, atol=1e-5 * one.amax)
