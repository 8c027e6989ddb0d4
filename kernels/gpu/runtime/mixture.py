"""A mixture of experts on a GPU. Few tokens: programs read from memory which experts they multiply with, so that a step
has static shapes and can be captured. More tokens: the host reads it and starts the products of each expert once.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernels.engine_backends import Cancelled
from kernels.gpu import operations
from kernels.gpu.configurations import VECTOR_BATCH
from kernels.gpu.products.experts import ExpertWeights, expert_product, gather_experts
from kernels.gpu.runtime.device import Device
from kernels.gpu.runtime.operands import Input, Operand, PackedOperand
from kernels.gpu.runtime.rotated import RotationOnDevice
from kernels.gpu.selftest.products import usable_experts
from kernels.matrix import Activations, Matrix
from kernels.program import Experts

BY_HOST = "which experts a token meets is read by the host"


class Mixture:
    """One `Experts` step. reason: why the host has to read which experts are met, '' where few tokens need it not."""

    def __init__(
        self, step: Experts, device: Device, activations: Activations, rotation: RotationOnDevice | None = None
    ) -> None:
        self.step, self._device, self._activations, self._rotation = step, device, activations, rotation
        self._dtype = torch.float32 if activations is Activations.EXACT else device.wide
        self._groups = tuple([_operand(one) for one in group] for group in (step.gates, step.ups, step.downs))
        self._gathered: list[ExpertWeights] = []
        self._tested: set[tuple[int, torch.dtype]] = set()
        self.reason = ""
        if activations is not Activations.FAST:
            self.reason = f"{BY_HOST}, as their activations are not 16-bit floats"
        elif not all(isinstance(one, PackedOperand) for group in self._groups for one in group):
            self.reason = f"{BY_HOST}, as the library multiplies floats"
        else:
            try:
                self._gathered = [gather_experts([one.weights for one in group]) for group in self._groups]  # type: ignore[misc]
            except ValueError as error:
                self.reason = f"{BY_HOST}, as {error}"

    def change(self, x: torch.Tensor, logits: torch.Tensor, cancelled: Callable[[], bool]) -> torch.Tensor:
        """What experts make of x [M, K], by the router's logits [M, experts] → float32 [M, N]. Raises Cancelled."""
        shares = torch.softmax(logits.float(), 1)
        sizes, chosen = torch.sort(shares, dim=1, descending=True, stable=True)
        sizes, chosen = sizes[:, : self.step.used], chosen[:, : self.step.used]
        if self.step.normalized:
            sizes = sizes / sizes.sum(1, keepdim=True)
        if len(x) <= VECTOR_BATCH and self._by_device(x):
            return self._few(x, sizes, chosen.to(torch.int32).reshape(-1))
        return self._many(x, sizes, chosen, cancelled)

    def _by_device(self, x: torch.Tensor) -> bool:
        """Whether the kernel may be used; its self-test runs once, in the step before the one that is captured."""
        pairs, half = len(x) * self.step.used, self._input(x).half.dtype
        if not self.reason and (pairs, half) not in self._tested:
            types = (half, half, self._input(torch.empty(0, dtype=self._dtype)).half.dtype)
            found = [usable_experts(*one) for one in zip(self._gathered, [pairs] * 3, types, strict=True)]
            self.reason = next((f"{BY_HOST}, as the kernel is switched off: {why}" for why in found if why), "")
            self._tested.add((pairs, half))
        return not self.reason

    def _few(self, x: torch.Tensor, sizes: torch.Tensor, met: torch.Tensor) -> torch.Tensor:
        gates, ups, downs = self._gathered
        half = self._input(x).half
        gate, up = (expert_product(half, each, met) for each in (gates, ups))
        inner = self._inner(gate, up)
        found = expert_product(self._input(inner).half, downs, met)
        return (found.view(*sizes.shape, -1) * sizes[:, :, None]).sum(1)

    def _many(
        self, x: torch.Tensor, sizes: torch.Tensor, chosen: torch.Tensor, cancelled: Callable[[], bool]
    ) -> torch.Tensor:
        gates, ups, downs = self._groups
        out = torch.zeros((len(x), self.step.downs[0].rows), dtype=torch.float32, device=x.device)
        met = self._device.read(chosen)
        for expert in np.unique(met):
            if cancelled():
                raise Cancelled
            rows, places = (self._device.send(torch.from_numpy(a.astype(np.int64))) for a in np.nonzero(met == expert))
            given = self._input(x.index_select(0, rows))
            inner = self._inner(gates[expert].product(given), ups[expert].product(given))
            y = downs[expert].product(self._input(inner))
            out.index_add_(0, rows, y * sizes[rows, places][:, None])
        return out

    def _inner(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """What comes into the down projections."""
        if self._rotation is None:
            return activated(self.step.kind, gate, up, self._dtype)
        return self._rotation.rotate(activated(self.step.kind, gate, up, torch.float32), self._dtype)

    def _input(self, x: torch.Tensor) -> Input:
        return Input(x, self._activations is Activations.EXACT, self._activations is Activations.TOKEN)


def activated(kind: str, gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """f(gate) · up as floats of another type."""
    out = torch.empty(gate.shape, dtype=dtype, device=gate.device)
    return operations.activate_mul(kind, gate, up, out)


def _operand(weight: Matrix) -> Operand:
    operand: Any = weight.stored
    return operand
