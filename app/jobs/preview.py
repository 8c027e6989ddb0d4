"""Previews in the background: one tensor or a sample of the model quantized with the present recipe. Newest wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from app.jobs.runner import Work
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.plan import Plan, TensorPlan

PREVIEW_KEY = "preview"
SAMPLE_KEY = "preview-sample"
PREVIEW_VALUES = 1_500_000  # of one tensor: what the slowest search encodes in 0.1 s on two cores


@dataclass(frozen=True)
class SampleSoFar:
    """The sample after `seen` of `count` tensors: SNR of all together, and the tensor with the lowest. dB."""

    seen: int
    count: int
    snr: float
    worst: str
    worst_snr: float


def preview_work(checkpoint: Checkpoint, tensor: TensorPlan, plan: Plan) -> Work:
    """The result is a PreviewResult of this tensor under the plan's method; raises UserError."""

    def work(token: CancelToken) -> Any:
        from core.preview import preview

        return preview(checkpoint, tensor, plan.recipe.method, token, PREVIEW_VALUES)

    return work


def sample_work(checkpoint: Checkpoint, plan: Plan) -> Work:
    """Yields a SampleSoFar after each tensor of a sample of the whole model, and returns the last; None without any.

    The figures are added up here: of ten thousand results, the window gets a few numbers.
    """

    def work(token: CancelToken) -> Iterator[SampleSoFar]:
        from core.metrics.combine import CombinedSnr
        from core.preview import sample_model

        so_far, combined = None, CombinedSnr()
        worst, worst_snr = "", inf
        for index, count, result in sample_model(checkpoint, plan, token):
            combined.add(result.error)
            if not worst or result.error.snr_db < worst_snr:
                worst, worst_snr = result.name, result.error.snr_db
            so_far = SampleSoFar(index + 1, count, combined.decibels, worst, worst_snr)
            yield so_far
        return so_far

    return work
