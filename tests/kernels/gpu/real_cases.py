"""A real model on the GPU's executor under Triton's interpreter, beside the processor's engine. By hand:

    PYTHONPATH=.:tests python tests/kernels/gpu/real_cases.py MODEL [--tokens 8] [--steps 2] [--activations fast]

MODEL is a folder or a GGUF file. A prompt and some tokens after it, one by one. One line of JSON a token: the largest
difference of logits over the largest logit, and whether the likeliest token is the same. Programs take many rows of
weights at once, so that the interpreter, which costs a while for each operation of each program, is through in minutes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from interpreted import exact_dot, tell
from runtime_cases import CPU, opened, ran, standing_in

from kernels.gpu.products import weight_only

ROWS = 1024  # of weights, that one program takes here
TEXT = "The capital of France is Paris, and the largest city of Germany is"


def larger_programs() -> None:
    real = weight_only.configuration

    def configuration(*sizes: Any) -> weight_only.Configuration:
        how = real(*sizes)
        return replace(how, rows=max(ROWS, how.rows), split=1)

    weight_only.configuration = configuration


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--activations", default="fast")
    asked = parser.parse_args()
    exact_dot()
    standing_in()
    larger_programs()
    exact = opened(asked.model, CPU, "exact", capacity=asked.tokens)
    ids = np.array(exact.text.encode(TEXT)[: asked.tokens], np.int32)
    want = ran(exact, ids, asked.steps)
    exact.unload()
    begin = time.process_time()
    model = opened(asked.model, arithmetic=asked.activations, capacity=asked.tokens)
    found = ran(model, ids, asked.steps)
    size = float(np.abs(want).max())
    for token, (a, b) in enumerate(zip(found, want, strict=True)):
        same = int(a.argmax()) == int(b.argmax())
        tell(token=token, error=float(np.abs(a - b).max()) / size, same_token=same, finite=bool(np.isfinite(a).all()))
    tell(
        model=asked.model.name, layers=len(model.engine._executor._cache), tokens=len(ids), steps=asked.steps,
        contract=model.contract, error=float(np.abs(found - want).max()) / size,
        mean=float(np.abs(found - want).mean()) / size, cpu_seconds=round(time.process_time() - begin),
    )  # fmt: skip


if __name__ == "__main__":
    main()
