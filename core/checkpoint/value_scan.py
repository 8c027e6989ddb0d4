"""Reads every value once and reports what would go wrong when it is quantized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint
from core.checkpoint.dtypes import is_float, is_readable
from core.checkpoint.findings import Finding
from core.checkpoint.reading import windows
from core.progress import CancelToken
from core.tensor_info import Role, TensorInfo
from core.units import format_count
from kernels.layouts import F16_MAX

BLOCK_VALUES = 1 << 22  # values read at once: 16 MiB as float32
# A block's scale is stored as float16; one below half the smallest subnormal, 2^-25, becomes 0 and so does the block.
Q8_0_FLUSH = 127 * 2.0**-25  # Q8_0: scale = largest |x| / 127, 32 values
Q6_K_FLUSH = 32 * 128 * 2.0**-25  # Q6_K: scale = largest |x| / (32 · 128), 256 values


@dataclass(frozen=True)
class ScanStep:
    """How far a scan is, in stored bytes, and what the tensor just finished has shown."""

    bytes_done: int
    bytes_total: int
    tensor: str
    findings: tuple[Finding, ...] = ()


@dataclass
class _Counts:
    values: int = 0
    nan: int = 0
    inf: int = 0
    over_f16: int = 0
    rows: int = 0
    zero_rows: int = 0
    blocks: int = 0
    flushed: int = 0
    super_blocks: int = 0
    super_flushed: int = 0
    largest: float = 0.0


def scan_values(checkpoint: Checkpoint, token: CancelToken) -> Iterator[ScanStep]:
    """Read all float tensors in row blocks of some 16 MiB. Raises Cancelled between blocks, UserError at a cut."""
    tensors = [
        t
        for t in checkpoint.tensors
        if not t.tied_to and t.nbytes and (t.packed or is_float(t.dtype)) and is_readable(t)
    ]
    total, done = sum(t.nbytes for t in tensors), 0
    for tensor in tensors:
        counts = _Counts(rows=tensor.rows)
        peaks = np.zeros(0, np.float32)
        for start, stop, columns in windows(tensor.rows, tensor.columns, BLOCK_VALUES):
            token.check()
            found = _count(checkpoint.read_rows(tensor, start, stop, columns), tensor.columns, counts)
            peaks = found if columns[0] == 0 else np.maximum(peaks, found)
            if columns[1] == tensor.columns:
                counts.zero_rows += int(np.count_nonzero(peaks == 0))
            if counts.values < tensor.values:
                yield ScanStep(done + tensor.nbytes * counts.values // tensor.values, total, tensor.name)
        done += tensor.nbytes
        yield ScanStep(done, total, tensor.name, tuple(_findings(tensor, counts)))


def _count(rows: np.ndarray, length: int, counts: _Counts) -> np.ndarray:
    """Add a row block, or a piece of rows of that length; returns the largest magnitude of each. Overwrites `rows`."""
    counts.values += rows.size
    magnitude = np.abs(rows, out=rows)
    if length % 32 == 0:  # the largest of each block tells almost everything; NaN and Inf pass through a maximum
        blocks = magnitude.reshape(len(rows), -1, 32).max(axis=2)
        counts.blocks += blocks.size
        counts.flushed += int(np.count_nonzero((blocks > 0) & (blocks <= Q8_0_FLUSH)))
        if length % 256 == 0:
            supers = blocks.reshape(len(rows), -1, 8).max(axis=2)
            counts.super_blocks += supers.size
            counts.super_flushed += int(np.count_nonzero((supers > 0) & (supers <= Q6_K_FLUSH)))
        peaks = blocks.max(axis=1)
    else:
        peaks = magnitude.max(axis=1)
    suspects = magnitude[~(peaks <= F16_MAX)]
    counts.nan += int(np.count_nonzero(np.isnan(suspects)))
    counts.inf += int(np.count_nonzero(np.isinf(suspects)))
    over = suspects[(suspects > F16_MAX) & np.isfinite(suspects)]
    counts.over_f16 += over.size
    finite_peaks = peaks[np.isfinite(peaks)]
    counts.largest = max(counts.largest, float(finite_peaks.max(initial=0.0)), float(over.max(initial=0.0)))
    return peaks


def _findings(tensor: TensorInfo, counts: _Counts) -> Iterator[Finding]:
    name = tensor.name
    again = "Download the file again; if the original has them too, keep this tensor in 16 bits."
    if counts.nan:
        yield Finding(
            "error", "nan", f"{name} has {_of(counts.nan, counts.values, 'values')} that are NaN.", again, name
        )
    if counts.inf:
        yield Finding(
            "error", "inf", f"{name} has {_of(counts.inf, counts.values, 'values')} that are infinite.", again, name
        )
    if counts.over_f16:
        message = (
            f"{name} has {_of(counts.over_f16, counts.values, 'values')} above {format_count(F16_MAX)}, the largest "
            "that F16 can hold."
        )
        hint = f"Keep this tensor in BF16 (its largest is {counts.largest:.3g})."
        yield Finding("warning", "overflows-f16", message, hint, name)
    plain = tensor.role in (Role.BIAS, Role.NORM, Role.ROPE) or len(tensor.shape) < 2
    if plain or not counts.values:
        return  # an all-zero bias or norm offset is usual, and neither is stored in blocks
    if counts.zero_rows == counts.rows:
        message = f"All {format_count(counts.values)} values of {name} are zero."
        yield Finding("warning", "zero-tensor", message, "Download the file again, unless the model is pruned.", name)
    elif counts.zero_rows:
        unused = tensor.role in (Role.EMBED, Role.HEAD)
        message = f"{name} has {_of(counts.zero_rows, counts.rows, 'rows')} of zeros only."
        hint = (
            "Nothing to do: tokens that are never used." if unused else "Download the file again, unless it is pruned."
        )
        yield Finding("info" if unused else "warning", "zero-rows", message, hint, name)
    if counts.flushed:
        share = _of(counts.flushed, counts.blocks, "blocks of 32")
        message = f"{name} has {share} so small that their 16-bit scale would be 0."
        hint = "Keep this tensor in BF16 if those values matter; else they become zeros."
        yield Finding("warning", "scale-underflow", message, hint, name)
    elif counts.super_flushed:
        share = _of(counts.super_flushed, counts.super_blocks, "blocks of 256")
        message = f"{name} has {share} so small that the 16-bit scale of Q6_K would be 0."
        hint = "Choose Q8_0 or BF16 for this tensor if those values matter."
        yield Finding("warning", "super-scale-underflow", message, hint, name)


def _of(part: int, whole: int, what: str) -> str:
    return f"{format_count(part)} of {format_count(whole)} {what}"
