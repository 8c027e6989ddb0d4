"""GGML block types in numpy: the definition of `encode_blocks` and `decode_blocks`.

An encoder is written for one block, loops over its values in order, and is vectorised over blocks, so that its
float32 results are those of the compiled kernels, where each SIMD lane runs one block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.layouts import LAYOUTS
from kernels.reference import legacy

# x [B, block], weights [B, block] or None, search, tensor_scale → uint8 [B, bytes]
BlockEncoder = Callable[[np.ndarray, "np.ndarray | None", bool, float], np.ndarray]

ENCODERS: dict[str, BlockEncoder] = {
    "Q8_0": legacy.encode_q8_0,
}


def encode_blocks(
    kind: str,
    x: np.ndarray,
    importance: np.ndarray | None,
    search: bool,
    tensor_scale: float,
    threads: int,
) -> np.ndarray:
    layout = LAYOUTS[kind]
    rows, columns = x.shape
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    blocks = x.reshape(-1, layout.block)
    weights = None
    if importance is not None:
        weights = np.broadcast_to(importance, x.shape).reshape(-1, layout.block)
    out = ENCODERS[kind](blocks, weights, search, tensor_scale)
    return out.reshape(rows, layout.row_bytes(columns))
