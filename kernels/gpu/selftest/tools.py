"""What self-tests share: their registry, values that are hard, and what is close enough."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

Check = Callable[..., str]
CHECKS: dict[str, Check] = {}
# Kernels and classes that `bitsmith check` tests; products of each format are tested when a file has them.
COMMON: list[tuple[str, tuple[Hashable, ...]]] = []

# Of the largest value of a result's row; of codes, whole steps are allowed where two roundings fall apart.
_CLOSE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 3e-6}
SUM = 3e-5  # of Σ |x| · |w|: sums in float32, in whatever order and width a matrix instruction adds
SUM_FP8 = 1e-3  # some cards add 8-bit products in 14 bits


def register(kernel: str, check: Check, *common: tuple[Hashable, ...]) -> None:
    """check(device, *class) → '' or what is wrong. common: classes that `bitsmith check` tests."""
    CHECKS[kernel] = check
    COMMON.extend((kernel, shape_class) for shape_class in common)


def run(kernel: str, shape_class: tuple[Hashable, ...], device: str) -> str:
    """'' or one clause. Raises whatever the kernel does; KeyError for a kernel that is not known."""
    found = CHECKS[kernel](device, *shape_class)
    if device == "cuda":
        torch.cuda.synchronize()
    return found


def floats(rows: int, columns: int, name: str, device: str, seed: int = 0) -> torch.Tensor:
    """Values with a row of zeros, a column that stands out, and a strange number nowhere."""
    x = 2 * np.random.default_rng(rows * 1009 + columns + seed).standard_normal((rows, columns)).astype(np.float32)
    x[:, columns // 3] *= 20
    if rows > 2:
        x[1] = 0
    return torch.from_numpy(x).to(device, getattr(torch, name))


def exact(x: torch.Tensor) -> np.ndarray:
    return x.to("cpu", torch.float64).numpy()


def numbers(values: Any, device: str) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.int32).copy()).to(device)


def close(found: torch.Tensor, expected: np.ndarray, name: str, factor: float = 1.0, each: bool = True) -> str:
    """Whether values are the expected ones, to the precision of the type.

    each: of the value itself, else of its row's largest.
    """
    expected = expected.reshape(len(expected), -1)
    values = exact(found).reshape(expected.shape)
    if not np.isfinite(values).all():
        return f"{int((~np.isfinite(values)).sum())} of {values.size} values are not numbers"
    limit, size = factor * _CLOSE[name], np.abs(expected)
    largest = size.max(axis=1, keepdims=True)
    allowed = limit * size + max(limit / 100, 1e-6) * largest if each else limit * largest
    wrong = np.abs(values - expected) > allowed
    if wrong.any():
        worst = (np.abs(values - expected) / np.where(largest > 0, largest, 1)).max()
        return f"{int(wrong.sum())} of {wrong.size} values are wrong, by up to {worst:.2g} of their row's largest"
    return ""


def same(found: torch.Tensor, expected: np.ndarray, what: str) -> str:
    """Whether all bits are those of the reference."""
    values = found.cpu().numpy()
    wrong = values.reshape(-1).view(np.uint8) != np.ascontiguousarray(expected).reshape(-1).view(np.uint8)
    return f"{int(wrong.sum())} of {wrong.size} bytes of {what} are not the reference's" if wrong.any() else ""


def sums_close(found: np.ndarray, expected: np.ndarray, size: np.ndarray, limit: float) -> str:
    """size: Σ |x| · |w| of each sum."""
    if not np.isfinite(found).all():
        return f"{int((~np.isfinite(found)).sum())} of {found.size} sums are not numbers"
    error = np.abs(found - expected) / np.where(size > 0, size, 1)
    if (error > limit).any():
        return f"{int((error > limit).sum())} of {found.size} sums are wrong, by up to {error.max():.2g} of Σ |x · w|"
    return ""
