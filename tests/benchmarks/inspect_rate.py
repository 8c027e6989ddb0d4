"""Inspect: time from a click on a tensor to its statistics and picture, of panning, and the rate of a whole model.

    python tests/benchmarks/inspect_rate.py [--rows 4096] [--columns 14336] [--layers 3] [--to Q4_K_M,Q8_0]

Makes random weights in a folder of its own and removes them. Files are in the system's page cache, as after a download;
a disk slower than the rate shown is what limits a first pass. Memory is the growth of the process at its peak. CPU time
tells what another program on the same cores did not take: over the number of cores, it is the time of an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tiny_models import byte_tokens, tokenizer_json

from core.checkpoint.base import Checkpoint
from core.checkpoint.opening import open_checkpoint
from core.inspect.statistics import inspect_tensor
from core.inspect.survey import survey
from core.plan import Plan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.threads import worker_count
from kernels import ops

SIZES = {"BF16": 2, "F16": 2, "F32": 4}


class Peak:
    """Growth of the resident memory while it runs, in bytes."""

    def __enter__(self) -> Self:
        self._process = psutil.Process()
        self._start = self.bytes = self._process.memory_info().rss
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            self.bytes = max(self.bytes, self._process.memory_info().rss)

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()
        self.bytes -= self._start


def write_model(folder: Path, dtype: str, layers: int, rows: int, columns: int) -> Path:
    """A Llama of so many layers whose up and down projections are rows × columns, the rest small."""
    hidden = min(rows, columns)
    wide = max(rows, columns)
    heads = max(1, hidden // 128)
    tokens = ["<|start|>", "<|end|>", *byte_tokens(), "Ġt", "he"]
    tokens += [f"<|x{i}|>" for i in range(-len(tokens) % 32)]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(tokens), hidden)}
    for i in range(layers):
        base = f"model.layers.{i}."
        shapes |= {base + f"self_attn.{p}_proj.weight": (hidden, hidden) for p in "qkvo"}
        shapes |= {base + f"mlp.{p}_proj.weight": (wide, hidden) for p in ("gate", "up")}
        shapes[base + "mlp.down_proj.weight"] = (hidden, wide)
        shapes |= {base + f"{n}.weight": (hidden,) for n in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (len(tokens), hidden)}
    header: dict[str, object] = {}
    at = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    pool = ops.from_float32((rng.standard_normal((4096, 4096)) * 0.02).astype(np.float32), dtype).reshape(-1)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            file.write(pool[: min(at, pool.size)].data)
            at -= pool.size
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": wide,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "vocab_size": len(tokens), "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|start|>", "eos_token": "<|end|>"}))
    return folder


def median_ms(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Of wall time and of CPU time, all threads together."""
    wall, cpu = [], []
    for _ in range(times):
        start, busy = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - busy)
    return 1e3 * statistics.median(wall), 1e3 * statistics.median(cpu)


def shown(taken: tuple[float, float]) -> str:
    return f"{taken[0]:.1f} ms, CPU time {taken[1]:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=14336)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dtype", choices=sorted(SIZES), default="BF16")
    parser.add_argument("--to", default="Q4_K_M,w4a16-g128", help="targets whose errors are predicted")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(Path(scratch), options.dtype, options.layers, options.rows, options.columns)
        with open_checkpoint(folder) as checkpoint:
            show(checkpoint, options, Path(scratch) / "cache")


def show(checkpoint: Checkpoint, options: argparse.Namespace, cache: Path) -> None:
    projection = "down" if options.rows < options.columns else "up"
    tensor = checkpoint.tensor(f"model.layers.0.mlp.{projection}_proj.weight")
    say(f"{tensor.shape} {tensor.dtype}, {tensor.nbytes / 1e6:.0f} MB; {worker_count()} cores")
    with Peak() as peak:
        pyramid = inspect_tensor(checkpoint, tensor, CancelToken())[1]
    say(f"memory of a tensor: {peak.bytes / 1e6:.0f} MB at the peak, {pyramid.nbytes / 1e6:.0f} MB held")
    took = median_ms(lambda: inspect_tensor(checkpoint, tensor, CancelToken()), options.times)
    say(f"statistics and picture: {shown(took)} (at most 400)")
    for label, share in (("whole", 1), ("half", 2), ("eighth", 8)):
        window = (0, tensor.rows // share), (0, tensor.columns // share)
        took = median_ms(partial(pyramid.pooled, *window, 600, 1000), 4 * options.times)
        say(f"a 1000 × 600 picture of the {label} tensor: {shown(took)} (at most 33)")
    del pyramid
    for target in (None, *options.to.split(",")):
        plan = make_plan(checkpoint, Recipe(target=target)) if target else None
        folders = iter(cache / f"{target}{i}" for i in range(options.times))
        first: list[float] = []
        with Peak() as peak:
            took = median_ms(lambda p=plan, f=folders, s=first: survey_once(checkpoint, p, next(f), s), options.times)
        rate, best = (checkpoint.total_bytes / t / 1e6 for t in (took[0], took[1] / worker_count()))
        say(
            f"whole model, {f'errors in {target}' if target else 'statistics only'}: {rate:.2f} GB/s, by CPU time "
            f"{best:.2f} (at least 0.5), first row after {1e3 * statistics.median(first):.0f} ms, "
            f"{peak.bytes / 1e6:.0f} MB"
        )
    took = median_ms(lambda: list(survey(checkpoint, plan, CancelToken(), cache / f"{target}0")), 3)
    say(f"the same again, from the cache: {shown(took)}")


def survey_once(checkpoint: Checkpoint, plan: Plan | None, cache: Path, first: list[float]) -> None:
    start = time.perf_counter()
    rows = survey(checkpoint, plan, CancelToken(), cache)
    next(rows)
    first.append(time.perf_counter() - start)
    for _ in rows:
        pass


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
