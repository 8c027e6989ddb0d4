"""Pictures of windows of any size: an outlier never disappears, single values when zoomed, from memory or the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import safetensors_bytes

from core.checkpoint.base import Checkpoint
from core.checkpoint.opening import open_checkpoint
from core.inspect import picture as picture_module
from core.inspect.picture import Pyramid
from core.inspect.statistics import inspect_tensor
from core.progress import CancelToken
from kernels import ops

ROWS, COLUMNS = 700, 1500


def write(folder: Path, x: np.ndarray, dtype: str = "BF16") -> Path:
    raw = ops.from_float32(x.reshape(-1, x.shape[-1]), dtype)
    header = {"w": {"dtype": dtype, "shape": list(x.shape), "data_offsets": [0, raw.size]}}
    path = folder / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, raw.tobytes()))
    return path


def picture(checkpoint: Checkpoint, expert: int | None = None) -> Pyramid:
    return inspect_tensor(checkpoint, checkpoint.tensors[0], CancelToken(), expert)[1]


def weights() -> np.ndarray:
    x = (np.random.default_rng(5).standard_normal((ROWS, COLUMNS)) * 0.02).astype(np.float32)
    x[431, 977] = -50.0
    return ops.to_float32(ops.from_float32(x, "BF16"), "BF16")


def expected(v: np.ndarray, rows: tuple[int, int], columns: tuple[int, int], h: int, w: int) -> np.ndarray:
    def cells(first: int, last: int, n: int) -> list[slice]:
        low = [first + i * (last - first) // n for i in range(n)]
        high = [first + (i + 1) * (last - first) // n for i in range(n)]
        return [slice(a, max(b, a + 1)) for a, b in zip(low, high, strict=True)]

    return np.array([[np.abs(v[r, c]).max() for c in cells(*columns, w)] for r in cells(*rows, h)], np.float32)


WINDOWS = [
    ((0, ROWS), (0, COLUMNS), 60, 100),
    ((0, ROWS), (0, COLUMNS), 1, 1),
    ((100, 650), (333, 1111), 37, 41),
    ((430, 433), (970, 980), 3, 10),
    ((430, 433), (970, 980), 9, 25),
    ((431, 432), (977, 978), 1, 1),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_exact_from_memory(window, dtype, tmp_path: Path) -> None:
    v = weights()
    with open_checkpoint(write(tmp_path, v, dtype)) as checkpoint:
        np.testing.assert_array_equal(picture(checkpoint).pooled(*window), expected(v, *window))


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_cells_below_eight_values_are_read_exactly_in_bounded_pieces(
    dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = weights()
    monkeypatch.setattr(picture_module, "HELD_BYTES", 1000)
    monkeypatch.setattr(picture_module, "READ_VALUES", 5 * 1111)
    monkeypatch.setattr(picture_module, "LONG_ROW", 100)
    with open_checkpoint(write(tmp_path, v, dtype)) as checkpoint:
        pyramid = picture(checkpoint)
        for window in (((0, ROWS), (0, COLUMNS), 90, 200), ((100, 650), (333, 1111), 79, 131), *WINDOWS[3:]):
            np.testing.assert_array_equal(pyramid.pooled(*window), expected(v, *window))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_tensor_that_is_not_held(window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells reach outward to whole cells of a level no coarser than the picture: they can only gain."""
    monkeypatch.setattr(picture_module, "HELD_BYTES", 1000)
    monkeypatch.setattr(picture_module, "SMALLEST_LEVEL", 4)
    v = weights()
    with open_checkpoint(write(tmp_path, v)) as checkpoint:
        pyramid = picture(checkpoint)
        assert pyramid.nbytes < v.nbytes / 40
        found, want = pyramid.pooled(*window), expected(v, *window)
        assert (found >= want).all()
        assert found.max() == want.max() or window[0] == (100, 650)
        (top, bottom), (left, right), h, _ = window
        if (bottom - top) / h < 8:
            np.testing.assert_array_equal(found, want)
            np.testing.assert_array_equal(pyramid.values((top, bottom), (left, right)), v[top:bottom, left:right])
        else:  # the outlier is in its cell, and in no more than the neighbours that touch it
            assert 1 <= (found == 50).sum() <= 4


def test_nan_and_inf_are_seen_at_every_size(tmp_path: Path) -> None:
    v = weights()
    v[10, 20], v[500, 1400], v[500, 1401] = np.nan, np.inf, -np.inf
    with open_checkpoint(write(tmp_path, v)) as checkpoint:
        pyramid = picture(checkpoint)
        for h, w in ((7, 15), (70, 150), (700, 1500)):
            found = pyramid.pooled((0, ROWS), (0, COLUMNS), h, w)
            y, x = 10 * h // ROWS, 20 * w // COLUMNS
            assert np.isnan(found[y, x])
            assert np.isnan(found).sum() == 1
            assert np.isposinf(found[500 * h // ROWS, 1400 * w // COLUMNS])


def test_experts(tmp_path: Path) -> None:
    v = weights()[:, :96].reshape(7, 100, 96)
    with open_checkpoint(write(tmp_path, v)) as checkpoint:
        pyramid = picture(checkpoint, 4)
        assert (pyramid.rows, pyramid.columns) == (100, 96)
        np.testing.assert_array_equal(pyramid.values((3, 9), (5, 7)), v[4, 3:9, 5:7])
        window = ((3, 99), (0, 96), 11, 12)
        np.testing.assert_array_equal(pyramid.pooled(*window), expected(v[4], *window))


def test_windows_outside_and_empty(tmp_path: Path) -> None:
    with open_checkpoint(write(tmp_path, weights())) as checkpoint:
        pyramid = picture(checkpoint)
        for rows in ((-1, 5), (0, ROWS + 1)):
            with pytest.raises(IndexError):
                pyramid.pooled(rows, (0, 5), 1, 1)
        for rows, height in (((5, 5), 1), ((0, 5), 0)):
            with pytest.raises(ValueError):
                pyramid.pooled(rows, (0, 5), height, 1)


def test_a_tall_window_that_is_not_held_comes_from_the_kept_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More columns of the picture than cells: nothing is read, and an outlier is within 8 values of its place."""
    monkeypatch.setattr(picture_module, "HELD_BYTES", 1000)
    monkeypatch.setattr(picture_module, "READ_AT_ONCE", 1000)
    v = weights()
    with open_checkpoint(write(tmp_path, v)) as checkpoint:
        pyramid = picture(checkpoint)
        monkeypatch.setattr(type(checkpoint), "read_raw", None)
        found = pyramid.pooled((0, ROWS), (0, COLUMNS), 20, COLUMNS)
    assert (found >= expected(v, (0, ROWS), (0, COLUMNS), 20, COLUMNS)).all()
    y, x = np.nonzero(found == 50)
    assert set(y) == {431 * 20 // ROWS}
    assert set(x) == set(range(976, 984))
