"""Encoders against llama.cpp's: rate and error, same rows, one thread against one, alternating in one run.

    python tests/benchmarks/encode_rate.py [--ggml libggml-base.so] [--types Q4_0,Q4_K] [--isa cpu:avx2]

Error is nRMSE = ‖W−Ŵ‖/‖W‖ in percent; with importance the squares are weighted by it. Rates are medians in 10⁶ values a
second of processor time, ratios are ours over llama.cpp's. The ggml library is that of the `xllamacpp` package unless
another is named. Like with like is --isa cpu:avx2 with a library built with -march=haswell, cpu:baseline with one of
-march=x86-64.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kernels import dispatch, ops
from kernels.layouts import LAYOUTS, PLAIN_KINDS, WRITTEN_KINDS

# ggml stops the process where these have no importance.
_NEEDS_IMPORTANCE = ("IQ2_XXS", "IQ2_XS")


class Ggml:
    """`ggml_quantize_chunk` of a shared library. Types that need importance get an equal one where there is none."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._chunk = self._library.ggml_quantize_chunk
        self._chunk.restype = ctypes.c_size_t
        self._chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def encode(self, kind: str, x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
        rows, columns = x.shape
        layout = LAYOUTS[kind]
        self._library.ggml_quantize_init(layout.id)
        out = np.empty((rows, layout.row_bytes(columns)), np.uint8)
        if importance is None and kind in _NEEDS_IMPORTANCE:
            importance = np.ones(columns, np.float32)
        weights = None if importance is None else importance.ctypes.data
        self._chunk(layout.id, x.ctypes.data, out.ctypes.data, 0, rows, columns, weights)
        return out


def find_ggml() -> str:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise SystemExit("Install xllamacpp or name a library with --ggml.")
    return str(next(Path(spec.origin).parent.glob("xllamacpp*.so")))


def error_percent(x: np.ndarray, decoded: np.ndarray, importance: np.ndarray | None = None) -> float:
    w = 1.0 if importance is None else importance.astype(np.float64)
    x = x.astype(np.float64)
    return 100 * float(np.sqrt((w * (x - decoded) ** 2).sum() / (w * x * x).sum()))


def rates(ours, theirs, values: int, seconds: float) -> tuple[float, float]:
    """Median rates of two calls, by processor time, run in turn until `seconds` have passed."""
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < end:
        for call, taken in zip((ours, theirs), times, strict=True):
            start = time.thread_time()
            call()
            taken.append(time.thread_time() - start)
    return tuple(values / statistics.median(taken) / 1e6 for taken in times)  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", default=None, help="shared library with ggml_quantize_chunk")
    parser.add_argument("--types", default=",".join(kind for kind in WRITTEN_KINDS if kind not in PLAIN_KINDS))
    parser.add_argument("--isa", default=None, help="force a backend, such as cpu:avx2")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each pair of rates")
    options = parser.parse_args()

    ggml = Ggml(options.ggml or find_ggml())
    rng = np.random.default_rng(1)
    x = rng.standard_normal((options.rows, options.columns)).astype(np.float32)
    # Activations' mean squares: a few columns matter far more than the others.
    importance = np.exp(1.5 * rng.standard_normal(options.columns)).astype(np.float32)
    tensor_scale = 2.0 ** np.ceil(np.log2(np.abs(x).max() / (6 * 224)))  # as core.formats chooses it

    head = f"{'type':8}{'ours':>9}{'theirs':>9}{'ratio':>7}{'nRMSE':>9}{'theirs':>9}"
    print(f"{head}  | with importance{'ratio':>7}{'error':>9}{'theirs':>9}")
    with dispatch.only(options.isa) if options.isa else contextlib.nullcontext():
        for kind in options.types.split(","):
            scale = tensor_scale if kind == "NVFP4" else 1.0
            line = ""
            for weights in (None, importance):

                def ours(kind=kind, weights=weights, scale=scale):
                    return ops.encode_blocks(kind, x, weights, tensor_scale=scale)

                def theirs(kind=kind, weights=weights):
                    return ggml.encode(kind, x, weights)

                our_error, their_error = (
                    error_percent(x, ops.decode_blocks(kind, data, x.shape[1], tensor_scale=factor), weights)
                    for data, factor in ((ours(), scale), (theirs(), 1.0))
                )
                our_rate, their_rate = rates(ours, theirs, x.size, options.seconds)
                ratio = f"{our_rate / their_rate:7.2f}"
                worse = "!" if our_error > their_error or our_rate < their_rate else " "
                rate = f"{our_rate:9.1f}{their_rate:9.1f}"
                line += f"{rate}{ratio}{our_error:9.4f}{their_error:9.4f}{worse} |"
            print(f"{kind:8}{line}", flush=True)


if __name__ == "__main__":
    main()
