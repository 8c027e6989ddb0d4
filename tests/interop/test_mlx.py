"""mlx-lm loads our MLX folders and computes our logits; folders that it writes are read here value for value.

In float32: in bfloat16 mlx on a processor differs from itself by some percent.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_models import difference, prompt, write_model
from interop.cases import PROMPTS
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import load
from kernels.matrix import Activations

HERE = find_spec("mlx") is not None and find_spec("mlx_lm") is not None
pytestmark = pytest.mark.interop
needs_mlx = pytest.mark.skipif(not HERE, reason="mlx-lm is not installed")
NEAR = 1e-3  # two best tokens whose logits are nearer to each other may change places
TARGETS = ("mlx-4bit-g64", "mlx-3bit-g32", "mlx-8bit-g128", "mlx-mxfp4", "mlx-nvfp4", "mlx-mxfp8")


def test_mlx_is_installed_or_done_by_hand() -> None:
    if not HERE:
        pytest.skip("mlx-lm is not installed here; docs/interop.md has the commands and what they gave")


def loaded(folder: Path) -> Any:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    return model


def theirs(model: Any, ids: np.ndarray) -> np.ndarray:
    import mlx.core as mx

    return np.array(model(mx.array(ids.tolist())[None]).astype(mx.float32))[0]


def ours(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Logits of every token, by this program's engine on the packed weights, in float32."""
    with open_checkpoint(folder) as checkpoint:
        model = load(checkpoint, 256, 1, Arithmetic(Activations.EXACT), cache_dtype="F32")
        places = np.arange(len(ids), dtype=np.int32)
        found = model.engine.run(ids.astype(np.int32), np.zeros_like(places), places, places)
        model.unload()
    return found


@needs_mlx
@pytest.mark.parametrize("target", TARGETS)
def test_our_folders_compute_our_logits(target: str, tmp_path: Path) -> None:
    convert(write_llama(tmp_path / "m", tied=False), target, tmp_path / "out")
    ids = prompt(24)
    assert difference(theirs(loaded(tmp_path / "out"), ids), ours(tmp_path / "out", ids)) < 1e-2


@needs_mlx
@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "mixtral"])
def test_other_models_load(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / name, name)
    convert(tmp_path / name, "mlx-4bit-g32", tmp_path / "out")
    ids = prompt(24)
    assert difference(theirs(loaded(tmp_path / "out"), ids), ours(tmp_path / "out", ids)) < 1e-2


@needs_mlx
@pytest.mark.parametrize("target", ["mlx-4bit-g64", pytest.param("mlx-mxfp4", marks=pytest.mark.slow)])
def test_a_real_model_writes_our_text(target: str, smollm2_folder: Path, tmp_path: Path) -> None:
    """Thirty-two greedy tokens of mlx, each the best by our engine on the packed weights too."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from transformers import AutoTokenizer

    convert(smollm2_folder, target, tmp_path / "out")
    start = AutoTokenizer.from_pretrained(smollm2_folder)(PROMPTS[2]).input_ids
    model = loaded(tmp_path / "out")
    kept, tokens, logits = make_prompt_cache(model), list(start), []
    for _ in range(32):
        step = tokens[-1:] if logits else start
        logits.append(np.array(model(mx.array([step]), cache=kept).astype(mx.float32))[0, -1])
        tokens.append(int(logits[-1].argmax()))
    found = ours(tmp_path / "out", np.array(tokens))[len(start) - 1 : -1]
    assert difference(np.array(logits), found) < 1e-2
    for place, (row, token) in enumerate(zip(found, tokens[len(start) :], strict=True)):
        assert row.max() - row[token] < NEAR, place


@needs_mlx
@pytest.mark.parametrize("words", [{"bits": 3, "group_size": 64}, {"bits": 5, "group_size": 32}, {"mode": "nvfp4"}])
def test_what_mlx_writes_is_read(words: dict[str, Any], tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_model

    mx.set_default_device(mx.cpu)
    source = write_llama(tmp_path / "m", layers=1)
    model, config = load_model(source)
    settings = {"bits": 4, "group_size": 16, "mode": "affine", **words}
    model, config = quantize_model(model, config, settings["group_size"], settings["bits"], mode=settings["mode"])
    save_model(tmp_path / "out", model)
    (tmp_path / "out" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    arrays = mx.load(str(tmp_path / "out" / "model.safetensors"))
    with open_checkpoint(tmp_path / "out") as made:
        packed = [t for t in made.tensors if t.packed]
        assert len(packed) == 8
        for tensor in packed:
            base = tensor.name.removesuffix(".weight")
            scales, biases = arrays[f"{base}.scales"], arrays.get(f"{base}.biases")
            if biases is not None:
                scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            want = mx.dequantize(arrays[tensor.name], scales, biases, **settings)
            assert np.array_equal(made.read_rows(tensor), np.array(want.astype(mx.float32)))
