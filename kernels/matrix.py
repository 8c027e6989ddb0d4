"""Quantized and plain weight matrices in the layout of the products that read them, and those products.

`kernels.reference.matrix` is the definition of every product; the compiled kernels give the same within float32
rounding of the sums (integer dot products are exact). A matrix is packed once, piece by piece, so that no second copy
of the tensor ever exists, and is read-only from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np

from kernels import cpu, dispatch
from kernels.gpu.backends import encoders as _gpu_encoders  # noqa: F401  (and its encoders)
from kernels.gpu.backends import products as _gpu_backends  # noqa: F401  (registers the GPU's products)
from kernels.gpu.backends import steps as _gpu_steps  # noqa: F401  (and what lies between products)
from kernels.layouts import BLOCK_KINDS, LAYOUTS, PLAIN_KINDS
from kernels.reference import matrix as reference

SCALE_TYPES = ("F16", "BF16", "F32")
ELEMENT_TYPES = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")

_engine: Any = cpu.engine
_PIECE = 4 << 20  # bytes that one `read` returns, about
_TILE = 16  # rows that are packed together


class NoKernel(ValueError):
    """Nothing that may be used here reads a format; said before any of it is read."""


class Activations(Enum):
    """What quantized weights are multiplied with.

    FAST: int8 with one float32 scale for 32 values (amax / 127, nearest, ties to even); bfloat16 for BF16 weights.
    EXACT: float32. TOKEN: int8 with one scale a token (W8A8). Other float weights, and codebooks whose levels are no
    multiples of a common step within int8 (NF4), always meet float32.
    """

    FAST = "int8 per 32 values"
    EXACT = "float32"
    TOKEN = "int8 per token"


def instruction_set() -> str:
    """What matrices are packed for and products run on now, by `dispatch.only` and BITSMITH_ISA; '': the reference."""
    return cpu.engine_set(dispatch.forced())


class Stored(Protocol):
    """Where a matrix's weights are: numpy's or the compiled engine's."""

    @property
    def nbytes(self) -> int: ...

    @property
    def kind(self) -> str: ...

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Rows int64 [R] → float32 [R, K]: weights as any reader of the format decodes them."""


@dataclass(frozen=True)
class Matrix:
    """Weights [rows, columns] (N × K). format: 'Q4_K', 'int4 g128', 'BF16' … nbytes: what one product reads.

    stored.kind: 'integer' (weights are whole multiples of scales), 'BF16', or 'float'. order: int64 [K] or None:
    weights are stored with column order[i] at place i, and activations are rounded in that order; whoever multiplies
    or reads rows sees the columns' own order.
    """

    rows: int
    columns: int
    format: str
    stored: Stored
    order: np.ndarray | None = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes


def from_blocks(
    kind: str, rows: int, columns: int, read: Callable[[int, int], np.ndarray], tensor_scale: float = 1.0
) -> Matrix:
    """A matrix of a GGML type of `BLOCK_KINDS`. read(start, stop) → uint8 [stop − start, row bytes] of these rows.

    read is called in order, for multiples of 16 rows; what it raises stops the packing and passes through.
    tensor_scale: NVFP4's. Raises ValueError for another type, a row that blocks do not fill, or pieces of wrong shape.
    """
    if kind not in BLOCK_KINDS:
        raise ValueError(f"no products with {kind}")
    if kind in PLAIN_KINDS:
        return from_elements(kind, rows, columns, read)
    check_size(rows, columns)
    row_bytes = LAYOUTS[kind].row_bytes(columns)
    blocks: Any = reference.Blocks(kind, rows, columns, tensor_scale)
    if instruction_set():
        blocks = _engine.blocks(kind, rows, columns, tensor_scale)
    for start, stop in pieces(rows, row_bytes):
        blocks.put_blocks(start, checked_piece(read(start, stop), np.uint8, (stop - start, row_bytes)))
    return Matrix(rows, columns, kind, blocks)


def from_groups(
    rows: int,
    columns: int,
    bits: int,
    group: int,
    read: Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray | None]],
    scale_dtype: str = "BF16",
    symmetric: bool = True,
    table: np.ndarray | None = None,
    offsets: bool = False,
    order: np.ndarray | None = None,
) -> Matrix:
    """scale · (code − zero) with one scale (and zero) for `group` neighbours of a row, or scale · table[code].

    read(start, stop) → codes uint8 [R, K], scales float32 [R, ⌈K / group⌉] exact in scale_dtype, and zeros uint8 of the
    same shape; None where symmetric (zero is 2^(bits−1)) or where there is a table. offsets: the third are float32,
    exact in scale_dtype, and weights scale · code + offset (MLX; HQQ, whose offset is −zero · scale); `symmetric` says
    nothing then. Scales and offsets may be negative. bits: 1 … 8; group: a multiple of 16, or at least K (one scale a
    row). table: float32 [16] for 4-bit codes (NF4, FP4). order: a permutation int [K]: read gives the codes of column
    order[i] at place i, so that groups are neighbours (GPTQ's desc_act: the stable argsort of g_idx). Called and
    stopped as `from_blocks`. Raises ValueError for settings outside of that, and for pieces of wrong shape.
    """
    check_size(rows, columns)
    if not 1 <= bits <= 8:
        raise ValueError(f"codes have 1 to 8 bits, not {bits}")
    if scale_dtype not in SCALE_TYPES:
        raise ValueError(f"scales are F16, BF16 or F32, not {scale_dtype}")
    if group < 1 or (group % 16 and group < columns):
        raise ValueError(f"groups are multiples of 16 values or whole rows, not {group} of {columns}")
    if table is not None:
        table = np.ascontiguousarray(table, np.float32)
        if bits != 4 or table.shape != (16,) or not np.isfinite(table).all():
            raise ValueError("a table has 16 finite levels for codes of 4 bits")
        if offsets:
            raise ValueError("a table has no offsets")
    third = "" if table is not None else "minimums" if offsets else "" if symmetric else "zeros"
    if order is not None:
        order = permutation(order, columns)
    groups = _groups(rows, columns, bits, group, scale_dtype, third, table, order)
    shape = -(-columns // group)
    for start, stop in pieces(rows, columns):
        codes, scales, zeros = read(start, stop)
        if bool(third) == (zeros is None):
            raise ValueError("zeros or offsets are given where, and only where, groups are not symmetric")
        third_dtype = np.float32 if offsets else np.uint8
        groups.put_groups(
            start,
            checked_piece(codes, np.uint8, (stop - start, columns)),
            checked_piece(scales, np.float32, (stop - start, shape)),
            None if zeros is None else checked_piece(zeros, third_dtype, (stop - start, shape)),
            group,
        )
    name = f"int{bits}" if table is None else "table4"
    return Matrix(rows, columns, f"{name} " + (f"g{group}" if group < columns else "per row"), groups, order)


def from_elements(
    dtype: str,
    rows: int,
    columns: int,
    read: Callable[[int, int], np.ndarray],
    scales: np.ndarray | None = None,
    tiling: tuple[int, int] = (128, 128),
) -> Matrix:
    """Float weights. dtype: of `ELEMENT_TYPES`; read(start, stop) → uint8 [R, K · bytes], as for `from_blocks`.

    scales: for 8-bit floats, float32 [1, 1], [rows, 1] or [⌈rows / a⌉, ⌈K / b⌉], (a, b) = tiling, b a multiple of 16
    or at least K ((1, 32) for MXFP8); None: 1. Where all are powers of two from 2^−127 on, they take one byte each.
    """
    check_size(rows, columns)
    if dtype not in ELEMENT_TYPES:
        raise ValueError(f"no products with elements of {dtype}")
    if scales is not None:
        if not dtype.startswith("F8"):
            raise ValueError(f"{dtype} weights have no scales")
        scales, a, b = float8_scales(np.ascontiguousarray(scales, np.float32), rows, columns, tiling)
    else:
        a, b = 1, columns
    row_bytes = columns * reference.element_bytes(dtype)
    elements: Any = reference.Elements(dtype, rows, columns)
    if instruction_set():
        stored = "" if scales is None else "E8M0" if are_powers(scales) else "F32"
        elements = _engine.elements(dtype, rows, columns, stored, b)
    for start, stop in pieces(rows, row_bytes):
        some = None if scales is None else np.ascontiguousarray(scales[np.arange(start, stop) // a])
        elements.put_elements(start, checked_piece(read(start, stop), np.uint8, (stop - start, row_bytes)), some, b)
    return Matrix(rows, columns, dtype, elements)


def product(x: np.ndarray, matrix: Matrix, activations: Activations = Activations.FAST, threads: int = 1) -> np.ndarray:
    """float32 [M, K] · matrixᵀ → float32 [M, N]. A row of x with NaN or Inf gives NaN (or Inf), never another row."""
    x = np.ascontiguousarray(x, np.float32)
    if x.ndim != 2 or x.shape[1] != matrix.columns:
        raise ValueError(f"{list(x.shape)} does not multiply a matrix of {matrix.columns} columns")
    isa = instruction_set()
    if not isa or isinstance(matrix.stored, reference.STORED):
        return reference.product(x, matrix.stored, matrix.rows, activations.name, matrix.order)
    out = np.empty((len(x), matrix.rows), np.float32)
    _engine.product(isa, matrix.stored, x, activations.name, out, threads, 1)
    return out


def add_gram(x: np.ndarray, total: np.ndarray, threads: int = 1) -> None:
    """total float32 [K, K] += Σ x xᵀ over the rows of x float32 [R, K]; below the diagonal it is undefined then.

    Sums are float32. Rows are rounded to bfloat16 where the processor multiplies pairs of that faster than float32.
    """
    if isa := instruction_set():
        _engine.add_gram(isa, np.ascontiguousarray(x, np.float32), total, threads)
    else:
        reference.add_gram(x, total)


def measure(
    x: np.ndarray, matrix: Matrix, activations: Activations, threads: int, repeats: int, isa: str = ""
) -> list[float]:
    """Seconds of each of `repeats` compiled products, activations' rounding included. Raises ValueError without any."""
    isa = isa or instruction_set()
    if not isa or isinstance(matrix.stored, reference.STORED):
        raise ValueError("only compiled products are measured")
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty((len(x), matrix.rows), np.float32)
    return _engine.product(isa, matrix.stored, x, activations.name, out, threads, repeats)


def read_rows(matrix: Matrix, ids: np.ndarray) -> np.ndarray:
    """Rows int [M] of the matrix, decoded exactly → float32 [M, K]. Raises IndexError past the last row."""
    ids = np.ascontiguousarray(ids, np.int64).reshape(-1)
    if len(ids) and not (ids.min() >= 0 and ids.max() < matrix.rows):
        raise IndexError(f"the matrix has rows 0 … {matrix.rows - 1}")
    return matrix.stored.take(ids)


def _groups(
    rows: int,
    columns: int,
    bits: int,
    group: int,
    scale_dtype: str,
    third: str,
    table: np.ndarray | None,
    order: np.ndarray | None,
) -> Any:
    if not instruction_set():
        return reference.Groups(rows, columns, bits, group, scale_dtype, third, table, order)
    levels = None if table is None else reference.integer_levels(table)
    step = 1.0
    if table is not None and levels is not None:
        step = float(np.abs(table).max() / np.abs(levels.astype(np.float32)).max())
    places = None if order is None else order.astype(np.int32)
    return _engine.groups(rows, columns, bits, group, scale_dtype, third, table, levels, step, places)


def check_size(rows: int, columns: int) -> None:
    if rows < 1 or columns < 1:
        raise ValueError(f"a matrix has rows and columns, not {rows} × {columns}")


def pieces(rows: int, row_bytes: int, multiple: int = _TILE) -> list[tuple[int, int]]:
    """Rows start … stop that are read at a time, in order; all but the last are multiples of so many."""
    step = max(_PIECE // row_bytes // multiple, 1) * multiple
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def checked_piece(values: np.ndarray, dtype: type, shape: tuple[int, int]) -> np.ndarray:
    values = np.ascontiguousarray(values, dtype)
    if values.shape != shape:
        raise ValueError(f"a piece of {shape[0]} rows is {list(shape)}, not {list(values.shape)}")
    return values


def permutation(order: np.ndarray, columns: int) -> np.ndarray:
    order = np.ascontiguousarray(order, np.int64)
    if order.shape != (columns,) or not np.array_equal(np.sort(order), np.arange(columns)):
        raise ValueError(f"an order has each of the {columns} columns once")
    return order


def float8_scales(scales: np.ndarray, rows: int, columns: int, tiling: tuple[int, int]) -> tuple[np.ndarray, int, int]:
    """The scales, and the rows and columns that share one of them."""
    if scales.shape in ((1, 1), (rows, 1)):
        return scales, -(-rows // len(scales)), columns
    a, b = tiling
    if a < 1 or b < 1 or (b % 16 and b < columns):
        raise ValueError(f"scales are for multiples of 16 columns or whole rows, not for {b} of {columns}")
    blocks = (-(-rows // a), -(-columns // b))
    if scales.shape != blocks:
        raise ValueError(f"scales are [1, 1], [{rows}, 1] or {list(blocks)}, not {list(scales.shape)}")
    return scales, a, b


def are_powers(scales: np.ndarray) -> bool:
    """Whether all are powers of two that E8M0 has, 2^-127 … 2^127."""
    words = scales.view(np.uint32)
    return bool((((words & 0x807FFFFF) == 0) & (words - 1 < 0x7F7FFFFF) | (words == 0x00400000)).all())
