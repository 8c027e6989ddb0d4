"""Rows that are hard to encode, and every compiled backend of this machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels import dispatch
from kernels import ops as _ops  # noqa: F401  (registers the backends)

COMPILED = [name for name in dispatch.backends() if name != "reference"]


@pytest.fixture(params=COMPILED)
def compiled(request: pytest.FixtureRequest) -> str:
    """Each instruction set in turn."""
    return request.param


def _rows(columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((16, columns)).astype(np.float32)
    x[0] = 0
    x[1] = -0.0
    x[2] *= np.float32(1e-41)  # denormal
    x[3] *= np.float32(1e37)
    x[4] *= np.float32(1e-6)  # scales are denormal in float16
    x[5] = np.sign(x[5])  # ternary already
    x[6] = 5 + 1e-3 * x[6]  # far from zero
    x[7] *= np.float32(3e4)
    x[8] = np.rint(x[8] * 4) / 8  # ties
    x[9, ::3] = -0.0
    x[10] = np.float32(3.4e38) * np.sign(x[10])
    x[11] = 7
    x[12] = -np.abs(x[12])
    x[13, columns // 2] = 100  # an outlier
    x[14] = rng.standard_t(2, columns)
    return x


@pytest.fixture
def hard_rows() -> Callable[..., np.ndarray]:
    """float32 [16, columns]: zeros, −0, denormal, huge, tiny, constant, ties, outliers."""
    return _rows


@pytest.fixture
def importance_of() -> Callable[[int], np.ndarray]:
    """float32 [columns] as calibration gives it: a few columns count far more than others, some not at all."""

    def make(columns: int) -> np.ndarray:
        rng = np.random.default_rng(9)
        weights = np.exp(2 * rng.standard_normal(columns)).astype(np.float32)
        weights[rng.random(columns) < 0.2] = 0
        return weights

    return make
