"""Changes of weights after which the model computes the same, and is easier to quantize. The file stays plain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from core.formats.numbers import Numbers
from core.models.config import DecoderConfig
from core.progress import CancelToken
from kernels.matrix import Matrix
from kernels.rotation import Rotation

SAMPLE_ROWS = 256


@dataclass(frozen=True)
class InputStatistics:
    """The input of one or several weights over the calibration text, in the unquantized block.

    tokens: how many. mean_abs, max_abs: float32 [K], of |x|. sample: float32 [R, K], some of the tokens, evenly over
    the text, R ≤ SAMPLE_ROWS.
    """

    tokens: int
    mean_abs: np.ndarray
    max_abs: np.ndarray
    sample: np.ndarray

    def divided(self, scale: np.ndarray) -> InputStatistics:
        """Those of x / scale, float32 [K], positive."""
        return InputStatistics(
            self.tokens, self.mean_abs / scale, self.max_abs / scale, np.ascontiguousarray(self.sample / scale)
        )


@dataclass
class BlockWeights:
    """The weights of one block by GGUF's names ('blk.3.attn_q.weight', 'blk.3.attn_q.bias', 'blk.3.attn_norm.weight').

    matrices: float32 [N, K]; vectors: float32, gains as they are multiplied with, and biases. rotated: matrices that
    are W R, so that their input has to be x R. packed: of matrices, their values and these in the engine's layout,
    which count while `matrices` has the same values. Whoever changes something replaces entries, and never writes into
    one.
    """

    matrices: dict[str, np.ndarray]
    vectors: dict[str, np.ndarray]
    rotated: dict[str, Rotation] = field(default_factory=dict)
    packed: dict[str, tuple[np.ndarray, Matrix]] = field(default_factory=dict)

    def copy(self) -> BlockWeights:
        """Another set of the same entries."""
        return BlockWeights(dict(self.matrices), dict(self.vectors), dict(self.rotated))


class BlockTransform(Protocol):
    """One transform with its settings.

    needs_statistics: of the block's inputs, by the name of each weight. enough_tokens: how many, from all over the
    text, tell as much as all do; None where it takes all.
    """

    needs_statistics: bool
    enough_tokens: ClassVar[int | None]

    def why_not(self, config: DecoderConfig) -> str:
        """'' where a model of this kind can be transformed, else one clause that says why not."""
        ...

    def note(self, config: DecoderConfig) -> str:
        """What it does to a model of this kind only in part, and why, as one sentence; '' for nothing."""
        ...

    def unties(self, config: DecoderConfig) -> bool:
        """Whether the head can no longer be the embedding, so that the file gets a head of its own."""
        ...

    def seconds_for(self, config: DecoderConfig, tokens: int) -> float:
        """CPU seconds of one core that it takes for the whole model, about, without running the model."""
        ...

    def rotated(self, config: DecoderConfig, names: Iterable[str]) -> Mapping[str, Rotation]:
        """Which of a decoder's weights it stores as W R, for an input that is rotated while the model runs."""
        ...

    def outer(self, config: DecoderConfig, weights: BlockWeights, token: CancelToken) -> None:
        """Change what is in no block: embedding, last norm, and the head ('output.weight'), which is there when it
        `unties`."""
        ...

    def block(
        self,
        config: DecoderConfig,
        layer: int,
        weights: BlockWeights,
        statistics: Mapping[str, InputStatistics],
        numbers: Mapping[str, Numbers],
        token: CancelToken,
    ) -> Mapping[str, InputStatistics]:
        """Change a block's weights. statistics: of these weights as they come. numbers: of the weights that will be
        quantized, by name. Returns the statistics of the changed block, where statistics were given: no second run."""
        ...
