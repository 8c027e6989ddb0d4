"""The same weights under ever finer scales: what one outlier costs its group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.errors import UserError
from core.inspect.group_types import WINDOW
from core.metrics.error import snr_db
from kernels import ops


@dataclass(frozen=True)
class Variant:
    """The same values under one granularity. name: 'per tensor', 'per channel', 'groups of 128' …; group: 0 for per
    channel, −1 for per tensor. scale, zero: of the values' (first) group; boundaries: columns where groups begin.
    reconstruction: float32, one a shown value. snr_db, max_error: of the shown values. effective_bits: a value, scales
    and zero points included."""

    name: str
    group: int
    bits: int
    symmetric: bool
    scale: float
    zero: int
    boundaries: tuple[int, ...]
    codes: np.ndarray
    reconstruction: np.ndarray
    snr_db: float
    max_error: float
    row_snr_db: float
    effective_bits: float


@dataclass(frozen=True, eq=False)
class OpenedVariant:
    """One group under one granularity: the variant of these columns alone, whose scale is therefore theirs.

    first: number of the first column. weights: float32, as they are.
    """

    variant: Variant
    first: int
    weights: np.ndarray


SPAN = 256  # columns that are shown under several granularities at once: two groups of the largest
_GRANULARITIES = (("per tensor", -1), ("per channel", 0), ("groups of 128", 128), ("groups of 64", 64),
                  ("groups of 32", 32))  # fmt: skip
_SCALE_BITS = 16


def side_by_side(
    rows: np.ndarray,
    row: int,
    columns: tuple[int, int],
    bits: int,
    symmetric: bool,
    tensor_range: tuple[float, float] | None = None,
) -> tuple[Variant, ...]:
    """Columns of one of the rows, float32 [R, K], under per tensor, per channel, groups of 128, 64 and 32.

    tensor_range: lowest and highest value of the whole tensor, where `rows` is a part of it. Round to nearest, float16
    scales. Groups that do not divide K are left out. Raises UserError for NaN and Inf.
    """
    line = np.ascontiguousarray(rows[row : row + 1], np.float32)
    length = line.shape[1]
    low, high = tensor_range or (float(rows.min()), float(rows.max()))
    if not (np.isfinite(line).all() and np.isfinite([low, high]).all()):
        raise UserError("The row holds NaN or infinite values, which no code stands for.", "Look at another row.")
    return tuple(
        _variant(line, columns, bits, symmetric, name, group, (low, high))
        for name, group in _GRANULARITIES
        if group <= 0 or (length % group == 0 and group < length)
    )


def span_around(column: int, columns: int) -> tuple[int, int]:
    """First and last (not included) of the SPAN columns around one of `columns`, from where a group of 128 begins."""
    first = max(0, min(column // SPAN * SPAN, (columns - SPAN) // 128 * 128))
    return first, min(columns, first + SPAN)


def opened_variant(
    rows: np.ndarray,
    row: int,
    column: int,
    bits: int,
    symmetric: bool,
    name: str,
    tensor_range: tuple[float, float] | None = None,
) -> OpenedVariant | None:
    """The group of one granularity, by its name, that holds a column; None where the rows have no such groups.

    Where a scale serves a whole row or tensor, a window of as many columns as `group_types.WINDOW`. Otherwise as
    `side_by_side`.
    """
    size = next((group for known, group in _GRANULARITIES if known == name), None)
    if size is None:
        return None
    width = size if size > 0 else WINDOW
    first = column // width * width
    columns = (first, min(rows.shape[1], first + width))
    alone = side_by_side(rows, row, columns, bits, symmetric, tensor_range)
    variant = next((v for v in alone if v.name == name), None)
    return OpenedVariant(variant, first, rows[row, columns[0] : columns[1]]) if variant is not None else None


def _variant(
    line: np.ndarray,
    columns: tuple[int, int],
    bits: int,
    symmetric: bool,
    name: str,
    group: int,
    tensor_range: tuple[float, float],
) -> Variant:
    length = line.shape[1]
    left, right = columns
    if group < 0:  # the range's two ends set the scale, as they would in a row of all values
        whole = np.concatenate([line, np.array([tensor_range], np.float32)], axis=1)
        codes, scales, zeros = ops.encode_groups(whole, bits, length + 2, symmetric, "F16", search=False)
        decoded = ops.decode_groups(codes, scales, zeros, bits, length + 2)[:, :length]
    else:
        codes, scales, zeros = ops.encode_groups(line, bits, group or length, symmetric, "F16", search=False)
        decoded = ops.decode_groups(codes, scales, zeros, bits, group or length)
    size = group if group > 0 else length
    own = left // size
    shown, error = line[0, left:right], decoded[0, left:right] - line[0, left:right]
    share = (size if group >= 0 else 0) and (_SCALE_BITS + (0 if symmetric else bits)) / size
    return Variant(
        name=name,
        group=group,
        bits=bits,
        symmetric=symmetric,
        scale=float(scales[0, own]),
        zero=(1 << (bits - 1)) if zeros is None else int(zeros[0, own]),
        boundaries=tuple(range(-(-left // size) * size, right, size)),
        codes=codes[0, left:right].astype(np.int64),
        reconstruction=decoded[0, left:right].copy(),
        snr_db=_snr(shown, error),
        max_error=float(np.abs(error).max(initial=0.0)),
        row_snr_db=_snr(line[0], decoded[0] - line[0]),
        effective_bits=bits + share,
    )


def _snr(values: np.ndarray, error: np.ndarray) -> float:
    signal, noise = (float(np.square(a, dtype=np.float64).sum()) for a in (values, error))
    return snr_db(signal, noise)
