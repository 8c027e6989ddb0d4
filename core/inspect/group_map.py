"""One group of one row, opened to its bits: values, scales, codes, the bytes that hold them, and what is read back.

The bytes are those of the file that a conversion writes, at the offsets where it writes them.
"""

from __future__ import annotations

from dataclasses import replace

from core.blocks import LONG_ROW, Block, encoded_runs, split, with_options
from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.dtypes import row_bytes
from core.checkpoint.reading import PIECE
from core.errors import UserError
from core.formats import EncodeOptions
from core.formats.pack_quantized import PackQuantized
from core.inspect.group_bits import Packing, read_blocks, read_packed, with_original
from core.inspect.group_types import (
    GroupMap,
    Place,
    StoredArray,
    StoredBytes,
)
from core.inspect.tracing import matrix_amax, source_row
from core.models.read_mapped import read_mapped
from core.placement import part_name, stored_parts
from core.plan import Plan
from core.progress import CancelToken
from core.tensor_info import TensorInfo
from kernels import ops


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
    block, options = _block_around(checkpoint, plan, index, row, column)
    stored = StoredBytes(arrays, encoded_runs(checkpoint, t, block, options))
    place = Place(t.name, t.shape, row, column)
    if isinstance(t.format, PackQuantized):
        zero = None if t.format.symmetric else 3
        how = Packing(t.format.bits, t.format.group, arrays[1].dtype, zero)
        found = read_packed(place, stored, how, t.format.name)
    else:
        found = read_blocks(place, stored, t.source_dtype if t.format is None else t.format.name)
    whole = read_mapped(checkpoint, t.source, row, row + 1, block.columns)[0]  # a source's blocks may be larger
    original = whole[found.columns[0] - block.columns[0] : found.columns[1] - block.columns[0]]
    return with_original(replace(found, source=source_row(t.source, row, found.columns)), original)


def stored_group(checkpoint: Checkpoint, tensor: TensorInfo, row: int, column: int) -> GroupMap:
    """What is in the file already: the group of value (row, column) of a tensor of a checkpoint; original is None.

    A weight of a compressed-tensors folder is named by its '…weight_packed'; row and column are then the weight's.
    Raises UserError for types without a bit layout here, IndexError for a place outside of the tensor.
    """
    parts = [tensor]
    if tensor.name.endswith("_packed"):
        return _stored_packed(checkpoint, tensor, row, column)
    _check_place(tensor.rows, tensor.columns, row, column)
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
    block = Block(index, start, min(t.rows, start + unit), _whole_blocks(t.columns, column))
    options = EncodeOptions(method=plan.recipe.method)
    token = CancelToken()
    if t.format is None:
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


def _stored_packed(checkpoint: Checkpoint, packed: TensorInfo, row: int, column: int) -> GroupMap:
    base = packed.name.removesuffix("_packed")
    beside = {t.name: t for t in checkpoint.tensors if t.name.startswith(base + "_")}
    scale, dims, zero = (beside.get(f"{base}_{end}") for end in ("scale", "shape", "zero_point"))
    if scale is None or dims is None or f"{base}_g_idx" in beside:
        raise UserError(f"'{packed.name}' is stored in a way that is not known here.", "Look at another tensor.")
    given = checkpoint.read_raw(dims).reshape(-1).view("<i8" if dims.dtype == "I64" else "<i4")
    shape = (int(given[0]), int(given[1]))
    _check_place(*shape, row, column)
    bits = max((b for b in range(1, 9) if -(-shape[1] * b // 32) == packed.columns), default=0)
    if not bits or shape[1] % scale.columns or scale.dtype not in ops.ELEMENT_TYPES:
        raise UserError(f"'{packed.name}' and its scales contradict each other.", "Download the model again.")
    group = shape[1] // scale.columns
    parts = [packed, scale, *([zero] if zero else [])]
    arrays = tuple(_stored_array(checkpoint, p) for p in parts)
    line = row * bits // 32
    runs = [(0, row * packed.columns * 4, checkpoint.read_raw(packed, row, row + 1).reshape(-1)),
            (1, row * scale.nbytes // scale.rows, checkpoint.read_raw(scale, row, row + 1).reshape(-1))]  # fmt: skip
    if zero:
        last = (row * bits + bits - 1) // 32
        runs.append((2, line * zero.columns * 4, checkpoint.read_raw(zero, line, last + 1).reshape(-1)))
    how = Packing(bits, 0 if group == shape[1] else group, scale.dtype, 2 if zero else None)
    label = f"w{bits}a16-" + (f"g{how.group}" if how.group else "channel") + ("-asym" if zero else "")
    return read_packed(Place(base, shape, row, column), StoredBytes(arrays, runs), how, label)
