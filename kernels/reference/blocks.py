"""GGML block types in numpy: the definition of `encode_blocks` and `decode_blocks`.

An encoder is written for one block, loops over its values in order, and is vectorised over blocks, so that its
float32 results are those of the compiled kernels, where each SIMD lane runs one block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from kernels.layouts import GRIDS, LAYOUTS
from kernels.reference import fp4, grids, iq4, kquants, legacy, ternary

# x [B, block], weights [B, block] or None, search → uint8 [B, bytes]
BlockEncoder = Callable[[np.ndarray, "np.ndarray | None", bool], np.ndarray]

ENCODERS: dict[str, BlockEncoder] = {
    "Q8_0": legacy.encode_q8_0,
    "Q4_0": legacy.encode_q4_0,
    "Q4_1": legacy.encode_q4_1,
    "Q5_0": legacy.encode_q5_0,
    "Q5_1": legacy.encode_q5_1,
    "TQ1_0": ternary.encode_tq1_0,
    "TQ2_0": ternary.encode_tq2_0,
    "Q2_K": kquants.encode_q2_k,
    "Q3_K": kquants.encode_q3_k,
    "Q4_K": kquants.encode_q4_k,
    "Q5_K": kquants.encode_q5_k,
    "Q6_K": kquants.encode_q6_k,
    "IQ4_NL": iq4.encode_iq4_nl,
    "IQ4_XS": iq4.encode_iq4_xs,
    "MXFP4": fp4.encode_mxfp4,
    **{kind: partial(grids.encode_grid, kind) for kind in GRIDS},
}


@np.errstate(all="ignore")  # huge values overflow on the way to their clipped codes
def encode_blocks(
    kind: str,
    x: np.ndarray,
    importance: np.ndarray | None,
    search: bool,
    tensor_scale: float,
    _threads: int,
) -> np.ndarray:
    layout = LAYOUTS[kind]
    rows, columns = x.shape
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    blocks = x.reshape(-1, layout.block)
    weights = None
    if importance is not None:
        weights = np.broadcast_to(importance, x.shape).reshape(-1, layout.block)
    if kind == "NVFP4":
        out = fp4.encode_nvfp4(blocks, weights, search, tensor_scale)
    else:
        out = ENCODERS[kind](blocks, weights, search)
    return out.reshape(rows, layout.row_bytes(columns))


@np.errstate(all="ignore")  # NaN scales decode to NaN
def decode_blocks(kind: str, data: np.ndarray, columns: int, tensor_scale: float, _threads: int) -> np.ndarray:
    """What the `gguf` package decodes; its numpy is the field's own definition of these types."""
    import gguf  # here, as it takes a while

    values = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    return values.reshape(len(data), columns) * np.float32(tensor_scale)
