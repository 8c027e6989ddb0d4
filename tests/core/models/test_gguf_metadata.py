"""Keys, types and values of the metadata; the tables were taken from files that llama.cpp's converter wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.export.gguf_values import FILE_TYPES, GGUFType, GGUFValue
from core.models import gguf_metadata
from core.models.gguf_general import name_parts, read_card

Tiny = Callable[[str], Path]


def metadata(folder: Path) -> dict[str, GGUFValue]:
    with open_checkpoint(folder) as checkpoint:
        return gguf_metadata(checkpoint, FILE_TYPES["Q8_0"])


SIZES = {
    "block_count": 3,
    "context_length": 256,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
EPS6, EPS5 = 1e-6, 1e-5
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "llama2": {
        **SIZES,
        "attention.head_count_kv": 4,
        "attention.layer_norm_rms_epsilon": EPS6,
        "rope.freq_base": 10000.0,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "vocab_size": 512,
        "rope.dimension_count": 16,
    },
    "llama3": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS6,
        "rope.freq_base": 500000.0,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "vocab_size": 512,
        "rope.dimension_count": 16,
    },
    "mistral": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS6,
        "rope.freq_base": 10000.0,
        "attention.key_length": 24,
        "attention.value_length": 24,
        "vocab_size": 512,
        "rope.dimension_count": 24,
    },
    "mixtral": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS5,
        "rope.freq_base": 1e6,
        "expert_count": 4,
        "expert_used_count": 2,
        "vocab_size": 512,
        "rope.dimension_count": 16,
    },
    "qwen2": {**SIZES, "attention.layer_norm_rms_epsilon": EPS6, "rope.freq_base": 10000.0},
    "qwen3": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS6,
        "rope.freq_base": 10000.0,
        "attention.key_length": 32,
        "attention.value_length": 32,
    },
    "qwen3moe": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS6,
        "rope.freq_base": 10000.0,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_feed_forward_length": 48,
    },
    "gemma2": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS6,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "attention.sliding_window": 64,
    },
    "gemma3": {
        **SIZES,
        "block_count": 7,
        "attention.layer_norm_rms_epsilon": EPS6,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 64,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 10000.0,
    },
    "phi3": {
        **SIZES,
        "attention.layer_norm_rms_epsilon": EPS5,
        "attention.sliding_window": 100,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
        "rope.scaling.original_context_length": 256,
    },
    "phi3-long": {
        **SIZES,
        "attention.head_count": 2,
        "attention.layer_norm_rms_epsilon": EPS5,
        "attention.sliding_window": 0,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": 16,
        "context_length": 1024,
        "rope.scaling.original_context_length": 256,
        "rope.scaling.attn_factor": 1.118033988749895,  # √(1 + ln 4 / ln 256) = √(5/4)
    },
}
MODEL_KEYS["gemma3-images"] = {
    **MODEL_KEYS["gemma3"],
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}
ARCHITECTURE = {
    **dict.fromkeys(("llama2", "llama3", "mistral", "mixtral"), "llama"),
    "gemma3-images": "gemma3",
    "phi3-long": "phi3",
}


@pytest.mark.parametrize("name", MODEL_KEYS)
def test_model_keys(name: str, tiny: Tiny) -> None:
    architecture = ARCHITECTURE.get(name, name)
    found = metadata(tiny(name))
    assert found["general.architecture"].value == architecture
    own = {k.removeprefix(architecture + "."): v for k, v in found.items() if k.startswith(architecture + ".")}
    assert {k: v.value for k, v in own.items()} == pytest.approx(MODEL_KEYS[name]), "values"
    kinds = {bool: GGUFType.BOOL, int: GGUFType.U32, float: GGUFType.F32, str: GGUFType.STRING}
    assert {k: v.type for k, v in own.items()} == {k: kinds[type(v)] for k, v in MODEL_KEYS[name].items()}


def test_yarn(copied: Tiny) -> None:
    folder = copied("llama3")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = {k: v.value for k, v in metadata(folder).items() if k.startswith("llama.rope.scaling")}
    assert found == {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
        "llama.rope.scaling.yarn_beta_fast": 32.0,
        "llama.rope.scaling.yarn_beta_slow": 1.0,
    }


@pytest.mark.parametrize(
    ("fields", "extra"),
    [
        ({}, None),
        ({"attention_factor": 1.0}, 0.878249),  # 1 ÷ (0.1 ln 4 + 1)
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, 0.935178),  # 1 ÷ (0.05 ln 4 + 1)
    ],
)
def test_yarn_s_attention_factor(fields: dict[str, float], extra: float | None, copied: Tiny) -> None:
    """llama.cpp multiplies its own factor by this key; config.json means the product."""
    folder = copied("qwen2")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, **fields}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    value = metadata(folder).get("qwen2.rope.scaling.attn_factor")
    assert (value and value.value) == pytest.approx(extra, abs=1e-6)


def test_gemma_2_without_caps(copied: Tiny) -> None:
    """null means none; a missing key would mean 50 and 30 to llama.cpp."""
    folder = copied("gemma2")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = metadata(folder)
    for kind in ("attn", "final"):
        cap = np.float64(found[f"gemma2.{kind}_logit_softcapping"].value)
        assert cap * np.tanh(200.0 / cap) == pytest.approx(200.0, rel=1e-7)


def test_windows_in_an_order_of_their_own(copied: Tiny) -> None:
    folder = copied("gemma3")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["layer_types"] = ["full_attention"] + ["sliding_attention"] * 6
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    value = metadata(folder)["gemma3.attention.sliding_window_pattern"]
    assert value.element is GGUFType.BOOL
    assert list(value.value) == [False] + [True] * 6


def test_general_keys(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny-llama-1b-instruct")
    (folder / "README.md").write_text(
        "---\nlicense: apache-2.0\nlanguage:\n- en\n- no\ntags: [tiny, 'made up']\npipeline_tag: text-generation\n"
        "widget:\n- text: nested\n  example: x\n---\n# A model\n",
        encoding="utf-8",
    )
    (folder / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 1}', encoding="utf-8"
    )
    found = metadata(folder)
    general = {k: v.value for k, v in found.items() if k.startswith("general.")}
    assert general == {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Tiny Llama 1b Instruct",
        "general.basename": "tiny-llama",
        "general.finetune": "1b-instruct",  # it has 1.3 million values, so '1b' is no size
        "general.size_label": "1.3M",
        "general.license": "apache-2.0",
        "general.languages": ["en", "no"],
        "general.tags": ["tiny", "made up", "text-generation"],
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
        "general.file_type": 7,
        "general.quantization_version": 2,
    }
    assert found["general.sampling.top_k"].type is GGUFType.I32


@pytest.mark.parametrize(
    ("name", "values", "parts"),
    [
        ("Llama-2-7b-chat-hf", 6.7e9, {"basename": "Llama-2", "finetune": "chat-hf", "size_label": "7B"}),
        ("Llama-3.1-8B-Instruct", 8e9, {"basename": "Llama-3.1", "finetune": "Instruct", "size_label": "8B"}),
        (
            "Mistral-7B-Instruct-v0.3",
            7.2e9,
            {"basename": "Mistral", "finetune": "Instruct", "version": "v0.3", "size_label": "7B"},
        ),
        ("Qwen3-30B-A3B", 30e9, {"basename": "Qwen3", "size_label": "30B-A3B"}),
        ("Phi-3-mini-128k-instruct", 3.8e9, {"basename": "Phi-3", "finetune": "128k-instruct", "size_label": "mini"}),
        ("gemma-3-270m-it", 2.7e8, {"basename": "gemma-3", "finetune": "it", "size_label": "270M"}),
        ("Mixtral-8x7B-v0.1", 46e9, {"basename": "Mixtral", "version": "v0.1", "size_label": "8x7B"}),
        ("smollm2", 1e8, {}),
    ],
)
def test_parts_of_a_name(name: str, values: float, parts: dict[str, str]) -> None:
    assert name_parts(name, int(values)) == parts


@pytest.mark.parametrize("text", ["", "# Title", "---\nlicense: mit\n", "no front matter\n---\nlicense: mit\n---\n"])
def test_cards_without_front_matter(text: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert read_card(tmp_path / "README.md") == {}
