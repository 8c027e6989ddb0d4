"""Scales of rows that are read piece by piece: the bytes are those of the whole row."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, long_rows, ops
from kernels.reference.groups import SUM_PIECE

COLUMNS = 5 * SUM_PIECE + 72


def rows_of(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, (5, COLUMNS)).astype(np.float32)
    x[1] = np.abs(x[1])
    x[2] = 0
    x[3] *= 1e30
    x[4, SUM_PIECE:] = 0
    return x


def pieces_of(x: np.ndarray, pieces: int):
    width = pieces * SUM_PIECE
    return lambda: (np.ascontiguousarray(x[:, at : at + width]) for at in range(0, x.shape[1], width))


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_pieces_give_the_bytes_of_the_whole_row(bits, symmetric, search, weighted, importance_of) -> None:
    x = rows_of()
    importance = importance_of(COLUMNS) if weighted else None
    for backend in dispatch.backends():
        with dispatch.only(backend):
            codes, scales, zeros = ops.encode_groups(x, bits, COLUMNS, symmetric, "BF16", search, importance, 2)
            if backend == dispatch.backends()[0]:
                want = (codes, scales, zeros)
            for a, b in zip((codes, scales, zeros), want, strict=True):
                assert (a is None and b is None) or a.tobytes() == b.tobytes(), backend
            for pieces in (1, 2, 6):
                read = pieces_of(x, pieces)
                found = long_rows.fit_rows(read, bits, symmetric, "BF16", search, importance, 2)
                assert found.scales.tobytes() == scales.tobytes(), (backend, pieces)
                assert (found.zeros == (1 << (bits - 1) if zeros is None else zeros[:, 0])).all()
                assert found.amax.tobytes() == np.abs(x).max(axis=1).tobytes()
                got = np.concatenate([long_rows.encode_piece(p, found, bits) for p in read()], axis=1)
                assert got.tobytes() == codes.tobytes(), (backend, pieces)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_long_row_is_as_good_as_the_best_scale_in_float64(symmetric) -> None:
    """Sums of four million terms: in float32 alone they would stop growing long before the end."""
    x = np.clip(np.random.default_rng(1).standard_normal((1, 1 << 22)), -3, 3).astype(np.float32)
    errors = {}
    for search in (False, True):
        parts = ops.encode_groups(x, 4, x.shape[1], symmetric, "BF16", search, None, 2)
        errors[search] = float(np.square(ops.decode_groups(*parts, 4, x.shape[1]).astype(np.float64) - x).sum())
        scale = parts[1].item()
    assert errors[True] < 0.96 * errors[False]
    if symmetric:
        tries = [scale * f for f in (0.97, 0.985, 1.015, 1.03)]
        other = [float(np.square(np.clip(np.rint(x / s), -8, 7) * s - x.astype(np.float64)).sum()) for s in tries]
        assert errors[True] <= 1.005 * min(other)


def test_what_can_not_be_worked_on_in_pieces_is_refused() -> None:
    x = rows_of()
    with pytest.raises(ValueError, match="multiples of"):
        long_rows.fit_rows(lambda: (x[:, :1000], x[:, 1000:]), 4, True, "BF16", True)
    x[0, -1] = np.nan
    with pytest.raises(ValueError, match="NaN or Inf"):
        long_rows.fit_rows(pieces_of(x, 2), 4, True, "BF16", True)
    assert long_rows.largest_of_rows(pieces_of(x, 2))[2] == 0
