"""What schemes of a cache cost a model: mean KL from its cache in 16 bits, perplexity, both by position.

    python tests/benchmarks/cache_quality.py MODEL [--tokens 1024] [--threads 2] SCHEME…

The text is the one that `bitsmith eval` measures on; activations are float32, so that the cache alone differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from core.checkpoint import open_checkpoint
from core.kv.compare import compare_schemes
from core.kv.scheme import CacheScheme
from core.runtime.arithmetic import ARITHMETICS
from core.runtime.load import load
from core.verdict.text import BUNDLED
from resources import read_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("schemes", nargs="+")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    schemes = [CacheScheme.parse(text) for text in args.schemes]
    with open_checkpoint(args.path) as checkpoint:
        model = load(checkpoint, args.tokens, 1, ARITHMETICS["exact"], args.threads)
        ids = model.text.encode(read_text(BUNDLED))[: args.tokens]
        for cost in compare_schemes(model, [int(i) for i in ids], schemes, threads=args.threads):
            spans = ", ".join(f"…{span.stop}: {span.kl:.2e}/{span.perplexity:.2f}" for span in cost.spans)
            line = f"{cost.scheme.text:40} {cost.bits:6.3f} bits  KL {cost.kl:.3e}  PPL {cost.perplexity:.3f}"
            print(f"{line}  same {cost.same_top:.3f}  [{spans}]", flush=True)


if __name__ == "__main__":
    main()
