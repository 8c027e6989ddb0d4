"""The public operations on arrays. One signature each; `kernels.dispatch` picks the implementation.

Blocks are GGML's: a row of K values becomes K / block · block_bytes bytes. Groups are runs along a row.
All float arrays are C-contiguous float32; other inputs are converted. No operation keeps a reference to its input.
`threads` splits rows; no result depends on it. All implementations give the same bits. A shape or setting that an
operation can not take raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels import backends as _backends  # noqa: F401  (registers every implementation)
from kernels import dispatch
from kernels import families_backends as _families_backends  # noqa: F401
from kernels.checks import SCALE_TYPES as SCALE_TYPES
from kernels.checks import bits as _check_bits
from kernels.checks import group as _check_group
from kernels.checks import matrix as _matrix
from kernels.checks import scale_type as _check_scale_type
from kernels.checks import weights as _weights
from kernels.gpu.backends import conversion as _conversion  # noqa: F401
from kernels.layouts import BLOCK_KINDS, LAYOUTS, PLAIN_KINDS, SOURCE_KINDS, WRITTEN_KINDS
from kernels.reference import floats

_FAST_FLOAT8 = ("F8_E4M3", "F8_E5M2")
# What `to_float32` reads, by safetensors name.
ELEMENT_TYPES = frozenset({*floats.NUMPY_TYPES, *floats.HALVES, *floats.FLOAT8})


def encode_blocks(
    kind: str,
    x: np.ndarray,
    importance: np.ndarray | None = None,
    search: bool = True,
    threads: int = 1,
    tensor_scale: float = 1.0,
) -> np.ndarray:
    """Values float32 [R, K] → blocks uint8 [R, K / block · block_bytes] of the GGML type `kind` (`WRITTEN_KINDS`).

    search: choose scales that make the squared error small; without it, the bytes are those of ggml's plain encoder.
    importance: float32 [K], weights of the columns' squared errors. tensor_scale: NVFP4's, amax / (6·448).
    Raises ValueError for a K that the block does not divide, and for NaN and Inf; F32, F16 and BF16 keep those.
    """
    if kind not in WRITTEN_KINDS:
        raise ValueError(f"{kind} can not be written")
    x = _matrix(x)
    if kind in PLAIN_KINDS:
        return from_float32(x, kind, threads)
    LAYOUTS[kind].row_bytes(x.shape[1])
    if not tensor_scale > 0:
        raise ValueError("the tensor's scale is positive")
    weights = _weights(importance, x.shape[1])
    return dispatch.run("encode_blocks", kind, x.size, kind, x, weights, search, tensor_scale, threads)


def decode_blocks(kind: str, data: np.ndarray, columns: int, threads: int = 1, tensor_scale: float = 1.0) -> np.ndarray:
    """Blocks uint8 [R, row bytes] of a GGML type (`BLOCK_KINDS`, `SOURCE_KINDS`) → values float32 [R, columns].

    Bit for bit what ggml's own decoder gives, times NVFP4's tensor_scale.
    """
    if kind not in BLOCK_KINDS and kind not in SOURCE_KINDS:
        raise ValueError(f"{kind} can not be read")
    data = _matrix(data, np.uint8)
    row_bytes = LAYOUTS[kind].row_bytes(columns)
    if data.shape[1] != row_bytes:
        raise ValueError(f"{columns} values of {kind} are rows of {row_bytes} bytes, not {data.shape[1]}")
    if kind in PLAIN_KINDS:
        return to_float32(data, kind, threads)
    return dispatch.find("decode_blocks", kind).function(kind, data, columns, tensor_scale, threads)


def to_float32(raw: np.ndarray, dtype: str, threads: int = 1) -> np.ndarray:
    """Stored elements uint8 [R, K · bytes] of a safetensors type → float32 [R, K]. 64-bit types are rounded."""
    raw = _matrix(raw, np.uint8)
    if dtype in floats.HALVES:
        return dispatch.find("from_half").function(_elements(raw, "<u2"), dtype, threads)
    if dtype in _FAST_FLOAT8:
        return dispatch.find("from_float8").function(raw, dtype, threads)
    if dtype in floats.FLOAT8:
        return floats.table(dtype)[raw]
    if dtype not in floats.NUMPY_TYPES:
        raise ValueError(f"no elements of type {dtype} are known")
    with np.errstate(over="ignore"):
        return _elements(raw, floats.NUMPY_TYPES[dtype]).astype(np.float32)


def from_float32(x: np.ndarray, dtype: str, threads: int = 1) -> np.ndarray:
    """float32 [R, K] → stored elements uint8 [R, K · bytes] of F64, F32, F16, BF16, F8_E4M3 or F8_E5M2.

    Nearest, ties to even. Too large becomes Inf; E4M3, which has none, stays at 448 (OCP's saturating mode).
    """
    x = _matrix(x)
    if dtype in floats.HALVES:
        return dispatch.find("to_half").function(x, dtype, threads).view(np.uint8)
    if dtype in _FAST_FLOAT8:
        return dispatch.find("to_float8").function(x, dtype, threads)
    if dtype not in floats.WRITABLE:
        raise ValueError(f"floats are not written as {dtype}")
    return x.astype(floats.NUMPY_TYPES[dtype]).view(np.uint8).reshape(len(x), -1)


def _elements(raw: np.ndarray, dtype: str) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    if raw.shape[1] % size:
        raise ValueError(f"rows of {raw.shape[1]} bytes do not hold whole elements of {size}")
    return raw.reshape(-1).view(dtype).reshape(len(raw), raw.shape[1] // size)


def encode_groups(
    x: np.ndarray,
    bits: int,
    group: int,
    symmetric: bool,
    scale_dtype: str = "F16",
    search: bool = True,
    importance: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Values float32 [R, K] → unsigned codes uint8 [R, K], scales float32 [R, K / group], zeros uint8 or None.

    x ≈ scale · (code − zero); symmetric: zero is 2^(bits−1) for all and None is returned. Scales are as a reader of
    `scale_dtype` (`SCALE_TYPES`) sees them, and codes are chosen by that. A group of zeros has scale 1 and decodes to
    zeros. Without search: compressed-tensors' round-to-nearest; with it, the clipping of least squared error, each
    column's square weighted by importance [K], never a larger one. bits: 1…8. Raises ValueError for NaN and Inf.
    """
    x = _matrix(x)
    _check_bits(bits)
    _check_scale_type(scale_dtype)
    _check_group(x, group)
    weights = _weights(importance, x.shape[1])
    settings = bits, group, symmetric, scale_dtype, search, weights, threads
    codes, scales, zeros = dispatch.run("encode_groups", "", x.size, x, *settings)
    return codes, scales, None if symmetric else zeros


def decode_groups(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, group: int, threads: int = 1
) -> np.ndarray:
    """What `encode_groups` returns → float32 [R, K]: scale · (code − zero)."""
    codes, scales = _matrix(codes, np.uint8), _matrix(scales)
    _check_group(codes, group)
    shape = (len(codes), codes.shape[1] // group)
    zeros = None if zeros is None else _matrix(zeros, np.uint8)
    if scales.shape != shape or (zeros is not None and zeros.shape != shape):
        raise ValueError(f"scales and zeros have shape {shape}")
    return dispatch.find("decode_groups").function(codes, scales, zeros, bits, group, threads)


def pack_bits(codes: np.ndarray, bits: int, threads: int = 1) -> np.ndarray:
    """Codes uint8 [R, K] of 1…8 bits → int32 [R, ⌈K · bits / 32⌉]: code i at bit i · bits of its row, low bits first.

    Codes of 3, 5, 6 and 7 bits straddle words; unused bits at the end are 0 (compressed-tensors' pack-quantized).
    """
    codes = _matrix(codes, np.uint8)
    _check_bits(bits)
    return dispatch.find("pack_bits").function(codes, bits, threads).view("<i4")


def unpack_bits(packed: np.ndarray, bits: int, columns: int, threads: int = 1) -> np.ndarray:
    """Words int32 [R, ⌈columns · bits / 32⌉] → codes uint8 [R, columns]."""
    packed = _matrix(packed, np.int32)
    _check_bits(bits)
    if packed.shape[1] != -(-columns * bits // 32):
        raise ValueError(f"{columns} codes of {bits} bits are not {packed.shape[1]} words")
    return dispatch.find("unpack_bits").function(packed.view(np.uint8), bits, columns, threads)


@dataclass(frozen=True)
class ErrorSums:
    """Sums over the values that are finite in the source; counts: int64 [bins], of reconstruction − source."""

    finite: int
    nonfinite: int
    source_squares: float
    error_squares: float
    max_error: float
    counts: np.ndarray


def error_stats(
    source: np.ndarray,
    reconstruction: np.ndarray,
    limit: float = 0.0,
    bins: int = 0,
    threads: int = 1,
    every: int = 1,
) -> ErrorSums:
    """How far reconstruction is from source, both float32 [R, K], in float64.

    The histogram has equal bins over −limit … limit; errors outside are counted in the first and last. Where the
    reconstruction of a finite value is NaN, its error is Inf.

    every: only one row of so many is counted, from the first on; counting costs more than all sums together.
    """
    source, reconstruction = _pair(source, reconstruction)
    counts = np.zeros(bins, np.int64)
    run = dispatch.find("error_stats").function
    squares, error_squares, max_error, nonfinite = run(source, reconstruction, float(limit), counts, every, threads)
    return ErrorSums(source.size - nonfinite, nonfinite, squares, error_squares, max_error, counts)


def crc32(data: np.ndarray, before: int = 0) -> int:
    """CRC-32 of uint8 [n], as zlib has it; before: that of the bytes in front of them."""
    return int(dispatch.find("crc32").function(data, before))


@dataclass(frozen=True)
class Scan:
    """amax, min, max: over the finite values, 0 when there are none. zero_rows: numbers of the rows that are all 0."""

    amax: float
    nonfinite: int
    min: float
    max: float
    zero_rows: np.ndarray


def scan(x: np.ndarray, threads: int = 1) -> Scan:
    """Range of float32 [R, K], how many values are NaN or Inf, and which rows are zero."""
    x = _matrix(x)
    if not x.size:
        return Scan(0.0, 0, 0.0, 0.0, np.zeros(0, np.int64))
    extremes, nonfinite = np.empty((len(x), 3), np.float32), np.empty(len(x), np.int64)
    dispatch.find("scan").function(x, extremes, nonfinite, threads)
    some = extremes[nonfinite < x.shape[1]]
    low, high = (float(some[:, 1].min()), float(some[:, 2].max())) if len(some) else (0.0, 0.0)
    zero = np.flatnonzero((extremes[:, 0] == 0) & (nonfinite == 0))
    return Scan(float(extremes[:, 0].max()), int(nonfinite.sum()), low, high, zero)


def max_group_error_ratio(
    source: np.ndarray, reconstruction: np.ndarray, group: int, floor: float = 0.0, threads: int = 1
) -> float:
    """Largest over all groups of max |reconstruction − source| / max(max |source|, floor), both float32 [R, K].

    Groups are `group` neighbours along a row, the last of a row may be shorter. 0/0 is 0, x/0 is Inf. Values that are
    not finite in the source are left out.
    """
    source, reconstruction = _pair(source, reconstruction)
    if group < 1:
        raise ValueError("a group has at least one value")
    if not source.size:
        return 0.0
    run = dispatch.find("max_group_error_ratio").function
    return float(run(source, reconstruction, group, float(np.float32(floor)), threads))


def _pair(source: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    source, other = _matrix(source), _matrix(other)
    if source.shape != other.shape:
        raise ValueError(f"source is {source.shape}, reconstruction {other.shape}")
    return source, other


@dataclass
class ChannelSums:
    """What `channel_sums` gathers: of each row of one block, and of the columns over all blocks added so far.

    max, median: float32, of the finite |x|; squares: float64, Σx² of the finite; finite: int64, how many. cells:
    float32 [⌈R/8⌉, ⌈K/8⌉], largest |x| of each 8 × 8 values, NaN or Inf where there is one.
    """

    row_max: np.ndarray
    row_median: np.ndarray
    row_squares: np.ndarray
    row_finite: np.ndarray
    column_max: np.ndarray
    column_squares: np.ndarray
    column_nonfinite: np.ndarray
    cells: np.ndarray


def _stored(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype not in (*floats.HALVES, "F32"):
        raise ValueError(f"stored values are BF16, F16 or F32, not {dtype}")
    return _matrix(x, np.float32 if dtype == "F32" else np.uint16)


def count_patterns(x: np.ndarray, counts: np.ndarray, threads: int = 1) -> None:
    """Add to counts, int64 [65536], how many values have each pattern of the upper 16 bits; all of BF16 and F16.

    x: uint16 or float32 [R, K].
    """
    x = _matrix(x, np.uint16 if x.dtype == np.uint16 else np.float32)
    if counts.shape != (65536,) or counts.dtype != np.int64:
        raise ValueError("counts are int64 [65536]")
    if x.size:
        dispatch.find("count_patterns").function(x, counts, threads)


def add_powers(x: np.ndarray, pivot: float, sums: np.ndarray, threads: int = 1) -> None:
    """Add to sums, float64 [4], Σ(x − pivot)^k of the finite values of float32 [R, K] for k = 1 … 4."""
    x = _matrix(x)
    if sums.shape != (4,) or sums.dtype != np.float64:
        raise ValueError("sums are float64 [4]")
    if x.size:
        dispatch.find("add_powers").function(x, float(pivot), sums, threads)


def channel_sums(x: np.ndarray, dtype: str, threads: int = 1, medians: bool = True) -> ChannelSums:
    """Figures of the rows, the columns and the 8 × 8 cells of a block of stored values.

    x: BF16 or F16 as uint16 [R, K], F32 as float32. Column squares are added row after row, from 0.
    medians: of the rows; 0 without them.
    """
    x = _stored(x, dtype)
    rows, columns = x.shape
    cells = np.zeros((-(-rows // 8), -(-columns // 8)), np.float32)
    out = ChannelSums(
        np.zeros(rows, np.float32),
        np.zeros(rows, np.float32),
        np.zeros(rows),
        np.zeros(rows, np.int64),
        np.zeros(columns, np.float32),
        np.zeros(columns),
        np.zeros(columns, np.int64),
        cells,
    )
    if x.size:
        fields = (out.row_max, out.row_median, out.row_squares, out.row_finite)
        more = (out.column_max, out.column_squares, out.column_nonfinite, out.cells)
        dispatch.find("channel_sums").function(x, dtype, *fields, *more, medians, threads)
    return out


def column_medians(x: np.ndarray, dtype: str, threads: int = 1) -> np.ndarray:
    """Median of each column's finite |x|, float32 [K]; 0 where there is none. x: as for `channel_sums`."""
    x = _stored(x, dtype)
    if not x.size:
        return np.zeros(x.shape[1], np.float32)
    return dispatch.find("column_medians").function(x, dtype, threads)


Spans = tuple[np.ndarray, np.ndarray]  # int64 [n] each: where every cell starts and stops


def pool_max(x: np.ndarray, dtype: str, rows: Spans, columns: Spans, threads: int = 1) -> np.ndarray:
    """float32 [h, w]: largest |x| of each cell; NaN where a cell has one, else Inf where it has that. x: as above.

    Cells may overlap or leave values out. Raises ValueError for one that is empty or outside.
    """
    x = _stored(x, dtype)
    edges = [np.ascontiguousarray(e, dtype=np.int64) for e in (*rows, *columns)]
    for (starts, stops), limit in zip((edges[:2], edges[2:]), x.shape, strict=True):
        if starts.ndim != 1 or starts.shape != stops.shape:
            raise ValueError("a cell has one start and one stop")
        if (starts < 0).any() or (starts >= stops).any() or (stops > limit).any():
            raise ValueError("a cell is empty or outside")
    top, bottom = edges[:2]
    fresh = np.ones(len(top), bool)  # a band that is that of the row before, where there are more cells than rows
    fresh[1:] = (top[1:] != top[:-1]) | (bottom[1:] != bottom[:-1])
    found = dispatch.find("pool_max").function(x, dtype, top[fresh], bottom[fresh], *edges[2:], threads)
    return found if fresh.all() else found[np.cumsum(fresh) - 1]
