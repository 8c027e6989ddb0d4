"""Codes of a mapped tensor, in row blocks: what a lossless conversion moves."""

from __future__ import annotations

from dataclasses import replace

from core.checkpoint.base import Checkpoint
from core.formats.numbers import Codes, joined
from core.models.gguf_tensors import MappedTensor
from core.models.read_mapped import interleaved
from core.packed.checkpoint import UnpackedCheckpoint


def read_codes(checkpoint: Checkpoint, mapped: MappedTensor, start: int, stop: int) -> Codes:
    """Rows start…stop of an output tensor whose `numbers` are known. Raises UserError when the source is short."""
    if not mapped.permute_heads:
        return _pieces(checkpoint, mapped, start, stop)
    head = mapped.rows // mapped.permute_heads
    first, last = start // head * head, -(-stop // head) * head
    order = interleaved(last - first, (last - first) // head)[start - first : stop - first]
    return _pieces(checkpoint, mapped, first, last).take(order)


def read_runs(checkpoint: Checkpoint, mapped: MappedTensor, length: int, first: int, last: int) -> Codes:
    """Codes of runs of so many neighbours, each with its own scale, as rows of their own: [last − first, length]."""
    each = mapped.columns // length
    rows = read_codes(checkpoint, mapped, first // each, -(-last // each)).rows_of_their_own()
    chosen = slice(first % each, first % each + last - first)
    zeros, offsets = (None if a is None else a.reshape(-1, 1)[chosen] for a in (rows.zeros, rows.offsets))
    codes, scales = rows.codes.reshape(-1, length)[chosen], rows.scales.reshape(-1, 1)[chosen]
    return replace(rows, codes=codes, scales=scales, zeros=zeros, offsets=offsets)


def _pieces(checkpoint: Checkpoint, mapped: MappedTensor, start: int, stop: int) -> Codes:
    assert isinstance(checkpoint, UnpackedCheckpoint)
    found = []
    base = 0
    for piece in mapped.pieces:
        size = piece.stop - piece.start
        low, high = max(start - base, 0), min(stop - base, size)
        if low < high:
            weight = checkpoint.packed[piece.tensor.name]
            found.append(weight.codes(piece.start + low, piece.start + high))
        base += size
    return joined(found)
