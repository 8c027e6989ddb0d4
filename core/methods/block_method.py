"""What a method sees that chooses all codes of a block at once, following gradients through the block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from core.formats.numbers import Codes, Numbers
from core.methods.transform import BlockWeights
from core.progress import CancelToken

if TYPE_CHECKING:
    import torch

    from core.calibration.differentiable import BlockSteps


@dataclass(frozen=True)
class BlockProblem:
    """Find codes, and gains and biases, so that the quantized block gives what the unquantized one does.

    layer: which. run: the block as a function of its weights. weights: float ones, after transforms. numbers: of the
    matrices that are quantized, by GGUF's names; the others stay. start: codes to begin with (GPTQ's, say); a matrix
    that is not there is rounded with a search. hidden: float32 [R, D], what comes into the block in the partly
    quantized model, whole samples one after the other; full: the same in the unquantized model. Neither is written to.
    """

    layer: int
    run: BlockSteps
    weights: BlockWeights
    numbers: Mapping[str, Numbers]
    start: Mapping[str, Codes]
    hidden: torch.Tensor
    full: torch.Tensor


@dataclass(frozen=True)
class BlockChoice:
    """codes: of each quantized matrix. vectors: float32, gains and biases that changed.

    before, after: mean over tokens of ‖block(hidden) − full block(full)‖² / ‖full block(full)‖², with the codes that
    were begun with and with these, over some of the samples; after ≤ before. hidden, full: float32 [R, D], what comes
    out of the block in the quantized and in the unquantized model, so that nobody has to run it again.
    """

    codes: dict[str, Codes]
    vectors: dict[str, np.ndarray]
    before: float
    after: float
    hidden: torch.Tensor
    full: torch.Tensor


class BlockMethod(Protocol):
    def why_not(self, numbers: Numbers) -> str:
        """'' where it can choose these numbers, else one clause that says why not."""
        ...

    def solve(self, problem: BlockProblem, token: CancelToken) -> BlockChoice:
        """The same for the same problem and settings, on the same machine. Raises Cancelled."""
        ...
