"""Compare a finished output with its source, tensor by tensor, through the ordinary readers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from core.blocks import check_bound, split
from core.checkpoint.base import Checkpoint
from core.checkpoint.dtypes import can_decode
from core.errors import UserError
from core.formats import EncodeOptions
from core.metrics.error import ErrorSum, measure
from core.models.read_mapped import read_mapped
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
    """Decode every tensor of a checkpoint. Raises UserError when the file is short or a block can not be decoded."""
    values = nonfinite = 0
    zero = []
    for t in checkpoint.tensors:
        step = max(1, 4_000_000 // max(1, t.columns))
        amax = 0.0
        for start in range(0, t.rows, step):
            token.check()
            stop = min(t.rows, start + step)
            if not can_decode(t.dtype):
                checkpoint.read_raw(t, start, stop)
                amax = 1.0  # what its values are can not be told
                continue
            found = ops.scan(checkpoint.read_rows(t, start, stop))
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
    reader = _Parts(output)
    for i, t in enumerate(plan.tensors):
        total = ErrorSum()
        amax = 0.0
        blocks = split(i, t, worker_count())
        if t.format is not None and t.format.needs_amax:
            amax = max(float(ops.scan(read_mapped(source, t.source, b.start, b.stop)).amax) for b in blocks)
        for b in blocks:
            token.check()
            if t.format is None:
                raw = source.read_raw(t.source.pieces[0].tensor, b.start, b.stop)
                if not np.array_equal(raw, reader.raw(t, b.start, b.stop)):
                    raise UserError(f"'{t.name}' should be an exact copy and is not.", "Run the conversion again.")
                continue
            want = read_mapped(source, t.source, b.start, b.stop)
            got = reader.rows(t, b.start, b.stop)
            check_bound(t, want, got, EncodeOptions(method=plan.recipe.method, amax=amax), _ANOTHER)
            total.add(measure(want, got))
        yield i, TensorResult(t.name, t.format_name, t.bytes.total, None if t.format is None else total.stats())


_ANOTHER = "The output is damaged, or was made from another source or by another recipe: run the conversion again."


class _Parts:
    """Decoded rows of planned tensors from the output's stored arrays."""

    def __init__(self, output: Checkpoint) -> None:
        self._output = output
        self._tensors = {t.name: t for t in output.tensors}

    def raw(self, t: TensorPlan, start: int, stop: int) -> np.ndarray:
        """Stored bytes of rows start…stop of a copied tensor. Raises UserError like `rows`."""
        return self._output.read_raw(self._stored(t)[0], start, stop)

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

    def rows(self, t: TensorPlan, start: int, stop: int) -> np.ndarray:
        """Rows start…stop as float32. Raises UserError for a part that is missing or stored in another way."""
        parts, infos = stored_parts(t), self._stored(t)
        if len(infos) == 1 or t.format is None or t.format.contract.tensor_scale is not None:
            return self._output.read_rows(infos[0], start, stop)  # the reader applies a tensor's scale itself
        raw = []
        for j, (p, info) in enumerate(zip(parts, infos, strict=True)):
            if j in t.format.constant_parts(t.shape):
                raw.append(self._output.read_raw(info).reshape(-1))
                continue
            # Rows of the stored array, which are not the tensor's where zero points are packed along them.
            row_bytes = p.nbytes // p.shape[0]
            first, last = (t.format.part_offset(j, t.shape, row) // row_bytes for row in (start, stop))
            raw.append(self._output.read_raw(info, first, last).reshape(-1))
        return t.format.decode(raw, stop - start, t.shape[-1])
