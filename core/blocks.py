"""The work on one block of rows: read, encode, write, read back, decode, compare."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.layout import PlacedPart
from core.formats import EncodeOptions, Format, Method
from core.formats.pack_quantized import PackQuantized
from core.journal import WrittenBlock
from core.metrics.error import ErrorSum, measure
from core.models.read_mapped import read_mapped
from core.output import OutputFiles
from core.plan import BLOCK_BUDGET, TensorPlan
from core.units import format_bytes
from kernels import ops
from kernels.layouts import F16_MAX

BYTES_PER_VALUE = 16  # of a block in flight: float32 source and reconstruction, raw source, codes, scratch
SEARCH_BYTES_PER_VALUE = 48  # the same where the search over a group sees a whole long row; both measured
BLOCK_VALUES = 1 << 21  # more is no faster: the block leaves the cache


@dataclass(frozen=True)
class Block:
    """Rows start…stop of tensor number `tensor` of the plan."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True)
class BlockResult:
    """What a block left behind. error: None for a copy, which is exact."""

    block: Block
    written: tuple[WrittenBlock, ...]
    error: ErrorSum | None


def split(index: int, t: TensorPlan, threads: int) -> list[Block]:
    """Blocks of a tensor, in order, small enough that all blocks in flight stay within BLOCK_BUDGET.

    A block has at least one row, however long; a tensor without rows is one empty block.
    """
    values = min(BLOCK_BUDGET // BYTES_PER_VALUE // (threads + 1), BLOCK_VALUES)
    height = max(1, min(values // max(1, t.columns), 1 << 16))
    unit = t.format.row_multiple if t.format else 1
    height = max(unit, height // unit * unit)
    bounds = [t.rows]
    if t.format is not None and t.format.needs_amax and len(t.shape) > 2:
        bounds = list(range(t.shape[-2], t.rows + 1, t.shape[-2]))  # a block stays inside one matrix of the stack
    out, start = [], 0
    for end in bounds:
        while start < end:
            stop = min(start + height, end)
            out.append(Block(index, start, stop))
            start = stop
    return out or [Block(index, 0, t.rows)]


def check_memory(tensors: Sequence[TensorPlan], threads: int) -> None:
    """Raise UserError for rows so long that the fewest that go together would not fit in the memory that is free."""
    free = psutil.virtual_memory().available
    for i, t in enumerate(tensors):
        unit = min(t.rows, t.format.row_multiple) if t.format else 1
        if unit * t.columns <= BLOCK_VALUES:
            continue
        each = SEARCH_BYTES_PER_VALUE if isinstance(t.format, PackQuantized) else BYTES_PER_VALUE
        need = (split(i, t, threads)[0].stop * t.columns) * each
        if need > free:
            raise UserError(
                f"The rows of '{t.name}' have {t.columns:,} values, which needs {format_bytes(need)} of memory; "
                f"{format_bytes(free)} are free.",
                "Check whether the file is damaged; else keep this tensor with a 'keep' rule.",
            )


def amax_of(checkpoint: Checkpoint, t: TensorPlan, blocks: list[Block]) -> Iterator[tuple[int, float]]:
    """Largest |value| of each block, as (first row, value), for formats that need it before encoding."""
    for b in blocks:
        yield b.start, float(ops.scan(read_mapped(checkpoint, t.source, b.start, b.stop)).amax)


class BlockWorker:
    """Runs blocks of one plan. Thread-safe: every call reads and writes its own byte ranges."""

    def __init__(
        self, checkpoint: Checkpoint, tensors: tuple[TensorPlan, ...], parts: tuple[PlacedPart, ...], files: OutputFiles
    ) -> None:
        self._checkpoint = checkpoint
        self._tensors = tensors
        self._files = files
        self._vast = threading.Lock()  # one at a time of the blocks that are over budget, being a single row
        self._parts: dict[int, list[PlacedPart]] = {}
        for p in parts:
            self._parts.setdefault(p.tensor, []).append(p)
        for placed in self._parts.values():
            placed.sort(key=lambda p: p.part)

    def run(self, block: Block, method: Method, amax: float) -> BlockResult:
        """Raises UserError when the values can not be stored, do not survive, or the disk refuses."""
        t = self._tensors[block.tensor]
        vast = (block.stop - block.start) * (t.shape[-1] if t.shape else 1) > BLOCK_VALUES
        with self._vast if vast else contextlib.nullcontext():
            return self._copy(block, t) if t.format is None else self._encode(block, t, t.format, method, amax)

    def _encode(self, block: Block, t: TensorPlan, form: Format, method: Method, amax: float) -> BlockResult:
        source = read_mapped(self._checkpoint, t.source, block.start, block.stop)
        options = EncodeOptions(method=method, amax=amax)
        encoded = encode(t, source, options)
        written, back = [], []
        for placed, data in zip(self._parts[block.tensor], encoded, strict=True):
            if not data.size:
                back.append(data)
                continue
            offset = placed.offset + form.part_offset(placed.part, t.shape, block.start)
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            self._files.write(placed.file, offset, data)
            written.append(WrittenBlock(placed.file, offset, data.nbytes, zlib.crc32(data)))
            back.append(self._files.read(placed.file, offset, data.nbytes))
            if not np.array_equal(back[-1], data):
                raise UserError(
                    f"'{t.name}' reads back differently from what was written.",
                    "Check the disk and the memory of this computer, then resume the run.",
                )
        decoded = form.decode(back, block.stop - block.start, source.shape[1])
        check_bound(t, source, decoded, options, _TOO_WIDE)
        return BlockResult(block, tuple(written), measure(source, decoded))

    def constants(self, index: int) -> tuple[WrittenBlock, ...]:
        """Write the parts of a tensor that do not come from its values."""
        t = self._tensors[index]
        written = []
        for part, data in (t.format.constant_parts(t.shape) if t.format else {}).items():
            placed = self._parts[index][part]
            self._files.write(placed.file, placed.offset, np.frombuffer(data, np.uint8))
            written.append(WrittenBlock(placed.file, placed.offset, len(data), zlib.crc32(data)))
        return tuple(written)

    def _copy(self, block: Block, t: TensorPlan) -> BlockResult:
        (placed,) = self._parts[block.tensor]
        raw = self._checkpoint.read_raw(t.source.pieces[0].tensor, block.start, block.stop)
        data = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        offset = placed.offset + placed.nbytes // max(1, t.rows) * block.start
        self._files.write(placed.file, offset, data)
        return BlockResult(block, (WrittenBlock(placed.file, offset, data.nbytes, zlib.crc32(data)),), None)


_TOO_WIDE = (
    "Its values are too large or too small for this format's scales: keep it in 16 bits with a 'keep' rule, or choose "
    "another format for it."
)


def encode(t: TensorPlan, source: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
    """Encode rows of a tensor. Raises UserError for values that its format can not store."""
    assert t.format is not None
    if t.format.name == "F16" and (amax := ops.scan(source).amax) > F16_MAX:
        raise UserError(
            f"'{t.name}' holds values up to {amax:.4g}; F16 ends at 65,504.",
            "Choose BF16, or another format for this tensor.",
        )
    try:
        return t.format.encode(source, options)
    except ValueError:
        bad = ops.scan(source).nonfinite
        if not bad:
            raise
        raise UserError(
            f"'{t.name}' holds {bad:,} NaN or infinite values, which {t.format.name} can not store.",
            "The checkpoint is damaged: get it again, or keep this tensor with a 'keep' rule.",
        ) from None


def check_bound(t: TensorPlan, source: np.ndarray, decoded: np.ndarray, options: EncodeOptions, hint: str) -> None:
    """Raise UserError, with that hint, when a value is further from its source than the format allows."""
    assert t.format is not None
    bound = t.format.bound(options.method)
    group = t.format.bound_group(source.shape[1])
    ratio = ops.max_group_error_ratio(source, decoded, group, t.format.bound_floor(options))
    if t.format.contract.scale is None and not _same_where_not_finite(source, decoded):
        ratio = float("inf")
    if ratio > bound:
        raise UserError(
            f"'{t.name}' is further from its source than {t.format.name} allows "
            f"({ratio:.3g} of the group's largest value, at most {bound:.3g}).",
            hint,
        )


def _same_where_not_finite(source: np.ndarray, decoded: np.ndarray) -> bool:
    special = ~np.isfinite(source)
    return np.array_equal(source[special], decoded[special], equal_nan=True)
