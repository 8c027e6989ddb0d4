"""Tiny models of every architecture that converts, built by transformers with random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEXT = (
    "The quick brown fox jumps over the lazy dog near the river bank while the sun is setting in the west. "
    "A model reads numbers such as 12, 345 and 6789, words in several languages (über, naïve, добрый), and code: "
    "def add(a, b): return a + b. What is written once is written again, and the merges learn from it.\n"
) * 20
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPLIT = CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_SPLIT = SPLIT.replace("{DIGITS}", "{1,3}")
QWEN2_SPLIT = SPLIT.replace("{DIGITS}", "")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "long_factor": [1.5] * 8,
    "short_factor": [1.1] * 8,
    "original_max_position_embeddings": 256,
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64}

# name → (model class, configuration class, fields beside SIZES, tokenizer)
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "llama2": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
        "sentencepiece",
    ),
    "llama3": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
        "llama3",
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"head_dim": 24, "sliding_window": 64}, "sentencepiece"),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        "sentencepiece",
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}, "qwen2"),
    "qwen2-yarn": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "attention_factor": 1.3,
                "original_max_position_embeddings": 64,
            }
        },
        "qwen2",
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}, "qwen2"),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
        "qwen2",
    ),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", GEMMA, "sentencepiece-gemma"),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GEMMA, "num_hidden_layers": 7}, "sentencepiece-gemma"),
    "gemma3-images": (
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "text_config": {
                **SIZES,
                **GEMMA,
                "num_hidden_layers": 7,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 5,
        },
        "sentencepiece-gemma",
    ),
    "phi3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {"pad_token_id": 0, "eos_token_id": 2, "sliding_window": 100, "original_max_position_embeddings": 256},
        "sentencepiece",
    ),
    "phi3-long": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            "num_attention_heads": 2,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "max_position_embeddings": 1024,
            "original_max_position_embeddings": 256,
            "rope_parameters": LONGROPE,
        },
        "sentencepiece",
    ),
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny(name) → the folder of that model of MODELS; made once a run, not to be changed by a test."""
    root = tmp_path_factory.mktemp("tiny-models")
    tokenizers = _Tokenizers(root)
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = root / f"made-up-{name}"
            _save(made[name], *MODELS[name][:3])
            tokenizers.write(made[name], MODELS[name][3])
        return made[name]

    return make


@pytest.fixture
def copied(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """copied(name) → a copy of that folder that the test may change."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(tiny(name), tmp_path / "copy", dirs_exist_ok=True))

    return copy


def _save(folder: Path, model_class: str, config_class: str, fields: dict[str, Any]) -> None:
    import torch
    import transformers

    torch.manual_seed(7)
    sizes = {} if "text_config" in fields else SIZES
    config = getattr(transformers, config_class)(**{**sizes, **fields})
    model = getattr(transformers, model_class)(config)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # transformers starts these at 0 or 1, where mistakes do not show
            parameter.data += torch.randn_like(parameter) * 0.1
        if any(part in name for part in ("q_proj.weight", "k_proj.weight", "qkv_proj")):
            parameter.data *= 10  # else attention is nearly uniform, and positions hardly matter
    model.to(torch.bfloat16).save_pretrained(folder)


class _Tokenizers:
    def __init__(self, root: Path) -> None:
        self._text = root / "text.txt"
        self._text.write_text(TEXT, encoding="utf-8")
        self._root = root

    def write(self, folder: Path, kind: str) -> None:
        if kind.startswith("sentencepiece"):
            self._sentencepiece(folder, space_in_front=kind == "sentencepiece")
        else:
            self._byte_level(folder, kind)

    def _sentencepiece(self, folder: Path, space_in_front: bool) -> None:
        import sentencepiece

        prefix = self._root / f"pieces-{space_in_front}"
        model = prefix.with_suffix(".model")
        if not model.exists():
            sentencepiece.SentencePieceTrainer.Train(
                input=str(self._text),
                model_prefix=str(prefix),
                vocab_size=360,
                model_type="bpe",
                byte_fallback=True,
                add_dummy_prefix=space_in_front,
                character_coverage=1.0,
                minloglevel=2,
            )
        shutil.copy(model, folder / "tokenizer.model")
        decoder = {
            0: ("<unk>", True),
            1: ("<s>", True),
            2: ("</s>", True),
            400: ("<|endoftext|>", False),
            401: ("\u2581hi", False),
        }
        settings = {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "added_tokens_decoder": {str(i): {"content": c, "special": s} for i, (c, s) in decoder.items()},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")

    def _byte_level(self, folder: Path, kind: str) -> None:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

        llama3 = kind == "llama3"
        special = ["<|begin|>", "<|end|>", "<|eot|>"] if llama3 else ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokenizer = Tokenizer(models.BPE(ignore_merges=llama3))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3_SPLIT if llama3 else QWEN2_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=480,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train([str(self._text)], trainer)
        if llama3:
            tokenizer.post_processor = processors.Sequence(
                [
                    processors.ByteLevel(trim_offsets=False),
                    processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]),
                ]
            )
            settings: dict[str, Any] = {
                "bos_token": "<|begin|>",
                "eos_token": "<|eot|>",
                "chat_template": "{{ messages }}",
            }
        else:
            tokenizer.add_tokens(["<tool>"])
            settings = {
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "add_bos_token": False,
                "chat_template": [
                    {"name": "default", "template": "{{ messages }}"},
                    {"name": "tool use", "template": "{{ tools }}"},
                ],
            }
        tokenizer.save(str(folder / "tokenizer.json"))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
