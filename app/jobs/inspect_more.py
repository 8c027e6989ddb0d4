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
    from core.inspect.compare_rows import CompareRow
    from core.inspect.findings import Finding
    from core.inspect.granularity import OpenedVariant, Variant
    from core.inspect.group_types import GroupMap
    from core.inspect.remedies import Remedy
    from core.inspect.synthetic import Synthetic
    from core.plan import Plan
    from core.tensor_info import TensorInfo

GROUP_KEY = "inspect-group"
ACTIVATIONS_KEY = "inspect-activations"
CACHE_KEY = "inspect-cache"
COMPARE_KEY = "inspect-compare"
FINDINGS_KEY = "inspect-findings"
REMEDIES_KEY = "inspect-remedies"

LARGEST = -1  # GroupAsk.column: where the row's largest |w| is
AS_IN_FILE = "file"  # GroupAsk.opened: as the open file has it, before anything is converted
MOST_TEXT = 1 << 20  # characters of a text file that are read
MOST_ROWS = 64  # of a tensor that are read to show it under one scale; more only for what their range adds


@dataclass(frozen=True)
class GroupAsk:
    """Which group: row and column of the source tensor, LARGEST for the column of the row's largest |w|; '' as format
    for the plan's own.

    bits, symmetric: of the granularities side by side. opened: the granularity whose group is looked at, by its name;
    '' for the group as the format stores it, AS_IN_FILE for the group as the open file has it.
    """

    row: int
    column: int
    format_name: str
    bits: int
    symmetric: bool
    opened: str = ""


@dataclass(frozen=True)
class GroupReply:
    """group: as the format stores it, with what its scale can store as `levels`; None for teaching data and where
    problem says why. rows, columns: of the tensor. variants: the same weights under several granularities, and weights:
    those, float32, from column `first` on. opened: the group of the granularity that was asked for. column: what was
    looked at.
    """

    group: GroupMap | None
    levels: np.ndarray | None
    rows: int
    columns: int
    row: int
    variants: tuple[Variant, ...]
    weights: np.ndarray
    first: int
    opened: OpenedVariant | None
    problem: UserError | None = None
    column: int = 0


def group_work(
    checkpoint: Checkpoint, plan: Plan | None, tensor: TensorInfo, ask: GroupAsk, extent: tuple[float, float] | None
) -> Work:
    """The result is a GroupReply. extent: lowest and highest value of the whole tensor, if they are known."""

    def work(token: CancelToken) -> GroupReply:
        import numpy as np

        from core.inspect.granularity import span_around
        from core.inspect.grid import group_grid
        from core.inspect.group_map import planned_group, stored_group
        from core.inspect.in_format import plan_in_format
        from core.inspect.tracing import planned_place

        group, problem = None, None
        check_values(tensor)
        rows, columns = tensor.rows, tensor.columns
        row, column = min(ask.row, rows - 1), min(ask.column, columns - 1)
        block, start = _rows_around(checkpoint, tensor, row)
        if ask.column == LARGEST:
            sizes = np.abs(block[row - start])
            column = int(np.where(np.isfinite(sizes), sizes, -1).argmax())
        try:
            there = planned_place(plan, tensor, row) if plan is not None and ask.opened != AS_IN_FILE else None
            if plan is None or there is None:
                group = stored_group(checkpoint, tensor, row, column)
            else:
                chosen, _ = plan_in_format(checkpoint, plan, there[0], ask.format_name)
                token.check()
                there = planned_place(chosen, tensor, row) or there
                group = planned_group(checkpoint, chosen, *there, column)
        except UserError as error:
            problem = error
        token.check()
        levels = group_grid(group).levels if group is not None else None
        span = span_around(column, columns)
        try:
            variants, opened = _variants(block, row - start, span, column, ask, extent)
        except UserError as error:
            variants, opened, problem = (), None, problem or error
        weights = block[row - start, span[0] : span[1]]
        return GroupReply(group, levels, rows, columns, row, variants, weights, span[0], opened, problem, column)

    return work


def check_values(tensor: TensorInfo) -> None:
    """Raises UserError for a tensor without values, of which there is nothing to show."""
    if not tensor.values:
        shape = " × ".join(map(str, tensor.shape))
        raise UserError(f"'{tensor.name}' has no values: its shape is {shape}.", "Choose another tensor.")


def teaching_work(data: Synthetic, ask: GroupAsk) -> Work:
    """The same for made-up rows. The result is a GroupReply without a group."""

    def work(_token: CancelToken) -> GroupReply:
        from core.inspect.granularity import span_around
        from core.inspect.synthetic import synthetic_rows

        values = synthetic_rows(data)
        row, column = min(ask.row, data.rows - 1), min(ask.column, data.columns - 1)
        span = span_around(column, data.columns)
        variants, opened = _variants(values, row, span, column, ask, None)
        weights = values[row, span[0] : span[1]]
        return GroupReply(None, None, data.rows, data.columns, row, variants, weights, span[0], opened)

    return work


def _variants(
    rows: np.ndarray, row: int, span: tuple[int, int], column: int, ask: GroupAsk, extent: tuple[float, float] | None
) -> tuple[tuple[Variant, ...], OpenedVariant | None]:
    from core.inspect.granularity import opened_variant, side_by_side

    variants = side_by_side(rows, row, span, ask.bits, ask.symmetric, extent)
    return variants, opened_variant(rows, row, column, ask.bits, ask.symmetric, ask.opened, extent)


def _rows_around(checkpoint: Checkpoint, tensor: TensorInfo, row: int) -> tuple[np.ndarray, int]:
    """Some rows that include this one, float32, and the number of the first."""
    first = max(0, min(row - MOST_ROWS // 2, tensor.rows - MOST_ROWS))
    return checkpoint.read_rows(tensor, first, min(tensor.rows, first + MOST_ROWS)), first


# ---- activations -----------------------------------------------------------------------------------------------------


def activations_work(checkpoint: Checkpoint, text: str | None, limit: int, path: Path | None = None) -> Work:
    """Yields ActivationProgress layer by layer and returns Activations.

    The text is that of the file, else `text`, else the bundled one.
    """

    def work(token: CancelToken) -> Iterator[Any]:
        from core.inspect.layerwise import measure_activations

        given = _read_text(path) if path is not None else text
        return (yield from measure_activations(checkpoint, given, limit, token))

    return work


def cache_outliers_work(checkpoint: Checkpoint, limit: int) -> Work:
    """Yields ActivationProgress layer by layer and returns CacheOutliers, over the bundled text."""

    def work(token: CancelToken) -> Iterator[Any]:
        from core.inspect.cache_outliers import measure_cache

        return (yield from measure_cache(checkpoint, limit=limit, token=token))

    return work


def _read_text(path: Path) -> str:
    """The beginning of a text file, far more than is run. Raises UserError."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_TEXT)
    except OSError as error:
        raise UserError(f"{path.name} can not be read: {error.strerror}.", "Choose another text file.") from None


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


@dataclass(frozen=True)
class Found:
    """Findings so far, before the channels of the loudest tensors are named. Only the newest counts."""

    findings: tuple[Finding, ...]


def findings_work(checkpoint: Checkpoint, rows: Iterable[Any], plan: Plan) -> Work:
    """Yields Found at once, then reads the tensors that stand out; the result is a tuple of Finding, worst first."""
    kept = tuple(rows)

    def work(token: CancelToken) -> Iterator[Found]:
        from core.inspect.findings import findings

        token.check()
        yield Found(findings(kept, plan))
        return findings(kept, plan, checkpoint, token)

    return work


def remedies_work(checkpoint: Checkpoint, plan: Plan, finding: Finding) -> Work:
    """Yields Offered, each remedy at least once; a later one of the same kind and format is the more exact."""

    def work(token: CancelToken) -> Iterator[Offered]:
        from core.inspect.remedies import remedies

        for remedy in remedies(checkpoint, plan, finding, token):
            yield Offered(remedy)

    return work
