"""One group of one row, opened to its bits: values, scales, codes, the bytes that hold them, and what is read back.

The bytes are those of the file that a conversion writes, at the offsets where it writes them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.blocks import LONG_ROW, Block, encode, encoded_runs, lanes_of, read_block, split, with_options
from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.dtypes import row_bytes
from core.checkpoint.reading import PIECE
from core.errors import UserError
from core.formats import EncodeOptions
from core.formats.coded import Coded
from core.inspect.coded_bits import Window, read_coded
from core.inspect.group_bits import read_blocks, with_original
from core.inspect.group_types import (
    GroupMap,
    Place,
    StoredArray,
    StoredBytes,
)
from core.inspect.tracing import matrix_amax, source_row
from core.models.read_mapped import read_mapped
from core.packed.checkpoint import UnpackedCheckpoint
from core.placement import part_name, stored_parts
from core.plan import Plan
from core.progress import CancelToken
from core.tensor_info import TensorInfo


def planned_group(checkpoint: Checkpoint, plan: Plan, index: int, row: int, column: int) -> GroupMap:
    """The group of value (row, column) of planned tensor number `index`, as it will stand in the output of the plan.

    Only the rows that share bytes with it are encoded. Raises UserError when its values can not be stored, IndexError
    for a place outside of the tensor.
    """
    t = plan.tensors[index]
    _check_place(t.rows, t.columns, row, column)
    placed = sorted((p for p in plan.layout.parts if p.tensor == index), key=lambda p: p.part)
    arrays = tuple(
        StoredArray(plan.layout.files[p.file].name, part_name(t.name, part.suffix), part.dtype, p.offset, p.nbytes)
        for p, part in zip(placed, stored_parts(t), strict=True)
    )
    if lanes_of(t) is not None:
        raise _far_apart(t.name)
    block, options = _block_around(checkpoint, plan, index, row, column)
    stored = StoredBytes(arrays, encoded_runs(checkpoint, t, block, options))
    place = Place(t.name, t.shape, row, column)
    if isinstance(t.format, Coded):
        raw = encode(checkpoint, t, block, read_block(checkpoint, t, block), options)
        found = read_coded(place, stored, Window(t.format, t.shape, (block.start, block.stop), block.columns, raw))
    else:
        found = read_blocks(place, stored, t.source_dtype if t.format is None else t.format.name)
    whole = read_mapped(checkpoint, t.source, row, row + 1, block.columns)[0]  # a source's blocks may be larger
    original = whole[found.columns[0] - block.columns[0] : found.columns[1] - block.columns[0]]
    return with_original(replace(found, source=source_row(t.source, row, found.columns)), original)


def stored_group(checkpoint: Checkpoint, tensor: TensorInfo, row: int, column: int) -> GroupMap:
    """What is in the file already: the group of value (row, column) of a tensor of a checkpoint; original is None.

    Of a packed weight whose columns are stored in an order of their own, `column` is the stored one; of one that is
    stored rotated, the values are those of W R.
    Raises UserError for types without a bit layout here, IndexError for a place outside of the tensor.
    """
    _check_place(tensor.rows, tensor.columns, row, column)
    if tensor.packed:
        return _stored_packed(checkpoint, tensor, row, column)
    parts = [tensor]
    if tensor.dtype == "NVFP4":
        beside = tensor.name.removesuffix(".weight") + ".scale"
        parts += [t for t in checkpoint.tensors if t.name == beside and t.dtype == "F32"]
    arrays = tuple(_stored_array(checkpoint, p) for p in parts)
    columns = _whole_blocks(tensor.columns, column)
    runs = [
        (0, row * row_bytes(tensor.dtype, tensor.columns) + row_bytes(tensor.dtype, columns[0]),
         checkpoint.read_raw(tensor, row, row + 1, columns).reshape(-1)),
        *((1, 0, checkpoint.read_raw(p).reshape(-1)) for p in parts[1:]),
    ]  # fmt: skip
    return read_blocks(Place(tensor.name, tensor.shape or (1,), row, column), StoredBytes(arrays, runs), tensor.dtype)


def _far_apart(name: str) -> UserError:
    return UserError(
        f"'{name}' keeps codes of distant rows in one byte or word, so that its bits are not shown.",
        "Look at another tensor, or at another format.",
    )


def _check_place(rows: int, columns: int, row: int, column: int) -> None:
    if not (0 <= row < rows and 0 <= column < columns):
        raise IndexError(f"value ({row}, {column}) of a tensor of {rows} × {columns}")


def _whole_blocks(columns: int, column: int) -> Columns:
    """The columns to read around one: the row, or a piece of it where it is long."""
    if columns <= LONG_ROW:
        return 0, columns
    left = column // PIECE * PIECE
    return left, min(columns, left + PIECE)


def _block_around(checkpoint: Checkpoint, plan: Plan, index: int, row: int, column: int) -> tuple[Block, EncodeOptions]:
    """The smallest block that a run would encode to the same bytes, and its options."""
    t = plan.tensors[index]
    unit = t.format.unit_rows(t.shape) if t.format else 1
    start = row // unit * unit
    columns = (0, t.columns) if t.lossless else _whole_blocks(t.columns, column)
    block = Block(index, start, min(t.rows, start + unit), columns)
    options = EncodeOptions(method=plan.recipe.method)
    token = CancelToken()
    if t.format is None or t.lossless:
        return block, options
    if t.format.needs_amax:
        return block, replace(options, amax=matrix_amax(checkpoint, t, row))
    if t.format.scales_rows and t.columns > LONG_ROW:
        pieces = [b for b in split(index, t, 1) if b.start <= row < b.stop]
        _, options = next(with_options(checkpoint, t, pieces, options, token))
        return replace(block, start=pieces[0].start, stop=pieces[0].stop), options
    return block, options


def _stored_array(checkpoint: Checkpoint, t: TensorInfo) -> StoredArray:
    return StoredArray(checkpoint.files[t.file].name, t.name, t.dtype, t.offset, t.nbytes)


def _stored_packed(checkpoint: Checkpoint, tensor: TensorInfo, row: int, column: int) -> GroupMap:
    assert isinstance(checkpoint, UnpackedCheckpoint)
    weight = checkpoint.packed[tensor.name]
    if weight.format.lanes(weight.shape) is not None:
        raise _far_apart(tensor.name)
    if weight.transposed:
        raise UserError(
            f"'{tensor.name}' is stored with rows and columns exchanged, so that its bits are not shown.",
            "Look at another tensor.",
        )
    shape, row = weight.stored_shape, weight.first_row + row
    unit = weight.format.unit_rows(shape)
    rows = (row // unit * unit, min(weight.first_row + weight.shape[0], row // unit * unit + unit))
    raw, runs = [], []
    for number, (part, source) in enumerate(zip(weight.format.parts(shape), weight.sources, strict=True)):
        run = part.run(shape, rows, (0, shape[-1]))
        data = np.empty(0, np.uint8) if part.constant else weight.checkpoint.read_run(source, run)
        raw.append(data)
        stretches = enumerate(data.reshape(run.count, -1)) if data.size else ()
        runs += [(number, run.offset + i * run.stride, stretch) for i, stretch in stretches]
    arrays = tuple(_stored_array(weight.checkpoint, source) for source in weight.sources)
    window = Window(weight.format, shape, rows, (0, shape[-1]), raw)
    return read_coded(Place(weight.name, shape, row, column), StoredBytes(arrays, runs), window)
