"""How activations meet quantized weights: the contract that every result of a run is stored with."""

from __future__ import annotations

from dataclasses import dataclass

from core.runtime.device import Place
from kernels.matrix import Activations

LLM_INT8_THRESHOLD = 6.0  # of |x|: Dettmers et al. 2022, "LLM.int8()", section 3.2


@dataclass(frozen=True)
class Arithmetic:
    """outliers: columns of x whose magnitude reaches it are multiplied in float32 (LLM.int8()); 0: none."""

    activations: Activations = Activations.FAST
    outliers: float = 0.0

    @property
    def text(self) -> str:
        """In words, for results and reports."""
        apart = f", columns from {self.outliers:g} in float32" if self.outliers else ""
        return f"{self.activations.value}{apart}"


def contract_text(arithmetic: Arithmetic, place: Place) -> str:
    """In words, for where it is computed: a GPU takes 16-bit floats where the processor takes int8 per 32 values."""
    if not place.gpu or arithmetic.activations is not Activations.FAST:
        return arithmetic.text
    return "16-bit floats on the GPU"


ARITHMETICS = {
    "fast": Arithmetic(),
    "exact": Arithmetic(Activations.EXACT),
    "token": Arithmetic(Activations.TOKEN),
    "llm.int8": Arithmetic(Activations.TOKEN, LLM_INT8_THRESHOLD),
}
