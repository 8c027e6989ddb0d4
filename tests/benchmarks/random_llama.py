"""A Llama of 1.1 B random weights (TinyLlama's shape) in BF16, as GGUF or folder: for speed only, it says nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

LAYERS, HIDDEN, HEADS, KV_HEADS, INNER, VOCAB, CONTEXT = 22, 2048, 32, 4, 5632, 32000, 2048
SPREAD = 0.02


def write_random_llama(path: Path) -> None:
    """Write the file, 2.2 GB, unless it is there."""
    if path.is_file():
        return
    rng = np.random.default_rng(0)
    scratch = path.with_suffix(".making")
    writer = gguf.GGUFWriter(scratch, "llama", use_temp_file=True)
    writer.add_name("Random 1.1B")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * SPREAD
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        writer.add_tensor(name, halves, raw_shape=(rows, columns), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", VOCAB, HIDDEN)
    matrix("output.weight", VOCAB, HIDDEN)
    norm("output_norm.weight")
    width = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        norm(f"blk.{layer}.attn_norm.weight")
        matrix(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        matrix(f"blk.{layer}.attn_k.weight", width, HIDDEN)
        matrix(f"blk.{layer}.attn_v.weight", width, HIDDEN)
        matrix(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        norm(f"blk.{layer}.ffn_norm.weight")
        matrix(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        matrix(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        matrix(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.rename(path)


def write_random_llama_folder(folder: Path) -> None:
    """Write a Hugging Face folder of that shape, 2.2 GB in one safetensors file, unless it is there."""
    path = folder / "model.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    if path.is_file():
        return
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    header: dict[str, object] = {}
    at = 0
    for name, shape in _folder_shapes():
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    scratch = path.with_suffix(".making")
    with scratch.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, shape in _folder_shapes():
            values = rng.standard_normal(shape, dtype=np.float32) * SPREAD if len(shape) > 1 else np.ones(shape, "<f4")
            out.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    scratch.rename(path)


def _folder_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    width = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        yield base + "input_layernorm.weight", (HIDDEN,)
        for letter, rows in (("q", HIDDEN), ("k", width), ("v", width), ("o", HIDDEN)):
            yield f"{base}self_attn.{letter}_proj.weight", (rows, HIDDEN)
        yield base + "post_attention_layernorm.weight", (HIDDEN,)
        for which in ("gate", "up"):
            yield f"{base}mlp.{which}_proj.weight", (INNER, HIDDEN)
        yield base + "mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def _tokenizer() -> dict[str, object]:
    """Words without sense, as many as the shape has: some targets copy a vocabulary, or want one."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    letters = sorted(ByteLevel.alphabet())
    words = letters + [f"w{i}" for i in range(VOCAB - len(letters))]
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {word: i for i, word in enumerate(words)}, "merges": []},
    }
