"""Scales and gains that are learned through the whole model, so that its next-token probabilities stay.

The loss is what the verdict measures: KL divergence of the quantized model's probabilities from the source's. Gradients
reach every block, so blocks make up for each other's errors, which block-wise methods can not. The price is that the
model is in memory as a whole: `needed_bytes` says how much; larger ones are learned block by block (`core.methods.
learned`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from core.calibration.differentiable import BlockSteps, norm
from core.calibration.forward import BlockForward
from core.formats.numbers import Codes, Integers, Numbers
from core.methods.learned import Adam, LearnedMatrix, LearnedSettings
from core.methods.transform import BlockWeights
from core.progress import CancelToken

# Codes stay: the gradient of some hundred tokens pushes whole rows of codes the same way, and the KL divergence of
# SmolLM2-135M rose in eight updates from 0.23 to 0.63 even at a rate of 0.003. Scales and gains at three times this
# rate made it worse, at a third they learned more slowly.
WHOLE_MODEL = LearnedSettings(code_rate=0.0)

_LOGIT_ROWS = 128  # tokens whose logits are held at a time
_BYTES = 14  # of a weight: source and quantized bfloat16, gradient, latent float32, code, and float32 of one block


@dataclass(frozen=True)
class ModelChoice:
    """codes: of each quantized matrix. vectors: float32, gains and biases of the blocks and the last norm's gain, where
    they changed. losses: mean KL in nats of the tokens of each update, before it: a fresh measurement while no sample
    comes a second time."""

    codes: dict[str, Codes]
    vectors: dict[str, np.ndarray]
    losses: tuple[float, ...]


def needed_bytes(weights: int, vocab: int, hidden: int, layers: int, tokens: int) -> int:
    """Memory for a model with so many weights in its blocks, and for updates of so many tokens."""
    return _BYTES * weights + 6 * vocab * hidden + layers * tokens * hidden * 100 + 16 * _LOGIT_ROWS * vocab


def learn_end_to_end(
    forward: BlockForward,
    weights: Callable[[int], BlockWeights],
    outer: BlockWeights,
    numbers: Mapping[str, Numbers],
    start: Mapping[str, Codes],
    vectors: Mapping[str, np.ndarray],
    settings: LearnedSettings,
    token: CancelToken,
) -> Generator[tuple[int, int], None, ModelChoice]:
    """Yields (updates made, updates in all). weights: of a layer, float, and outer: embedding, last norm and head, as
    `BlockForward` loads them or as transforms left them. start, vectors: codes, and gains and biases where they are
    others than the source's, to begin with. Raises ValueError for numbers that are no integers, and
    Cancelled.
    """
    model = _Model(forward, weights, outer, numbers, start, vectors, settings, token)
    losses = []
    for step in range(model.updates):
        yield step, model.updates
        losses.append(model.update(step))
    return ModelChoice(model.codes(), model.vectors(), tuple(losses))


class _Model:
    def __init__(
        self,
        forward: BlockForward,
        weights: Callable[[int], BlockWeights],
        outer: BlockWeights,
        numbers: Mapping[str, Numbers],
        start: Mapping[str, Codes],
        vectors: Mapping[str, np.ndarray],
        settings: LearnedSettings,
        token: CancelToken,
    ) -> None:
        self._settings, self._token = settings, token
        self._blocks: list[BlockSteps] = []
        self._floats: dict[str, torch.Tensor] = {}
        self._learned: dict[str, LearnedMatrix] = {}
        self._source: dict[str, torch.Tensor] = {}
        for layer in range(forward.layers):
            token.check()
            self._blocks.append(forward.steps(layer).checked(token.check))
            block = weights(layer)
            for name, values in block.matrices.items():
                self._floats[name] = torch.from_numpy(values).to(torch.bfloat16)
                kind = numbers.get(name)
                if kind is None:
                    continue
                if not isinstance(kind, Integers):
                    raise ValueError(f"{name}: {kind.label} has no rounding that can be learned")
                self._learned[name] = LearnedMatrix(values, start[name], kind, settings.code_rate > 0, token.check)
            self._source |= {n: torch.from_numpy(v) for n, v in block.vectors.items()}
        self._eps = forward.last_norm().eps
        self._source["output_norm.weight"] = torch.from_numpy(outer.vectors["output_norm.weight"])
        self._gains = {
            n: torch.from_numpy(vectors[n]).clone() if n in vectors else v.clone() for n, v in self._source.items()
        }
        head = outer.matrices.get("output.weight", outer.matrices["token_embd.weight"])
        self._head = torch.from_numpy(head).to(torch.bfloat16)
        bias = outer.vectors.get("output.bias")
        self._bias = None if bias is None else torch.from_numpy(bias)
        self._cap = forward.config.final_softcap
        forward.embed(table=outer.matrices["token_embd.weight"])
        self._samples, self._length = forward.ids.shape
        self._hidden = forward.hidden.view(self._samples, self._length, -1)
        self._batch = min(self._samples, max(1, settings.tokens // self._length))
        self.updates = max(1, round(settings.epochs * self._samples / self._batch))
        rng = np.random.default_rng(settings.seed)
        passes = -(-self.updates * self._batch // self._samples)
        self._order = np.concatenate([rng.permutation(self._samples) for _ in range(passes)])
        self._tuned = list(self._gains.values()) if settings.gain_rate else []
        self._adams = [Adam(tuple(v.shape)) for v in self._tuned]
        for v in self._tuned:
            v.requires_grad_()

    def update(self, step: int) -> float:
        """Learn from the next samples; returns their loss before."""
        settings, left = self._settings, 1 - step / self.updates
        some = torch.from_numpy(self._order[step * self._batch : (step + 1) * self._batch])
        hidden = self._hidden[some].flatten(0, 1)
        with torch.no_grad():
            wanted = self._run(hidden, self._floats, self._source)
        found = self._run(hidden, self._floats | {n: m.weight for n, m in self._learned.items()}, self._gains)
        loss, slope = self._divergence(found.detach(), wanted)
        found.backward(slope)
        for matrix in self._learned.values():
            matrix.update(settings.code_rate * left, settings.scale_rate * left, self._token.check)
        with torch.no_grad():
            for v, adam in zip(self._tuned, self._adams, strict=True):
                if v.grad is not None:
                    v.sub_(settings.gain_rate * left * v.abs() * adam.direction(v.grad))
                    v.grad = None
        return loss

    def codes(self) -> dict[str, Codes]:
        return {name: matrix.codes() for name, matrix in self._learned.items()}

    def vectors(self) -> dict[str, np.ndarray]:
        return {n: v.detach().numpy() for n, v in self._gains.items()} if self._tuned else {}

    def _run(
        self, hidden: torch.Tensor, matrices: Mapping[str, torch.Tensor], vectors: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """The head's input."""
        for block in self._blocks:
            self._token.check()
            hidden = block(hidden, matrices, vectors)
        return norm(hidden, vectors["output_norm.weight"], self._eps, 1)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        y = (x.to(torch.bfloat16) @ self._head.t()).float()
        if self._bias is not None:
            y += self._bias
        return self._cap * torch.tanh(y / self._cap) if self._cap else y

    def _divergence(self, found: torch.Tensor, wanted: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Mean KL(source ‖ quantized) over tokens, and its gradient by `found`, piece by piece of the tokens."""
        with torch.no_grad():
            total, slope = 0.0, torch.empty_like(found)
            for start in range(0, len(found), _LOGIT_ROWS):
                self._token.check()
                part = slice(start, start + _LOGIT_ROWS)
                logits = self._logits(found[part])
                should, does = torch.log_softmax(self._logits(wanted[part]), 1), torch.log_softmax(logits, 1)
                share = should.exp()
                total += float((share * (should - does)).sum(dtype=torch.float64))
                change = does.exp_().sub_(share)
                if self._cap:
                    change *= 1 - (logits / self._cap).square_()
                slope[part] = change.to(torch.bfloat16) @ self._head
            return total / len(found), slope / len(found)
