"""Previews in the background: one tensor or a sample of the model quantized with the present recipe. Newest wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
class SampleStep:
    """Tensor `index` of `count` of the sample is done."""

    index: int
    count: int
    result: Any  # PreviewResult


def preview_work(checkpoint: Checkpoint, tensor: TensorPlan, plan: Plan) -> Work:
    """The result is a PreviewResult of this tensor under the plan's method; raises UserError."""

    def work(token: CancelToken) -> Any:
        from core.preview import preview

        return preview(checkpoint, tensor, plan.recipe.method, token, PREVIEW_VALUES)

    return work


def sample_work(checkpoint: Checkpoint, plan: Plan) -> Work:
    """Yields a SampleStep for each tensor of a sample of the whole model; the result is the list of all."""

    def work(token: CancelToken) -> Iterator[SampleStep]:
        from core.preview import sample_model

        steps = []
        for index, count, result in sample_model(checkpoint, plan, token):
            steps.append(SampleStep(index, count, result))
            yield steps[-1]
        return steps

    return work
