"""No encoder has a larger squared error, weighted by importance, than ggml's: kinds of data × kinds of importance.

Both encode the same rows in this process. Blocks in which ggml's own result leaves the bound that our formats promise
are left out: our search may not go there. NVFP4 has a tensor scale here, as conversions choose it; ggml's has none.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.encode_rate import Ggml, find_ggml

from core.formats import GGML_FORMATS
from core.formats.float4 import power_scale
from kernels import ops
from kernels.layouts import LAYOUTS, PLAIN_KINDS, WRITTEN_KINDS

pytestmark = pytest.mark.interop

KINDS = [kind for kind in WRITTEN_KINDS if kind not in PLAIN_KINDS]
FORMATS = {f.name: f for f in GGML_FORMATS}
ROWS, COLUMNS = 16, 1024
# Both errors are float32 sums in another order.
ROUNDING = 1e-6
# Columns of no importance count 2^-24 of the most important, so that no sum of weights is zero: that share of the error
# without importance is not looked at.
TRACE = 2.0**-24


def rows(seed: int) -> dict[str, np.ndarray]:
    """float32 [16, 1024] each."""
    rng = np.random.default_rng(seed)
    shape, column = (ROWS, COLUMNS), np.arange(COLUMNS)
    normal = rng.standard_normal(shape)
    data = {
        "normal": normal,
        "laplace": rng.laplace(size=shape),
        "student": rng.standard_t(2, shape),
        "uniform": rng.uniform(-1, 1, shape),
        "positive": np.abs(normal),
        "one sign": -np.abs(rng.laplace(size=shape)) - 1,
        "lognormal": np.exp(normal),
        "offset": 3 + 0.1 * normal,
        "far from zero": -5 + 1e-3 * normal,
        "constant": np.repeat(rng.standard_normal((ROWS, COLUMNS // 32)), 32, axis=1),
        "one value": np.full(shape, 0.7),
        "two values": np.where(rng.random(shape) < 0.5, 0.31, 0.77),
        "five values": rng.choice([-1.3, -0.2, 0.5, 1.1, 2.0], shape),
        "ternary": rng.integers(-1, 2, shape) * 0.3,
        "noisy ternary": rng.integers(-1, 2, shape) * 0.3 * (1 + 0.01 * normal),
        "bimodal": 0.1 * normal + 2 * (rng.random(shape) < 0.3),
        "lattice": rng.integers(0, 16, shape) * 0.013,
        "spikes": np.where(column % 32 == 5, 50, 1) * normal,
        "two spikes": 0.1 * normal + np.where(column % 16 == 3, 3, 0),
        "sparse": normal * (rng.random(shape) < 0.1),
        "sorted": np.sort(normal, axis=1),
        "ramp": np.linspace(-1, 1, COLUMNS) * np.abs(normal[:, :1]),
        "tiny": normal * 1e-5,
        "huge": normal * 1e4,
        "channels": normal * np.where(rng.random(COLUMNS) < 1 / 64, 0.24, 0.02),
    }
    return {name: np.ascontiguousarray(x, np.float32) for name, x in data.items()}


def importances(seed: int) -> dict[str, np.ndarray | None]:
    """None, and float32 [1024] each."""
    rng = np.random.default_rng(seed + 1)
    half = np.exp(rng.standard_normal(COLUMNS)) * (rng.random(COLUMNS) < 0.3)
    few = np.full(COLUMNS, 1e-3)
    few[::37] = 1
    weights = {
        "lognormal": np.exp(1.5 * rng.standard_normal(COLUMNS)),
        "wide": np.exp(3 * rng.standard_normal(COLUMNS)),
        "uniform": rng.uniform(0, 1, COLUMNS),
        "equal": np.ones(COLUMNS),
        "few columns": few,
        "mostly zero": half,
        "one column": np.arange(COLUMNS) == 200,
    }
    return {"none": None} | {name: w.astype(np.float32) for name, w in weights.items()}


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml(find_ggml())


def errors(x: np.ndarray, decoded: np.ndarray, keep: np.ndarray, w: np.ndarray | None) -> float:
    e = np.where(keep, x.astype(np.float64) - decoded, 0) ** 2
    return float((e if w is None else e * w).sum())


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_error_is_no_larger_than_ggmls(kind: str, seed: int, ggml: Ggml) -> None:
    group = 16 if kind == "NVFP4" else LAYOUTS[kind].block
    larger = []
    for name, x in rows(seed).items():
        scale = power_scale(float(np.abs(x).max())) if kind == "NVFP4" else 1.0
        for importance, w in importances(seed).items():
            theirs = ops.decode_blocks(kind, ggml.encode(kind, x, w), COLUMNS)
            encoded = ops.encode_blocks(kind, x, w, tensor_scale=scale)
            ours = ops.decode_blocks(kind, encoded, COLUMNS, tensor_scale=scale)
            blocks = np.abs(x).reshape(-1, group).max(axis=1), np.abs(theirs - x).reshape(-1, group).max(axis=1)
            keep = np.repeat(blocks[1] <= FORMATS[kind].error_bound * blocks[0], group).reshape(x.shape)
            error, limit = errors(x, ours, keep, w), errors(x, theirs, keep, w)
            floor = 0.0 if w is None else TRACE * float(w.max()) * errors(x, ours, keep, None)
            if error > limit * (1 + ROUNDING) + floor:
                larger.append(f"{name}, importance {importance}: {error / max(limit, 1e-300):.4f} times ggml's")
    assert not larger, f"{kind}: " + "; ".join(larger)
