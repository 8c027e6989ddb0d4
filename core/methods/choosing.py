"""What is done at each product of a block: its input is measured, and its weights are chosen before it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from core.calibration.forward import BlockForward, Product
from core.formats import Format
from core.formats.numbers import Codes, Numbers
from core.methods.aim import Followed, shares
from core.methods.coded import Sample, coded_matrix
from core.methods.gptq import Gptq
from core.methods.gram import gram, input_statistics, squares
from core.methods.grid import valued
from core.methods.problem import Problem
from core.methods.rounded import rounded
from core.methods.steps import Steps
from core.methods.transform import SAMPLE_ROWS, BlockWeights, InputStatistics
from core.progress import CancelToken

FEW_TOKENS = 512  # an expert that meets fewer is also shown what the others do


@dataclass
class Choosing:
    """Replaces each weight by what will be stored of it, just before its output is computed.

    formats, numbers: of quantized weights, by GGUF's names; those of the second are solved, others rounded. solved:
    their codes. squares: Σx² of inputs, and over how many tokens. experts: how many tokens each met. aims: how
    far GPTQ went towards the unchanged model's output, of each weight.
    """

    formats: Mapping[str, Format]
    numbers: Mapping[str, Numbers]
    steps: Steps
    forward: BlockForward
    token: CancelToken
    solved: dict[str, Codes] = field(default_factory=dict)
    squares: dict[str, tuple[np.ndarray, int]] = field(default_factory=dict)
    experts: list[int] = field(default_factory=list)
    aims: list[float] = field(default_factory=list)
    _everyone: np.ndarray | None = None  # Gram matrix of what all experts of the block are offered

    def product(self, product: Product, weights: BlockWeights) -> None:
        if self.steps.measures_importance:
            self.squares |= dict.fromkeys(product.names, squares(product.pieces(), product.columns))
        wanted = [name for name in product.names if name in self.numbers]
        if wanted:
            self._solve(product, weights, wanted)
        for name in product.names:
            if name in self.formats and name not in self.numbers:
                total, rows = self.squares.get(name, (None, 0))
                means = None if total is None or not rows else total / np.float32(rows)
                weights.matrices[name] = rounded(weights.matrices[name], self.formats[name], means, self.token)

    def _solve(self, product: Product, weights: BlockWeights, names: Sequence[str]) -> None:
        solver, token = self.steps.solver, self.token
        assert solver is not None
        moved = missing = None
        aims = [1.0] * len(names)
        if product.full is not None:
            followed = Followed(self.forward, product, token)
            if isinstance(solver, Gptq):
                aims = shares(solver, followed, names, weights, self.numbers)
                self.aims += aims
            moved, missing = followed.problem_parts()
        sample = Sample(product.rows)
        found, tokens = self._gram(replace(product, pieces=lambda: sample.of(product.pieces())))
        for name, aim in zip(names, aims, strict=True):
            token.check()
            numbers = self.numbers[name]
            weight = weights.matrices[name]
            problem = Problem(name, weight, found, moved, tokens, numbers, missing=missing, aim=aim)
            codes = solver.solve(problem, token)
            self.solved[name] = codes
            values = weights.matrices[name] = valued(numbers, codes, token)
            if not self.forward.exact and (
                packed := coded_matrix(numbers, codes, weight, values, sample.rows(), token)
            ):
                weights.packed[name] = (values, packed)

    def _gram(self, product: Product) -> tuple[np.ndarray, int]:
        found, tokens = gram(product.pieces(), product.columns, self.token)
        if product.everyone is not None:
            self.experts.append(tokens)
            if tokens < FEW_TOKENS:
                found = self._with_others(found, tokens, product)
        return found, tokens

    def _with_others(self, own: np.ndarray, tokens: int, product: Product) -> np.ndarray:
        """What an expert with few tokens may expect: its own count as they are, the rest is like everyone's."""
        assert product.everyone is not None
        if self._everyone is None:
            self._everyone, _ = gram(product.everyone(), product.columns, self.token)
        share = np.float32(tokens / FEW_TOKENS)
        return share * own + (1 - share) * self._everyone


@dataclass
class MeanSquares:
    """Mean squares of each input of a block that is not changed."""

    means: dict[str, np.ndarray] = field(default_factory=dict)

    def product(self, product: Product, weights: BlockWeights) -> None:
        total, rows = squares(product.pieces(), product.columns)
        if rows:
            self.means |= dict.fromkeys(product.names, total / np.float32(rows))


@dataclass
class Collecting:
    """What transforms see of each input of a block that is not changed."""

    statistics: dict[str, InputStatistics] = field(default_factory=dict)

    def product(self, product: Product, weights: BlockWeights) -> None:
        found = input_statistics(product.pieces(), product.columns, product.rows, SAMPLE_ROWS)
        self.statistics |= dict.fromkeys(product.names, found)
