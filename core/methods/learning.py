"""How `core.methods.learned` learns: codes with latent values, and the descent on a block's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from core.calibration.differentiable import BlockSteps, Check, no_check, operands
from core.calibration.forward import one_thread
from core.contract import ElementType
from core.formats.base import EncodeOptions, Method
from core.formats.numbers import Codes, Integers
from core.methods.block_method import BlockChoice, BlockProblem
from core.methods.grid import quantized, valued
from core.methods.learned import LearnedSettings
from core.progress import CancelToken
from core.threads import in_parallel, worker_count
from kernels import learn

_INSIDE = 0.49  # how far a latent is from its code at most, to begin with
_PIECE = 4 << 20  # weights between two looks at the cancel token
_JUDGED = 2048  # tokens by which the codes are compared with those that were begun with
_TYPES = {ElementType.BF16: torch.bfloat16, ElementType.F16: torch.float16, ElementType.F32: torch.float32}


class Adam:
    """Adam's direction for one tensor of factors (https://arxiv.org/abs/1412.6980), with β = 0.9, 0.95."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._mean, self._square, self._count = torch.zeros(shape), torch.zeros(shape), 0

    def direction(self, grad: torch.Tensor) -> torch.Tensor:
        self._count += 1
        self._mean.lerp_(grad, 0.1)
        self._square.lerp_(grad.square(), 0.05)
        mean, square = self._mean / (1 - 0.9**self._count), self._square / (1 - 0.95**self._count)
        return mean / (square.sqrt() + 1e-12)


class LearnedMatrix:
    """One matrix while it is learned.

    weight: bfloat16 [N, K], what products are computed with; its gradient is what `update` takes.
    """

    def __init__(
        self, weight: np.ndarray, codes: Codes, numbers: Integers, learn_codes: bool, check: Check = no_check
    ) -> None:
        self._numbers, self._start, self._top = numbers, codes, (1 << numbers.bits) - 1
        self._first = torch.from_numpy(np.array(codes.scales, np.float32))
        self._scale = self._first.clone()
        zeros = np.full(self._scale.shape, 1 << (numbers.bits - 1)) if codes.zeros is None else codes.zeros
        self._zero = zeros.astype(np.float32)
        # latents less the first codes: float16 tells apart what the last, smallest steps are
        self._latent: np.ndarray | None = self._begun(weight, check) if learn_codes else None
        self._adam = Adam(tuple(self._scale.shape))
        self.weight = torch.empty(weight.shape, dtype=torch.bfloat16, requires_grad=True)
        self._refresh()

    def _begun(self, weight: np.ndarray, check: Check) -> np.ndarray:
        """Where the source lies between two codes, float16 [N, K]."""
        latent = np.empty(weight.shape, np.float16)
        start, size = self._start, weight.shape[1] // self._zero.shape[1]
        for r in self._pieces(weight.shape, check):
            scale, zero = (np.repeat(a[r], size, axis=1) for a in (self._first.numpy(), self._zero))
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                exact = weight[r] / scale + zero - start.codes[r]
            latent[r] = np.clip(np.nan_to_num(exact), -_INSIDE, _INSIDE)
        return latent

    def update(self, code_rate: float, scale_rate: float) -> None:
        """One step against the gradient, which is forgotten."""
        if self.weight.grad is None:  # an expert that no token met
            return
        grad, self.weight.grad = self.weight.grad.contiguous(), None
        slopes = learn.step(
            _bits(grad), self._start.codes, self._latent, self._zero, code_rate, self._top, worker_count()
        )
        if scale_rate:
            self._scale -= scale_rate * self._first * self._adam.direction(torch.from_numpy(slopes) * self._first)
        self._refresh()

    def codes(self, check: Check = no_check) -> Codes:
        """What is stored: scales as the format's type rounds them."""
        scales = self._scale.to(_TYPES[self._numbers.scale]).float().numpy()
        codes, latent = self._start.codes.copy(), self._latent
        if latent is not None:
            for r in self._pieces(codes.shape, check):
                codes[r] = np.clip(np.rint(codes[r] + latent[r].astype(np.float32)), 0, self._top)
        return Codes(codes, scales, self._start.zeros)

    @staticmethod
    def _pieces(shape: tuple[int, ...], check: Check) -> Iterator[slice]:
        step = max(1, _PIECE // shape[1])
        for start in range(0, shape[0], step):
            check()
            yield slice(start, start + step)

    def _refresh(self) -> None:
        out = _bits(self.weight.detach())
        learn.weight(self._start.codes, self._latent, self._zero, self._scale.numpy(), out, self._top, worker_count())


def _bits(x: torch.Tensor) -> np.ndarray:
    """bfloat16 as uint16, of the same memory."""
    return x.view(torch.int16).numpy().view(np.uint16)


class Learning:
    """`LearnedRounding`, which keeps one block in memory."""

    def __init__(self, settings: LearnedSettings) -> None:
        self._settings = settings

    def solve(self, problem: BlockProblem, token: CancelToken) -> BlockChoice:
        """Raises ValueError for numbers that are no integers and for samples of another length than `run` has."""
        settings, run = self._settings, problem.run.checked(token.check)
        rows, length = len(problem.hidden), run.length
        if rows % length or len(problem.full) != rows:
            raise ValueError(f"{rows} and {len(problem.full)} rows are not the same samples of {length} tokens")
        floats = {n: _narrow(m, token) for n, m in problem.weights.matrices.items()}
        source = {n: torch.from_numpy(v) for n, v in problem.weights.vectors.items()}
        gains = {n: v.clone() for n, v in source.items()}
        target = _outputs(run, problem.full, floats, source, token)
        floats = {n: m for n, m in floats.items() if n not in problem.numbers}
        inverse = target.square().mean(1, keepdim=True).clamp_min_(1e-20).reciprocal_()
        judged = torch.arange(rows).view(-1, length)[:: max(1, rows // _JUDGED)].flatten()

        def error(outputs: torch.Tensor) -> float:
            return float(((outputs - target[judged]).square().mean(1) * inverse[judged, 0]).double().mean())

        start = {n: _start(problem, n, token) for n in problem.numbers}
        learned = {n: self._matrix(problem, n, start[n], token.check) for n in problem.numbers}
        before = error(_outputs(run, problem.hidden[judged], _weights(floats, learned), source, token))
        self._descend(problem, run, target, inverse, floats, learned, gains, token)
        codes = {n: m.codes(token.check) for n, m in learned.items()}
        gains = {n: v.detach() for n, v in gains.items()}
        hidden = _outputs(run, problem.hidden, floats | _stored(problem, codes, token), gains, token)
        after = error(hidden[judged])
        if not after <= before:
            hidden = _outputs(run, problem.hidden, floats | _stored(problem, start, token), source, token)
            return BlockChoice(start, {}, before, before, hidden, target)
        changed = {n: v.numpy() for n, v in gains.items()} if settings.gain_rate else {}
        return BlockChoice(codes, changed, before, after, hidden, target)

    def _matrix(self, problem: BlockProblem, name: str, start: Codes, check: Check) -> LearnedMatrix:
        numbers = problem.numbers[name]
        assert isinstance(numbers, Integers)
        return LearnedMatrix(problem.weights.matrices[name], start, numbers, self._settings.code_rate > 0, check)

    def _descend(
        self,
        problem: BlockProblem,
        run: BlockSteps,
        target: torch.Tensor,
        inverse: torch.Tensor,
        floats: Mapping[str, torch.Tensor],
        learned: Mapping[str, LearnedMatrix],
        gains: Mapping[str, torch.Tensor],
        token: CancelToken,
    ) -> None:
        settings = self._settings
        samples = len(problem.hidden) // run.length
        batch = min(samples, max(1, settings.tokens // run.length))
        steps = max(1, round(settings.epochs * samples / batch))
        rng = np.random.default_rng([settings.seed, problem.layer])
        order = np.concatenate([rng.permutation(samples) for _ in range(-(-steps * batch // samples))])
        hidden, wanted, share = (t.view(samples, run.length, -1) for t in (problem.hidden, target, inverse))
        tuned = list(gains.values()) if settings.gain_rate else []
        adams = [Adam(tuple(v.shape)) for v in tuned]
        for v in tuned:
            v.requires_grad_()
        for step in range(steps):
            some = torch.from_numpy(order[step * batch : (step + 1) * batch])
            y = run(hidden[some].flatten(0, 1), _weights(floats, learned), gains)
            ((y - wanted[some].flatten(0, 1)).square().mean(1) * share[some].view(-1)).mean().backward()
            left = 1 - step / steps
            for matrix in learned.values():
                token.check()
                matrix.update(settings.code_rate * left, settings.scale_rate * left)
            with torch.no_grad():
                for v, adam in zip(tuned, adams, strict=True):
                    if v.grad is not None:
                        v.sub_(settings.gain_rate * left * v.abs() * adam.direction(v.grad))
                        v.grad = None


def _start(problem: BlockProblem, name: str, token: CancelToken) -> Codes:
    if name in problem.start:
        return problem.start[name]
    weight, numbers = problem.weights.matrices[name], problem.numbers[name]
    options = EncodeOptions(method=Method.SEARCH, threads=worker_count())
    return quantized(numbers, weight, options, token)


def _weights(floats: Mapping[str, torch.Tensor], learned: Mapping[str, LearnedMatrix]) -> dict[str, torch.Tensor]:
    return {**floats, **{n: m.weight for n, m in learned.items()}}


def _stored(problem: BlockProblem, codes: Mapping[str, Codes], token: CancelToken) -> dict[str, torch.Tensor]:
    return {n: _narrow(valued(problem.numbers[n], c, token), token) for n, c in codes.items()}


def _narrow(matrix: np.ndarray, token: CancelToken) -> torch.Tensor:
    """As bfloat16."""
    out = torch.empty(matrix.shape, dtype=torch.bfloat16)
    step = max(1, _PIECE // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), step):
        token.check()
        out[start : start + step] = torch.from_numpy(matrix[start : start + step])
    return out


def _outputs(
    run: BlockSteps,
    hidden: torch.Tensor,
    matrices: Mapping[str, torch.Tensor],
    gains: Mapping[str, torch.Tensor],
    token: CancelToken,
) -> torch.Tensor:
    """Of all samples, some of them side by side."""
    ready = operands(matrices)

    def output(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():  # counts for one thread
            return run(x, ready, gains)

    with one_thread():
        return torch.cat(list(in_parallel(output, hidden.split(run.length), token)))
