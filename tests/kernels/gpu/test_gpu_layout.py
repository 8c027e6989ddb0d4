"""Weights in the GPU's layout come out again bit for bit, whatever their bytes are."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import ops
from kernels.gpu.weights import blocks, layout
from kernels.gpu.weights.forms import CODE_BITS, GGML_FORMS, grouped_form
from kernels.layouts import LAYOUTS

ROWS = (1, 5, 33)


def _bytes(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns)).astype(np.uint8)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", GGML_FORMS)
def test_any_block_is_packed_and_unpacked(kind, rows) -> None:
    block = LAYOUTS[kind].block
    for columns in (block, 3 * block, 2048 + block):
        data = _bytes(rows, LAYOUTS[kind].row_bytes(columns))
        packed = layout.pack_blocks(kind, data, columns, 0.5)
        assert np.array_equal(layout.unpack_blocks(packed), data)
        assert packed.tensor_scale == 0.5


@pytest.mark.parametrize("kind", GGML_FORMS)
def test_codes_and_scales_are_what_the_reader_sees(kind) -> None:
    """Integer formats without further scales: code and scale give the decoded value by hand."""
    form = GGML_FORMS[kind]
    columns = 2 * LAYOUTS[kind].block
    x = np.random.default_rng(1).standard_normal((3, columns)).astype(np.float32)
    data = ops.encode_blocks(kind, x, search=False)
    fields = blocks.split(kind, data)
    assert fields.codes.shape == (3, columns)
    assert int(fields.codes.max()) < 1 << (form.bits + form.high)
    assert np.array_equal(blocks.join(kind, fields), data)
    if form.levels == "integers" and form.scales == "plain":
        scales = np.repeat(np.ascontiguousarray(fields.scales).view(np.float16).astype(np.float32), form.group, axis=1)
        values = (fields.codes.astype(np.float32) - form.middle) * scales
        assert np.array_equal(values, ops.decode_blocks(kind, data, columns))


@pytest.mark.parametrize("third", ["", "zeros", "minimums"])
@pytest.mark.parametrize("bits", CODE_BITS)
def test_any_group_is_packed_and_unpacked(bits, third) -> None:
    rng = np.random.default_rng(bits)
    for rows, columns, group, scale_type in (
        (1, 16, 16, "F16"),
        (37, 150, 64, "BF16"),
        (5, 1100, 48, "F32"),
        (3, 83, 83, "F16"),
    ):
        codes = rng.integers(0, 1 << bits, (rows, columns)).astype(np.uint8)
        shape = (rows, -(-columns // group))
        scales = ops.to_float32(ops.from_float32(rng.standard_normal(shape).astype(np.float32), scale_type), scale_type)
        more = {"": None, "zeros": rng.integers(0, 256, shape).astype(np.uint8), "minimums": -scales}[third]
        packed = layout.pack_groups(codes, scales, more, bits, group, scale_type)
        found = layout.unpack_groups(packed)
        assert np.array_equal(found[0], codes)
        assert np.array_equal(found[1], scales)
        assert (found[2] is None) if more is None else np.array_equal(found[2], more)


def test_a_table_and_an_order_stay_with_the_weight() -> None:
    codes, order = _bytes(4, 64) & np.uint8(15), np.random.default_rng(3).permutation(64)
    table = np.linspace(-1, 1, 16, dtype=np.float32)
    packed = layout.pack_groups(codes, np.ones((4, 2), np.float32), None, 4, 32, "F32", table, order)
    assert np.array_equal(packed.order, order)
    assert np.array_equal(packed.table, table)
    assert np.array_equal(layout.unpack_codes(packed), codes)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize(
    ("shape", "tiling"), [(None, (1, 1)), ((1, 1), (1, 1)), ((37, 1), (1, 1)), ((3, 3), (16, 128)), ((37, 9), (1, 32))]
)
def test_8_bit_floats_are_packed_and_unpacked(dtype, shape, tiling) -> None:
    data = _bytes(37, 280)
    scales = None if shape is None else np.random.default_rng(2).random(shape).astype(np.float32)
    for stored in (scales, None if scales is None else np.ldexp(np.float32(1), np.frexp(scales)[1] - 100)):
        packed = layout.pack_elements(dtype, data, stored, tiling)
        codes, found = layout.unpack_elements(packed)
        assert np.array_equal(codes, data)
        assert np.array_equal(found, np.ones((1, 1)) if stored is None else stored)
    if shape == (37, 9):
        assert packed.scales.dtype == np.uint8  # powers of two take a byte


@pytest.mark.parametrize("kind", GGML_FORMS)
def test_the_layout_takes_what_the_file_takes(kind) -> None:
    """4096 columns: no padding, and six-bit scales as bytes cost less than four percent."""
    data = _bytes(8, LAYOUTS[kind].row_bytes(4096))
    assert data.nbytes <= layout.pack_blocks(kind, data, 4096).nbytes <= 1.04 * data.nbytes


def test_what_no_decoder_reads_is_refused() -> None:
    codes, scales = _bytes(2, 48) & np.uint8(1), np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match="codes of 7 bits"):
        layout.pack_groups(codes, scales, None, 7, 32)
    with pytest.raises(ValueError, match="groups of 24"):
        layout.pack_groups(codes, scales, None, 4, 24)
    with pytest.raises(ValueError, match="no decoder for TQ1_0"):
        layout.pack_blocks("TQ1_0", _bytes(1, 54), 256)
    with pytest.raises(ValueError, match="scales of 24 columns"):
        layout.pack_elements("F8_E4M3", _bytes(2, 48), np.ones((2, 2), np.float32), (1, 24))
    with pytest.raises(ValueError, match="no zeros"):
        grouped_form(4, 32, "zeros", table=True)
