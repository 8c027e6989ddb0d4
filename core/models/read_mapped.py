"""Values of a mapped tensor, in row blocks of any size, also of parts of rows."""

from __future__ import annotations

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.models.gguf_tensors import MappedTensor


def read_mapped(
    checkpoint: Checkpoint,
    mapped: MappedTensor,
    start: int = 0,
    stop: int | None = None,
    columns: Columns | None = None,
) -> np.ndarray:
    """Rows start…stop of the output tensor as float32 [rows, K]; a vector is one row. columns: only these of each row.

    Reads no more of the source than that, rounded up to whole heads where rows, or a vector's values, are interleaved.
    Raises UserError when the source is short.
    """
    stop = mapped.rows if stop is None else min(stop, mapped.rows)
    left, right = columns or (0, mapped.columns)
    if (left, right) == (0, mapped.columns):
        columns = None  # heads of whole rows are read at once
    if start >= stop:
        return np.empty((0, right - left), np.float32)
    if mapped.values is not None:
        values = mapped.values.reshape(mapped.rows, mapped.columns)[start:stop, left:right]
        return np.ascontiguousarray(values, dtype=np.float32)
    if not mapped.permute_heads:
        block = _read_pieces(checkpoint, mapped, start, stop, columns)
    elif len(mapped.shape) == 1:
        head = mapped.columns // mapped.permute_heads
        first, last = left // head * head, -(-right // head) * head
        whole = _read_pieces(checkpoint, mapped, 0, 1, (first, last))
        block = whole[:, interleaved(last - first, (last - first) // head)[left - first : right - first]]
    elif columns is not None:  # rows too long for a whole head of them
        head = mapped.rows // mapped.permute_heads
        order = [row // head * head + int(interleaved(head, 1)[row % head]) for row in range(start, stop)]
        block = np.concatenate([_read_pieces(checkpoint, mapped, row, row + 1, columns) for row in order])
    else:
        head = mapped.rows // mapped.permute_heads
        first, last = start // head * head, -(-stop // head) * head
        whole = _read_pieces(checkpoint, mapped, first, last)
        block = whole[interleaved(last - first, (last - first) // head)[start - first : stop - first]]
    return block + np.float32(mapped.add) if mapped.add else block


def interleaved(rows: int, heads: int) -> np.ndarray:
    """Source row of each output row, int64 [rows]: within a head, the halves take turns."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(rows)


def _read_pieces(
    checkpoint: Checkpoint, mapped: MappedTensor, start: int, stop: int, columns: Columns | None = None
) -> np.ndarray:
    blocks = []
    base = 0
    for piece in mapped.pieces:
        size = piece.stop - piece.start
        low, high = max(start - base, 0), min(stop - base, size)
        if low < high:
            blocks.append(checkpoint.read_rows(piece.tensor, piece.start + low, piece.start + high, columns))
        base += size
        if base >= stop:
            break
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
