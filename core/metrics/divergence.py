"""How far one model's next-token distributions are from another's, token by token.

P is the source's distribution, Q the artifact's, both softmax of logits; logarithms are natural, so KL is in nats.
Rows are worked on a few at a time: what is read twice is still in the processor's cache, and memory stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from core.progress import CancelToken
from core.threads import in_parallel
from kernels import ops

CHUNK = 1 << 19  # logits of a chunk of rows: 2 MB in float32
MAX_GAP = 6e4  # below the largest logit; float16 ends at 65,504, and exp(−6e4) is 0


class NonFinite(ValueError):
    """A logit is NaN or infinite. row: the first such one."""

    def __init__(self, row: int) -> None:
        super().__init__(f"logits of row {row} are not finite")
        self.row = row


@dataclass(frozen=True, eq=False)
class SourceRows:
    """Distributions of the source, compact: 2 bytes a logit.

    gaps: float16 [rows, vocabulary], largest logit of the row less each logit, so the likeliest tokens are kept the
    most precisely: a gap has 11 bits, log P a relative error of the gap of at most 2⁻¹¹. Read back, the gaps are a
    distribution of their own (its sum is 1), so KL stays ≥ 0.
    top: int32 [rows], the likeliest token. nll: float64 [rows], −log P of the right token, from the exact logits.
    """

    gaps: np.ndarray
    top: np.ndarray
    nll: np.ndarray


@dataclass(frozen=True, eq=False)
class TokenFigures:
    """One value a scored token; all arrays have one shape.

    kl: KL(P‖Q) in nats. nll_source, nll: −log P and −log Q of the right token. same_top: whether both have the same
    likeliest token. delta: Q − P of the right token's probability.
    """

    kl: np.ndarray
    nll_source: np.ndarray
    nll: np.ndarray
    same_top: np.ndarray

    @property
    def delta(self) -> np.ndarray:
        change: np.ndarray = np.exp(-self.nll) - np.exp(-self.nll_source)
        return change

    @staticmethod
    def joined(parts: list[TokenFigures]) -> TokenFigures:
        """Rows of several, one after the other. Raises ValueError for none."""
        return TokenFigures(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(TokenFigures)))


def compact(logits: np.ndarray, right: np.ndarray, token: CancelToken | None = None) -> SourceRows:
    """logits: float32 [rows, vocabulary]; right: integers [rows], the tokens that follow. Raises NonFinite."""
    gaps = np.empty(logits.shape, np.float16)
    top, nll = np.empty(len(logits), np.int32), np.empty(len(logits))

    def work(part: slice) -> None:
        values = logits[part]
        top[part] = values.argmax(axis=1)
        largest = np.take_along_axis(values, top[part, None], axis=1)
        below = largest - values
        sums = np.exp(-below).sum(axis=1, dtype=np.float64)
        if not np.isfinite(sums).all() or not np.isfinite(below).all():
            raise NonFinite(part.start + int(np.argmin(np.isfinite(values).all(axis=1))))
        nll[part] = np.log(sums) + np.take_along_axis(below, right[part, None], axis=1)[:, 0]
        np.minimum(below, np.float32(MAX_GAP), out=below)
        gaps[part] = ops.from_float32(below, "F16").view(np.float16)

    _in_chunks(work, logits.shape, token)
    return SourceRows(gaps, top, nll)


def compare(
    source: SourceRows, logits: np.ndarray, right: np.ndarray, token: CancelToken | None = None
) -> TokenFigures:
    """logits: float32 [rows, vocabulary] of the artifact, overwritten; right: integers [rows]. KL is 0 where both are
    the same once compact, as those of a file and itself are. Raises NonFinite."""
    rows = len(logits)
    kl, nll, same = np.empty(rows), np.empty(rows), np.empty(rows, bool)

    def work(part: slice) -> None:
        q = logits[part]
        top = q.argmax(axis=1)
        q -= np.take_along_axis(q, top[:, None], axis=1)
        exponentials = np.exp(q)
        log_q = np.log(exponentials.sum(axis=1, dtype=np.float64))
        if not np.isfinite(log_q).all() or not np.isfinite(q).all():
            raise NonFinite(part.start + int(np.argmin(np.isfinite(q).all(axis=1))))
        nll[part] = log_q - np.take_along_axis(q, right[part, None], axis=1)[:, 0]
        alike = (top == source.top[part]) & (nll[part] == source.nll[part])
        if alike.any():  # as when both are one file
            own = ops.from_float32(np.minimum(-q[alike], np.float32(MAX_GAP)), "F16").view(np.float16)
            alike[alike] = (own.reshape(len(own), -1) == source.gaps[part][alike]).all(axis=1)
        p = ops.to_float32(source.gaps[part].view(np.uint8), "F16")
        np.negative(p, out=p)
        np.subtract(p, q, out=q)  # log P − log Q, but for the logarithms of both sums
        np.exp(p, out=exponentials)
        sums = exponentials.sum(axis=1, dtype=np.float64)
        exponentials *= q
        kl[part] = exponentials.sum(axis=1, dtype=np.float64) / sums - np.log(sums) + log_q
        kl[part][alike] = 0.0
        same[part] = top == source.top[part]

    _in_chunks(work, logits.shape, token)
    return TokenFigures(np.maximum(kl, 0.0), source.nll.copy(), nll, same)


def _in_chunks(work: Callable[[slice], None], shape: tuple[int, ...], token: CancelToken | None) -> None:
    size = max(1, CHUNK // max(shape[1], 1))
    parts = (slice(start, min(start + size, shape[0])) for start in range(0, shape[0], size))

    def quiet(part: slice) -> None:
        with np.errstate(invalid="ignore"):  # what is not finite is looked for
            work(part)

    for _ in in_parallel(quiet, parts, token or CancelToken()):
        pass
