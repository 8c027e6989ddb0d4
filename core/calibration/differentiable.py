"""A block of a decoder as a differentiable function of its weights: what learned methods follow gradients through.

The steps are those that `core.calibration.forward` runs, on torch tensors that autograd knows. Weights may be bfloat16,
which takes half of the memory; products sum in float32, and what lies between them is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from kernels import cpu
from kernels.matrix import Matrix
from kernels.program import ActMul, Add, Attention, Experts, Linear, Norm, Rope, SoftCap, Split, Step
from kernels.rotation import Rotation

_QUERIES = 64  # whose attention is computed at once
_SMALL = 16 << 20  # values of a block

Check = Callable[[], None]
_PIECE = 1 << 34  # multiplications and additions between two looks at the cancel token: some 50 ms on one core


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """x · wᵀ for x [R, K] and w [N, K], float32 [R, N]. It and its gradients are products in float32, or in bfloat16
    where w is that and the processor multiplies it faster."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, check: Check) -> torch.Tensor:
        given = x.to(_operands(weight))
        ctx.save_for_backward(given, weight)
        ctx.check = check
        return _times(given, weight.t(), check).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        x, weight = ctx.saved_tensors
        given = grad.to(x.dtype)
        dx = _times(given, weight, ctx.check).float() if ctx.needs_input_grad[0] else None
        dw = _times(given.t(), x, ctx.check).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return dx, dw, None


def operands(matrices: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Matrices as products take them, of a block that is small; those of a large one are converted piece by piece for
    each product, which needs less memory."""
    small = sum(m.numel() for m in matrices.values()) <= _SMALL
    return {name: m.detach().to(_operands(m)) for name, m in matrices.items()} if small else matrices


def _operands(weight: torch.Tensor) -> torch.dtype:
    return weight.dtype if cpu.bfloat16_pays else torch.float32


def _times(a: torch.Tensor, b: torch.Tensor, check: Check) -> torch.Tensor:
    """a · b in the type of a, column by column of b where it would take long."""
    width = max(1, _PIECE // (2 * a.shape[0] * a.shape[1] or 1))
    pieces = []
    for part in b.split(width, dim=1):
        check()
        pieces.append(a @ part.to(a.dtype))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def no_check() -> None:
    """For work that nobody cancels."""


class Named:
    """Stands for a matrix whose values come later: `kernels.matrix.Stored`."""

    kind = "float"
    nbytes = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def take(self, rows: np.ndarray) -> np.ndarray:
        raise NotImplementedError(self.name)


def name_of(weight: Matrix) -> str:
    assert isinstance(weight.stored, Named)
    return weight.stored.name


@dataclass(frozen=True)
class BlockSteps:
    """The steps of one block and their labels. residual: the buffer that comes in and goes out. length: of a sample.
    rotated: matrices whose input is rotated before the product, by name."""

    steps: tuple[Step, ...]
    labels: tuple[str, ...]
    residual: int
    length: int
    check: Check = no_check
    rotated: Mapping[str, Rotation] = field(default_factory=dict)

    def checked(self, check: Check) -> BlockSteps:
        """The same, which calls `check` at least every 200 ms; what that raises ends it, backwards too."""
        return replace(self, check=check)

    def __call__(
        self, hidden: torch.Tensor, matrices: Mapping[str, torch.Tensor], vectors: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """hidden: float32 [R, D], whole samples. matrices: bfloat16 or float32 [N, K], vectors: float32, by name."""
        part = {self.residual: hidden}
        for step, label in zip(self.steps, self.labels, strict=True):
            self._step(step, label, part, matrices, vectors)
        return part[self.residual]

    def _step(self, step: Step, label: str, part: dict, matrices: Mapping, vectors: Mapping) -> None:
        if isinstance(step, Linear):
            for weight, out in zip(step.weights, step.outs, strict=True):
                y = self._multiply(weight, part[step.x], matrices, vectors)
                part[out] = part[out] + y if step.accumulate else y
        elif isinstance(step, Norm):
            part[step.out] = norm(part[step.x], vectors[label + ".weight"], step.eps, step.heads)
        elif isinstance(step, Rope):
            part[step.x] = rotate(part[step.x], step, self.length)
        elif isinstance(step, Attention):
            part[step.out] = attend(part[step.q], part[step.k], part[step.v], step, self.length, self.check)
        elif isinstance(step, ActMul):
            part[step.out] = activate(step.kind, part[step.gate]) * part[step.up]
        elif isinstance(step, Add):
            part[step.out] = part[step.out] + part[step.x]
        elif isinstance(step, Split):
            part.update(zip(step.outs, part[step.x].split(list(step.widths), dim=1), strict=True))
        elif isinstance(step, SoftCap):
            part[step.x] = step.cap * torch.tanh(part[step.x] / step.cap)
        elif isinstance(step, Experts):
            part[step.out] = self._experts(step, part, matrices, vectors)
        else:
            raise TypeError(type(step).__name__)

    def _multiply(self, weight: Matrix, x: torch.Tensor, matrices: Mapping, vectors: Mapping) -> torch.Tensor:
        name = name_of(weight)
        if rotation := self.rotated.get(name):
            x = hadamard(x, rotation)
        y = _Product.apply(x, matrices[name], self.check)
        bias = vectors.get(name.removesuffix(".weight") + ".bias")
        return y if bias is None else y + bias

    def _experts(self, step: Experts, part: dict, matrices: Mapping, vectors: Mapping) -> torch.Tensor:
        x, logits, out = part[step.x], part[step.logits], part[step.out]
        chosen = torch.argsort(logits.detach(), dim=1, descending=True, stable=True)[:, : step.used]
        scores = torch.gather(torch.softmax(logits, dim=1), 1, chosen)
        if step.normalized:
            scores = scores / scores.sum(dim=1, keepdim=True)
        for expert in range(len(step.gates)):
            rows, places = torch.nonzero(chosen == expert, as_tuple=True)
            if not len(rows):
                continue
            given = x[rows]
            gate, up = (self._multiply(m[expert], given, matrices, vectors) for m in (step.gates, step.ups))
            y = self._multiply(step.downs[expert], activate(step.kind, gate) * up, matrices, vectors)
            out = out.index_add(0, rows, scores[rows, places][:, None] * y)
        return out


def hadamard(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x R, float32 [R, K] of whole runs, as autograd knows it."""
    rows = x.reshape(-1, rotation.width) * torch.from_numpy(rotation.signs)
    before = len(rows)
    for factor in rotation.factors():
        parts = rows.reshape(before, len(factor), -1)
        rows = torch.from_numpy(factor).T @ parts
        before *= len(factor)
    return rows.reshape(x.shape)


def norm(x: torch.Tensor, gain: torch.Tensor, eps: float, heads: int) -> torch.Tensor:
    rows = x.view(len(x), heads, -1)
    rms = torch.rsqrt(rows.square().mean(2, keepdim=True) + eps)
    return (rows * rms * gain).reshape(len(x), -1)


def activate(kind: str, x: torch.Tensor) -> torch.Tensor:
    """As `kernels.program.ActMul` names functions."""
    if kind == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def _turned(
    a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)


@lru_cache(maxsize=4)
def _angles(frequencies: bytes, scale: float, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled cos and sin, float32 [1, length, 1, count] each. frequencies: of float64."""
    angle = np.arange(length)[:, None].astype(np.float64) * np.frombuffer(frequencies, np.float64)
    cos, sin = (torch.from_numpy((scale * f(angle)).astype(np.float32))[None, :, None] for f in (np.cos, np.sin))
    return cos, sin


def rotate(x: torch.Tensor, step: Rope, length: int) -> torch.Tensor:
    """x: float32 [R, heads · width], whole samples of `length` tokens."""
    count = len(step.frequencies)
    cos, sin = _angles(step.frequencies.astype(np.float64).tobytes(), step.scale, length)
    heads = x.view(-1, length, step.heads, x.shape[1] // step.heads)
    rest = heads[..., 2 * count :]
    if step.pairs:
        pairs = heads[..., : 2 * count].unflatten(-1, (count, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        turned = torch.stack(_turned(a, b, cos, sin), dim=-1).flatten(-2)
    else:
        a, b = heads[..., :count], heads[..., count : 2 * count]
        turned = torch.cat(_turned(a, b, cos, sin), dim=-1)
    return (torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned).reshape(x.shape)


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, step: Attention, check: Check) -> torch.Tensor:
    """What a mask hides is multiplied, too: few queries at a time, with the keys that they see, leave most of it out,
    and need no matrix of all queries and keys."""
    length, window = query.shape[2], step.window or query.shape[2]
    found = []
    for start in range(0, length, _QUERIES):
        check()
        stop, first = min(start + _QUERIES, length), max(0, start - window + 1)
        back = torch.arange(start, stop)[:, None] - torch.arange(first, stop)
        hidden = (back < 0) | (back >= window)
        some, keys, values = query[:, :, start:stop], key[:, :, first:stop], value[:, :, first:stop]
        if step.softcap:
            share = step.heads // step.kv_heads
            keys, values = (t.repeat_interleave(share, dim=1) for t in (keys, values))
            scores = step.softcap * torch.tanh(step.scale * (some @ keys.transpose(2, 3)) / step.softcap)
            found.append(torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=3) @ values)
        else:
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            shared = step.heads != step.kv_heads
            found.append(
                functional.scaled_dot_product_attention(
                    some, keys, values, attn_mask=mask, scale=step.scale, enable_gqa=shared
                )
            )
    return torch.cat(found, dim=2)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Attention, length: int, check: Check = no_check
) -> torch.Tensor:
    """Each sample on its own; a token sees itself and those before it, or the last `window` of them."""
    query, key, value = (
        t.reshape(-1, length, heads, step.head_dim).transpose(1, 2)
        for t, heads in ((q, step.heads), (k, step.kv_heads), (v, step.kv_heads))
    )
    return _causal(query, key, value, step, check).transpose(1, 2).reshape(len(q), -1)
