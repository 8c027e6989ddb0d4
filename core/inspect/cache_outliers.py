"""Which channels of keys and which tokens of values stand out, in each layer and head, before and after a rotation.

A cache's codes share a scale among channels of a token or among tokens of a channel. What stands out there takes the
codes from the rest, and a Hadamard rotation of each head spreads it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint
from core.inspect.layerwise import TOKENS, ActivationProgress, Layerwise, lazy_weights, text_for
from core.progress import CancelToken
from core.runtime.decoder import decoder_program
from core.runtime.weights import plan_weights
from kernels.matrix import Activations as Arithmetic
from kernels.matrix import Matrix
from kernels.program import Attention, Program, Step
from kernels.reference.kv import hadamard


@dataclass(frozen=True)
class Loudest:
    """The cell that stands out most. ratio: to the median of its head."""

    layer: int
    head: int
    place: int  # channel or token
    ratio: float


@dataclass(frozen=True, eq=False)
class HeadMap:
    """The largest |x| of each channel, or token, of every head: float32 [layers · heads, places], layer by layer.

    NaN where a layer has fewer heads or narrower ones than another.
    """

    heads: int
    values: np.ndarray

    @property
    def ratios(self) -> np.ndarray:
        """Divided by each head's median; 0 where that is 0."""
        middle = np.nanmedian(self.values, axis=1, keepdims=True)
        return np.where(middle > 0, self.values / np.where(middle > 0, middle, 1), 0).astype(np.float32)

    @property
    def loudest(self) -> Loudest:
        ratios = np.nan_to_num(self.ratios)
        row, place = np.unravel_index(int(ratios.argmax()), ratios.shape)
        return Loudest(int(row) // self.heads, int(row) % self.heads, int(place), float(ratios[row, place]))


@dataclass(frozen=True, eq=False)
class CacheOutliers:
    """Each pair: as they are cached (keys turned by their positions), and after a Hadamard rotation of each head.

    keys: by channel, the largest over the tokens. values: by token, the largest over the channels. tokens: of the text.
    """

    keys: tuple[HeadMap, HeadMap]
    values: tuple[HeadMap, HeadMap]
    tokens: int
    cut: bool = False


def measure_cache(
    checkpoint: Checkpoint, text: str | None = None, limit: int = TOKENS, token: CancelToken | None = None
) -> Generator[ActivationProgress, None, CacheOutliers]:
    """Over the first `limit` tokens of a text (None: the bundled one), layer by layer, in float32.

    Raises what `core.inspect.layerwise.measure_activations` does.
    """
    token = token or CancelToken()
    config, ids, cut = text_for(checkpoint, text, limit)
    weights = lazy_weights(plan_weights(checkpoint, config), token)
    run = _Watched(decoder_program(config, weights, len(ids), 1, Arithmetic.EXACT, "F32"), token)
    for done in run.layers(ids):
        yield ActivationProgress(done, config.layers)
        if done == config.layers:
            break  # the head keeps nothing
    keys, values = run.keys, run.values
    return CacheOutliers(
        (_joined([k[0] for k in keys]), _joined([k[1] for k in keys])),
        (_joined([v[0] for v in values]), _joined([v[1] for v in values])),
        len(ids),
        cut,
    )


class _Watched(Layerwise):
    """Keeps what attention is given, and measures no product."""

    def __init__(self, program: Program, token: CancelToken) -> None:
        super().__init__(program, token)
        self.keys: list[tuple[np.ndarray, np.ndarray]] = []  # of each layer, plain and turned: [heads, channels]
        self.values: list[tuple[np.ndarray, np.ndarray]] = []  # [heads, tokens]

    def _prepare(self, step: Step) -> None:
        pass

    def _product(self, x: np.ndarray, weight: Matrix, outliers: float = 0.0) -> np.ndarray:
        y = np.empty((len(x), weight.rows))
        for start, rows in self._blocks(weight):
            y[:, start : start + len(rows)] = x @ rows.T
        return y

    def _attend(self, step: Attention) -> None:
        shape = (len(self._tokens), step.kv_heads, step.head_dim)
        keys, values = (self._buffers[buffer].reshape(shape) for buffer in (step.k, step.v))
        self.keys.append((np.abs(keys).max(axis=0), np.abs(hadamard(keys)).max(axis=0)))
        self.values.append((np.abs(values).max(axis=2).T, np.abs(hadamard(values)).max(axis=2).T))
        super()._attend(step)


def _joined(layers: list[np.ndarray]) -> HeadMap:
    heads, width = (max(part.shape[axis] for part in layers) for axis in (0, 1))
    whole = np.full((len(layers), heads, width), np.nan, np.float32)
    for number, part in enumerate(layers):
        whole[number, : part.shape[0], : part.shape[1]] = part
    return HeadMap(heads, whole.reshape(-1, width))
