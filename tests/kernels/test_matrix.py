"""Products of packed weights: every format, instruction set and batch against float64 sums of the decoded weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from kernels import cpu, dispatch, matrix, ops
from kernels.layouts import LAYOUTS
from kernels.matrix import Activations, Matrix
from kernels.reference import matrix as reference

ISAS = cpu.engine_sets
BATCHES = (1, 2, 3, 16, 33)
# Of Σ |x̂ · w|: the rounding of some float32 sums of a few hundred terms, which errors of scales or codes exceed by far.
TOLERANCE = 3e-6
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

Reader = Callable[[int, int], Any]


@cache
def _weights(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(rows * 10007 + columns)
    w = rng.standard_normal((rows, columns)).astype(np.float32)
    w[rows // 2] = 0
    if rows > 2:
        w[0] *= 300
        w[1] *= 1e-3
    return w


def _blocks(kind: str, rows: int, columns: int) -> Matrix:
    scale = 0.03 if kind == "NVFP4" else 1.0
    data = ops.encode_blocks(kind, _weights(rows, columns), search=False, tensor_scale=scale)
    return matrix.from_blocks(kind, rows, columns, lambda start, stop: data[start:stop], scale)


def _groups(bits: int, group: int, symmetric: bool, scale: str, rows: int, columns: int) -> Matrix:
    w = _weights(rows, columns)
    codes, scales, zeros = ops.encode_groups(w, bits, group or columns, symmetric, scale, search=False)

    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return codes[start:stop], scales[start:stop], None if zeros is None else zeros[start:stop]

    return matrix.from_groups(rows, columns, bits, group or columns, read, scale, symmetric)


def _affine(bits: int, group: int, scale: str, rows: int, columns: int, ordered: bool = False) -> Matrix:
    """scale · code + offset with scales of both signs; some groups lie far from 0."""
    rng = np.random.default_rng(bits * 100 + group)
    groups = (rows, -(-columns // group))
    codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
    scales = (rng.standard_normal(groups) / (1 << bits)).astype(np.float32)
    offsets = (rng.standard_normal(groups) - scales * (1 << (bits - 1))).astype(np.float32)
    offsets[rows // 2] *= 50
    scales[-1], offsets[-1] = 0, 0.25
    if scale != "F32":
        scales, offsets = (ops.to_float32(ops.from_float32(v, scale), scale) for v in (scales, offsets))

    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return codes[start:stop], scales[start:stop], offsets[start:stop]

    order = rng.permutation(columns) if ordered else None
    return matrix.from_groups(rows, columns, bits, group, read, scale, offsets=True, order=order)


def _ordered(group: int, symmetric: bool, rows: int, columns: int) -> Matrix:
    """Groups of columns that lie anywhere, as GPTQ has them with desc_act."""
    order = np.random.default_rng(columns).permutation(columns)
    codes, scales, zeros = ops.encode_groups(
        _weights(rows, columns)[:, order], 4, group, symmetric, "F16", search=False
    )

    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return codes[start:stop], scales[start:stop], None if zeros is None else zeros[start:stop]

    return matrix.from_groups(rows, columns, 4, group, read, "F16", symmetric, order=order)


def _ordered_table(rows: int, columns: int) -> Matrix:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
    scales = rng.standard_normal((rows, columns // 16)).astype(np.float32)
    return matrix.from_groups(
        *(rows, columns, 4, 16),
        lambda start, stop: (codes[start:stop], scales[start:stop], None),
        "F32",
        table=np.array(NF4, np.float32),
        order=rng.permutation(columns),
    )


def _table(levels: tuple[float, ...], group: int, rows: int, columns: int) -> Matrix:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
    scales = rng.integers(1, 200, (rows, columns // group)).astype(np.float32) / 64

    def read(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, None]:
        return codes[start:stop], scales[start:stop], None

    return matrix.from_groups(rows, columns, 4, group, read, "F32", table=np.array(levels, np.float32))


def _elements(dtype: str, scales: str, rows: int, columns: int) -> Matrix:
    data = ops.from_float32(_weights(rows, columns), dtype)
    rng = np.random.default_rng(5)
    shapes = {"tensor": (1, 1), "row": (rows, 1), "blocks": (-(-rows // 128), -(-columns // 128))}
    values = None if not scales else rng.uniform(0.5, 2, shapes[scales]).astype(np.float32)
    return matrix.from_elements(dtype, rows, columns, lambda start, stop: data[start:stop], values)


def _tiled(dtype: str, tiling: tuple[int, int], powers: bool, rows: int, columns: int) -> Matrix:
    """8-bit floats with a scale for so many rows and columns; powers: of two, the smallest among them."""
    data = ops.from_float32(_weights(rows, columns), dtype)
    rng = np.random.default_rng(7)
    shape = (-(-rows // tiling[0]), -(-columns // tiling[1]))
    scales = rng.uniform(-2, 2, shape).astype(np.float32)
    if powers:
        scales = np.ldexp(np.float32(1), rng.integers(-20, 20, shape)).astype(np.float32)
        scales[0, 0], scales[-1, -1] = 2.0**-127, 2.0**60
    return matrix.from_elements(dtype, rows, columns, lambda start, stop: data[start:stop], scales, tiling)


# name → (builder, columns that the format allows, widths to try)
_ANY = (1, 31, 32, 33, 576, 4095)
_BY_16 = (576, 640)
FORMATS: dict[str, tuple[Callable[[int, int], Matrix], tuple[int, ...]]] = {}
for _kind, _layout in LAYOUTS.items():
    if _kind in matrix.BLOCK_KINDS and _kind not in matrix.PLAIN_KINDS:
        _widths = {32: (32, 576, 640), 64: (64, 576), 256: (256, 768)}[_layout.block]
        FORMATS[_kind] = (lambda n, k, kind=_kind: _blocks(kind, n, k), _widths)
for _bits in range(1, 9):
    FORMATS[f"int{_bits} per row"] = (lambda n, k, b=_bits: _groups(b, 0, True, "F32", n, k), _ANY)
    FORMATS[f"int{_bits} g16 zeros"] = (lambda n, k, b=_bits: _groups(b, 16, False, "F16", n, k), _BY_16)
for _group in (32, 64):
    FORMATS[f"int4 g{_group}"] = (lambda n, k, g=_group: _groups(4, g, True, "BF16", n, k), _BY_16)
    FORMATS[f"int8 g{_group} zeros"] = (lambda n, k, g=_group: _groups(8, g, False, "BF16", n, k), _BY_16)
FORMATS["int4 g96 zeros"] = (lambda n, k: _groups(4, 96, False, "F16", n, k), (96, 576))
FORMATS["int4 g128"] = (lambda n, k: _groups(4, 128, True, "F16", n, k), (128, 640))
FORMATS["int4 g128 zeros"] = (lambda n, k: _groups(4, 128, False, "F16", n, k), (640,))
FORMATS["int4 g512"] = (lambda n, k: _groups(4, 512, True, "F16", n, k), (1024,))
FORMATS["NF4"] = (lambda n, k: _table(NF4, 64, n, k), (64, 576))
FORMATS["FP4"] = (lambda n, k: _table(E2M1, 32, n, k), (32, 576))
for _name, _levels in (("NF4", NF4), ("FP4", E2M1)):
    FORMATS[f"{_name} g16"] = (lambda n, k, t=_levels: _table(t, 16, n, k), (48, 592))
    FORMATS[f"{_name} g128"] = (lambda n, k, t=_levels: _table(t, 128, n, k), (640,))
for _bits, _group, _scale in (
    *((2, 32, "BF16"), (3, 64, "F16"), (4, 32, "BF16"), (4, 64, "F32"), (4, 128, "F16"), (5, 64, "BF16")),
    *((6, 128, "BF16"), (8, 32, "BF16"), (8, 64, "F32"), (4, 16, "F32"), (3, 16, "BF16"), (1, 128, "F32")),
):
    FORMATS[f"affine int{_bits} g{_group} {_scale}"] = (
        lambda n, k, b=_bits, g=_group, s=_scale: _affine(b, g, s, n, k),
        (100, 640),
    )
FORMATS["affine int4 per row"] = (lambda n, k: _affine(4, 4096, "F32", n, k), _ANY)
FORMATS["affine int8 g64, ordered"] = (lambda n, k: _affine(8, 64, "BF16", n, k, ordered=True), (33, 576))
FORMATS["int4 g128, ordered"] = (lambda n, k: _ordered(128, True, n, k), (128, 640))
FORMATS["int4 g32 zeros, ordered"] = (lambda n, k: _ordered(32, False, n, k), (96, 576))
FORMATS["NF4 g16, ordered"] = (lambda n, k: _ordered_table(n, k), (48, 592))
for _dtype in ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"):
    FORMATS[_dtype] = (lambda n, k, d=_dtype: _elements(d, "", n, k), _ANY)
for _scales in ("tensor", "row", "blocks"):
    FORMATS[f"F8_E4M3 {_scales}"] = (lambda n, k, s=_scales: _elements("F8_E4M3", s, n, k), (33, 300, 640))
for _dtype, _tiling, _powers in (
    *(("F8_E4M3", (1, 32), True), ("F8_E5M2", (1, 32), True), ("F8_E4M3", (1, 32), False), ("F8_E4M3", (3, 16), True)),
    *(("F8_E4M3", (1, 16), False), ("F8_E5M2", (128, 128), False), ("F8_E4M3", (7, 96), False)),
    *(("F8_E4M3", (2, 10000), False), ("F8_E4M3", (128, 256), True)),
):
    FORMATS[f"{_dtype} {_tiling[0]}×{_tiling[1]}{' powers' * _powers}"] = (
        lambda n, k, d=_dtype, t=_tiling, p=_powers: _tiled(d, t, p, n, k),
        (15, 33, 300, 640),
    )


def _activations(m: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, columns)).astype(np.float32)
    x[m // 2, ::3] = 0
    if m > 2:
        x[0] = 0
        x[1] *= 1e-3
        x[2] *= 1e5
    x[-1, columns // 2] = 60  # an outlier
    return x


def _sums(x: np.ndarray, m: Matrix, decoded: np.ndarray, contract: Activations) -> tuple[np.ndarray, np.ndarray]:
    """Σ x̂ · w and Σ |x̂ · w|, float64 [M, N]."""
    rounded = reference.round_activations(x, m.stored.kind, contract.name, m.order)
    return rounded @ decoded.T, np.abs(rounded) @ np.abs(decoded).T


@pytest.mark.skipif(not ISAS, reason="no compiled engine")
@pytest.mark.parametrize("name", FORMATS)
def test_products(name: str) -> None:
    build, widths = FORMATS[name]
    rows = (1, 15, 17, 40)
    for i, columns in enumerate(widths):
        m = build(rows[i % 4], columns)
        with dispatch.only("reference"):
            decoded = build(rows[i % 4], columns).stored.take(np.arange(m.rows))
        np.testing.assert_allclose(m.stored.take(np.arange(m.rows)), decoded, rtol=2e-7, atol=0)
        decoded = decoded.astype(np.float64)
        for batch in BATCHES:
            x = _activations(batch, columns)
            for contract in Activations:
                wanted, size = _sums(x, m, decoded, contract)
                for isa in ISAS:
                    with dispatch.only(f"cpu:{isa}"):
                        got = matrix.product(x, m, contract)
                    error = np.abs(got - wanted) / np.maximum(size, 1e-30)
                    assert error.max() <= TOLERANCE, (isa, columns, batch, contract, float(error.max()))


@pytest.mark.skipif(not ISAS, reason="no compiled engine")
@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "NF4", "int4 g128, ordered"])
def test_prompts_of_more_than_is_decoded_at_a_time(name: str) -> None:
    """More tiles than a group of eight, more columns than a piece of three chunks, panels that are not full."""
    m = FORMATS[name][0](200, 1664)
    with dispatch.only("reference"):
        decoded = FORMATS[name][0](200, 1664).stored.take(np.arange(200)).astype(np.float64)
    for batch in (13, 25, 36):
        x = _activations(batch, 1664)
        for contract in (Activations.FAST, Activations.EXACT):
            wanted, size = _sums(x, m, decoded, contract)
            for isa in ISAS:
                with dispatch.only(f"cpu:{isa}"):
                    error = np.abs(matrix.product(x, m, contract) - wanted) / np.maximum(size, 1e-30)
                assert error.max() <= TOLERANCE, (isa, batch, contract, float(error.max()))


@pytest.mark.parametrize(
    "name", ["Q4_K", "int4 g128 zeros", "NF4", "BF16", "F8_E4M3 blocks", "int4 g128, ordered", "F8_E4M3 7×96"]
)
def test_the_reference_follows_the_contracts(name: str) -> None:
    """The numpy products, which decode a few rows at a time, against one sum over all; and rows one by one."""
    build, widths = FORMATS[name]
    with dispatch.only("reference"):
        m = build(40, widths[-1])
        x = _activations(3, m.columns)
        decoded = m.stored.take(np.arange(40)).astype(np.float64)
        for contract in Activations:
            np.testing.assert_allclose(
                matrix.product(x, m, contract), _sums(x, m, decoded, contract)[0], rtol=1e-6, atol=1e-6
            )
        np.testing.assert_array_equal(
            matrix.read_rows(m, np.array([39, 0, 39])), decoded[[39, 0, 39]].astype(np.float32)
        )


def test_no_activations_at_all() -> None:
    for activations in ("FAST", "TOKEN", "EXACT"):
        for kind in ("integer", "BF16", "float"):
            assert reference.round_activations(np.zeros((0, 33), np.float32), kind, activations).shape == (0, 33)


def test_int8_rounding_by_hand() -> None:
    """amax 127 → the codes are the values, ties to even; the next block has its own scale."""
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = (127, 2.5, 3.5, -0.5)
    x[0, 32:34] = (254, 3)
    rounded = reference.round_activations(x, "integer", "FAST")
    np.testing.assert_array_equal(rounded[0, [0, 1, 2, 3, 32, 33]], (127, 2, 4, 0, 254, 4))
    whole = reference.round_activations(x, "integer", "TOKEN")
    np.testing.assert_array_equal(whole[0, [0, 1, 32, 33]], (128, 2, 254, 4))
    np.testing.assert_array_equal(reference.round_activations(x, "float", "FAST"), x)


@pytest.mark.skipif(not ISAS, reason="no compiled engine")
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "int8 g64 zeros", "BF16", "F32", "NF4"])
def test_rows_with_nan_and_inf_are_nan_and_leave_others_alone(name: str) -> None:
    build, widths = FORMATS[name]
    m = build(17, widths[-1])
    x = _activations(16, m.columns)
    for isa in ISAS:
        for contract in Activations:
            with dispatch.only(f"cpu:{isa}"):
                clean = matrix.product(x, m, contract)
                for value in (np.nan, np.inf, -np.inf):
                    broken = x.copy()
                    broken[5, 1] = value
                    got = matrix.product(broken, m, contract)
                    assert not np.isfinite(got[5]).any()
                    others = np.arange(16) != 5
                    np.testing.assert_array_equal(got[others], clean[others])


@pytest.mark.skipif(not ISAS, reason="no compiled engine")
def test_results_do_not_depend_on_threads() -> None:
    m = FORMATS["Q4_K"][0](576, 256)
    for batch in (1, 33):
        x = _activations(batch, 256)
        np.testing.assert_array_equal(matrix.product(x, m, threads=1), matrix.product(x, m, threads=3))


@pytest.mark.skipif(not ISAS, reason="no compiled engine")
@pytest.mark.parametrize(
    ("name", "columns", "share"),
    [
        ("Q4_0", 1024, 1.0),
        ("Q4_K", 1024, 1.0),
        ("Q5_K", 1024, 1.0),
        ("Q8_0", 1024, 1.0),
        ("Q6_K", 1024, 1.02),
        ("BF16", 1024, 1.0),
    ],
)
def test_packed_weights_take_the_bytes_of_the_file(name: str, columns: int, share: float) -> None:
    packed = FORMATS[name][0](32, columns)
    with dispatch.only("reference"):
        stored = FORMATS[name][0](32, columns)
    assert stored.nbytes <= packed.nbytes <= stored.nbytes * share


def test_columns_in_order_by_hand() -> None:
    """Two rows of codes − 8 for columns 2, 0, 3, 1; places of the columns' own order in products and in rows."""
    codes = np.array([[9, 10, 11, 12], [8, 8, 8, 7]], np.uint8)
    for backend in ("reference", *(f"cpu:{isa}" for isa in ISAS)):
        with dispatch.only(backend):
            m = matrix.from_groups(
                2,
                4,
                4,
                4,
                lambda a, b: (codes[a:b], np.ones((b - a, 1), np.float32), None),
                order=np.array([2, 0, 3, 1]),
            )
            np.testing.assert_array_equal(matrix.read_rows(m, np.array([1, 0])), [[0, -1, 0, 0], [2, 4, 1, 3]])
            x = np.array([[127, 1, 0, 10]], np.float32)
            np.testing.assert_array_equal(matrix.product(x, m), [[2 * 127 + 4 + 30, -1]])


def test_offsets_by_hand() -> None:
    """−0.5 · code + 3 and 0.25 · code − 1, in every type of scales."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (1, 2))
    scales, offsets = np.array([[-0.5, 0.25]], np.float32), np.array([[3, -1]], np.float32)
    wanted = np.concatenate([3 - 0.5 * np.arange(16), 0.25 * np.arange(16) - 1])
    for backend in ("reference", *(f"cpu:{isa}" for isa in ISAS)):
        with dispatch.only(backend):
            for scale in matrix.SCALE_TYPES:
                m = matrix.from_groups(1, 32, 4, 16, lambda _a, _b: (codes, scales, offsets), scale, offsets=True)
                np.testing.assert_array_equal(matrix.read_rows(m, np.array([0]))[0], wanted)


@pytest.mark.skipif(not ISAS, reason="no compiled engine")
def test_powers_of_two_take_a_byte() -> None:
    """MXFP8: 1 + 1/32 bytes a weight, of 256 columns."""
    data, scales = np.zeros((16, 256), np.uint8), np.full((16, 8), 0.25, np.float32)
    assert matrix.from_elements("F8_E4M3", 16, 256, lambda _a, _b: data, scales, (1, 32)).nbytes == 16 * (256 + 8)
    scales[3, 3] = 0.3
    assert matrix.from_elements("F8_E4M3", 16, 256, lambda _a, _b: data, scales, (1, 32)).nbytes == 16 * (256 + 32)


def test_what_is_refused() -> None:
    def none(_start: int, _stop: int) -> Any:
        raise OSError("the disk is gone")

    with pytest.raises(ValueError, match="no products with IQ1_S"):
        matrix.from_blocks("IQ1_S", 16, 256, none)
    with pytest.raises(ValueError, match="multiple of 256"):
        matrix.from_blocks("Q4_K", 16, 100, none)
    with pytest.raises(ValueError, match="multiples of 16"):
        matrix.from_groups(16, 100, 4, 20, none)
    with pytest.raises(ValueError, match="rows and columns"):
        matrix.from_elements("F32", 0, 4, none)
    with pytest.raises(OSError, match="the disk is gone"):
        matrix.from_blocks("Q8_0", 16, 32, none)
    with pytest.raises(ValueError, match="a piece of 16 rows"):
        matrix.from_blocks("Q8_0", 16, 32, lambda start, stop: np.zeros((3, 34), np.uint8))
    codes, thirds = np.zeros((16, 64), np.uint8), np.zeros((16, 2), np.float32)
    with pytest.raises(ValueError, match="each of the 64 columns once"):
        matrix.from_groups(16, 64, 4, 32, none, order=np.zeros(64))
    with pytest.raises(ValueError, match="zeros or offsets"):
        matrix.from_groups(16, 64, 4, 32, lambda _a, _b: (codes, thirds, None), offsets=True)
    with pytest.raises(ValueError, match="a table has no offsets"):
        matrix.from_groups(16, 64, 4, 32, none, table=np.array(NF4), offsets=True)
    with pytest.raises(ValueError, match="multiples of 16 columns"):
        matrix.from_elements("F8_E4M3", 16, 64, none, np.ones((16, 3), np.float32), (1, 24))
    with pytest.raises(ValueError, match=r"or \[16, 2\], not \[16, 3\]"):
        matrix.from_elements("F8_E4M3", 16, 64, none, np.ones((16, 3), np.float32), (1, 32))
    m = FORMATS["F32"][0](15, 31)
    with pytest.raises(ValueError, match="31 columns"):
        matrix.product(np.zeros((1, 32), np.float32), m)
    with pytest.raises(IndexError):
        matrix.read_rows(m, np.array([15]))


def test_rows_come_in_order_and_in_pieces() -> None:
    asked: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> np.ndarray:
        asked.append((start, stop))
        return np.zeros((stop - start, 4 * 4096), np.uint8)

    matrix.from_elements("F32", 1000, 4096, read)
    assert asked[0][0] == 0
    assert asked[-1][1] == 1000
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(asked))
    assert all(start % 16 == 0 and (stop - start) * 4 * 4096 <= 4 << 20 for start, stop in asked)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 63), (64, 64), (65, 70), (1025, 130), (2049, 200)])
@pytest.mark.parametrize("isa", ["reference", *ISAS])
def test_sums_of_outer_products(rows: int, columns: int, isa: str) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    x = ops.to_float32(ops.from_float32(x, "BF16"), "BF16")  # as some processors round them
    want = np.triu(x.T.astype(np.float64) @ x + 0.5)
    with dispatch.only(isa if isa == "reference" else f"cpu:{isa}"):
        for threads in (1, 3):
            total = np.full((columns, columns), 0.5, np.float32)
            matrix.add_gram(x, total, threads)
            assert np.abs(np.triu(total) - want).max() < 2e-6 * np.diag(want).max()
