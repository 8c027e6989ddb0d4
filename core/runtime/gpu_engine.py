"""A GPU's engine as the runtime uses it: what goes wrong there is said in a sentence.

Only imported where a GPU is used: its kernels import torch and Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.runtime.device import Place, not_usable, out_of_memory
from core.runtime.reading import Conversion
from kernels.engine_report import KernelUse
from kernels.gpu.runtime.device import Device
from kernels.gpu.runtime.engine import GpuEngine
from kernels.gpu.runtime.failures import OutOfMemory, SwitchedOff, forget
from kernels.program import Program


class PlacedEngine(GpuEngine):
    """conversions: matrices that are not as in their file, for the report. `run` raises UserError where memory ends."""

    def __init__(self, program: Program, device: Device, place: Place, conversions: Sequence[Conversion] = ()) -> None:
        self._place, self._conversions = place, tuple(conversions)
        super().__init__(program, device)

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        try:
            return super().run(tokens, sequences, positions, wanted)
        except OutOfMemory as error:
            forget(error)
            self.device.empty()
            raise out_of_memory(self._place, error.wanted, error.free, self.program) from None
        except SwitchedOff as error:
            raise not_usable(self._place, str(error)) from error

    def report(self) -> tuple[KernelUse, ...]:
        lines = list(super().report())
        met: dict[tuple[str, str, str], int] = {}
        for conversion in self._conversions:
            key = conversion.stored, conversion.kept, conversion.reason
            met[key] = met.get(key, 0) + 1
        for (stored, kept, reason), count in met.items():
            shape = f"{count} matrices" if count > 1 else "1 matrix"
            lines.append(KernelUse("fallback", shape, f"{stored} decoded to {kept} when loaded", self.isa, reason))
        return tuple(lines)
