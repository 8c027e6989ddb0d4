"""Where in the depth of a model the error arises: hidden states after every layer, source against artifact.

Both run over the same tokens in float32 with one weight in memory at a time (`core.inspect.layerwise`), in step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.inspect.layerwise import Layerwise, lazy_weights
from core.progress import CancelToken
from core.runtime.decoder import FAMILIES, decoder_program
from core.runtime.load import decoder_config
from core.runtime.weights import plan_weights
from kernels.matrix import Activations, Matrix
from kernels.program import Program, Step

OTHER_BASIS = 0.5  # relative error of the embeddings from which they are no rounding of one another


@dataclass(frozen=True)
class LayerError:
    """After this layer, counted from 0 as in tensors' names; None: after the embedding.

    mean, worst: over the tokens, of ‖h′ − h‖ / ‖h‖.
    """

    layer: int | None
    mean: float
    worst: float


@dataclass(frozen=True)
class LayerErrors:
    """layers: in order; empty with the reason in `note`. tokens: that they are of."""

    layers: tuple[LayerError, ...]
    tokens: int
    note: str = ""


class _Hidden(Layerwise):
    """Nothing is tapped; the residual stream is handed out."""

    def __init__(self, program: Program, token: CancelToken) -> None:
        super().__init__(program, token)
        self._residual = program.steps[0].out  # type: ignore[union-attr]  # an Embed

    def states(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        """After the embedding and after each layer, float32 [tokens, hidden]; what was handed out changes later."""
        self._tokens = np.asarray(ids, np.int32)
        self._positions = np.arange(len(ids), dtype=np.int32)
        self._buffers = [np.zeros((len(ids), width), np.float32) for width in self.program.widths]
        before = -1  # the layer that is under way; −1: the embedding
        for step, label in zip(self.program.steps, self.program.labels, strict=True):
            layer = int(label.split(".")[1]) if label.startswith("blk.") else None
            if layer is not None and layer > before:
                yield self._buffers[self._residual]
                before = layer
            self._token.check()
            with np.errstate(over="ignore", invalid="ignore"):
                self._step(step)
        yield self._buffers[self._residual]

    def _prepare(self, step: Step) -> None:
        pass

    def _product(self, x: np.ndarray, weight: Matrix, outliers: float = 0.0) -> np.ndarray:
        y = np.empty((len(x), weight.rows))
        for start, rows in self._blocks(weight):
            y[:, start : start + len(rows)] = x @ rows.T
        return y


def layer_errors(
    source: Checkpoint, artifact: Checkpoint, ids: np.ndarray, token: CancelToken
) -> Generator[float, None, LayerErrors]:
    """Yields the share that is done. ids: int32 [tokens]. Raises UserError for a layer that is not finite; Cancelled.

    Models that run through transformers are not run layer by layer: the result says so, and has no layers.
    """
    count = len(ids)
    for checkpoint in (source, artifact):
        if not _own(checkpoint):
            kind = checkpoint.architecture or "this kind"
            return LayerErrors((), count, f"Models of {kind} run through transformers and are not run layer by layer.")
    sides = [_hidden(checkpoint, count, token) for checkpoint in (source, artifact)]
    depth = decoder_config(source).layers
    if decoder_config(artifact).layers != depth:
        return LayerErrors((), count, "The two models have different numbers of layers.")
    found: list[LayerError] = []
    for number, (h, other) in enumerate(zip(*(side.states(ids) for side in sides), strict=True)):
        for checkpoint, values in ((source, h), (artifact, other)):
            if not np.isfinite(values).all():
                raise not_finite(checkpoint, _layer(number))
        if h.shape != other.shape:
            return LayerErrors((), count, "The two models have hidden states of different widths.")
        errors = _relative(h, other)
        if not number and errors.mean() > OTHER_BASIS:
            return LayerErrors((), count, "The artifact's hidden states are in another basis, as after a rotation.")
        found.append(LayerError(_layer(number), float(errors.mean()), float(errors.max())))
        yield (number + 1) / (depth + 1)
    return LayerErrors(tuple(found), count)


def logits_not_finite(checkpoint: Checkpoint, ids: np.ndarray, token: CancelToken) -> UserError:
    """`not_finite` with the first layer whose output over these tokens is not finite, where that is known."""
    if not _own(checkpoint):
        return not_finite(checkpoint, "")
    states = _hidden(checkpoint, len(ids), token).states(ids)
    bad = next((number for number, values in enumerate(states) if not np.isfinite(values).all()), None)
    return not_finite(checkpoint, "the output head" if bad is None else _layer(bad))


def not_finite(checkpoint: Checkpoint, place: int | str | None) -> UserError:
    """What is said of a model whose logits or hidden states are not finite. place: a layer, None: the embedding."""
    name = "the embedding" if place is None else f"layer {place}" if isinstance(place, int) else place
    where = f" from {name} on" if name else ""
    return UserError(
        f"{checkpoint.path.name} computes values that are not finite{where}.",
        "Run `bitsmith info --scan` to find the damaged tensor, and convert the source again.",
    )


def _layer(number: int) -> int | None:
    """Of the states in their order, the first being the embedding's."""
    return number - 1 if number else None


def _own(checkpoint: Checkpoint) -> bool:
    return checkpoint.architecture in ("", *FAMILIES) and decoder_config(checkpoint).architecture in FAMILIES


def _hidden(checkpoint: Checkpoint, tokens: int, token: CancelToken) -> _Hidden:
    config = decoder_config(checkpoint)
    weights = lazy_weights(plan_weights(checkpoint, config), token)
    return _Hidden(decoder_program(config, weights, tokens, 1, Activations.EXACT, "F32"), token)


def _relative(h: np.ndarray, other: np.ndarray) -> np.ndarray:
    """‖h′ − h‖ / ‖h‖ of each token, 0 where h′ = h: float64 [tokens]."""
    error = np.linalg.norm(other.astype(np.float64) - h, axis=1)
    size = np.linalg.norm(h.astype(np.float64), axis=1)
    ratio: np.ndarray = np.divide(error, size, out=np.where(error > 0, np.inf, 0.0), where=size > 0)
    return ratio
