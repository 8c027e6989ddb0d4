"""Made-up models with what Inspect has to trace: permuted rows, experts, norm offsets; and what is written of them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.base import Checkpoint
from core.formats import FORMATS, Method
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run
from kernels.layouts import LAYOUTS, SOURCE_KINDS

# Those whose bits are shown one by one.
GGUF_TYPES = [f.name for f in FORMATS if f.container == "gguf" and f.name not in SOURCE_KINDS]
SCHEMES = [f.name for f in FORMATS if f.container == "safetensors" and f.name.startswith("w")]


def write_code_books(path: Path, rows: int = 64, columns: int = 512) -> Path:
    """A GGUF of a tensor of each type with a code for several values (IQ1_S … IQ3_S), `blk.0.<type>.weight`: random
    codes under scales of about 0.01."""
    rng = np.random.default_rng(12)
    writer = gguf.GGUFWriter(path, "llama")
    for kind in SOURCE_KINDS:
        layout = LAYOUTS[kind]
        data = rng.integers(0, 256, (rows, layout.row_bytes(columns)), np.uint8)
        blocks = data.reshape(-1, layout.bytes)
        scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        if kind == "IQ1_M":  # its float16 is the upper four bits of four 16-bit words
            digits = [scale[0] & 15, scale[0] >> 4, scale[1] & 15, scale[1] >> 4]
            for word, digit in enumerate(digits):
                at = layout.bytes - 8 + 2 * word + 1
                blocks[:, at] = (blocks[:, at] & 15) | (digit << 4)
        else:
            blocks[:, :2] = scale
        writer.add_tensor(f"blk.0.{kind.lower()}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_experts(folder: Path, experts: int = 3, hidden: int = 256, ffn: int = 256) -> Path:
    """A Qwen3-MoE folder: heads are not permuted, experts are stacked in GGUF."""
    rng = np.random.default_rng(5)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            p = f"model.layers.{layer}."
            for part in ("gate", "up", "down"):
                del tensors[f"{p}mlp.{part}_proj.weight"]
                shape = (hidden, ffn) if part == "down" else (ffn, hidden)
                for e in range(experts):
                    values = rng.normal(0, 0.05 * (e + 1), shape).astype(np.float32)
                    tensors[f"{p}mlp.experts.{e}.{part}_proj.weight"] = torch.from_numpy(values).to(torch.bfloat16)
            gate = rng.normal(0, 0.05, (experts, hidden)).astype(np.float32)
            tensors[f"{p}mlp.gate.weight"] = torch.from_numpy(gate).to(torch.bfloat16)
            for part in ("q", "k"):
                tensors[f"{p}self_attn.{part}_norm.weight"] = torch.ones(64, dtype=torch.bfloat16)

    write_llama(folder, hidden=hidden, ffn=ffn, change=change)
    _configure(
        folder,
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        num_experts=experts,
        num_experts_per_tok=2,
        moe_intermediate_size=ffn,
        head_dim=64,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
    return folder


def _configure(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields), encoding="utf-8")


def converted(checkpoint: Checkpoint, recipe: Recipe, output: Path) -> Plan:
    """The plan, after it was carried out."""
    plan = make_plan(checkpoint, recipe)
    for _ in run(plan, checkpoint, output, CancelToken(), threads=1):
        pass
    return plan


def gguf_recipe(kind: str, method: Method = Method.ROUND) -> Recipe:
    """Every matrix in one GGML type."""
    return Recipe("Q8_0", method, (Rule("token_embd", "Q8_0"), Rule(r"\.weight$", kind)))


__all__ = ["GGUF_TYPES", "SCHEMES", "converted", "gguf_recipe", "open_checkpoint", "write_experts"]
