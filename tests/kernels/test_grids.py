"""Encoders of IQ2_XXS … IQ3_S: the best points by brute force, packing by hand, error against llama.cpp's, one set of
bits everywhere."""

from __future__ import annotations

import encoder_samples as samples
import gguf
import numpy as np
import pytest

from kernels import dispatch, ops
from kernels.layouts import GRID_KINDS, GRIDS, LAYOUTS
from kernels.reference import grids

COMPILED = [name for name in dispatch.backends() if name != "reference"]

# nRMSE in percent of ggml's encoder: where all columns count the same (it refuses IQ2 without importance, and is better
# with equal importance than without any), and with importance. Obtained as said in test_kquants.py.
LLAMA_CPP = {
    "IQ2_XXS": {
        "normal": (34.2034, 30.0660),
        "laplace": (39.1346, 35.0273),
        "student": (42.5642, 38.3648),
        "channels": (66.6087, 60.0976),
        "positive": (32.3277, 28.9514),
        "offset": (31.9429, 27.4371),
        "constant": (33.4925, 27.7765),
        "spike": (105.6778, 75.3942),
    },
    "IQ2_XS": {
        "normal": (29.8540, 26.1696),
        "laplace": (33.3268, 30.2765),
        "student": (35.6006, 32.6729),
        "channels": (52.4074, 48.2363),
        "positive": (27.5126, 24.8547),
        "offset": (12.6499, 12.4536),
        "constant": (8.3245, 8.3093),
        "spike": (78.5395, 58.4587),
    },
    "IQ2_S": {
        "normal": (24.7763, 22.4200),
        "laplace": (30.1018, 27.7839),
        "student": (32.1891, 29.9432),
        "channels": (49.5685, 45.6074),
        "positive": (24.8294, 22.6684),
        "offset": (11.7577, 11.5661),
        "constant": (7.1023, 7.0884),
        "spike": (76.4456, 56.6587),
    },
    "IQ3_XXS": {
        "normal": (18.1771, 15.5693),
        "laplace": (19.5599, 17.5344),
        "student": (20.8991, 18.6085),
        "channels": (26.5475, 24.4186),
        "positive": (16.3016, 14.3917),
        "offset": (13.4065, 11.8061),
        "constant": (17.4133, 14.3480),
        "spike": (45.9469, 33.1327),
    },
    "IQ3_S": {
        "normal": (13.6852, 12.2409),
        "laplace": (15.6474, 14.3369),
        "student": (16.6040, 15.3250),
        "channels": (22.6005, 21.4976),
        "positive": (13.6716, 12.2168),
        "offset": (14.1879, 12.8563),
        "constant": (16.2843, 13.9969),
        "spike": (42.6705, 31.2070),
    },
}


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_error_is_no_larger_than_llama_cpps(kind) -> None:
    samples.assert_errors_at_most(kind, LLAMA_CPP[kind])


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_every_instruction_set_gives_the_bytes_of_the_reference(kind) -> None:
    weights = samples.importance()
    for name, x in samples.samples().items():
        for importance, search in ((None, True), (weights, True), (weights, False)):
            with dispatch.only("reference"):
                want = ops.encode_blocks(kind, x[:1, :512], None if importance is None else weights[:512], search)
            for backend in COMPILED:
                with dispatch.only(backend):
                    got = ops.encode_blocks(kind, x[:1, :512], None if importance is None else weights[:512], search)
                assert np.array_equal(got, want), f"{kind} on {name}, {backend}, importance {importance is not None}"


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_where_few_columns_count_every_instruction_set_gives_the_same_bytes(kind) -> None:
    x, weights = samples.samples()["channels"][:1], samples.few_columns()
    with dispatch.only("reference"):
        want = ops.encode_blocks(kind, x, weights)
    for backend in COMPILED:
        with dispatch.only(backend):
            assert np.array_equal(ops.encode_blocks(kind, x, weights), want), f"{kind}, {backend}"


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_points_and_signs_are_the_best_that_there_are(kind) -> None:
    """Every point with every allowed pattern of signs, in float64, for one group of eight at a few scales."""
    grid, rng = GRIDS[kind], np.random.default_rng(5)
    levels = np.array(grid.levels)
    points = levels[grids.points(kind)]
    for scale in (0.1, 0.3):
        x = rng.standard_normal((1, grid.sub_block)).astype(np.float32)
        w = np.exp(rng.standard_normal(x.shape)).astype(np.float32)
        found = grids.best_points(grid, x, w, np.float32([scale]))
        want = sum(_least(grid, points, x[0, i : i + 8], w[0, i : i + 8], scale) for i in range(0, grid.sub_block, 8))
        assert found.cost[0] == pytest.approx(want, rel=1e-5)
        assert ((x - np.float32(scale) * found.q) ** 2 * w).sum() == pytest.approx(want, rel=1e-5)
        assert not grid.even_signs or ((found.q.reshape(-1, 8) < 0).sum(axis=1) % 2 == 0).all()


def _least(grid, points: np.ndarray, x: np.ndarray, w: np.ndarray, scale: float) -> float:
    """The least error of eight values over points and signs, by trying all."""
    least = np.inf
    for pattern in range(256):
        if grid.even_signs and pattern.bit_count() % 2:
            continue
        signs = np.where(pattern >> np.arange(8) & 1, -1.0, 1.0)
        errors = 0.0
        for first in range(0, 8, grid.values):
            part = slice(first, first + grid.values)
            errors += (w[part] * (x[part] - scale * signs[part] * points) ** 2).sum(axis=1).min()
        least = min(least, errors)
    return float(least)


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_no_value_leaves_its_formats_bound(kind) -> None:
    samples.assert_within_bound(kind, 3.5, 256)


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_the_ends_of_float16_and_nothing_at_all(kind) -> None:
    x = samples.samples()["normal"]
    huge = ops.decode_blocks(kind, ops.encode_blocks(kind, x * np.float32(1e12)), x.shape[1])
    assert np.isfinite(huge).all()
    assert (huge[np.abs(x) > 0.5] * x[np.abs(x) > 0.5] > 0).mean() > 0.9  # some signs are wrong: their number is even
    for nothing in (0.0, -0.0, 1e-12, 1e-42):
        assert not ops.decode_blocks(kind, ops.encode_blocks(kind, x * np.float32(nothing)), x.shape[1]).any()


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_what_a_file_holds_is_met_again(kind) -> None:
    """Random blocks with one scale: their values have codes that decode to them."""
    rng = np.random.default_rng(9)
    grid = GRIDS[kind]
    points = np.array(grid.levels, np.float32)[grids.points(kind)]
    x = points[rng.integers(0, len(points), 1024 // grid.values)].reshape(1, 1024) * np.float32(31 / 64)
    decoded = ops.decode_blocks(kind, ops.encode_blocks(kind, x), 1024)
    assert np.abs(decoded - x).max() <= 1e-3 * np.abs(x).max()


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_every_point_is_where_gguf_has_it(kind) -> None:
    layout = LAYOUTS[kind]
    data = np.random.default_rng(4).integers(0, 256, (600, layout.bytes), np.uint8)
    data[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for backend in dispatch.backends():
        with dispatch.only(backend):
            got = ops.decode_blocks(kind, data, 256)
        assert np.array_equal(got, gguf.dequantize(data, gguf.GGMLQuantizationType[kind])), backend
