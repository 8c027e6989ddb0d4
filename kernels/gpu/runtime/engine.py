"""A program on a GPU, ready to run: what `kernels.engine.Engine` is for the processor.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.engine import Engine
from kernels.engine_report import KernelUse
from kernels.gpu.runtime.executor import BUCKETS, GpuExecutor
from kernels.gpu.runtime.operands import Input
from kernels.gpu.runtime.report import attention_words
from kernels.matrix import Activations, Matrix
from kernels.program import Attention, Embed, Experts, Linear, Program

if TYPE_CHECKING:
    from kernels.gpu.runtime.device import Device


def timed_product(device: Device, matrix: Matrix, x: np.ndarray, activations: Activations) -> Callable[[], float]:
    """Seconds of one product of activations float32 [M, K], captured, with weights that no cache holds; each call
    takes it once. Raises RuntimeError where no graph takes it.
    """
    operand, fill = matrix.stored, device.filler()
    with device.work():
        given = device.send(torch.from_numpy(x)).to(torch.float16)

        def work() -> None:
            exact = activations is Activations.EXACT
            operand.product(Input(given, exact, activations is Activations.TOKEN))  # type: ignore[attr-defined]

        work()
        device.wait()
        graph = device.capture(work)
    return lambda: device.seconds(graph.replay, fill)


class GpuEngine(Engine):
    """Runs a program whose matrices are on the device (`kernels.gpu.runtime.matrices`). Raises OutOfMemory."""

    def __init__(self, program: Program, device: Device) -> None:
        self.program, self.device, self.threads = program, device, 1
        self.backend = f"gpu:{device.card}"
        self._reason = ""
        device.forget_peak()
        self._gpu: GpuExecutor | None = GpuExecutor(program, device)
        self._executor = self._gpu
        self._bandwidth: float | None = None
        self._peak: float | None = None

    @property
    def isa(self) -> str:
        return self.device.card

    def report(self) -> tuple[KernelUse, ...]:
        """As the processor's; and how a step of one token is launched."""
        card, found = self.device.card, dict[KernelUse, None]()
        exact = self.program.activations is Activations.EXACT
        token = self.program.activations is Activations.TOKEN

        def product(op: str, weight: Matrix, outliers: float = 0.0) -> None:
            kernel, why = weight.stored.told(exact, token)  # type: ignore[attr-defined]
            apart = f", columns from {outliers:g} as floats" if outliers and "int8" in kernel else ""
            shape = f"{weight.rows} × {weight.columns}"
            found.setdefault(KernelUse(op, shape, f"{weight.format} {kernel}{apart}", card, why))

        for step in self.program.steps:
            if isinstance(step, Embed):
                shape = f"{step.weight.rows} × {step.weight.columns}"
                found.setdefault(
                    KernelUse("embedding rows", shape, f"{step.weight.format} decoded", card, "on the device")
                )
            elif isinstance(step, Linear):
                for weight in step.weights:
                    product("linear", weight, step.outliers)
            elif isinstance(step, Experts):
                for weight in (step.gates[0], step.ups[0], step.downs[0]):
                    product(f"experts, {step.used} of {len(step.gates)}", weight)
            elif isinstance(step, Attention):
                window = f", window {step.window}" if step.window else ""
                shape = f"{step.heads} heads on {step.kv_heads} × {step.head_dim}{window}"
                found.setdefault(KernelUse("attention", shape, *attention_words(self.program, step, card)))
        how, why = "one captured graph", f"1 to {BUCKETS[-1]} sequences, one launch a step"
        if self._gpu is not None and self._gpu.eager_reason:
            how, why = "kernel by kernel", self._gpu.eager_reason
        return (*found, KernelUse("decode step", f"{len(self.program.steps)} steps", how, card, why))

    def read_bandwidth(self) -> float:
        """Bytes/s that a copy on the device moves; measured once."""
        if self._bandwidth is None:
            self._bandwidth = self.device.bandwidth()
        return self._bandwidth

    def peak_bytes(self) -> int:
        """The most of the device's memory that was in use at once, by all models of this program there."""
        return self.device.peak_bytes()

    def peak(self) -> float:
        """Operations/s of the library's large product; measured once."""
        if self._peak is None:
            self._peak = self.device.peak()
        return self._peak

    def close(self) -> None:
        """Gives cache and graphs back; weights belong to the program. `give_back` is for when both are gone."""
        super().close()
        self._gpu = None

    @property
    def give_back(self) -> Callable[[], None]:
        """Lets the driver have what the program had; keeps neither engine nor program."""
        return self.device.empty
