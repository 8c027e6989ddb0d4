"""Compare a finished output with its source, tensor by tensor, through the ordinary readers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from core.blocks import Block, block_run, check_bound, fits_rows, read_block, same_values, split
from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.dtypes import is_readable
from core.checkpoint.reading import windows
from core.errors import UserError
from core.formats import EncodeOptions
from core.formats.coded import Coded
from core.metrics.error import ErrorSum, measure
from core.placement import part_name, stored_parts
from core.plan import Plan, TensorPlan
from core.progress import CancelToken, TensorResult
from core.tensor_info import TensorInfo
from core.threads import worker_count
from kernels import ops


@dataclass(frozen=True)
class Health:
    """What a look at every value of a checkpoint found, where no source is given to compare with."""

    tensors: int
    values: int
    nonfinite: int
    all_zero: tuple[str, ...]


def verify_alone(checkpoint: Checkpoint, token: CancelToken) -> Health:
    """Decode every tensor of a checkpoint. Raises UserError when the file is short or a weight can not be decoded."""
    if checkpoint.packed_problem:
        raise checkpoint.packed_problem
    values = nonfinite = 0
    zero = []
    for t in checkpoint.tensors:
        amax = 0.0
        for start, stop, columns in windows(t.rows, t.columns, 4_000_000):
            token.check()
            if not is_readable(t):
                checkpoint.read_raw(t, start, stop, columns)
                amax = 1.0  # what its values are can not be told
                continue
            found = ops.scan(checkpoint.read_rows(t, start, stop, columns))
            nonfinite += found.nonfinite
            amax = max(amax, float(found.amax))
        values += t.values
        if t.values and amax == 0.0:
            zero.append(t.name)
    return Health(len(checkpoint.tensors), values, nonfinite, tuple(zero))


def verify_against(
    plan: Plan, source: Checkpoint, output: Checkpoint, token: CancelToken
) -> Generator[tuple[int, TensorResult], None, None]:
    """Decode every planned tensor from the output and compare it with the source; yields (number, result).

    Raises UserError for a tensor that is missing, has another shape, or lies outside its format's bound.
    """
    changed = plan.recipe.calibrated
    if changed is not None and changed.changes_weights:
        raise UserError(
            f"{changed.name} changes weights so that they fit together, and not one by one.",
            "Use `bitsmith eval SOURCE OUTPUT`, which compares what the two models compute.",
        )
    reader = _Parts(output)
    for i, t in enumerate(plan.tensors):
        total = ErrorSum()
        blocks = split(i, t, worker_count())
        largest = _largest(source, t, blocks, token)
        for b in blocks:
            token.check()
            if t.format is None:
                raw = source.read_raw(t.source.pieces[0].tensor, b.start, b.stop, b.columns)
                if not np.array_equal(raw, reader.raw(t, b.start, b.stop, b.columns)):
                    raise UserError(f"'{t.name}' should be an exact copy and is not.", "Run the conversion again.")
                continue
            want = read_block(source, t, b)
            got = reader.values(t, b, want.shape)
            options = EncodeOptions(method=plan.recipe.method, amax=max(largest.values(), default=0.0))
            rows = np.array([largest[row] for row in range(b.start, b.stop)]) if fits_rows(t) else None
            if t.format.derived:
                if not (np.isfinite(got).all() and (got > 0).all()):
                    raise UserError(f"'{t.name}' is no scale.", _ANOTHER)
                continue
            if not t.lossless:
                check_bound(t, want, got, options, _ANOTHER, rows)
            elif not same_values(t, want, got):
                raise UserError(f"'{t.name}' should have the numbers of its source and has not.", _ANOTHER)
            total.add(measure(want, got))
        yield i, TensorResult(t.name, t.format_name, t.bytes.total, None if t.format is None else total.stats())


def _largest(source: Checkpoint, t: TensorPlan, blocks: list[Block], token: CancelToken) -> dict[int, float]:
    """Largest |value| by row, or by the first row of a block, where a scale is meant for more than a block's values."""
    largest: dict[int, float] = {}
    if t.format is None or not (t.format.needs_amax or fits_rows(t)):
        return largest
    for b in blocks:
        token.check()
        values = read_block(source, t, b)
        each = [values] if t.format.needs_amax else [values[i : i + 1] for i in range(len(values))]
        for row, some in enumerate(each, b.start):
            largest[row] = max(largest.get(row, 0.0), float(ops.scan(some).amax))
    return largest


_ANOTHER = "The output is damaged, or was made from another source or by another recipe: run the conversion again."


class _Parts:
    """Decoded rows of planned tensors from the output's stored arrays."""

    def __init__(self, output: Checkpoint) -> None:
        self._output = output.stored
        self._tensors = {t.name: t for t in self._output.tensors}

    def raw(self, t: TensorPlan, start: int, stop: int, columns: Columns) -> np.ndarray:
        """Stored bytes of a block of a copied tensor. Raises UserError like `rows`."""
        return self._output.read_raw(self._stored(t)[0], start, stop, columns)

    def _stored(self, t: TensorPlan) -> list[TensorInfo]:
        infos = []
        for p in stored_parts(t):
            info = self._tensors.get(part_name(t.name, p.suffix))
            if info is None:
                raise UserError(f"The output has no '{part_name(t.name, p.suffix)}'.", "It was made by another recipe.")
            if (info.shape or (1,), info.dtype, info.nbytes) != (p.shape or (1,), p.dtype, p.nbytes):
                raise UserError(f"'{info.name}' is not stored as planned.", "It was made by another recipe.")
            infos.append(info)
        return infos

    def values(self, t: TensorPlan, b: Block, shape: tuple[int, ...]) -> np.ndarray:
        """Values of a block, float32 of that shape. Raises UserError for a part that is missing or stored in another
        way."""
        infos = self._stored(t)
        if not isinstance(t.format, Coded):  # the reader applies a tensor's scale itself
            return self._output.read_rows(infos[0], b.start, b.stop, b.columns)
        raw = [
            self._output.read_run(info, block_run(part, t, b))
            for info, part in zip(infos, t.format.parts(t.shape), strict=True)
        ]
        return t.format.decode(raw, *shape)
