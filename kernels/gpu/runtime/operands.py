"""Weights on a GPU as the steps of a program use them: what multiplies them, and what reads rows of them.

Each kind is a `kernels.matrix.Stored`. Activations come as `Input`, which is rounded once for all products of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from kernels.gpu import operations
from kernels.gpu.configurations import VECTOR_BATCH, library_from
from kernels.gpu.launcher import power_above
from kernels.gpu.products.scaled import ScaledWeights, scaled_product
from kernels.gpu.products.weight_only import Weights, dequantized, product
from kernels.gpu.runtime.device import Device
from kernels.gpu.runtime.failures import SwitchedOff
from kernels.gpu.selftest.products import usable_product

_LIBRARY = f"from {library_from()} tokens on, decoded and multiplied by the library"


class Input:
    """Activations [M, K] of one step. exact: float32 stays. token: int8 with one scale a token, columns with a
    magnitude from `outliers` on apart (0: none).
    """

    def __init__(self, x: torch.Tensor, exact: bool = False, token: bool = False, outliers: float = 0.0) -> None:
        self.x, self.exact, self.token, self.outliers = x, exact, token, outliers
        self._made: dict[Any, torch.Tensor] = {}
        self._codes: tuple[operations.Tokens, operations.Outliers | None] | None = None

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        if self.x.dtype == dtype:
            return self.x
        if dtype not in self._made:
            self._made[dtype] = self.x.to(dtype)
        return self._made[dtype]

    def codes(self) -> tuple[operations.Tokens, operations.Outliers | None]:
        if self._codes is None:
            x = self.rounded(torch.float16) if self.x.dtype == torch.float32 and self.outliers else self.x
            apart = operations.find_outliers(x, self.outliers) if self.outliers > 0 else None
            self._codes = operations.quantize(x, "int8", outliers=apart), apart
        return self._codes

    @property
    def half(self) -> torch.Tensor:
        """In 16 bits, as it is or as float16."""
        return self.x if self.x.dtype != torch.float32 else self.rounded(torch.float16)


@dataclass(frozen=True)
class PackedOperand:
    """Codes as the file has them, decoded inside of products. kind: of `kernels.matrix.Matrix.stored`.

    off: by tokens and type, why the kernel is switched off there, '' where it may be used.
    """

    device: Device
    weights: Weights
    kind: str
    off: dict[tuple[int, torch.dtype], str] = field(default_factory=dict, compare=False)

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    @property
    def temporary(self) -> int:
        """Bytes of the copy that the library multiplies."""
        return 2 * self.weights.rows * self.weights.columns

    def product(self, x: Input) -> torch.Tensor:
        if x.exact:
            return self._library(x.rounded(torch.float32))
        if x.token and self.kind == "integer":
            codes, apart = x.codes()
            whole = codes.codes[:, : codes.columns].to(torch.float16)  # exact: at most 127
            found = self._multiply(whole) * codes.scales
            if apart is not None:
                found += self._multiply(torch.where(apart.flags != 0, apart.x, 0).to(torch.float16))
            return found
        return self._multiply(x.half)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) >= library_from() or self._why_off(len(x), x.dtype):
            return self._library(x)
        return product(x, self.weights)

    def _why_off(self, tokens: int, dtype: torch.dtype) -> str:
        """By a self-test, made once; a step runs as it is before it is captured, so that none falls into a capture."""
        batch = tokens if tokens <= VECTOR_BATCH else min(power_above(tokens), library_from())
        if (batch, dtype) not in self.off:
            self.off[batch, dtype] = usable_product(self.weights, tokens, dtype) or ""
        return self.off[batch, dtype]

    def _decoded(self, weights: Weights, dtype: torch.dtype) -> torch.Tensor:
        why = self._why_off(library_from(), torch.float16)
        if why:
            raise SwitchedOff(f"the kernel that decodes {weights.form.label} is switched off: {why}")
        return dequantized(weights, dtype)

    def _library(self, x: torch.Tensor) -> torch.Tensor:
        places = x if self.weights.order is None else x[:, self.weights.order]
        return self.device.multiply(places, self._decoded(self.weights, x.dtype))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows int64 [M] decoded → float32 [M, K]."""
        w = self.weights
        every = w.form.scale_rows  # rows that share a scale
        scaled = ids if every == 1 else ids // every if every else torch.zeros_like(ids)

        def some(plane: torch.Tensor | None, at: torch.Tensor) -> torch.Tensor | None:
            return None if plane is None else plane.index_select(1, at)

        low, scales = some(w.low, ids), some(w.scales, scaled)
        assert low is not None
        assert scales is not None
        picked = replace(
            w, form=replace(w.form, scale_rows=1), rows=len(ids), low=low, high=some(w.high, ids), scales=scales,
            third=some(w.third, scaled),
        )  # fmt: skip
        found = self._decoded(picked, torch.float32)
        if w.order is None:
            return found
        ordered = torch.empty_like(found)
        ordered[:, w.order.long()] = found
        return ordered

    def take(self, rows: np.ndarray) -> np.ndarray:
        return _taken(self, rows)

    def told(self, exact: bool, token: bool) -> tuple[str, str]:
        """Kernel, and why that one."""
        if exact:
            return "decoded to float32, library product", "exact activations were asked for, and no kernel takes them"
        if token and self.kind == "integer":
            why = "its codes are not one byte with a scale a row; int8 activations are multiplied as float16, exactly"
            return "× int8 per token, emulated", why
        off = "; ".join(dict.fromkeys(filter(None, self.off.values())))
        if off:
            return "× 16-bit floats, decoded and multiplied by the library in places", f"switched off: {off}"
        return "× 16-bit floats, decoded inside", f"vector units to 4 tokens, then matrix instructions; {_LIBRARY}"


@dataclass(frozen=True)
class ScaledOperand:
    """int8 codes with one scale a row, multiplied by int8 activations (W8A8)."""

    device: Device
    weights: ScaledWeights
    kind: str = "integer"

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    @property
    def temporary(self) -> int:
        return 0

    def product(self, x: Input) -> torch.Tensor:
        codes, apart = x.codes()
        return scaled_product(codes, self.weights, outliers=apart)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        w = self.weights
        return w.codes[ids][:, : w.columns].float() * w.scales[ids][:, None]

    def take(self, rows: np.ndarray) -> np.ndarray:
        return _taken(self, rows)

    def told(self, exact: bool, token: bool) -> tuple[str, str]:
        return "× int8 per token", "int32 sums of codes"


@dataclass(frozen=True)
class DenseOperand:
    """Floats [N, K] of 16 or 32 bits, multiplied by the library."""

    device: Device
    weights: torch.Tensor

    @property
    def kind(self) -> str:
        return "BF16" if self.weights.dtype == torch.bfloat16 else "float"

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    @property
    def temporary(self) -> int:
        return 0

    def product(self, x: Input) -> torch.Tensor:
        if x.exact:
            return self.device.multiply(x.rounded(torch.float32), self.weights.float())
        return self.device.multiply(x.rounded(self.weights.dtype), self.weights)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weights.index_select(0, ids).float()

    def take(self, rows: np.ndarray) -> np.ndarray:
        return _taken(self, rows)

    def told(self, exact: bool, token: bool) -> tuple[str, str]:
        kind = "float32" if exact else str(self.weights.dtype).removeprefix("torch.")
        return f"× {kind}, library product", "weights are floats in the file"


Operand = PackedOperand | ScaledOperand | DenseOperand


def _taken(operand: Operand, rows: np.ndarray) -> np.ndarray:
    with operand.device.work():
        ids = operand.device.send(torch.from_numpy(np.ascontiguousarray(rows, np.int64)))
        return operand.device.read(operand.rows(ids))
