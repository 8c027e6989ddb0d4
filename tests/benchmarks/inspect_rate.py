"""Inspect: time from a click on a tensor to its statistics and picture, of panning, and the rate of a whole model.

    python tests/benchmarks/inspect_rate.py [--rows 4096] [--columns 14336] [--layers 4] [--to Q4_K_M] [--dtype BF16]

Makes random weights in a folder of its own and removes them. Files are in the system's page cache, as after a download;
a disk slower than the rate shown is what limits a first pass. Memory is the growth of the process at its peak.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from core.checkpoint.opening import open_checkpoint
from core.inspect.statistics import inspect_tensor
from core.inspect.survey import survey
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
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
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (1024, hidden)}
    for i in range(layers):
        base = f"model.layers.{i}."
        shapes |= {base + f"self_attn.{p}_proj.weight": (hidden, hidden) for p in "qkvo"}
        shapes |= {base + f"mlp.{p}_proj.weight": (wide, hidden) for p in ("gate", "up")}
        shapes[base + "mlp.down_proj.weight"] = (hidden, wide)
        shapes |= {base + f"{n}.weight": (hidden,) for n in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (1024, hidden)}
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
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": 1024,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 2048, "rope_theta": 10000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def median_ms(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=14336)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dtype", choices=sorted(SIZES), default="BF16")
    parser.add_argument("--to", default="Q4_K_M")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--plan", action="store_true", help="only the pass that predicts errors")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(Path(scratch), options.dtype, options.layers, options.rows, options.columns)
        with open_checkpoint(folder) as checkpoint:
            show(checkpoint, options, Path(scratch) / "cache")


def show(checkpoint, options: argparse.Namespace, cache: Path) -> None:
    name = (
        "model.layers.0.mlp.down_proj.weight" if options.rows < options.columns else "model.layers.0.mlp.up_proj.weight"
    )
    tensor = checkpoint.tensor(name)
    say(f"{tensor.shape} {tensor.dtype}, {tensor.nbytes / 1e6:.0f} MB")
    with Peak() as peak:
        found, pyramid = inspect_tensor(checkpoint, tensor, CancelToken())
    say(f"memory of a tensor: {peak.bytes / 1e6:.0f} MB at the peak, {pyramid.nbytes / 1e6:.0f} MB held")
    took = median_ms(lambda: inspect_tensor(checkpoint, tensor, CancelToken()), options.times)
    say(f"statistics and picture: {took:.0f} ms (at most 400)")
    rows, columns = tensor.rows, tensor.columns
    for label, share in (("whole", 1), ("half", 2), ("eighth", 8)):
        h, w = rows // share, columns // share
        took = median_ms(partial(pyramid.pooled, (0, h), (0, w), 600, 1000), 4 * options.times)
        say(f"a 1000 × 600 picture of the {label} tensor: {took:.1f} ms (at most 33)")
    del found, pyramid
    plans = [None] if not options.plan else []
    plans.append(make_plan(checkpoint, Recipe(target=options.to)))
    for plan in plans:
        rates, first = [], []
        with Peak() as peak:
            for i in range(options.times):
                start, seen = time.perf_counter(), 0.0
                for _ in survey(checkpoint, plan, CancelToken(), cache / f"{plan is None}{i}"):
                    seen = seen or time.perf_counter() - start
                rates.append(checkpoint.total_bytes / (time.perf_counter() - start) / 1e9)
                first.append(seen)
        kind = f"with predicted errors in {options.to}" if plan else "statistics only"
        say(f"whole model, {kind}: {statistics.median(rates):.2f} GB/s (at least 0.5), first row after "
            f"{1e3 * statistics.median(first):.0f} ms, {peak.bytes / 1e6:.0f} MB")  # fmt: skip
    again = median_ms(lambda: list(survey(checkpoint, plan, CancelToken(), cache / "False0")), 3)
    say(f"the same again, from the cache: {again:.0f} ms")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
