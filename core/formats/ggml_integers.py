"""GGML's blocks of symmetric integers, made of codes that were chosen elsewhere."""

from __future__ import annotations

import numpy as np

from core.contract import ElementType
from core.formats.numbers import Codes, Integers
from kernels import ops

# d·(q − 8) and d·q, d in float16, 32 values a block.
INTEGER_BLOCKS = {
    "Q4_0": Integers(4, 32, True, ElementType.F16),
    "Q8_0": Integers(8, 32, True, ElementType.F16),
}


def integer_blocks(kind: str, codes: Codes) -> np.ndarray:
    """Codes uint8 [R, K] with float16 scales [R, K/32] → blocks uint8 [R, row bytes] of Q4_0 or Q8_0."""
    rows, columns = codes.codes.shape
    values = codes.codes.reshape(rows, columns // 32, 32)
    if kind == "Q4_0":
        payload = values[:, :, :16] | values[:, :, 16:] << 4
    else:
        payload = values ^ np.uint8(128)  # code − 128 in two's complement
    scales = ops.from_float32(codes.scales, "F16").reshape(rows, -1, 2)
    return np.concatenate([scales, payload], axis=2).reshape(rows, -1)
