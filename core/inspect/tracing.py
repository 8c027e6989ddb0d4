"""From a place in the output back to the source: through permuted heads, stacks of experts and offsets."""

from __future__ import annotations

import weakref

import numpy as np

from core.blocks import Block, split
from core.checkpoint.base import Checkpoint, Columns
from core.inspect.group_types import SourceRow
from core.models.gguf_tensors import MappedTensor
from core.models.read_mapped import interleaved, read_mapped
from core.plan import Plan, TensorPlan
from core.progress import CancelToken
from core.tensor_info import TensorInfo
from core.threads import in_parallel
from kernels import ops

_AMAX: weakref.WeakKeyDictionary[Checkpoint, dict[tuple[str, int], float]] = weakref.WeakKeyDictionary()


def matrix_amax(checkpoint: Checkpoint, t: TensorPlan, row: int, token: CancelToken | None = None) -> float:
    """Largest |value| of the matrix that the row is in; looked up once a matrix. Raises Cancelled."""
    height = t.shape[-2] if len(t.shape) > 1 else 1
    expert = row // height
    known = _AMAX.setdefault(checkpoint, {})
    key = (t.source.name, expert)
    if key not in known:
        blocks = [b for b in split(0, t, 1) if expert * height <= b.start < (expert + 1) * height]

        def largest(b: Block) -> float:
            return float(ops.scan(read_mapped(checkpoint, t.source, b.start, b.stop, b.columns)).amax)

        known[key] = max(in_parallel(largest, blocks, token or CancelToken()), default=0.0)
    return known[key]


def source_rows(source: MappedTensor, name: str) -> np.ndarray:
    """For each row of the output the row of the source tensor `name` that it is made of, int64; −1: of another."""
    found = np.full(source.rows, -1, np.int64)
    start = 0
    for piece in source.pieces:
        size = piece.stop - piece.start
        if piece.tensor.name == name:
            found[start : start + size] = np.arange(piece.start, piece.stop)
        start += size
    if source.permute_heads and len(source.shape) > 1:
        found = found[interleaved(source.rows, source.permute_heads)]
    return found


def matrix_rows(source: MappedTensor, tensor: TensorInfo, expert: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the output that a source tensor, or one matrix of a stack, becomes, rising; and the row of the tensor (of
    the matrix) that each is. Both int64; empty where it is no part of the output."""
    rows = source_rows(source, tensor.name)
    height = tensor.rows if expert is None else tensor.rows // tensor.shape[0]
    first = height * (expert or 0)
    output = np.flatnonzero((rows >= first) & (rows < first + height))
    return output, rows[output] - first


def planned_place(plan: Plan, tensor: TensorInfo, row: int) -> tuple[int, int] | None:
    """Number of the planned tensor that a row of a source tensor becomes part of, and its row there; None: of none."""
    for number, planned in enumerate(plan.tensors):
        if any(s.name == tensor.name for s in planned.source.sources):
            output, rows = matrix_rows(planned.source, tensor)
            found = output[rows == row]
            if found.size:
                return number, int(found[0])
    return None


def source_row(source: MappedTensor, row: int, columns: Columns) -> SourceRow | None:
    """Through a permutation of heads, a stack of experts and an offset, back to the tensor that the values are from."""
    if not source.pieces:
        return None
    order: tuple[int, ...] = ()
    if source.permute_heads and len(source.shape) == 1:
        of_head = source.columns // source.permute_heads
        within = interleaved(of_head, 1)
        order = tuple(c // of_head * of_head + int(within[c % of_head]) for c in range(*columns))
    elif source.permute_heads:
        of_head = source.rows // source.permute_heads
        row = row // of_head * of_head + int(interleaved(of_head, 1)[row % of_head])
    for piece in source.pieces:
        size = piece.stop - piece.start
        if row < size:
            return SourceRow(piece.tensor.name, piece.start + row, source.add, order)
        row -= size
    raise IndexError(row)
