"""Codes of scales that are given: rounded integers, and E2M1 beside a power of two. Files in stretches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kernels import dispatch, families, stretches


def _both(compiled: str, op: str, *arguments: object) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for backend in ("reference", compiled):
        with dispatch.only(backend):
            found.append(dispatch.find(op).function(*arguments))
    return found[0], found[1]


@pytest.mark.parametrize("columns", [32, 96, 256])
@pytest.mark.parametrize("rule", ["compressed-tensors", "mlx"])
def test_compiled_e2m1_codes_are_those_of_the_reference(columns: int, rule: str, hard_rows, compiled: str) -> None:
    x = hard_rows(columns)
    scales = families.e8m0_from_amax(families.tile_amax(x, 1, 32), 2, rule)
    for given in (scales, np.full_like(scales, 127), np.zeros_like(scales), np.full_like(scales, 254)):
        with np.errstate(over="ignore"):
            expected, found = _both(compiled, "encode_e2m1", x, given, 1)
        np.testing.assert_array_equal(found, expected)


def test_every_e2m1_value_has_the_nearest_level_ties_to_even(compiled: str) -> None:
    a = np.arange(-32 * 8, 32 * 8, dtype=np.float32).reshape(-1, 32) / 32  # −8 … 8 by 32nds, with every tie
    levels = families.E2M1_TABLE
    with dispatch.only(compiled):
        codes = dispatch.find("encode_e2m1").function(a, np.full((len(a), 1), 127, np.uint8), 1)
    for value, code in zip(a.ravel(), codes.ravel(), strict=True):
        distance = np.abs(levels - value)
        nearest = [c for c in range(16) if distance[c] == distance.min() and c != 8]
        assert code in nearest, value
        assert len(nearest) == 1 or code % 2 == 0, value


@pytest.mark.parametrize("group", [8, 17, 64])
@pytest.mark.parametrize(("low", "high", "shift"), [(0, 15, 0), (0, 255, 0), (-128, 127, 128), (-7, 7, 8)])
def test_compiled_rounded_codes_are_those_of_the_reference(
    group: int, low: int, high: int, shift: int, hard_rows, compiled: str
) -> None:
    x = hard_rows(group * 4)
    rng = np.random.default_rng(3)
    factors = np.exp(4 * rng.standard_normal((len(x), 4))).astype(np.float32)
    zeros = (rng.standard_normal(factors.shape) * 8).astype(np.float32)
    zeros[::3] = np.rint(zeros[::3] * 2) / 2
    with np.errstate(over="ignore"):
        expected, found = _both(compiled, "round_codes", x, factors, zeros, low, high, shift, 1)
    np.testing.assert_array_equal(found, expected)
    assert found.min() >= low + shift
    assert found.max() <= high + shift


def test_rounded_codes_by_hand_and_what_is_refused() -> None:
    x = np.array([[0.5, 1.5, 2.5, -9, 0.26, 0.25, -0.25, 9]], np.float32)
    factors, zeros = np.array([[1, 2]], np.float32), np.array([[0, 3]], np.float32)
    assert families.round_codes(x, factors, zeros, -4, 5, 4).tolist() == [[4, 6, 6, 0, 8, 8, 6, 9]]
    for bad in ((-129, 5, 129), (0, 256, 0), (-1, 5, 0), (5, 4, 0)):
        with pytest.raises(ValueError, match="not bytes"):
            families.round_codes(x, factors, zeros, *bad)
    with pytest.raises(ValueError, match="not those of groups"):
        families.round_codes(x, factors[:, :0], zeros[:, :0], 0, 5)


@pytest.mark.skipif(not stretches.available, reason="there are no compiled kernels")
def test_stretches_lie_where_they_belong_and_a_short_file_is_told(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.uint8).reshape(4, 3)
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert stretches.write(file, 2, 5, rows) == 12
        expected = bytes([0, 0, 0, 1, 2, 0, 0, 3, 4, 5, 0, 0, 6, 7, 8, 0, 0, 9, 10, 11])
        assert (tmp_path / "f").read_bytes() == expected
        back = np.zeros_like(rows)
        assert stretches.read(file, 2, 5, back) == 12
        np.testing.assert_array_equal(back, rows)
        os.ftruncate(file, 18)
        assert stretches.read(file, 2, 5, back) == 10
    finally:
        os.close(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        stretches.write(file, 2, 5, rows)
