"""Gathers the facts of an inspection, for the command line: JSON, a table, or a page (`core.inspect.report_html`)."""

from __future__ import annotations

import difflib
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.inspect.activations import Activations
from core.inspect.compare import compare
from core.inspect.compare_rows import CompareRow
from core.inspect.error_map import ErrorMap, error_map
from core.inspect.findings import Finding, FindingKind, findings
from core.inspect.grid import Grid, group_grid
from core.inspect.group_map import planned_group
from core.inspect.layerwise import TOKENS, measure_activations
from core.inspect.outliers import OutlierChannel, outlier_channels, rank_both
from core.inspect.remedies import Remedy, remedies
from core.inspect.statistics import TensorStatistics, inspect_tensor
from core.inspect.survey import SurveyRow, survey
from core.plan import Plan, TensorPlan, make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from core.runtime.arithmetic import LLM_INT8_THRESHOLD
from core.tensor_info import TensorInfo
from core.units import format_count

FINDINGS = 8  # that get their remedies; more are only named
RANKED = 10  # channels of a tensor that are ranked
PICTURE = (256, 512)  # rows and columns of a heat map, at most


@dataclass(frozen=True)
class Wishes:
    """What a report has. tensor: one only, '' for all; expert: of a stack. recipe: None without a format to judge by.

    details: how many tensors are looked at closely when none is chosen. text: None for the bundled one.
    """

    tensor: str = ""
    expert: int | None = None
    recipe: Recipe | None = None
    activations: bool = False
    text: str | None = None
    tokens: int = TOKENS
    threshold: float = LLM_INT8_THRESHOLD
    findings: int = FINDINGS
    details: int = 0


@dataclass(frozen=True)
class TensorReport:
    """One tensor closely. cells: float32 [h, w], max of |w| in each. outliers: of both axes; ranked: the first of all.

    plan, error, grid: None without a recipe, and where the bytes are copied. group: rows and columns that the grid's
    levels belong to, in words. problem: why the format refuses the values, ''.
    """

    tensor: TensorInfo
    expert: int | None
    statistics: TensorStatistics
    cells: np.ndarray
    outliers: tuple[OutlierChannel, ...]
    ranked: tuple[OutlierChannel, ...]
    plan: TensorPlan | None = None
    error: ErrorMap | None = None
    grid: Grid | None = None
    group: str = ""
    problem: str = ""

    def channels(self, most: int) -> tuple[str, tuple[OutlierChannel, ...]]:
        """What a table of channels says above it, and its rows: at most so many outliers, else the largest channels."""
        if not self.outliers:
            return "No channel is an outlier; the largest are", self.ranked[:5]
        return (
            f"{format_count(len(self.outliers))} outlier channel{'' if len(self.outliers) == 1 else 's'}",
            self.outliers[:most],
        )


@dataclass(frozen=True)
class Report:
    """rows: of the survey, in the checkpoint's order; empty when one tensor was asked for without a format.

    findings: worst first, with remedies for the first of them. compared: None when nothing was to be compared.
    """

    checkpoint: Checkpoint
    wishes: Wishes
    plan: Plan | None
    rows: tuple[SurveyRow, ...]
    findings: tuple[tuple[Finding, tuple[Remedy, ...]], ...]
    tensors: tuple[TensorReport, ...]
    activations: Activations | None
    compared: tuple[CompareRow, ...] | None
    other: Checkpoint | None = None


@dataclass(frozen=True)
class Stage:
    """What is going on, and which share of it is done."""

    name: str
    share: float


@dataclass
class _Parts:
    rows: list[SurveyRow] = field(default_factory=list)
    found: list[tuple[Finding, tuple[Remedy, ...]]] = field(default_factory=list)
    tensors: list[TensorReport] = field(default_factory=list)
    activations: Activations | None = None
    compared: list[CompareRow] | None = None


def gather(
    checkpoint: Checkpoint, wishes: Wishes, token: CancelToken, other: Checkpoint | None = None
) -> Generator[Stage, None, Report]:
    """All that was asked for. Raises UserError for a tensor that there is not, and as the parts do; Cancelled."""
    plan = make_plan(checkpoint, wishes.recipe) if wishes.recipe is not None else None
    chosen = find_tensor(checkpoint, wishes.tensor, plan) if wishes.tensor else None
    if chosen is not None:
        _check_expert(chosen, wishes.expert)
    parts = _Parts()
    if wishes.activations:  # first: a model that can not run is told at once
        steps = measure_activations(checkpoint, wishes.text, wishes.tokens, token)
        while True:
            try:
                step = next(steps)
            except StopIteration as stop:
                parts.activations = stop.value
                break
            yield Stage("measuring activations", step.done / step.total)
    if chosen is None or plan is not None:
        for row in survey(checkpoint, plan, token):
            parts.rows.append(row)
            yield Stage("looking at the weights", row.bytes_done / max(row.bytes_total, 1))
        order = {t.name: i for i, t in enumerate(checkpoint.tensors)}
        parts.rows.sort(key=lambda row: order.get(row.name, len(order)))
    if plan is not None:
        yield from _remedies(checkpoint, plan, wishes, chosen, parts, token)
    looked_at = [chosen] if chosen is not None else _worst(checkpoint, plan, parts, wishes.details)
    for i, tensor in enumerate(looked_at):
        yield Stage(f"looking at {tensor.name}", i / len(looked_at))
        expert = wishes.expert if chosen is not None else None
        parts.tensors.append(look_at(checkpoint, tensor, plan, token, expert))
    if other is not None:
        parts.compared = []
        for compared in compare(checkpoint, other, token):
            if compared.row is not None:
                parts.compared.append(compared.row)
            yield Stage("comparing", compared.share)
    return Report(
        checkpoint,
        wishes,
        plan,
        tuple(parts.rows) if chosen is None else tuple(r for r in parts.rows if r.name == chosen.name),
        tuple(parts.found),
        tuple(parts.tensors),
        parts.activations,
        None if parts.compared is None else tuple(parts.compared),
        other,
    )


def find_tensor(checkpoint: Checkpoint, name: str, plan: Plan | None = None) -> TensorInfo:
    """A tensor by its name in the checkpoint, or by the one that the plan gives it.

    Raises UserError, with the nearest names, when there is none.
    """
    names = {t.name: t for t in checkpoint.tensors}
    planned = {t.name: t.source.sources[0] for t in plan.tensors if t.source.sources} if plan else {}
    found = names.get(name) or planned.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, [*names, *planned], 3, 0.5)
    if not near:  # a part of a name
        near = [known for known in names if name.lower() in known.lower()][:3]
    hint = f"Near it are: {', '.join(near)}." if near else "`bitsmith info --json` lists all names."
    raise UserError(f"The model has no tensor '{name}'.", hint)


def _check_expert(tensor: TensorInfo, expert: int | None) -> None:
    if expert is None:
        return
    if not tensor.experts:
        raise UserError(f"'{tensor.name}' is no stack of experts.", "Leave --expert out.")
    if not 0 <= expert < tensor.experts:
        raise UserError(
            f"'{tensor.name}' has no expert {expert}.", f"Choose one of 0 … {tensor.experts - 1} with --expert."
        )


def _remedies(
    checkpoint: Checkpoint, plan: Plan, wishes: Wishes, chosen: TensorInfo | None, parts: _Parts, token: CancelToken
) -> Generator[Stage, None, None]:
    """Findings, and for the first of them what can be done; of one tensor, all."""
    if chosen is None:
        found = findings(parts.rows, plan, checkpoint, token)
    else:
        beside = (f for f in findings(parts.rows, plan) if f.kind is FindingKind.ERROR)  # judged by all tensors
        own = findings([r for r in parts.rows if r.name == chosen.name], plan, checkpoint, token)
        of_it = [f for f in beside if chosen in plan.tensors[f.index].source.sources]
        found = tuple(sorted((*of_it, *own), key=lambda f: -f.weight))
    count = min(len(found), wishes.findings)
    for i, finding in enumerate(found):
        offered: dict[str, Remedy] = {}
        if i < count:
            yield Stage("computing remedies", i / count)
            for remedy in remedies(checkpoint, plan, finding, token):
                if chosen is None and remedy.title in offered:
                    break  # the same again, now of the whole tensor: for one that was chosen
                offered[remedy.title] = remedy
        parts.found.append((finding, tuple(offered.values())))


def _worst(checkpoint: Checkpoint, plan: Plan | None, parts: _Parts, count: int) -> list[TensorInfo]:
    """Those with findings, then those of the largest outlier ratio."""
    by_name = {t.name: t for t in checkpoint.tensors}
    matrices = [(r, r.statistics) for r in parts.rows if r.statistics is not None and min(r.shape[-2:], default=0) > 1]
    ranked = sorted(matrices, key=lambda pair: -pair[1].outlier_ratio)
    names = [s.name for f, _ in parts.found for s in plan.tensors[f.index].source.sources] if plan else []
    names += [row.name for row, _ in ranked if len(row.shape) > 1]
    return [by_name[name] for name in dict.fromkeys(names) if name in by_name][:count]


def look_at(
    checkpoint: Checkpoint, tensor: TensorInfo, plan: Plan | None, token: CancelToken, expert: int | None = None
) -> TensorReport:
    """Statistics, picture and, with a plan, the error of one tensor. Raises UserError when it can not be read."""
    statistics, pyramid = inspect_tensor(checkpoint, tensor, token, expert)
    height, width = min(PICTURE[0], pyramid.rows), min(PICTURE[1], pyramid.columns)
    cells = np.zeros((height, width), np.float32)
    if cells.size:
        cells = pyramid.pooled((0, pyramid.rows), (0, pyramid.columns), height, width)
    ranked = rank_both(statistics, RANKED)[:RANKED]
    report = TensorReport(tensor, expert, statistics, cells, outlier_channels(statistics), ranked)
    if plan is None:
        return report
    index = next((i for i, t in enumerate(plan.tensors) if tensor in t.source.sources), None)
    if index is None:
        return report
    return _judged(checkpoint, report, plan, index, token)


def _largest(planned: TensorPlan, report: TensorReport) -> tuple[int, int]:
    """Row and column of the largest |w| in the planned tensor; where its rows are others, somewhere in the middle."""
    source = planned.source
    rows, columns = report.statistics.rows.max, report.statistics.columns.max
    other = len(source.pieces) > 1 or source.permute_heads or planned.shape != report.tensor.shape
    if other or not len(rows) or not len(columns):  # rows too long to be held have no columns
        return planned.rows // 2, 0
    return (report.expert or 0) * len(rows) + int(np.argmax(rows)), int(np.argmax(columns))


def _judged(checkpoint: Checkpoint, report: TensorReport, plan: Plan, index: int, token: CancelToken) -> TensorReport:
    planned = plan.tensors[index]
    error: ErrorMap | None = None
    grid: Grid | None = None
    group, problem = "", ""
    if planned.format is not None:
        try:
            for found in error_map(checkpoint, planned, plan.recipe.method, token, *PICTURE, report.expert):
                error = found
            row, column = _largest(planned, report)
            opened = planned_group(checkpoint, plan, index, row, column)
            grid = group_grid(opened)
            group = (
                f"row {format_count(row)}, columns {format_count(opened.columns[0])} to "
                f"{format_count(opened.columns[1] - 1)}"
            )
        except UserError as e:
            problem = str(e)
    return TensorReport(
        report.tensor,
        report.expert,
        report.statistics,
        report.cells,
        report.outliers,
        report.ranked,
        planned,
        error,
        grid,
        group,
        problem,
    )
