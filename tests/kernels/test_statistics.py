"""Error sums, scans and bounds, against plain float64 arithmetic."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from kernels import dispatch, ops

_SUMS = 8 * 2.0**-24  # seven additions in float32 and a square: all that is rounded before float64


def pair(columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((7, columns)).astype(np.float32)
    y = x + rng.standard_normal(x.shape).astype(np.float32) / 8
    x[1, 0], x[2] = np.nan, np.inf
    x[3] = 0
    x[5] *= np.float32(2.0**-120)
    x[6] *= np.float32(2.0**70)
    return x, y


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 33, 97, 384])
def test_all_backends_agree_to_the_bit(columns) -> None:
    x, y = pair(columns)
    y[4, 0] = np.nan
    y[5, 0] = -np.inf

    def everything() -> str:
        sums = ops.error_stats(x, y, 0.25, 64, threads=3)
        some = ops.error_stats(x, y, 0.25, 64, every=3)
        scans = ops.scan(x, threads=2), ops.scan(y)
        ratios = [ops.max_group_error_ratio(x[:4], y[:4], group, floor) for group in (1, 32, 400) for floor in (0, 0.1)]
        return repr((sums, sums.counts.tolist(), some, some.counts.tolist(), scans, ratios))

    with dispatch.only("reference"):
        want = everything()
    for backend in dispatch.backends():
        with dispatch.only(backend):
            assert everything() == want, backend


def test_sums_are_right() -> None:
    x, y = pair(384)
    real = np.isfinite(x)
    e = np.where(real, y.astype(np.float64) - np.where(real, x, 0), 0)
    sums = ops.error_stats(x, y, 0.25, 64)
    assert sums.nonfinite == 385
    assert sums.finite == x.size - 385
    assert sums.source_squares == pytest.approx((x[real].astype(np.float64) ** 2).sum(), rel=_SUMS)
    assert sums.error_squares == pytest.approx((e**2).sum(), rel=1e-6)
    assert sums.max_error == pytest.approx(np.abs(e).max(), rel=1e-6)
    want, _ = np.histogram(np.clip(e[real], -0.249999, 0.249999), 64, (-0.25, 0.25))
    assert sums.counts.sum() == sums.finite
    assert np.abs(sums.counts - want).sum() <= 4  # float32 may put a value next to an edge on its other side
    assert ops.error_stats(x, y).counts.size == 0


@pytest.mark.parametrize("exponent", [-149, -140, -70, -55, -49, 0, 40, 61, 64, 120])
def test_sums_of_values_of_any_size(exponent: int) -> None:
    """Squares that float32 could not hold, and rows in which only one of two sums would overflow or vanish."""
    rng = np.random.default_rng(3)
    x = np.ldexp(rng.standard_normal((3, 300)), exponent).astype(np.float32)
    y = (x + np.ldexp(rng.standard_normal(x.shape), max(-149, exponent - 10))).astype(np.float32)
    y[1] = x[1]
    e = (y - x).astype(np.float64)
    for backend in dispatch.backends():
        with dispatch.only(backend):
            sums = ops.error_stats(x, y)
            assert sums.source_squares == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=_SUMS)
            assert sums.error_squares == pytest.approx((e**2).sum(), rel=_SUMS)
            assert sums.max_error == np.abs(e).max()


def test_reconstructions_that_are_not_finite_are_infinite_errors() -> None:
    x = np.ones((1, 20), np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        y = x.copy()
        y[0, 3] = bad
        assert ops.error_stats(x, y, 1.0, 4).max_error == np.inf
        assert ops.max_group_error_ratio(x, y, 4) == np.inf


def test_scan() -> None:
    x = np.array([[1, -3, 2], [0, -0.0, 0], [np.nan, 5, -np.inf], [np.nan, np.nan, np.inf]], np.float32)
    for backend in dispatch.backends():
        with dispatch.only(backend):
            found = ops.scan(x)
            assert (found.amax, found.min, found.max, found.nonfinite) == (5, -3, 5, 5)
            assert found.zero_rows.tolist() == [1]
            nothing = ops.scan(x[3:])
            assert (nothing.amax, nothing.min, nothing.max, nothing.nonfinite) == (0, 0, 0, 3)
            assert ops.scan(np.zeros((0, 4), np.float32)).amax == 0
            assert ops.scan(np.full((2, 2), -7, np.float32)).max == -7


def test_group_error_ratio() -> None:
    x = np.array([[4, 1, 0, 0, 2]], np.float32)
    y = np.array([[3, 1, 0, 0, 2.5]], np.float32)
    for backend in dispatch.backends():
        with dispatch.only(backend):
            assert ops.max_group_error_ratio(x, y, 2) == 0.25  # 1/4, 0/0, 0.5/2
            assert ops.max_group_error_ratio(x, x, 1) == 0
            y[0, 3] = 0.5
            assert ops.max_group_error_ratio(x, y, 2) == np.inf
            assert ops.max_group_error_ratio(x, y, 2, floor=1.0) == 0.5
            y[0, 3] = 0
    with pytest.raises(ValueError):
        ops.max_group_error_ratio(x, y[:, :4], 2)


@pytest.mark.parametrize("bins", [4, 128, 300])
def test_many_values_are_counted_as_few_are(bins: int) -> None:
    """Kernels count two at a time where there are enough of them."""
    rng = np.random.default_rng(bins)
    x = rng.standard_normal((150, 777)).astype(np.float32)
    y = x + rng.standard_normal(x.shape).astype(np.float32) / 8
    x[3, 5:40], x[7] = np.inf, np.nan
    y[9, 9] = np.nan
    with dispatch.only("reference"):
        want = ops.error_stats(x, y, 0.25, bins)
    for backend in dispatch.backends():
        with dispatch.only(backend):
            for threads in (1, 3):
                found = ops.error_stats(x, y, 0.25, bins, threads)
                assert found.counts.tolist() == want.counts.tolist(), backend
                assert found.counts.sum() == found.finite


def test_a_histogram_of_some_rows_counts_those_and_sums_all() -> None:
    x, y = pair(97)
    whole, some = ops.error_stats(x, y, 0.25, 64), ops.error_stats(x, y, 0.25, 64, every=3)
    assert some.counts.tolist() == ops.error_stats(x[::3], y[::3], 0.25, 64).counts.tolist()
    assert (some.error_squares, some.max_error, some.finite) == (whole.error_squares, whole.max_error, whole.finite)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 70001])
def test_checksums_are_those_of_zlib(size) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 3, dtype=np.uint8)
    for start in (0, 1, 3):  # not aligned either
        for backend in dispatch.backends("crc32"):
            with dispatch.only(backend):
                for before in (0, 12345, 0xFFFFFFFF):
                    assert ops.crc32(data[start:], before) == zlib.crc32(data[start:], before), backend
