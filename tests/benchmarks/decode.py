"""Prompt and generation speed of the engine against llama.cpp: same file, same threads, in turn, in one process.

    python tests/benchmarks/decode.py FILE.gguf … [--rounds 5] [--decode-only] [--cpu-time]
                                          [--json OUT]
    python tests/benchmarks/decode.py --make FOLDER      (writes the 1.1 B file of random weights, in all types)

Needs `llama-cpp-python` built from its source package (see llama_peer.py). Prints median tokens/s of both, the ratio
(ours / theirs, over 1 is faster), and how much of the memory's read bandwidth our generation uses. A shared machine's
memory is two or three times as fast in one second as in the next, so that generation goes by pieces of a fraction of a
second: ours, theirs, and then tokens of ours in turn with reads of an array that is as large as the weights of a token,
by as many threads. A piece gives the medians of its tokens and of its reads, so that both have met the same memory and
neither is the luckiest of several. The ratio and the share are medians over the pieces.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llama_peer
import numpy as np
from random_llama import write_random_llama

from core.checkpoint import open_checkpoint
from core.hardware.bandwidth import array_size, last_level_cache
from core.runtime.load import LoadedModel, load
from core.threads import worker_count

PROMPT, BEHIND = 512, 64
PIECES, PIECE = 8, 8  # of a round, and tokens of a piece; one more before them warms up
LARGEST_READ = 2**30
TYPES = ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K")


def run(model: LoadedModel, tokens: np.ndarray, start: int) -> None:
    """Append tokens at position `start`, logits of the last one."""
    positions = np.arange(start, start + len(tokens), dtype=np.int32)
    model.engine.run(tokens, np.zeros(len(tokens), np.int32), positions, np.array([len(tokens) - 1], np.int32))


def prompt_seconds(model: LoadedModel, tokens: np.ndarray) -> float:
    start = llama_peer.clock()
    run(model, tokens, 0)
    return llama_peer.clock() - start


def decode_seconds(model: LoadedModel, tokens: np.ndarray, behind: int) -> list[float]:
    times = []
    for i in range(len(tokens)):
        start = llama_peer.clock()
        run(model, tokens[i : i + 1], behind + i)
        times.append(llama_peer.clock() - start)
    return times


class Reader:
    """Sums `size` bytes of integers, a slice a thread: one load and one add a vector, so that memory is the limit."""

    def __init__(self, size: int, threads: int) -> None:
        self._values = np.ones(size // 8, np.int64)
        self._slices = np.array_split(self._values, threads)
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def bandwidth(self) -> float:
        """Bytes/s of one pass. The first slice is this thread's own, as it is in the engine."""
        start = llama_peer.clock()
        others = [self._pool.submit(np.add.reduce, each) for each in self._slices[1:]] if self._pool else []
        np.add.reduce(self._slices[0])
        for other in others:
            other.result()
        return self._values.nbytes / (llama_peer.clock() - start)

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


def bound_fraction(model: LoadedModel, reader: Reader, tokens: np.ndarray, behind: int) -> float:
    """Weights' bytes over a token's median time, as a share of the median bandwidth of the reads between them."""
    times, speeds = [], []
    for i in range(len(tokens)):
        speeds.append(reader.bandwidth())
        times += decode_seconds(model, tokens[i : i + 1], behind + i)
    return model.engine.bytes_per_token / statistics.median(times[1:]) / statistics.median(speeds[1:])


def compare(path: Path, threads: int, rounds: int, prompts: bool) -> dict[str, float | str]:
    """Both models loaded; a round is a prompt of each, then pieces of generation in turn."""
    checkpoint = open_checkpoint(path)
    model = load(checkpoint, capacity=PROMPT + 1, threads=threads)
    peer = llama_peer.Peer(path, threads, PROMPT + 1)
    tokens = np.random.default_rng(0).integers(5, peer.vocab - 300, PROMPT).astype(np.int32)
    size = max(model.engine.bytes_per_token, array_size(last_level_cache(), 2**40))
    reader = Reader(min(size, LARGEST_READ), threads)
    asked: tuple[list[float], list[float]] = ([], [])
    given: tuple[list[float], list[float]] = ([], [])
    bounds = []
    prompt_seconds(model, tokens[:BEHIND])
    for _ in range(rounds):
        if prompts:
            asked[0].append(prompt_seconds(model, tokens))
            asked[1].append(peer.prompt_seconds(tokens))
        run(model, tokens[:BEHIND], 0)
        peer.prompt_seconds(tokens[:BEHIND])
        for piece in range(PIECES):
            start = piece * (PIECE + 1)
            some = tokens[start : start + PIECE + 1]
            given[0].append(statistics.median(decode_seconds(model, some, BEHIND + start)[1:]))
            given[1].append(statistics.median(peer.decode_seconds(some)[1:]))
            bounds.append(bound_fraction(model, reader, some, BEHIND + start))
    reader.close()
    model.unload()
    peer.close()
    checkpoint.close()
    gc.collect()
    result: dict[str, float | str] = {"file": path.name}
    for name, (ours_each, theirs_each), count in (("prompt", asked, PROMPT), ("decode", given, 1)):
        if ours_each:
            result[f"{name}_ours"] = count / statistics.median(ours_each)
            result[f"{name}_theirs"] = count / statistics.median(theirs_each)
            result[f"{name}_ratio"] = statistics.median(t / o for o, t in zip(ours_each, theirs_each, strict=True))
    return result | {"bound_fraction": statistics.median(bounds)}


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
    parser.add_argument("--decode-only", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, and its processor time, for busy machines")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.cpu_time:
        a.threads, llama_peer.clock = 1, time.thread_time
    if a.make:
        make(a.make)
    print(f"llama.cpp: {llama_peer.system_info()}")
    heads = "".join(f"{k:>8} {'theirs':>7} {'ratio':>6}" for k in ("prompt", "decode")[a.decode_only :])
    print(f"{'file':<28}{heads} {'bound':>6}")
    results = []
    for path in a.files:
        r = compare(path, a.threads, a.rounds, not a.decode_only)
        results.append(r)
        kinds = ("decode",) if a.decode_only else ("prompt", "decode")
        cells = [f"{r[f'{k}_ours']:>7.1f} {r[f'{k}_theirs']:>7.1f} {r[f'{k}_ratio']:>6.2f}" for k in kinds]
        print(f"{r['file']:<28} {' '.join(cells)} {r['bound_fraction']:>6.2f}", flush=True)
    if a.json:
        a.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
