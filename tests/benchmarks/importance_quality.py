"""Weighted squared error of K-quants and IQ4 with importance beside llama-quantize's, weight by weight.

    python tests/benchmarks/importance_quality.py SOURCE.gguf IMATRIX.gguf THEIRS.gguf OURS.gguf [--only REGEX]

SOURCE.gguf: BF16, F16 or F32. THEIRS: `llama-quantize --imatrix IMATRIX SOURCE THEIRS TYPE`; OURS: `bitsmith convert
SOURCE --to TYPE --method importance --imatrix IMATRIX -o OURS`. Error: sum over a weight of m (x - y)^2 / sum of m x^2,
m being the mean square of the input channel. Needs gguf, which decodes both files.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from gguf import GGUFReader, quants

from core.calibration.imatrix_file import read_imatrix


def values(tensor: object) -> np.ndarray:
    """float32 [..., N, K]."""
    shape = tuple(int(n) for n in reversed(tensor.shape))  # type: ignore[attr-defined]
    return quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "imatrix", "theirs", "ours"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", default="", help="of the weights' names")
    args = parser.parse_args()
    matrix = read_imatrix(args.imatrix)
    source, theirs, ours = (
        {t.name: t for t in GGUFReader(path).tensors} for path in (args.source, args.theirs, args.ours)
    )
    ratios = defaultdict(list)
    for name, tensor in source.items():
        if not re.search(args.only, name):
            continue
        kind, other = ours[name].tensor_type.name, theirs[name].tensor_type.name
        if kind != other:
            print(f"{name}: {kind} here, {other} there")
            continue
        if kind in ("F32", "F16", "BF16"):
            continue
        x = values(tensor)
        found = matrix.means(name, x.shape[0] if x.ndim > 2 else 1, x.shape[-1])
        weight = np.ones(x.shape[-1:], np.float32)
        if found is not None:
            weight = found[:, None] if x.ndim > 2 else found[0]
        total = float((weight * x * x).sum(dtype=np.float64))
        here, there = (
            float((weight * (x - values(f[name])) ** 2).sum(dtype=np.float64)) / total for f in (ours, theirs)
        )
        ratios[(kind, found is not None)].append((here / there if there else 1.0, here, there, name))
    columns = ("weights", "ours", "theirs", "ratio", "best", "worst")
    print(f"{'type':<8}{'importance':<12}" + "".join(f"{c:>10}" for c in columns) + "  worst weight")
    for (kind, known), rows in sorted(ratios.items()):
        here, there = (float(np.mean([r[i] for r in rows])) for i in (1, 2))
        low, high = min(rows), max(rows)
        print(
            f"{kind:<8}{'yes' if known else 'no':<12}{len(rows):>10}{here:>10.5f}{there:>10.5f}{here / there:>10.3f}"
            f"{low[0]:>10.3f}{high[0]:>10.3f}  {high[3]}"
        )


if __name__ == "__main__":
    main()
