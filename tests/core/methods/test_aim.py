"""How far GPTQ aims at the unchanged model: never so far that text which it was not fitted to is worse off."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from core.calibration.forward import Product
from core.contract import ElementType
from core.formats.numbers import Integers
from core.methods.aim import Followed, shares
from core.methods.gptq import Gptq
from core.methods.gram import gram
from core.methods.problem import Problem
from core.methods.transform import BlockWeights
from core.progress import CancelToken

ROWS, COLUMNS, LENGTH = 24, 64, 32
NUMBERS = Integers(8, 16, True, ElementType.F16)
NAME = "blk.1.attn_output.weight"


@dataclass
class Text:
    """Inputs of a weight in the quantized model and the unchanged one, and the residual streams that it is added to."""

    x: np.ndarray
    full: np.ndarray
    hidden: np.ndarray
    wanted: np.ndarray

    def followed(self, samples: int) -> Followed:
        forward: Any = SimpleNamespace(
            ids=np.zeros((samples, len(self.x) // samples), np.int32),
            hidden=torch.from_numpy(self.hidden),
            full=torch.from_numpy(self.wanted),
            config=SimpleNamespace(architecture="llama", hidden=ROWS),
        )

        def pieces(rows: np.ndarray) -> Any:
            return lambda: iter(np.split(rows, [7, 50, 51]))  # which are no samples

        product = Product((NAME,), COLUMNS, len(self.x), pieces(self.x), pieces(self.full))
        return Followed(forward, product, CancelToken())


def text(tokens: int, learnable: bool, seed: int, weight: np.ndarray) -> Text:
    """learnable: what earlier blocks lost follows from x; otherwise it is chance."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, COLUMNS)).astype(np.float32)
    law = np.random.default_rng(1).standard_normal((COLUMNS, COLUMNS + ROWS)).astype(np.float32) / 20
    lost = x @ law if learnable else rng.standard_normal((tokens, COLUMNS + ROWS)).astype(np.float32) / 2
    hidden = rng.standard_normal((tokens, ROWS)).astype(np.float32)
    return Text(x, x + lost[:, :COLUMNS], hidden, hidden + lost[:, COLUMNS:])


def lost_by(values: np.ndarray, weight: np.ndarray, on: Text) -> float:
    target = on.full @ weight.T + on.wanted - on.hidden
    return float(np.square(target - on.x @ values.T, dtype=np.float64).mean())


@pytest.mark.parametrize("samples", [1, 3, 4, 40])
@pytest.mark.parametrize("learnable", [True, False])
def test_other_text_is_never_worse_off(samples: int, learnable: bool) -> None:
    weight = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    seen, other = text(samples * LENGTH, learnable, 2, weight), text(4000, learnable, 3, weight)
    followed, solver = seen.followed(samples), Gptq(follows_full=True)
    (share,) = shares(solver, followed, [NAME], BlockWeights({NAME: weight}, {}), {NAME: NUMBERS})
    found, tokens = gram(iter([seen.x]), COLUMNS, CancelToken())
    moved, missing = followed.problem_parts()
    lost = {}
    for aim in (0.0, share, 1.0):
        problem = Problem(NAME, weight, found, moved, tokens, NUMBERS, missing=missing, aim=aim)
        lost[aim] = lost_by(NUMBERS.values(solver.solve(problem, CancelToken())), weight, other)
    assert lost[share] < 1.01 * lost[0.0]
    if learnable and samples > 3:
        assert share > 0.8
        assert lost[share] < 0.2 * lost[0.0]
    if not learnable:
        assert share < 0.2
        assert lost[1.0] > 1.01 * lost[0.0], "without the other half it would be worse"


def test_halves_are_whole_samples_and_together_all() -> None:
    seen = text(4 * LENGTH, True, 2, np.zeros((ROWS, COLUMNS), np.float32))
    followed = seen.followed(4)
    halves = [np.concatenate([x for x, _, _ in followed.rows(half)]) for half in (0, 1)]
    np.testing.assert_array_equal(halves[0], np.concatenate([seen.x[:LENGTH], seen.x[2 * LENGTH : 3 * LENGTH]]))
    np.testing.assert_array_equal(halves[1], np.concatenate([seen.x[LENGTH : 2 * LENGTH], seen.x[3 * LENGTH :]]))
    moved, missing = followed.problem_parts()
    difference, lacking = seen.full - seen.x, seen.wanted - seen.hidden
    np.testing.assert_allclose(moved, difference.T @ seen.x / len(seen.x), atol=1e-5)
    np.testing.assert_allclose(missing, lacking.T @ seen.x / len(seen.x), atol=1e-5)
