"""How far GPTQ goes towards the unchanged model's output, by what that does to samples that it was not fitted to.

The weights that come nearest to that output are a regression on the calibration text. On few tokens for each column it
fits what is chance in them, and is worse than none on other text. So it is fitted to every second sample, and the other
ones tell which share of it is best there: none where it does them no good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.calibration.forward import BlockForward, Product
from core.formats.numbers import Numbers
from core.methods.factor import product
from core.methods.gptq import Gptq
from core.methods.gram import cross, drift, gram
from core.methods.problem import Problem
from core.methods.transform import BlockWeights
from core.progress import CancelToken
from core.runtime.decoder import POST_NORMS


def adds_to_residual(name: str, architecture: str) -> bool:
    """Whether a product's output is added to the residual stream as it is; an expert's is weighed before."""
    part = name.split(".")[2] if name.startswith("blk.") else ""
    dense = name.count(".") == 3
    return dense and part in ("attn_output", "ffn_down") and architecture not in POST_NORMS


@dataclass(frozen=True)
class Followed:
    """A product's input x beside what it is in the unchanged model, and what the residual stream lacks."""

    forward: BlockForward
    given: Product
    token: CancelToken

    @property
    def adds(self) -> bool:
        """Whether the output is added to the residual stream."""
        full = self.forward.full is not None
        return full and adds_to_residual(self.given.names[0], self.forward.config.architecture)

    def rows(self, half: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """x, x_full − x and r_full − r (None where nothing is added to r), of all samples, or of every second one."""
        assert self.given.full is not None
        samples, length = self.forward.ids.shape
        unit = length if samples > 1 else -(-length // 2)  # of one sample, half of its tokens
        full, hidden, at = self.forward.full, self.forward.hidden, 0
        for x, wanted in zip(self.given.pieces(), self.given.full(), strict=True):
            some = slice(at, at + len(x))
            lacking = (full[some] - hidden[some]).numpy() if self.adds and full is not None else None
            if half is None:
                yield x, wanted - x, lacking
            else:
                kept = np.arange(at, at + len(x)) // unit % 2 == half
                if kept.any():
                    yield x[kept], (wanted - x)[kept], None if lacking is None else lacking[kept]
            at += len(x)

    def problem_parts(self, half: int | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """`drift` and `missing` of a Problem."""
        columns = self.given.columns
        moved = drift(((x, d) for x, d, _ in self.rows(half)), columns, self.token)
        if not self.adds:
            return moved, None
        pairs = ((lacking, x) for x, _, lacking in self.rows(half) if lacking is not None)
        return moved, cross(pairs, self.forward.config.hidden, columns, self.token)


def shares(
    solver: Gptq,
    followed: Followed,
    names: Sequence[str],
    weights: BlockWeights,
    numbers: Mapping[str, Numbers],
) -> list[float]:
    """For each weight how much of its change is best for the samples that it was not fitted to, 0 … 1; 1 where there is
    nothing to change, as in the first block."""
    token, given = followed.token, followed.given
    found, tokens = gram((x for x, _, _ in followed.rows(0)), given.columns, token)
    moved, missing = followed.problem_parts(0)
    best = []
    for name in names:
        weight = weights.matrices[name]
        change = solver.change(Problem(name, weight, found, moved, tokens, numbers[name], missing=missing), token)
        good = size = 0.0
        for x, difference, lacking in followed.rows(1):
            y, wanted = product(x, change, token), product(difference, weight, token)
            if lacking is not None:
                wanted += lacking
            good += float(np.vdot(y, wanted))
            size += float(np.vdot(y, y))
        # The squared error falls by 2 s · good − s² · size.
        best.append(min(max(good / size, 0.0), 1.0) if size > 0 else 1.0)
    return best
