"""Inspection in the background: the whole model's survey, and one tensor's picture, distribution and error."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.jobs.inspect_more import check_values
from app.jobs.runner import Work
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.inspect.error_map import ErrorMap
    from core.inspect.outliers import OutlierChannel
    from core.inspect.picture import Pyramid
    from core.inspect.requantized import GroupLevels, Requantized
    from core.inspect.statistics import TensorStatistics
    from core.inspect.survey import SurveyRow
    from core.plan import Plan
    from core.tensor_info import TensorInfo

SURVEY_KEY = "inspect-survey"
TENSOR_KEY = "inspect-tensor"
FORMAT_KEY = "inspect-format"
ERROR_KEY = "inspect-error"

SAMPLED = 600_000  # values that are quantized for the distribution
RANKED = 50  # channels of an axis in the table
ERROR_CELLS = 512  # of an error map, along each axis


@dataclass(frozen=True)
class Surveyed:
    """One row; `result` is what JobRunner keeps."""

    result: SurveyRow


def survey_work(checkpoint: Checkpoint, plan: Plan | None) -> Work:
    """Yields Surveyed, a tensor each."""

    def work(token: CancelToken) -> Iterator[Surveyed]:
        from core.inspect.survey import survey

        for row in survey(checkpoint, plan, token):
            yield Surveyed(row)

    return work


@dataclass(frozen=True)
class TensorReply:
    """ranked: channels of both axes, the largest ratio first. outliers: those above the threshold."""

    statistics: TensorStatistics
    pyramid: Pyramid
    ranked: tuple[OutlierChannel, ...]
    outliers: tuple[OutlierChannel, ...]
    largest: tuple[int, int]  # row and column of the largest finite magnitude


def tensor_work(checkpoint: Checkpoint, tensor: TensorInfo, expert: int | None) -> Work:
    """The result is a TensorReply."""

    def work(token: CancelToken) -> TensorReply:
        from core.inspect.outliers import outlier_channels, rank_both
        from core.inspect.statistics import inspect_tensor

        check_values(tensor)
        statistics, pyramid = inspect_tensor(checkpoint, tensor, token, expert)
        row, column = statistics.rows.max, statistics.columns.max
        largest = int(row.argmax()), int(column.argmax()) if len(column) else 0  # rows in pieces have no columns
        return TensorReply(statistics, pyramid, rank_both(statistics, RANKED), outlier_channels(statistics), largest)

    return work


@dataclass(frozen=True)
class FormatReply:
    """What a format makes of the tensor. levels: of the group with the largest weight, then of a middling one."""

    format: str
    quantized: bool
    requantized: Requantized
    levels: tuple[GroupLevels, ...]


def format_work(
    checkpoint: Checkpoint,
    plan: Plan,
    tensor: TensorInfo,
    expert: int | None,
    format_name: str,
    places: tuple[tuple[int, int], ...],
) -> Work:
    """The result is a FormatReply. places: rows and columns, as the source counts, whose groups' levels are wanted."""

    def work(token: CancelToken) -> FormatReply:
        from core.inspect.requantized import group_levels, requantized
        from core.inspect.tracing import matrix_rows

        chosen, index = _in_format(checkpoint, plan, tensor, format_name)
        token.check()
        planned = chosen.tensors[index]
        own, rows = matrix_rows(planned.source, tensor, expert)
        levels = []
        for row, column in places:
            token.check()
            levels.append(group_levels(checkpoint, chosen, index, int(own[rows == row][0]), column))
        found = requantized(checkpoint, chosen, index, token, (int(own[0]), int(own[-1]) + 1), SAMPLED)
        return FormatReply(planned.format_name, planned.format is not None, found, tuple(levels))

    return work


def error_work(checkpoint: Checkpoint, plan: Plan, tensor: TensorInfo, expert: int | None, format_name: str) -> Work:
    """Yields ErrorMaps of ever more rows and returns the last, with rows as the source counts them."""

    def work(token: CancelToken) -> Generator[ErrorMap, None, ErrorMap | None]:
        from core.inspect.error_map import error_map

        chosen, index = _in_format(checkpoint, plan, tensor, format_name)
        newest = None
        for found in error_map(
            checkpoint, chosen.tensors[index], chosen.recipe.method, token, ERROR_CELLS, ERROR_CELLS, expert,
            of=tensor.name,
        ):  # fmt: skip
            newest = found
            yield found
        return newest

    return work


def _in_format(checkpoint: Checkpoint, plan: Plan, tensor: TensorInfo, format_name: str) -> tuple[Plan, int]:
    """The plan that gives the tensor this format, and its number there."""
    from core.inspect.in_format import plan_in_format

    number = next(i for i, t in enumerate(plan.tensors) if any(s.name == tensor.name for s in t.source.sources))
    return plan_in_format(checkpoint, plan, number, format_name)
