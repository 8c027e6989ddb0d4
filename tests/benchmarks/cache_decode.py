"""Generation behind a long prompt with a cache of codes, beside llama.cpp with the same types: same file, in turn.

    python tests/benchmarks/cache_decode.py FILE.gguf [--depth 8100] [--types F16 Q8_0 Q4_0] [--rounds 12]

Needs llama.cpp as decode.py does. Both read the same random prompt once, which takes llama.cpp minutes with codes; then
pieces of a few tokens in turn, each behind the prompt again. Prints medians in tokens/s and of the pieces' ratios
(ours / theirs, over 1 is faster).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import llama_peer
import numpy as np
from decode import decode_seconds, run

from core.checkpoint import open_checkpoint
from core.runtime.load import load
from core.threads import worker_count

PIECE, PROMPT = 8, 512  # tokens of a piece, whose first warms up; and of the prompt that are read at a time


def compare(path: Path, depth: int, cache: str, rounds: int, threads: int) -> tuple[list[float], list[float]]:
    """Seconds a token of each piece, ours and theirs."""
    peer = llama_peer.Peer(path, threads, depth + PIECE, cache)
    tokens = np.random.default_rng(0).integers(5, peer.vocab - 300, depth + PIECE).astype(np.int32)
    with open_checkpoint(path) as checkpoint:
        model = load(checkpoint, capacity=depth + PIECE, threads=threads, cache_dtype=cache)
    for start in range(0, depth, PROMPT):
        run(model, tokens[start : min(start + PROMPT, depth)], start)
    peer.run(tokens[:depth])
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(statistics.median(decode_seconds(model, tokens[depth:], depth)[1:]))
        theirs.append(statistics.median(peer.decode_seconds(tokens[depth:])[1:]))
        peer.forget(depth)
    model.unload()
    peer.close()
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--depth", type=int, default=8100)
    parser.add_argument("--types", nargs="+", default=["F16", "Q8_0", "Q4_0"], choices=llama_peer.CACHE_TYPES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=worker_count())
    a = parser.parse_args()
    print(f"llama.cpp: {llama_peer.system_info()}")
    for cache in a.types:
        ours, theirs = compare(a.file, a.depth, cache, a.rounds, a.threads)
        ratio = statistics.median(t / o for o, t in zip(ours, theirs, strict=True))
        rates = [1 / statistics.median(each) for each in (ours, theirs)]
        print(f"{cache:<6} {rates[0]:7.1f} {rates[1]:7.1f} tokens/s, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
