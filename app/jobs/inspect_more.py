"""Inspection in the background: one group, teaching data, activations, two files, findings and their remedies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.jobs.runner import Work
from core.errors import UserError
from core.progress import CancelToken

if TYPE_CHECKING:
    import numpy as np

    from core.checkpoint.base import Checkpoint
    from core.inspect.activations import Activations
    from core.inspect.compare import CompareRow
    from core.inspect.group_map import GroupMap, Variant
    from core.inspect.remedies import Finding, Remedy
    from core.inspect.synthetic import Synthetic
    from core.plan import Plan
    from core.tensor_info import TensorInfo

GROUP_KEY = "inspect-group"
ACTIVATIONS_KEY = "inspect-activations"
COMPARE_KEY = "inspect-compare"
FINDINGS_KEY = "inspect-findings"
REMEDIES_KEY = "inspect-remedies"

SPAN = 256  # columns under several granularities at once
MOST_ROWS = 64  # of a tensor that are read to show it under one scale; more only for what their range adds


@dataclass(frozen=True)
class GroupAsk:
    """Which group: row and column of the tensor as the plan writes it, '' as format for the plan's own.

    bits, symmetric: of the granularities side by side. span: their first column and one past their last.
    """

    row: int
    column: int
    format_name: str
    bits: int
    symmetric: bool


@dataclass(frozen=True)
class GroupReply:
    """group: None for teaching data, which is in no file. rows: of the tensor there are. expert rows come first to last.

    variants: the same weights under several granularities; weights: those, float32. first: column of the first.
    """

    group: GroupMap | None
    rows: int
    columns: int
    variants: tuple[Variant, ...]
    weights: np.ndarray
    first: int
    problem: UserError | None = None  # why there is no group, while the granularities are there


def group_work(
    checkpoint: Checkpoint, plan: Plan | None, tensor: TensorInfo, ask: GroupAsk, extent: tuple[float, float] | None
) -> Work:
    """The result is a GroupReply. extent: lowest and highest value of the whole tensor, if they are known."""

    def work(token: CancelToken) -> GroupReply:
        from core.inspect.group_map import planned_group, side_by_side, stored_group

        group, problem, read = None, None, None
        number = _planned_number(plan, tensor)
        rows, columns = tensor.rows, tensor.columns
        if number is not None and plan is not None:
            rows, columns = plan.tensors[number].rows, plan.tensors[number].columns
        row, column = min(ask.row, rows - 1), min(ask.column, columns - 1)
        try:
            if plan is None or number is None:
                group = stored_group(checkpoint, tensor, row, column)
            else:
                chosen, number = plan_in_format(checkpoint, plan, number, ask.format_name)
                token.check()
                group = planned_group(checkpoint, chosen, number, row, column)
                read = chosen.tensors[number].source
        except UserError as error:
            problem = error
        token.check()
        first = min(column // SPAN * SPAN, max(0, columns - SPAN))
        block = _rows_around(checkpoint, tensor, read, row, rows)
        variants = side_by_side(
            block[0], row - block[1], (first, min(columns, first + SPAN)), ask.bits, ask.symmetric, extent
        )
        weights = block[0][row - block[1], first : first + SPAN]
        return GroupReply(group, rows, columns, variants, weights, first, problem)

    return work


def teaching_work(data: Synthetic, row: int, bits: int, symmetric: bool) -> Work:
    """The same for made-up rows. The result is a GroupReply without a group."""

    def work(_token: CancelToken) -> GroupReply:
        from core.inspect.group_map import side_by_side
        from core.inspect.synthetic import synthetic_rows

        values = synthetic_rows(data)
        variants = side_by_side(values, row, (0, data.columns), bits, symmetric)
        return GroupReply(None, data.rows, data.columns, variants, values[row], 0)

    return work


def plan_in_format(checkpoint: Checkpoint, plan: Plan, number: int, format_name: str) -> tuple[Plan, int]:
    """The plan that gives tensor `number` this format, and the tensor's number in it. '' is the plan itself.

    A format of the other container is looked at in the output of its own target. Raises UserError.
    """
    from core.formats import FORMATS
    from core.inspect.group_map import recipe_with
    from core.plan import make_plan
    from core.targets import TARGETS

    tensor = plan.tensors[number]
    if not format_name or format_name == tensor.format_name:
        return plan, number
    containers = {f.container for f in FORMATS if f.name == format_name}
    if plan.target.container in containers:
        other = make_plan(checkpoint, recipe_with(plan.recipe, tensor.name, format_name))
    else:
        target = next((t for t in TARGETS if t.container in containers and t.base == format_name), None)
        if target is None:
            raise UserError(f"No output of Bitsmith has {format_name} for this tensor.", "Choose another format.")
        other = make_plan(checkpoint, Recipe(target=target.name, method=plan.recipe.method))
    wanted = {s.name for s in tensor.source.sources}
    found = next((i for i, t in enumerate(other.tensors) if wanted & {s.name for s in t.source.sources}), None)
    if found is None:
        raise UserError(f"{tensor.name} is not in an output of {format_name}.", "Choose another format.")
    return other, found


def _planned_number(plan: Plan | None, tensor: TensorInfo) -> int | None:
    tensors = plan.tensors if plan is not None else ()
    return next((i for i, t in enumerate(tensors) if any(s.name == tensor.name for s in t.source.sources)), None)


def _rows_around(
    checkpoint: Checkpoint, tensor: TensorInfo, mapped: Any, row: int, rows: int
) -> tuple[np.ndarray, int]:
    """Some rows that include this one, float32, and the number of the first."""
    from core.models.read_mapped import read_mapped

    first = max(0, min(row - MOST_ROWS // 2, rows - MOST_ROWS))
    last = min(rows, first + MOST_ROWS)
    if mapped is not None:
        return read_mapped(checkpoint, mapped, first, last), first
    return checkpoint.read_rows(tensor, first, last), first


# ---- activations -----------------------------------------------------------------------------------------------------


def activations_work(checkpoint: Checkpoint, text: str | None, limit: int) -> Work:
    """Yields ActivationProgress layer by layer and returns Activations. text: None for the bundled one."""

    def work(token: CancelToken) -> Iterator[Any]:
        from core.inspect.layerwise import measure_activations

        return (yield from measure_activations(checkpoint, text, limit, token))

    return work


def threshold_shares(activations: Activations, threshold: float) -> dict[int, float]:
    """Share of columns at or above the threshold of each input, by its number in `activations.layers`."""
    return {n: layer.share_above(threshold) for n, layer in enumerate(activations.layers) if layer.tokens}


# ---- two files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A step of a comparison; `result` is a row that is finished, as JobRunner keeps those."""

    share: float
    count: int
    result: CompareRow | None


def compare_work(first: Path, second: Path) -> Work:
    """Yields Compared. Opens both files for itself; raises UserError when one can not be opened."""

    def work(token: CancelToken) -> Iterator[Compared]:
        from core.checkpoint import open_checkpoint
        from core.inspect.compare import compare

        with open_checkpoint(first) as one, open_checkpoint(second) as other:
            for step in compare(one, other, token):
                yield Compared(step.share, step.count, step.row)

    return work


# ---- findings and remedies -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offered:
    """One remedy; `result` is what JobRunner keeps."""

    result: Remedy


def findings_work(rows: Iterable[Any], plan: Plan) -> Work:
    """The result is a tuple of Finding, worst first."""
    kept = tuple(rows)

    def work(token: CancelToken) -> Any:
        from core.inspect.remedies import findings

        token.check()
        return findings(kept, plan)

    return work


def remedies_work(checkpoint: Checkpoint, plan: Plan, finding: Finding) -> Work:
    """Yields Offered, each remedy at least once; a later one of the same kind and format is the more exact."""

    def work(token: CancelToken) -> Iterator[Offered]:
        from core.inspect.remedies import remedies

        for remedy in remedies(checkpoint, plan, finding, token):
            yield Offered(remedy)

    return work
