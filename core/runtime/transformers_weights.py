"""Packed matrices in the places where a torch module would keep float weights. Imported together with torch only.

A module keeps its class and its forward: `PackedWeight` stands for the tensor `weight`, and answers the few functions
of torch that multiply with one or look rows up in it (the protocol `__torch_function__`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from core.runtime.arithmetic import Arithmetic
from kernels.engine import Cancelled
from kernels.matrix import Activations, Matrix, product, read_rows

PIECE = 4e9  # operations of one product, which can not be cancelled: some 100 ms of a slow core


@dataclass
class Work:
    """What all products of one model share. cancelled: the run under way is to stop."""

    arithmetic: Arithmetic
    threads: int
    cancelled: bool = False

    def check(self) -> None:
        if self.cancelled:
            raise Cancelled

    def multiply(self, x: torch.Tensor, matrices: Sequence[Matrix]) -> torch.Tensor:
        """x [..., K] times all matrices, one above the other: [..., rows of all]."""
        flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).to(torch.float32).numpy())
        outs = [self._product(flat, matrix) for matrix in matrices]
        out = outs[0] if len(outs) == 1 else np.concatenate(outs, axis=1)
        return torch.from_numpy(out).view(*x.shape[:-1], out.shape[1])

    def _product(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        self.check()
        step = max(int(PIECE / (2 * matrix.rows * matrix.columns)), 16)
        if len(x) <= step:
            return self._multiply(x, matrix)
        out = np.empty((len(x), matrix.rows), np.float32)
        for start in range(0, len(x), step):
            self.check()
            out[start : start + step] = self._multiply(x[start : start + step], matrix)
        return out

    def _multiply(self, x: np.ndarray, matrix: Matrix) -> np.ndarray:
        activations, outliers = self.arithmetic.activations, self.arithmetic.outliers
        apart = (np.abs(x) >= outliers).any(axis=0) if outliers else np.zeros(0, bool)
        if not apart.any():
            return product(x, matrix, activations, self.threads)
        rest = product(np.where(apart, np.float32(0), x), matrix, activations, self.threads)
        return rest + product(np.where(apart, x, np.float32(0)), matrix, Activations.EXACT, self.threads)


class PackedWeight:
    """Weights [rows, columns], packed: matrices one above the other. transposed: the module sees [columns, rows]."""

    dtype, device, requires_grad, ndim = torch.float32, torch.device("cpu"), False, 2

    def __init__(self, matrices: Sequence[Matrix], work: Work, transposed: bool = False) -> None:
        self.matrices, self.work, self.transposed = tuple(matrices), work, transposed

    @property
    def shape(self) -> torch.Size:
        rows, columns = sum(m.rows for m in self.matrices), self.matrices[0].columns
        return torch.Size((columns, rows) if self.transposed else (rows, columns))

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    @property
    def T(self) -> PackedWeight:  # noqa: N802 - torch's name
        return PackedWeight(self.matrices, self.work, not self.transposed)

    t = transpose = lambda self, *_axes: self.T

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return _linear(x.transpose(-1, -2), self).transpose(-1, -2)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = _ANSWERS.get(function)
        return NotImplemented if answer is None else answer(*args, **(kwargs or {}))


class PackedStack:
    """An expert's matrices by its number, where a module would keep a tensor [experts, rows, columns]."""

    dtype, device, requires_grad, ndim = torch.float32, torch.device("cpu"), False, 3

    def __init__(self, experts: Sequence[Sequence[Matrix]], work: Work) -> None:
        self.experts, self.work = tuple(tuple(parts) for parts in experts), work

    def __getitem__(self, expert: Any) -> PackedWeight:
        return PackedWeight(self.experts[int(expert)], self.work)


def _linear(input: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:  # noqa: A002
    if not isinstance(weight, PackedWeight) or weight.transposed:
        raise TypeError("only a layer's own weights can be packed")
    out = weight.work.multiply(input, weight.matrices)
    return out if bias is None else out.add_(bias)


def _matmul(input: Any, other: Any) -> torch.Tensor:  # noqa: A002
    if isinstance(input, PackedWeight):
        return input @ other
    return _linear(input, other.T)


def _addmm(input: torch.Tensor, mat1: torch.Tensor, mat2: PackedWeight) -> torch.Tensor:  # noqa: A002
    return _matmul(mat1, mat2).add_(input)


def _embedding(input: torch.Tensor, weight: PackedWeight, *_args: Any, **_kwargs: Any) -> torch.Tensor:  # noqa: A002
    (matrix,) = weight.matrices
    rows = read_rows(matrix, input.reshape(-1).numpy())
    return torch.from_numpy(rows).view(*input.shape, matrix.columns)


_ANSWERS: dict[Any, Callable[..., torch.Tensor]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
}


def set_tensor(module: Any, name: str, values: np.ndarray) -> None:
    """Values float32 [n] as the module's parameter or table of that name, in the shape that it has there."""
    if name in module._buffers:
        before = module._buffers[name]
        module._buffers[name] = torch.from_numpy(values).view(before.shape).to(before.dtype)
    else:
        shape = module._parameters[name].shape
        module._parameters[name] = torch.nn.Parameter(torch.from_numpy(values).view(shape), requires_grad=False)
