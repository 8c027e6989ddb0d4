"""Rows on which encoders are compared, and how their error is measured. Shared by test_kquants.py and test_iq4.py."""

from __future__ import annotations

import gguf
import numpy as np

from kernels import ops

COLUMNS = 1024


def samples() -> dict[str, np.ndarray]:
    """float32 [24, 1024] of several distributions, the same on every machine."""
    shape = (24, COLUMNS)
    rng = np.random.default_rng(2024)
    rows = {
        "normal": rng.standard_normal(shape),
        "laplace": rng.laplace(size=shape),
        "student": rng.standard_t(4, shape),
        "channels": rng.standard_normal(shape) * np.where(rng.random(COLUMNS) < 1 / 64, 0.24, 0.02),
        "positive": np.abs(rng.standard_normal(shape)),
        "offset": rng.standard_normal(shape) * 0.1 - 1,
        "constant": np.repeat(rng.standard_normal((24, COLUMNS // 32)), 32, axis=1),
        "spike": rng.standard_normal(shape) * 1e-3 + (np.arange(COLUMNS) % 256 == 0),
    }
    return {name: x.astype(np.float32) for name, x in rows.items()}


def importance() -> np.ndarray:
    """float32 [1024], lognormal."""
    return np.exp(np.random.default_rng(7).standard_normal(COLUMNS)).astype(np.float32)


def few_columns() -> np.ndarray:
    """float32 [1024]: all importance in one column of 256, in one of 32, in two of every 16; the last 256 lognormal."""
    column = np.arange(256)
    two = np.where(column % 16 < 2, np.random.default_rng(11).uniform(0.1, 1, 256), 0)
    return np.concatenate([column == 77, column % 32 == 9, two, importance()[768:]]).astype(np.float32)


def error_percent(kind: str, x: np.ndarray, data: np.ndarray, weights: np.ndarray | None) -> float:
    """100 · √(Σ w·(x − decoded)² / Σ w·x²) in float64, decoded by the `gguf` package."""
    w = 1.0 if weights is None else weights.astype(np.float64)
    decoded = gguf.dequantize(data, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    return 100 * float(np.sqrt((w * (x - decoded) ** 2).sum() / (w * x.astype(np.float64) ** 2).sum()))


def assert_errors_at_most(kind: str, theirs: dict[str, tuple[float, float]]) -> None:
    """Without and with importance, no larger than llama.cpp's error on any of the samples."""
    weights = importance()
    for name, x in samples().items():
        for limit, w in zip(theirs[name], (None, weights), strict=True):
            error = error_percent(kind, x, ops.encode_blocks(kind, x, w), w)
            assert error <= limit, f"{kind} on {name}, importance {w is not None}: {error:.4f} % over {limit} %"


def assert_within_bound(kind: str, bound: float, group: int) -> None:
    """No value further from its source than `bound` times the largest of its group, however extreme the importance."""
    for seed, spread in ((0, 0.0), (1, 1.0), (2, 3.0), (3, 8.0)):
        rng = np.random.default_rng(seed)
        x = rng.standard_t(4, (48, COLUMNS)).astype(np.float32)
        weights = np.exp(spread * rng.standard_normal(COLUMNS)).astype(np.float32)
        for search in (True, False):
            data = ops.encode_blocks(kind, x, weights, search)
            ratio = ops.max_group_error_ratio(x, ops.decode_blocks(kind, data, COLUMNS), group)
            assert ratio <= bound, f"{kind}, spread {spread}, search {search}: {ratio:.3f} over {bound}"
