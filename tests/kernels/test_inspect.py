"""Statistics of stored values: every instruction set to the bit like numpy's, and that against plain float64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, ops
from kernels.reference.inspect import CELL, values

TYPES = ("BF16", "F16", "F32")
SHAPES = [(1, 1), (5, 1), (1, 70), (8, 8), (17, 33), (40, 300), (9, 515)]


def stored(shape: tuple[int, int], dtype: str, what: str) -> np.ndarray:
    """Values of a type: 'bits' are all patterns, NaN and Inf among them; 'few' repeat; 'zeros' are +0 and −0."""
    rng = np.random.default_rng(sum(shape))
    wide, word = (np.uint32, np.float32) if dtype == "F32" else (np.uint16, np.uint16)
    if what == "bits":
        return rng.integers(0, np.iinfo(wide).max, shape, dtype=wide, endpoint=True).view(word)
    if what == "zeros":
        return (rng.integers(0, 2, shape, dtype=wide) << wide(8 * wide().itemsize - 1)).view(word)
    x = rng.standard_normal(shape).astype(np.float32) * np.float32(0.02)
    if what == "few":
        x = np.round(x * 50) / np.float32(50)
    if what == "outlier":
        x[shape[0] // 2, shape[1] // 2] = -3e4
    if what == "damaged":
        x[0], x[:, 0], x[-1, -1] = np.nan, np.inf, -np.inf
    return x if dtype == "F32" else ops.from_float32(x, dtype).view(np.uint16)


def spans(n: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    edges = np.arange(cells + 1) * n // cells
    return edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)


@pytest.mark.parametrize("what", ["bits", "few", "zeros", "outlier", "damaged"])
@pytest.mark.parametrize("dtype", TYPES)
def test_all_backends_agree_to_the_bit(dtype: str, what: str) -> None:
    def everything(x: np.ndarray) -> list[object]:
        counts, powers = np.zeros(65536, np.int64), np.zeros(4)
        ops.count_patterns(x, counts, threads=3)
        if dtype == "F32":
            ops.add_powers(x, 0.25, powers, threads=3)
        sums = ops.channel_sums(x, dtype, threads=3)
        medians = ops.column_medians(x, dtype, threads=3)
        picture = ops.pool_max(x, dtype, spans(x.shape[0], 3), spans(x.shape[1], 21), threads=3)
        found = [counts, powers, medians, *vars(sums).values(), picture]
        picture[np.isnan(picture)] = sums.cells[np.isnan(sums.cells)] = np.nan  # its other bits mean nothing
        return [array.view(f"u{array.itemsize}").tolist() for array in found]

    for shape in SHAPES:
        x = stored(shape, dtype, what)
        with dispatch.only("reference"):
            want = everything(x)
        for backend in dispatch.backends("channel_sums"):
            with dispatch.only(backend):
                got = everything(x)
            assert [i for i, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1]] == [], backend


@pytest.mark.parametrize("what", ["few", "outlier", "damaged"])
@pytest.mark.parametrize("dtype", TYPES)
def test_figures_are_right(dtype: str, what: str) -> None:
    for shape in SHAPES:
        x = stored(shape, dtype, what)
        v = values(x, dtype).astype(np.float64)
        sums, medians = ops.channel_sums(x, dtype), ops.column_medians(x, dtype)
        for axis, largest, squares, middle, count in (
            (1, sums.row_max, sums.row_squares, sums.row_median, sums.row_finite),
            (0, sums.column_max, sums.column_squares, medians, shape[0] - sums.column_nonfinite),
        ):
            for i, channel in enumerate(np.moveaxis(v, axis, 1)):
                real = np.abs(channel[np.isfinite(channel)])
                assert count[i] == real.size
                assert largest[i] == real.max(initial=0)
                assert squares[i] == pytest.approx((real**2).sum(), rel=1e-12)
                assert middle[i] == (np.float32(np.median(real)) if real.size else 0)
        for y in range(sums.cells.shape[0]):
            for c in range(sums.cells.shape[1]):
                cell = np.abs(v[CELL * y : CELL * y + CELL, CELL * c : CELL * c + CELL])
                want = np.nan if np.isnan(cell).any() else cell.max()
                np.testing.assert_equal(float(sums.cells[y, c]), want)


def test_counts_and_powers() -> None:
    x = stored((40, 300), "F32", "damaged")
    x[3, 5] = -0.0
    counts = np.full(65536, 2, np.int64)
    ops.count_patterns(x, counts)
    np.testing.assert_array_equal(counts - 2, np.bincount((x.view(np.uint32) >> 16).ravel(), minlength=65536))
    halves = stored((40, 300), "BF16", "bits")
    counts[:] = 0
    ops.count_patterns(halves, counts, threads=2)
    np.testing.assert_array_equal(counts, np.bincount(halves.ravel(), minlength=65536))
    sums = np.zeros(4)
    ops.add_powers(x, 0.01, sums)
    d = x[np.isfinite(x)].astype(np.float64) - 0.01
    np.testing.assert_allclose(sums, [(d**k).sum() for k in (1, 2, 3, 4)], rtol=1e-12)


@pytest.mark.parametrize("backend", dispatch.backends("pool_max"))
def test_pictures(backend: str) -> None:
    x = stored((20, 130), "BF16", "few")
    x[7, 100] = 0x7FC0  # NaN
    x[7, 101] = 0xFF80  # −Inf
    x[12, 3] = 0xFF80
    v = np.abs(values(x, "BF16"))
    with dispatch.only(backend):
        for h, w in ((1, 1), (20, 130), (7, 13), (50, 260)):
            rows, columns = spans(20, h), spans(130, w)
            found = ops.pool_max(x, "BF16", rows, columns, threads=2)
            want = [[v[a:b, c:d].max() for c, d in zip(*columns, strict=True)] for a, b in zip(*rows, strict=True)]
            np.testing.assert_array_equal(found, np.array(want, np.float32))
        for bad in ((np.array([0]), np.array([0])), (np.array([-1]), np.array([2])), (np.array([0]), np.array([21]))):
            with pytest.raises(ValueError):
                ops.pool_max(x, "BF16", bad, spans(130, 1))


def test_empty_and_wrong() -> None:
    for shape in ((0, 5), (5, 0), (0, 0)):
        x = np.zeros(shape, np.float32)
        sums = ops.channel_sums(x, "F32")
        assert sums.row_max.shape == shape[:1]
        assert sums.column_max.shape == shape[1:]
        assert ops.column_medians(x, "F32").shape == shape[1:]
        ops.count_patterns(x, np.zeros(65536, np.int64))
    x = np.zeros((2, 2), np.float32)
    for call in (
        lambda: ops.channel_sums(x, "Q4_0"),
        lambda: ops.channel_sums(x[0], "F32"),
        lambda: ops.count_patterns(x, np.zeros(256, np.int64)),
        lambda: ops.add_powers(x, 0.0, np.zeros(3)),
    ):
        with pytest.raises(ValueError):
            call()
