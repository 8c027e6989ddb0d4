"""Prompt and generation speed of the engine against llama.cpp: same file, same threads, in turn, in one process.

    python tests/benchmarks/decode.py FILE.gguf … [--rounds 5] [--json OUT]
    python tests/benchmarks/decode.py --make FOLDER      (writes the 1.1 B file of random weights, in all types)

Needs `llama-cpp-python` built from its source package (see llama_peer.py). Prints tokens/s of both, the ratio of the
medians (ours / theirs, over 1 is faster), and how much of the measured read bandwidth our generation uses.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import llama_peer
import numpy as np
from random_llama import write_random_llama

from core.checkpoint import open_checkpoint
from core.hardware.bandwidth import array_size, last_level_cache, read_bandwidth
from core.runtime.load import LoadedModel, load
from core.threads import worker_count

PROMPT, DECODE, BEHIND = 512, 32, 64
TYPES = ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K")


def run(model: LoadedModel, tokens: np.ndarray, start: int) -> None:
    """Append tokens at position `start`, logits of the last one."""
    positions = np.arange(start, start + len(tokens), dtype=np.int32)
    model.engine.run(tokens, np.zeros(len(tokens), np.int32), positions, np.array([len(tokens) - 1], np.int32))


def prompt_seconds(model: LoadedModel, tokens: np.ndarray) -> float:
    start = time.perf_counter()
    run(model, tokens, 0)
    return time.perf_counter() - start


def decode_seconds(model: LoadedModel, tokens: np.ndarray, behind: int) -> list[float]:
    times = []
    for i in range(len(tokens)):
        start = time.perf_counter()
        run(model, tokens[i : i + 1], behind + i)
        times.append(time.perf_counter() - start)
    return times


def compare(path: Path, threads: int, rounds: int, bandwidth: float) -> dict[str, float | str]:
    """Both models loaded; a round is prompt and generation of one, then of the other."""
    checkpoint = open_checkpoint(path)
    model = load(checkpoint, capacity=PROMPT + DECODE + 1, threads=threads)
    peer = llama_peer.Peer(path, threads, PROMPT + DECODE + 1)
    tokens = np.random.default_rng(0).integers(5, peer.vocab - 300, PROMPT).astype(np.int32)
    prompts: tuple[list[float], list[float]] = ([], [])
    decodes: tuple[list[float], list[float]] = ([], [])
    prompt_seconds(model, tokens[:BEHIND])
    peer.prompt_seconds(tokens[:BEHIND])
    for _ in range(rounds):
        prompts[0].append(prompt_seconds(model, tokens))
        prompts[1].append(peer.prompt_seconds(tokens))
        run(model, tokens[:BEHIND], 0)
        decodes[0].extend(decode_seconds(model, tokens[:DECODE], BEHIND))
        peer.prompt_seconds(tokens[:BEHIND])
        decodes[1].extend(peer.decode_seconds(tokens[:DECODE]))
    weights = model.engine.bytes_per_token
    ours, theirs = (PROMPT / statistics.median(times) for times in prompts)
    fast, other = (1 / statistics.median(times) for times in decodes)
    model.unload()
    peer.close()
    checkpoint.close()
    gc.collect()
    return {
        "file": path.name,
        "prompt_ours": ours,
        "prompt_theirs": theirs,
        "prompt_ratio": ours / theirs,
        "decode_ours": fast,
        "decode_theirs": other,
        "decode_ratio": fast / other,
        "bound_fraction": weights * fast / bandwidth,
    }


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "random-1.1b-BF16.gguf"
    write_random_llama(source)
    for name in TYPES:
        output = folder / f"random-1.1b-{name}.gguf"
        if not output.is_file():
            subprocess.run(
                [sys.executable, "-m", "core.cli", "convert", source, "--to", name, "-o", output], check=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--make", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=worker_count())
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.make:
        make(a.make)
    print(f"llama.cpp: {llama_peer.system_info()}")
    print(
        f"{'file':<28} {'prompt':>7} {'theirs':>7} {'ratio':>6} {'decode':>7} {'theirs':>7} {'ratio':>6} {'bound':>6}"
    )
    results = []
    for path in a.files:
        bandwidth = read_bandwidth(array_size(last_level_cache(), 2**40), a.threads, budget=1.0)
        r = compare(path, a.threads, a.rounds, bandwidth)
        results.append(r)
        prompt = f"{r['prompt_ours']:>7.1f} {r['prompt_theirs']:>7.1f} {r['prompt_ratio']:>6.2f}"
        decode = f"{r['decode_ours']:>7.1f} {r['decode_theirs']:>7.1f} {r['decode_ratio']:>6.2f}"
        print(f"{r['file']:<28} {prompt} {decode} {r['bound_fraction']:>6.2f}", flush=True)
    if a.json:
        a.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
