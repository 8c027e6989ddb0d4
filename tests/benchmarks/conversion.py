"""Whole conversions as a user runs them: rate, size and peak memory for every GGUF type.

    python tests/benchmarks/conversion.py SOURCE [--to NAME …] [--against LLAMA_QUANTIZE]

With --against, the same source (a 16-bit GGUF) is quantized by llama.cpp's program too, in turn, with as many
threads; the ratio of the medians is printed. Figures are of this machine and this moment; only ratios are comparable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from core.sample import sample_path

DEFAULT = (
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_1",
    "Q5_0",
    "Q4_K_M",
    "Q4_1",
    "Q4_0",
    "IQ4_XS",
    "IQ4_NL",
    "Q3_K_M",
    "Q2_K",
    "TQ2_0",
)


def ours(source: Path, target: str, folder: Path, threads: int) -> tuple[float, dict]:
    """Seconds of the whole process and its JSON."""
    output = folder / "ours.gguf"
    command = [sys.executable, "-m", "core.cli", "convert", source, "--to", target, "-o", output, "--json"]
    start = time.monotonic()
    done = subprocess.run([*command, "--threads", str(threads)], check=True, capture_output=True, text=True)
    seconds = time.monotonic() - start
    output.unlink()
    return seconds, json.loads(done.stdout)


def theirs(program: Path, source: Path, target: str, folder: Path, threads: int) -> float:
    output = folder / "theirs.gguf"
    start = time.monotonic()
    command = [program, "--allow-requantize", source, output, target, str(threads)]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - start
    output.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", help="default: the sample model")
    parser.add_argument("--to", nargs="*", default=DEFAULT)
    parser.add_argument("--against", type=Path, help="llama-quantize")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    a = parser.parse_args()
    a.source = a.source or sample_path()
    print(f"{'target':<10} {'ours s':>8} {'theirs s':>9} {'theirs/ours':>12} {'peak MB':>8} {'bytes':>15}")
    with tempfile.TemporaryDirectory(dir=a.source.absolute().parent) as scratch:
        for target in a.to:
            times: list[float] = []
            others: list[float] = []
            for _ in range(a.runs):
                seconds, data = ours(a.source, target, Path(scratch), a.threads)
                times.append(seconds)
                if a.against:
                    others.append(theirs(a.against, a.source, target, Path(scratch), a.threads))
            mine = statistics.median(times)
            other = statistics.median(others) if others else float("nan")
            peak = data["peak_rss_bytes"] / 1e6
            figures = f"{mine:>8.2f} {other:>9.2f} {other / mine:>12.2f} {peak:>8.0f}"
            print(f"{target:<10} {figures} {data['actual_bytes']:>15,}")


if __name__ == "__main__":
    main()
