"""The public operations on arrays. One signature each; `kernels.dispatch` picks the implementation.

Blocks are GGML's: a row of K values becomes K / block · block_bytes bytes. Groups are runs along a row.
All float arrays are C-contiguous float32; other inputs are converted. No operation keeps a reference to its input.
`threads` splits rows; the result does not depend on it.
"""

from __future__ import annotations

import numpy as np

from kernels import backends as _backends  # noqa: F401  (registers every implementation)
from kernels import dispatch
from kernels.layouts import BLOCK_KINDS, LAYOUTS, SOURCE_KINDS


def _rows(x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim != 2:
        raise ValueError(f"rows are a matrix [R, K], not {x.ndim}-dimensional")
    return x


def _weights(importance: np.ndarray | None, columns: int) -> np.ndarray | None:
    if importance is None:
        return None
    importance = np.ascontiguousarray(importance, dtype=np.float32)
    if importance.shape != (columns,):
        raise ValueError(f"importance has one weight for each of {columns} columns, not shape {importance.shape}")
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise ValueError("importance weights are finite and not negative")
    return importance


def encode_blocks(
    kind: str,
    x: np.ndarray,
    importance: np.ndarray | None = None,
    search: bool = True,
    threads: int = 1,
    tensor_scale: float = 1.0,
) -> np.ndarray:
    """Values float32 [R, K] → blocks uint8 [R, K / block · block_bytes] of the GGML type `kind` (`BLOCK_KINDS`).

    search: choose scales that make the squared error small; without it, the bytes are those of ggml's plain encoder.
    importance: float32 [K], weights of the columns' squared errors. tensor_scale: NVFP4's, amax / (6·448).
    Raises ValueError for NaN, Inf, and a K that the block does not divide.
    """
    if kind not in BLOCK_KINDS:
        raise ValueError(f"{kind} can not be written")
    x = _rows(x)
    LAYOUTS[kind].row_bytes(x.shape[1])
    run = dispatch.find("encode_blocks", kind).function
    return run(kind, x, _weights(importance, x.shape[1]), search, tensor_scale, threads)


def decode_blocks(kind: str, data: np.ndarray, columns: int, threads: int = 1, tensor_scale: float = 1.0) -> np.ndarray:
    """Blocks uint8 [R, row bytes] of a GGML type (`BLOCK_KINDS`, `SOURCE_KINDS`) → values float32 [R, columns].

    Bit for bit what ggml's own decoder gives, times NVFP4's tensor_scale. Raises ValueError for a wrong row length.
    """
    if kind not in BLOCK_KINDS and kind not in SOURCE_KINDS:
        raise ValueError(f"{kind} can not be read")
    data = np.ascontiguousarray(data, dtype=np.uint8)
    row_bytes = LAYOUTS[kind].row_bytes(columns)
    if data.ndim != 2 or data.shape[1] != row_bytes:
        raise ValueError(f"{columns} values of {kind} are rows of {row_bytes} bytes, not shape {data.shape}")
    return dispatch.find("decode_blocks", kind).function(kind, data, columns, tensor_scale, threads)
