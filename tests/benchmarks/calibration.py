"""What methods that take data cost: processor time of whole conversions, and memory for blocks of an 8 B model's shape.

    python tests/benchmarks/calibration.py SOURCE --text FILE [--methods gptq awq importance learned …]
    python tests/benchmarks/calibration.py --memory FOLDER     (writes two blocks of 8 B's shape there, 1 GB)

The first converts SOURCE with each method in a process of its own and prints its processor seconds, wall time and peak
memory. The second prints the peak beside what it may be: three times the largest block in float32, what the tokens
are at their widest place, and 600 MB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = {
    "gptq": ("w4a16-g64", "--method", "gptq"),
    "gptq-aim": ("w4a16-g64", "--method", "gptq", "--aim"),
    "awq": ("w4a16-g64-asym", "--transform", "awq"),
    "importance": ("Q4_K_M", "--method", "importance"),
    "learned": ("w4a16-g64-asym", "--method", "learned"),
}
HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, LAYERS = 4096, 14336, 32, 8, 1024, 2
SAMPLES, LENGTH = 8, 512


def cost(source: Path, words: tuple[str, ...], *more: str) -> dict[str, float]:
    """Processor seconds, wall seconds and peak memory of one conversion, whose output is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        target, *options = words
        output = Path(folder) / ("out.gguf" if target.startswith("Q") else "out")
        command = [sys.executable, "-m", "core.cli", "convert", source, "--to", target, "-o", output, *options, *more]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run([*map(str, command), "--json"], check=True, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        peak = json.loads(done.stdout)["peak_rss_bytes"]
        return {"cpu": used, "wall": time.monotonic() - start, "peak": peak}


def write_blocks(folder: Path, layers: int = LAYERS, vocab: int = VOCAB) -> None:
    """A Llama folder of a few blocks of 8 B's shape, random bfloat16, with a byte-level tokenizer."""
    import torch
    from safetensors.torch import save_file
    from tiny_models import byte_tokens, tokenizer_json

    if (folder / "model.safetensors").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokens = ["<|start|>", "<|end|>", *byte_tokens(), "Ġt", "he"]
    tokens += [f"<|x{i}|>" for i in range(vocab - len(tokens))]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens)), encoding="utf-8")
    rng, width = torch.Generator().manual_seed(0), HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN)}
    for i in range(layers):
        at = f"model.layers.{i}."
        rows = {"q": HIDDEN, "k": width, "v": width, "o": HIDDEN}
        shapes |= {f"{at}self_attn.{n}_proj.weight": (r, HIDDEN) for n, r in rows.items()}
        shapes |= {f"{at}mlp.{n}_proj.weight": (INNER, HIDDEN) for n in ("gate", "up")}
        shapes[at + "mlp.down_proj.weight"] = (HIDDEN, INNER)
    weights = {n: (torch.randn(s, generator=rng) * s[1] ** -0.5).to(torch.bfloat16) for n, s in shapes.items()}
    norms = ["model.norm.weight"]
    norms += [f"model.layers.{i}.{n}_layernorm.weight" for i in range(layers) for n in ("input", "post_attention")]
    weights |= {n: torch.ones(HIDDEN, dtype=torch.bfloat16) for n in norms}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def memory(folder: Path) -> None:
    write_blocks(folder)
    width = HIDDEN // HEADS * (2 * HEADS + 2 * KV_HEADS)
    block = 4 * HIDDEN * (width + 3 * INNER)
    tokens = 4 * SAMPLES * LENGTH * (INNER + 2 * HIDDEN)
    allowed = 3 * block + tokens + 600_000_000
    print(f"allowed: 3 × {block / 1e9:.2f} + {tokens / 1e9:.2f} + 0.6 = {allowed / 1e9:.2f} GB")
    for name in ("gptq", "awq"):
        found = cost(folder, METHODS[name], "--samples", str(SAMPLES), "--length", str(LENGTH))
        print(f"{name}: peak {found['peak'] / 1e9:.2f} GB, {found['cpu']:.0f} s of the processor", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--memory", type=Path, metavar="FOLDER")
    a = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    if a.memory:
        memory(a.memory)
        return
    more = ("--calibration-text", str(a.text)) if a.text else ()
    for name in a.methods:
        found = cost(a.source, METHODS[name], *more)
        print(
            f"{name:<12} {found['cpu']:6.0f} s of the processor, {found['wall']:6.0f} s, {found['peak'] / 1e6:6.0f} MB"
        )


if __name__ == "__main__":
    main()
