"""The functions between two products, in float64."""

from __future__ import annotations

import math

import numpy as np

from kernels.rotation import Rotation, sylvester

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(kind: str, x: np.ndarray) -> np.ndarray:
    """'silu', 'gelu' (exact) or 'gelu_tanh' of float64 values."""
    if kind == "silu":
        return x / (1.0 + np.exp(-np.clip(x, -700.0, None)))
    if kind == "gelu":
        return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    if kind == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    raise ValueError(f"no activation function is called {kind}")


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """Over the last axis: x / √(mean(x²) + eps) · gain."""
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def soft_cap(x: np.ndarray, cap: float) -> np.ndarray:
    """cap · tanh(x / cap)."""
    return cap * np.tanh(x / cap)


def rotated(x: np.ndarray, rotation: Rotation) -> np.ndarray:
    """x R of rows that are whole runs, by the whole matrix of a run."""
    matrix = np.kron(rotation.factor.astype(np.float64), sylvester(rotation.size)) / math.sqrt(rotation.width)
    runs = x.astype(np.float64).reshape(-1, rotation.width) * rotation.signs
    return (runs @ matrix).reshape(x.shape)
