"""The work on one block of rows: read, encode, write, decode, compare. What is on the disk is compared at the end, with
the checksum of the bytes that were decoded here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.dtypes import row_bytes
from core.checkpoint.reading import windows
from core.errors import UserError
from core.export.layout import PlacedPart
from core.formats import EncodeOptions, Format, Method
from core.formats.coded import Coded
from core.formats.numbers import joined
from core.journal import WrittenBlock
from core.metrics.error import ErrorSum, measure
from core.models.read_mapped import read_mapped
from core.output import OutputFiles
from core.packed.read_codes import read_codes, read_runs
from core.parts import Lanes, Part, Run
from core.plan import BLOCK_BUDGET, TensorPlan
from core.progress import CancelToken
from core.units import format_count
from kernels import ops
from kernels.layouts import F16_MAX

BYTES_PER_VALUE = 16  # of a block in flight: float32 source and reconstruction, raw source, codes, scratch
BLOCK_VALUES = 1 << 20  # more is no faster: the block leaves the cache
HISTOGRAM_VALUES = 1 << 18  # a histogram of so many, from rows all over the tensor, is the same picture
HISTOGRAM_ROWS = 16  # but no fewer than one row of these
LONG_ROW = 1 << 17  # values; a scale over more of them is found from pieces of the row


@dataclass(frozen=True)
class Block:
    """Rows start…stop of tensor number `tensor` of the plan, and which of their columns; lanes, where the format is cut
    along them, all columns then."""

    tensor: int
    start: int
    stop: int
    columns: Columns


@dataclass(frozen=True)
class BlockResult:
    """What a block left behind. error: None for a copy, which is exact."""

    block: Block
    written: tuple[WrittenBlock, ...]
    error: ErrorSum | None


def lanes_of(t: TensorPlan) -> Lanes | None:
    """Along what a tensor is cut, where it is not rows."""
    return t.format.lanes(t.shape) if t.format is not None else None


def values_of(t: TensorPlan, b: Block) -> int:
    """How many values a block has."""
    if lanes := lanes_of(t):
        return lanes.length * sum(last - first for first, last in lanes.pieces(b.start, b.stop))
    return (b.stop - b.start) * (b.columns[1] - b.columns[0])


def fits_rows(t: TensorPlan) -> bool:
    """Whether the scales of this tensor's rows are found before its values are encoded, the rows being long."""
    return t.format is not None and t.format.scales_rows and t.columns > LONG_ROW


def split(index: int, t: TensorPlan, threads: int, matrices: int = 1) -> list[Block]:
    """Blocks of a tensor, in order, small enough that all blocks in flight stay within BLOCK_BUDGET.

    matrices: of so many that are stacked none shares a block with another.

    Long rows are cut; a tensor without rows is one empty block.
    """
    most = BLOCK_BUDGET // BYTES_PER_VALUE // (threads + 1)
    values = min(most, BLOCK_VALUES)
    if lanes := lanes_of(t):
        height = max(1, values // (lanes.most * lanes.length))
        return [Block(index, start, stop, (0, t.columns)) for start, stop in lanes.cut(height)]
    unit = t.format.unit_rows(t.shape) if t.format else 1
    if unit > 1 or t.lossless:
        values = max(values, min(most, unit * t.columns))
    if t.format is not None and _across(t, t.format):
        values = most  # rows are columns there: the fewer blocks, the longer the stretches of the file
    if t.format is not None and not t.format.cuts_rows(t.shape):
        values = max(values, min(unit, t.rows) * t.columns)
    if fits_rows(t):
        values = min(values, unit * t.columns - 1)  # cut, so that rows that were fitted together are blocks together
    matrix = t.rows // matrices
    if t.format is not None and t.format.needs_amax and len(t.shape) > 2:
        matrix = t.shape[-2]
    return [
        Block(index, base + start, base + stop, columns)
        for base in range(0, t.rows, max(1, matrix))  # a block stays inside one matrix of a stack
        for start, stop, columns in windows(matrix, t.columns, values, unit)
    ] or [Block(index, 0, t.rows, (0, t.columns))]


def read_block(checkpoint: Checkpoint, t: TensorPlan, b: Block) -> np.ndarray:
    """Source values of a block, float32 [rows, columns], or [runs, length] where it is lanes."""
    if lanes := lanes_of(t):
        each = t.columns // lanes.length
        found = []
        for first, last in lanes.pieces(b.start, b.stop):
            rows = read_mapped(checkpoint, t.source, first // each, -(-last // each))
            found.append(rows.reshape(-1, lanes.length)[first % each :][: last - first])
        return np.concatenate(found)
    return read_mapped(checkpoint, t.source, b.start, b.stop, b.columns)


def of_reference(t: TensorPlan, reference: Checkpoint) -> TensorPlan:
    """The same tensor, read from another checkpoint that has it."""
    pieces = tuple(replace(p, tensor=reference.tensor(p.tensor.name)) for p in t.source.pieces)
    return replace(t, source=replace(t.source, pieces=pieces))


def with_options(
    checkpoint: Checkpoint,
    t: TensorPlan,
    blocks: Sequence[Block],
    options: EncodeOptions,
    token: CancelToken,
    families: dict[frozenset[str], EncodeOptions] | None = None,
) -> Iterator[tuple[Block, EncodeOptions]]:
    """Each block with what it needs to know of more than its own values. Raises UserError for NaN in long rows.

    families: where one is given, what was found for tensors that are fused is kept in it for the others of the family.
    """

    def pieces(of: Sequence[Block]) -> Iterator[np.ndarray]:
        for b in of:
            token.check()
            yield read_block(checkpoint, t, b)

    def with_fused(of: Sequence[Block]) -> Iterator[np.ndarray]:
        yield from pieces(of)
        for other in t.fused:
            for start, stop, columns in windows(other.rows, other.columns, BLOCK_VALUES):
                token.check()
                yield read_mapped(checkpoint, other, start, stop, columns)

    if t.lossless:
        yield from ((b, replace(options, threads=1)) for b in blocks)
    elif t.format is not None and t.format.needs_amax:
        for _, matrix in groupby(blocks, lambda b: b.start // t.shape[-2]):
            own = list(matrix)
            family = frozenset((t.name, *(o.name for o in t.fused)))
            known = families.get(family) if families is not None and t.fused else None
            if known is None:
                fitted = t.format.fit(partial(with_fused, own), options)
            else:
                fitted = replace(options, amax=known.amax, fitted=known.fitted)
            if families is not None and t.fused:
                families[family] = fitted
            yield from ((b, replace(fitted, threads=1)) for b in own)
    elif t.format is not None and fits_rows(t):
        for _, rows in groupby(blocks, lambda b: b.start):
            own = list(rows)
            try:
                found = t.format.fit_rows(partial(pieces, own), options)
            except ValueError:
                raise _not_finite(t, sum(ops.scan(piece).nonfinite for piece in pieces(own))) from None
            yield from ((b, replace(options, rows=found, threads=1)) for b in own)
    else:
        yield from ((b, replace(options, threads=1)) for b in blocks)


class BlockWorker:
    """Runs blocks of one plan. Thread-safe: every call reads and writes its own byte ranges."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensors: tuple[TensorPlan, ...],
        parts: tuple[PlacedPart, ...],
        files: OutputFiles,
        reference: Checkpoint | None = None,
    ) -> None:
        """reference: what errors are measured against, where it is not the checkpoint that is read."""
        self._checkpoint = checkpoint
        self._reference = reference or checkpoint
        self._tensors = tensors
        self._files = files
        self._parts: dict[int, list[PlacedPart]] = {}
        self._limits: dict[int, float] = {}  # of the error histogram of the block before, which is a good guess
        for p in parts:
            self._parts.setdefault(p.tensor, []).append(p)
        for placed in self._parts.values():
            placed.sort(key=lambda p: p.part)

    def run(self, block: Block, options: EncodeOptions) -> BlockResult:
        """Raises UserError when the values can not be stored, do not survive, or the disk refuses."""
        t = self._tensors[block.tensor]
        return self._copy(block, t) if t.format is None else self._encode(block, t, t.format, options)

    def _encode(self, block: Block, t: TensorPlan, form: Format, options: EncodeOptions) -> BlockResult:
        parts = form.parts(t.shape)
        stored: list[list[np.ndarray]] = [[] for _ in parts]
        error = None if form.derived else ErrorSum()
        for piece in _pieces(t, form, block):
            encoded, of_piece = self._encode_piece(piece, t, form, options)
            for part, found, data in zip(parts, stored, encoded, strict=True):
                found.append(data.reshape(block_run(part, t, piece).count, -1) if data.size else data)
            if error is not None and of_piece is not None:
                error.add(of_piece)
                self._limits[block.tensor] = of_piece.limit
        written = []
        for placed, found in zip(self._parts[block.tensor], stored, strict=True):
            data = (np.concatenate(found, axis=-1) if len(found) > 1 else found[0]).reshape(-1)
            if not data.size:
                continue
            run = block_run(parts[placed.part], t, block, placed.offset)
            assert run.total == data.size, (t.name, placed.part, run, data.size)
            self._files.write(placed.file, run, data)
            written.append(_written(placed.file, run, data))
        return BlockResult(block, tuple(written), error)

    def _encode_piece(
        self, piece: Block, t: TensorPlan, form: Format, options: EncodeOptions
    ) -> tuple[list[np.ndarray], ErrorSum | None]:
        """The bytes of each part, uint8, and how far the values that they decode to are from the source."""
        source = read_block(self._checkpoint, t, piece)
        if t.source.packed and (bad := ops.scan(source).nonfinite):
            raise _damaged(t, bad)
        encoded = encode(self._checkpoint, t, piece, source, options)
        stored = [np.ascontiguousarray(data).reshape(-1).view(np.uint8) for data in encoded]
        decoded = form.decode(stored, *source.shape)
        if form.derived:
            return stored, None
        if t.lossless and not same_values(t, source, decoded):
            raise UserError(
                f"'{t.name}' would not keep its numbers in {form.name}.", "Report this with the command, please."
            )
        if not t.lossless:
            check_bound(t, source, decoded, options, _TOO_WIDE, options.rows.amax if options.rows else None)
        if t.lossless and self._reference is not self._checkpoint:
            source = read_block(self._reference, of_reference(t, self._reference), piece)
        every = max(1, min(HISTOGRAM_ROWS, t.values // HISTOGRAM_VALUES))
        return stored, measure(source, decoded, self._limits.get(piece.tensor, 0.0), every)

    def constants(self, index: int) -> tuple[WrittenBlock, ...]:
        """Write the parts of a tensor that do not come from its values."""
        t = self._tensors[index]
        written = []
        for part, data in (t.format.constant_parts(t.shape) if t.format else {}).items():
            placed = self._parts[index][part]
            raw, run = np.frombuffer(data, np.uint8), Run(placed.offset, len(data))
            self._files.write(placed.file, run, raw)
            written.append(_written(placed.file, run, raw))
        return tuple(written)

    def _copy(self, block: Block, t: TensorPlan) -> BlockResult:
        (placed,) = self._parts[block.tensor]
        raw = self._checkpoint.read_raw(t.source.pieces[0].tensor, block.start, block.stop, block.columns)
        data = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        offset = (
            placed.offset + placed.nbytes // max(1, t.rows) * block.start + row_bytes(t.source_dtype, block.columns[0])
        )
        run = Run(offset, data.nbytes)
        self._files.write(placed.file, run, data)
        return BlockResult(block, (_written(placed.file, run, data),), None)


def _pieces(t: TensorPlan, form: Format, block: Block) -> list[Block]:
    """What of a block is encoded at once. One that is large for the sake of long stretches would leave the cache."""
    if values_of(t, block) <= BLOCK_VALUES or not _across(t, form):
        return [block]
    unit = form.unit_rows(t.shape)
    height = max(unit, BLOCK_VALUES // t.columns // unit * unit)
    starts = range(block.start, block.stop, height)
    return [replace(block, start=start, stop=min(start + height, block.stop)) for start in starts]


def _across(t: TensorPlan, form: Format) -> bool:
    """Whether rows of the tensor are columns of what is stored."""
    return any(part.across for part in form.parts(t.shape))


def block_run(part: Part, t: TensorPlan, block: Block, base: int = 0) -> Run:
    """Where a block's bytes of a part lie, the part being at `base`."""
    if lanes := lanes_of(t):
        run = part.lane_run(lanes, block.start, block.stop)
    else:
        run = part.run(t.shape, (block.start, block.stop), block.columns)
    return replace(run, offset=base + run.offset)


def _written(file: int, run: Run, data: np.ndarray) -> WrittenBlock:
    return WrittenBlock(file, run.offset, run.nbytes, ops.crc32(data), run.count, run.stride)


def encoded_runs(
    checkpoint: Checkpoint, t: TensorPlan, block: Block, options: EncodeOptions
) -> list[tuple[int, int, np.ndarray]]:
    """The bytes that a block becomes, as (part, offset in the part, uint8 array). Raises UserError like `encode`."""
    if t.format is None:
        raw = checkpoint.read_raw(t.source.pieces[0].tensor, block.start, block.stop, block.columns)
        offset = row_bytes(t.source_dtype, t.columns) * block.start + row_bytes(t.source_dtype, block.columns[0])
        return [(0, offset, raw.reshape(-1))]
    encoded = encode(checkpoint, t, block, read_block(checkpoint, t, block), options)
    found = []
    for number, (part, data) in enumerate(zip(t.format.parts(t.shape), encoded, strict=True)):
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if flat.size:
            run = block_run(part, t, block)
            stretches = enumerate(flat.reshape(run.count, -1))
            found += [(number, run.offset + i * run.stride, stretch) for i, stretch in stretches]
    return found


_TOO_WIDE = (
    "Its values are too large or too small for this format's scales: keep it in 16 bits with a 'keep' rule, or choose "
    "another format for it."
)


def encode(
    checkpoint: Checkpoint, t: TensorPlan, block: Block, source: np.ndarray, options: EncodeOptions
) -> tuple[np.ndarray, ...]:
    """The parts of a block, from its source values, or from the source's codes. Raises UserError like `quantize`."""
    if t.lossless and t.format is not None:
        lanes = lanes_of(t)
        try:
            if lanes is None:
                codes = read_codes(checkpoint, t.source, block.start, block.stop)
            else:
                pieces = lanes.pieces(block.start, block.stop)
                codes = joined([read_runs(checkpoint, t.source, lanes.length, *piece) for piece in pieces])
            return t.format.pack(t.format.with_input(codes, options))
        except ValueError as error:
            raise UserError(
                f"'{t.name}' has scales that {t.format.name} can not hold: {error}.", "Choose another target for it."
            ) from error
    return quantize(t, source, options)


def quantize(t: TensorPlan, source: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
    """Encode rows of a tensor. Raises UserError for values that its format can not store."""
    assert t.format is not None
    if t.format.name == "F16" and (amax := ops.scan(source).amax) > F16_MAX:
        raise UserError(
            f"'{t.name}' holds values up to {amax:.4g}; F16 ends at {format_count(F16_MAX)}.",
            "Choose BF16, or another format for this tensor.",
        )
    try:
        return t.format.encode(source, options)
    except ValueError:
        bad = ops.scan(source).nonfinite
        if not bad:
            raise
        raise _not_finite(t, bad) from None


def _not_finite(t: TensorPlan, count: int) -> UserError:
    return UserError(
        f"'{t.name}' holds {format_count(count)} NaN or infinite values, which {t.format_name} can not store.",
        "The checkpoint is damaged: get it again, or keep this tensor with a 'keep' rule.",
    )


def _damaged(t: TensorPlan, count: int) -> UserError:
    """No weight is packed with such values: unpacked, or moved with their codes, they would only be found later."""
    return UserError(
        f"'{t.name}' unpacks to {format_count(count)} NaN or infinite values, so its scales are damaged.",
        "Download the model again, or use the checkpoint that it was made from.",
    )


def same_values(t: TensorPlan, source: np.ndarray, decoded: np.ndarray) -> bool:
    """Whether codes that were taken over still have their values, but for what the plan says is rounded."""
    if t.rounding:
        return np.allclose(decoded, source, rtol=t.rounding, atol=2.0**-140, equal_nan=True)
    return np.array_equal(source, decoded, equal_nan=True)


def check_bound(
    t: TensorPlan,
    source: np.ndarray,
    decoded: np.ndarray,
    options: EncodeOptions,
    hint: str,
    row_amax: np.ndarray | None = None,
) -> None:
    """Raise UserError, with that hint, when a value is further from its source than the format allows.

    row_amax: largest |value| of each whole row, where the values are pieces of rows that have one scale.
    """
    assert t.format is not None
    bound = t.format.bound(options.method)
    group = t.format.bound_group(source.shape[1])
    floor = t.format.bound_floor(options)
    if row_amax is None:
        view = t.format.bound_view
        ratio = ops.max_group_error_ratio(view(source), view(decoded), group, floor)
    else:
        ratio = max(
            ops.max_group_error_ratio(x[None], y[None], group, max(floor, float(largest)))
            for x, y, largest in zip(source, decoded, row_amax, strict=True)
        )
    if t.format.contract.scale is None and not _same_where_not_finite(source, decoded):
        ratio = float("inf")
    if ratio > bound or (ratio > t.format.bound(Method.ROUND) and _ends_before(t.format, source)):
        bound = min(bound, t.format.bound(Method.ROUND))
        raise UserError(
            f"'{t.name}' is further from its source than {t.format.name} allows "
            f"({ratio:.3g} of the group's largest value, at most {bound:.3g}).",
            hint,
        )


def _ends_before(form: Format, source: np.ndarray) -> bool:
    """Whether the scales of the format do not reach the largest value; what a search clips, it does within them."""
    return isinstance(form, Coded) and float(np.abs(source).max(initial=0.0)) > form.numbers.largest


def _same_where_not_finite(source: np.ndarray, decoded: np.ndarray) -> bool:
    special = ~np.isfinite(source)
    return np.array_equal(source[special], decoded[special], equal_nan=True)
