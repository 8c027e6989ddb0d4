"""Codebooks, affine codes and half-quadratic zeros: every instruction set, hard rows, error and the methods' rules."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest

from kernels import dispatch, families, ops

TABLES = {"NF4": families.NF4_LEVELS, "FP4": families.FP4_LEVELS, "E2M1": families.E2M1_TABLE}
LONG = 1100  # more than one piece of a sum


_known: dict[bytes, tuple[np.ndarray, ...]] = {}  # what the reference gave: it is the same for all that are compared


def _agree(compiled: str, run: Callable[..., object], *arguments: object, **named: object) -> tuple[np.ndarray, ...]:
    """What run gives, after all arrays of the compiled kernels were those of the reference, bit for bit."""
    key = sha256(pickle.dumps((run.__name__, arguments, named))).digest()
    if key not in _known:
        with dispatch.only("reference"):
            _known[key] = _parts(run(*arguments, **named, threads=1))
    with dispatch.only(compiled):
        found = _parts(run(*arguments, **named, threads=3))
    for want, got in zip(_known[key], found, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes(), (run.__name__, compiled)
    return _known[key]


def _parts(found: object) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else (found,)


SEARCHES = ((False, False), (True, False), (True, True))


@pytest.mark.parametrize("table", TABLES)
def test_compiled_codebooks_are_those_of_the_reference(table, hard_rows, importance_of, compiled) -> None:
    levels = TABLES[table]
    for columns, group, scale_dtype in ((96, 32, "F32"), (96, 6, "BF16"), (90, 90, "F16"), (LONG, LONG, "F32")):
        x, weights = hard_rows(columns), importance_of(columns)
        for search, weighted in SEARCHES:
            settings = (group, scale_dtype, search, weights if weighted else None)
            codes, scales = _agree(compiled, families.encode_codebook, x, levels, *settings)
            assert np.isfinite(scales).all()
            _agree(compiled, families.decode_codebook, codes, scales, levels, group)


@pytest.mark.parametrize("bits", range(1, 9))
def test_compiled_affine_codes_are_those_of_the_reference(bits, hard_rows, importance_of, compiled) -> None:
    for columns, group, scale_dtype in ((96, 32, "BF16"), (90, 6, "F16"), (90, 90, "F32"), (LONG, LONG, "BF16")):
        x, weights = hard_rows(columns), importance_of(columns)
        for search, weighted in SEARCHES:
            settings = (bits, group, scale_dtype, search, weights if weighted else None)
            codes, scales, offsets = _agree(compiled, families.encode_affine, x, *settings)
            assert np.isfinite(scales).all()
            assert np.isfinite(offsets).all()
            assert codes.max() < 1 << bits
            _agree(compiled, families.decode_affine, codes, scales, offsets, group)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_compiled_half_quadratic_zeros_are_those_of_the_reference(bits, hard_rows, compiled) -> None:
    for columns, group, settings in (
        (128, 64, {}),
        (90, 6, {"iterations": 3, "exponent": 1.0}),
        (90, 90, {"beta": 1.0}),
    ):
        x = np.concatenate([hard_rows(columns), 0.02 * hard_rows(columns, seed=1)])
        codes, scales, zeros = _agree(compiled, families.half_quadratic, x, bits, group, **settings)
        assert np.isfinite(scales).all()
        assert np.isfinite(zeros).all()
        assert codes.max() < 1 << bits
        _agree(compiled, families.decode_zeros, codes, scales, zeros, group)


def _values(rows: int = 64, columns: int = 256) -> np.ndarray:
    return np.random.default_rng(1).standard_t(4, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("table", TABLES)
def test_every_value_has_the_nearest_level_of_its_scale(table) -> None:
    x, levels = _values(), TABLES[table]
    for search in (False, True):
        codes, scales = families.encode_codebook(x, levels, 64, search=search)
        scale = np.repeat(scales, 64, axis=1).astype(np.float64)
        error = np.abs(families.decode_codebook(codes, scales, levels, 64) - x)
        least = np.abs(levels.astype(np.float64)[:, None, None] * scale - x).min(axis=0)
        assert (error <= least + 1e-6 * scale).all()
    plain = np.abs(x).reshape(64, 4, 64).max(axis=2) / np.abs(levels).max()
    assert (families.encode_codebook(x, levels, 64)[1] == plain).all()


def test_a_halfway_value_goes_to_the_lower_level_and_zeros_have_scale_zero() -> None:
    middle = np.float32((families.NF4_LEVELS[14] + families.NF4_LEVELS[15]) / 2)
    x = np.zeros((2, 64), np.float32)
    x[0, :3] = 1, middle, np.nextafter(middle, np.float32(2))
    codes, scales = families.encode_codebook(x, families.NF4_LEVELS, 64)
    assert codes[0, :3].tolist() == [15, 14, 15]
    assert scales.tolist() == [[1], [0]]
    assert (codes[1] == 7).all()
    assert (families.decode_codebook(codes, scales, families.NF4_LEVELS, 64)[1] == 0).all()


@pytest.mark.parametrize("bits", range(2, 9))
def test_affine_codes_are_within_half_a_step_and_keep_zero_and_the_far_end(bits) -> None:
    x = _values()
    x[::4] += 3
    codes, scales, offsets = families.encode_affine(x, bits, 64, "F32")
    steps = np.repeat(np.abs(scales), 64, axis=1)
    decoded = families.decode_affine(codes, scales, offsets, 64)
    # Dividing the edge by a whole number of steps may move the other end by up to half a step.
    assert (np.abs(decoded - x) <= 1.001 * steps).all()
    assert (np.abs(decoded - x) <= 0.501 * steps).mean() > 0.98
    groups = x.reshape(64, 4, 64)
    low, high = groups.min(axis=2), groups.max(axis=2)
    assert (offsets == np.where(np.abs(low) > np.abs(high), low, high)).all()
    zero = offsets / scales
    assert np.abs(zero - np.rint(zero)).max() < 1e-4


def test_affine_codes_of_constant_groups_and_zeros() -> None:
    x = np.repeat(np.float32([[0], [-0.0], [7], [-3]]), 32, axis=1)
    codes, scales, offsets = families.encode_affine(x, 4, 32, "BF16")
    assert (families.decode_affine(codes, scales, offsets, 32) == x).all()
    assert (codes == 0).all()


@pytest.mark.parametrize("kind", [*TABLES, 2, 3, 4, 8])
def test_no_group_is_worse_for_the_search_of_its_scale(kind, importance_of) -> None:
    x = _values()
    for weights in (None, importance_of(256)):
        w = np.ones(256) if weights is None else weights.astype(np.float64)

        def errors(search: bool, weights=weights, w=w) -> np.ndarray:
            if isinstance(kind, str):
                parts = families.encode_codebook(x, TABLES[kind], 64, "BF16", search, weights)
                decoded = families.decode_codebook(*parts, TABLES[kind], 64)
            else:
                decoded = families.decode_affine(*families.encode_affine(x, kind, 64, "BF16", search, weights), 64)
            e = decoded.astype(np.float64) - x
            return (w * e * e).reshape(64, 4, 64).sum(axis=2)

        plain, searched = errors(False), errors(True)
        assert (searched <= plain * (1 + 1e-5)).all()
        assert searched.sum() < 0.92 * plain.sum()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_half_quadratic_zeros_are_real_and_lower_the_error(bits) -> None:
    x = 0.02 * _values()

    def error(iterations: int) -> float:
        parts = families.half_quadratic(x, bits, 64, iterations=iterations)
        return float(np.abs(families.decode_zeros(*parts, 64) - x).mean())

    assert error(20) < 0.99 * error(0)
    codes, scales, zeros = families.half_quadratic(x, bits, 64)
    assert (zeros != np.rint(zeros)).mean() > 0.9
    # At the end the zero point is the mean of code − x / scale: no error of weights this small counts as an outlier.
    best = (codes - x / np.repeat(scales, 64, axis=1)).reshape(64, 4, 64).mean(axis=2)
    assert np.median(np.abs(best - zeros)) < 1e-3
    span = x.reshape(64, 4, 64).max(axis=2) - x.reshape(64, 4, 64).min(axis=2)
    assert np.allclose(scales, span / (2**bits - 1), rtol=1e-6)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: families.encode_codebook(x, families.NF4_LEVELS, 32),
        lambda x: families.encode_affine(x, 4, 32),
        lambda x: families.half_quadratic(x, 4, 32),
        lambda x: families.encode_float8(x, "F8_E4M3", np.ones((4, 1), np.float32), 1, 64),
        lambda x: families.tile_amax(x, 2, 32),
        lambda x: families.encode_fp4(x, 16, "E4M3"),
    ],
)
@pytest.mark.parametrize("backend", ["reference", "best"])
def test_values_that_are_not_finite_are_refused(run, backend) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones((4, 64), np.float32)
        x[3, 63] = bad
        with dispatch.only("reference" if backend == "reference" else dispatch.backends()[0]):
            with pytest.raises(ValueError, match="NaN or Inf can not be encoded"):
                run(x)
            run(np.ones((4, 64), np.float32))


def test_settings_that_do_not_fit_are_refused() -> None:
    x, codes = np.ones((4, 64), np.float32), np.ones((4, 64), np.uint8)
    for call, words in (
        (lambda: families.encode_codebook(x, families.NF4_LEVELS[:8], 32), "16 finite levels"),
        (lambda: families.encode_codebook(x, families.NF4_LEVELS, 48), "groups of 48 do not divide"),
        (lambda: families.encode_affine(x, 9, 32), "1 to 8 bits"),
        (lambda: families.encode_affine(x, 4, 32, "F8_E4M3"), "scales are F16"),
        (lambda: families.encode_affine(x, 4, 32, importance=np.ones(3)), "one weight for each"),
        (lambda: families.decode_affine(codes, np.ones((4, 2)), np.ones((4, 1)), 32), "offsets have shape"),
        (lambda: families.decode_zeros(codes, np.ones((4, 3)), np.ones((4, 2)), 32), "scales have shape"),
        (lambda: families.half_quadratic(x, 4, 32, exponent=2), "half-quadratic"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_input_may_be_a_view_and_empty(compiled) -> None:
    wide = _values(32, 512)
    view, copy = wide[::2, ::2], np.ascontiguousarray(wide[::2, ::2])
    with dispatch.only(compiled):
        for run in (
            lambda x: families.encode_codebook(x, families.NF4_LEVELS, 64),
            lambda x: families.encode_affine(x, 4, 64),
            lambda x: families.half_quadratic(x, 4, 64),
        ):
            assert all(a.tobytes() == b.tobytes() for a, b in zip(run(view), run(copy), strict=True))
            assert all(part.size == 0 for part in run(np.empty((0, 64), np.float32)))
        codes = (wide * 3).astype(np.int8).view(np.uint8) & 15
        assert (families.pack_awq(codes.T) == families.pack_awq(np.ascontiguousarray(codes.T))).all()
        assert ops.pack_bits(codes[:, ::2], 4).tobytes() == ops.pack_bits(codes[:, ::2].copy(), 4).tobytes()
