"""Small made-up models with every file that a real one has; written in well under a second."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def byte_tokens() -> list[str]:
    """The 256 symbols by which byte-level BPE writes bytes (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in shown}
    for n, b in enumerate(b for b in range(256) if b not in shown):
        table[b] = chr(256 + n)
    return [table[b] for b in range(256)]


def tokenizer_json(tokens: list[str]) -> dict:
    specials = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, t in enumerate(tokens)
        if t.startswith("<|")
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": ["Ġ t", "h e"],
        },
    }


def write_llama(
    folder: Path,
    hidden: int = 256,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 512,
    tied: bool = True,
    shards: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    change=None,
) -> Path:
    """A Llama folder of random weights. change(tensors) may edit the tensors before they are saved."""
    rng = np.random.default_rng(seed)
    tokens = ["<|start|>", "<|end|>", *byte_tokens(), "Ġt", "he"]
    tokens += [f"<|x{i}|>" for i in range(-len(tokens) % 32)]
    head_dim = hidden // heads

    def weight(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(0, 0.05, shape).astype(np.float32)).to(dtype)

    tensors = {"model.embed_tokens.weight": weight(len(tokens), hidden), "model.norm.weight": weight(hidden) + 1}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors |= {
            p + "input_layernorm.weight": weight(hidden) + 1,
            p + "post_attention_layernorm.weight": weight(hidden) + 1,
            p + "self_attn.q_proj.weight": weight(heads * head_dim, hidden),
            p + "self_attn.k_proj.weight": weight(kv_heads * head_dim, hidden),
            p + "self_attn.v_proj.weight": weight(kv_heads * head_dim, hidden),
            p + "self_attn.o_proj.weight": weight(hidden, heads * head_dim),
            p + "mlp.gate_proj.weight": weight(ffn, hidden),
            p + "mlp.up_proj.weight": weight(ffn, hidden),
            p + "mlp.down_proj.weight": weight(hidden, ffn),
        }
    if not tied:
        tensors["lm_head.weight"] = weight(len(tokens), hidden)
    if change is not None:
        change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder, tensors, shards)
    _dump(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": 512,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-5,
            "vocab_size": len(tokens),
            "tie_word_embeddings": tied,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": str(dtype).removeprefix("torch."),
        },
    )
    _dump(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
    _dump(folder / "tokenizer.json", tokenizer_json(tokens))
    _dump(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|start|>", "eos_token": "<|end|>", "model_max_length": 512},
    )
    (folder / "README.md").write_text("A made-up model.\n", encoding="utf-8")
    return folder


def _save(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    size = -(-len(names) // shards)
    weight_map = {}
    for n in range(shards):
        file = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = names[n * size : (n + 1) * size]
        save_file({k: tensors[k] for k in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    _dump(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _dump(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False), encoding="utf-8")
