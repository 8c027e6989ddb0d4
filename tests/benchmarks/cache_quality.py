"""What schemes of a cache cost a model: mean KL from its cache in 16 bits, perplexity, both by position.

    python tests/benchmarks/cache_quality.py MODEL [--tokens 1024] [--threads 2] [--beside Q4_0] SCHEME…

Standard errors are of the means of 64 tokens each. The last figure is what a scheme loses more or less than the one
that it stands beside, of the same tokens, with its own error. The text is the one that `bitsmith eval` measures on;
activations are float32, so that the cache alone differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from core.checkpoint import open_checkpoint
from core.kv.compare import compare_schemes, mean_error
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
    parser.add_argument("--beside", default="Q4_0", help="scheme whose KL the others' are compared with")
    args = parser.parse_args()
    schemes = [CacheScheme.parse(text) for text in args.schemes]
    with open_checkpoint(args.path) as checkpoint:
        model = load(checkpoint, args.tokens, 1, ARITHMETICS["exact"], args.threads)
        ids = model.text.encode(read_text(BUNDLED))[: args.tokens]
        costs = compare_schemes(model, [int(i) for i in ids], schemes, threads=args.threads)
    beside = next((cost for cost in costs if cost.scheme == CacheScheme.parse(args.beside)), None)
    for cost in costs:
        spans = ", ".join(f"…{span.stop}: {span.kl:.2e}/{span.perplexity:.2f}" for span in cost.spans)
        line = f"{cost.scheme.text:40} {cost.bits:6.3f} bits  KL {cost.kl:.3e} ± {cost.kl_error or 0:.1e}"
        line += f"  PPL {cost.perplexity:.3f}  same {cost.same_top:.3f}"
        if beside is not None and cost is not beside:
            change = [a - b for a, b in zip(cost.blocks, beside.blocks, strict=True)]
            line += f"  {cost.kl - beside.kl:+.3e} ± {mean_error(change) or 0:.1e}"
        print(f"{line}  [{spans}]", flush=True)


if __name__ == "__main__":
    main()
