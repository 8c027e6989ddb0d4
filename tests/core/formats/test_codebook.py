"""bitsandbytes' formats beside what every format promises: blocks over the flat matrix, quantized scales, int8 rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from core.formats import EncodeOptions, Method, find_format
from core.formats.bitsandbytes import FourBit, Int8Rows
from core.formats.codebook import Codebook, dynamic_map, nest, unnest
from kernels.families import FP4_LEVELS, NF4_LEVELS

SHAPES = [(5, 64), (7, 96), (3, 100), (9, 33), (1, 1), (130, 50)]  # rows that blocks cross, and odd numbers of values


def matrix(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(5, shape).astype(np.float32) * np.float32(0.03)


def stored(form: FourBit | Int8Rows, x: np.ndarray, method: Method) -> list[np.ndarray]:
    options = EncodeOptions(method=method)
    if form.needs_amax:
        options = form.fit(lambda: [x], options)
    parts = [np.asarray(p).reshape(-1).view(np.uint8) for p in form.encode(x, options)]
    for number, data in form.constant_parts(x.shape).items():
        parts[number] = np.frombuffer(data, np.uint8)
    return parts


def test_the_dynamic_map_is_the_papers() -> None:
    """Ends and some middles by hand: 1, 0 and (0.1 + 0.55) / 2 · 10^−5 and so on."""
    levels = dynamic_map()
    assert len(levels) == 256
    assert (np.diff(levels) > 0).all()
    assert (levels[0], levels[-1], levels[127]) == (np.float32(-0.99296875), 1, 0)
    assert levels[[128, 129, 130, -2]] == pytest.approx([0.55e-6, 0.325e-5, 0.775e-5, 0.99296875], rel=1e-6)
    assert np.allclose(levels[:127], -levels[-2:127:-1], rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("table", ["NF4", "FP4"])
def test_plain_bytes_are_those_of_the_rule(table: str, shape: tuple[int, int]) -> None:
    """Flat blocks of 64, the nearest level of x / amax, the first code of two in the high nibble."""
    x = matrix(*shape)
    form = FourBit(table)
    codes, absmax, levels, state = stored(form, x, Method.ROUND)
    flat = np.zeros(-(-x.size // 64) * 64)
    flat[: x.size] = x.reshape(-1)
    blocks = flat.reshape(-1, 64)
    largest = np.abs(blocks).max(axis=1)
    assert np.array_equal(absmax.view(np.float32), largest.astype(np.float32))
    by_code = {"NF4": NF4_LEVELS, "FP4": FP4_LEVELS}[table].astype(np.float64)
    near = np.abs((blocks / largest[:, None])[:, :, None] - by_code)
    nibbles = np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[: x.size]
    chosen = np.take_along_axis(near.reshape(-1, 16)[: x.size], nibbles[:, None].astype(int), axis=1)[:, 0]
    assert (chosen <= near.reshape(-1, 16)[: x.size].min(axis=1) + 1e-6).all()
    assert np.array_equal(levels.view(np.float32), by_code.astype(np.float32))
    assert json.loads(state.tobytes()) == {
        "quant_type": table.lower(), "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)
    }  # fmt: skip
    want = by_code[nibbles].astype(np.float32) * np.repeat(absmax.view(np.float32), 64)[: x.size]
    assert np.array_equal(form.decode([codes, absmax, levels, state], *shape), want.reshape(shape))


@pytest.mark.parametrize("shape", [*SHAPES, (300, 96)])
def test_quantized_scales_are_those_of_the_rule(shape: tuple[int, int]) -> None:
    x = matrix(*shape)
    codes, small, _, outer, table, state = stored(FourBit("NF4", nested=True), x, Method.ROUND)
    plain = stored(FourBit("NF4"), x, Method.ROUND)
    assert np.array_equal(codes, plain[0])
    absmax = plain[1].view(np.float32)
    said = json.loads(state.tobytes())
    assert said["nested_offset"] == float(np.float32(absmax.mean(dtype=np.float64)))
    assert (said["nested_blocksize"], said["nested_dtype"], said["shape"]) == (256, "float32", list(shape))
    away = absmax - np.float32(said["nested_offset"])
    for start in range(0, len(away), 256):
        group, largest = away[start : start + 256], outer.view(np.float32)[start // 256]
        assert largest == np.abs(group).max()
        if largest:
            near = np.abs(group.astype(np.float64)[:, None] / largest - dynamic_map())
            chosen = near[np.arange(len(group)), small[start : start + 256]]
            assert (chosen <= near.min(axis=1) + 1e-6).all()
    assert np.array_equal(table.view(np.float32), dynamic_map())


def test_the_json_of_quantized_scales_has_one_length() -> None:
    form = FourBit("FP4", nested=True)
    for shape in ((1, 1), (2**31, 2**31)):
        for offset in (0.0, 1.1754943508222875e-38, 0.2647669315338135, 3.4028234663852886e38):
            assert len(form.state(shape, offset)) == form.parts(shape)[-1].nbytes == 192
            assert json.loads(form.state(shape, offset))["nested_offset"] == offset


def test_a_search_is_never_worse() -> None:
    for nested in (False, True):
        for table in ("NF4", "FP4"):
            form, x = FourBit(table, nested), matrix(64, 256)
            x[::9] *= np.float32(30)  # scales of very different size share a scale
            errors = {}
            for method in Method:
                parts = stored(form, x, method)
                errors[method] = float(np.square(form.decode(parts, *x.shape).astype(np.float64) - x).sum())
            assert errors[Method.SEARCH] < errors[Method.ROUND] * 0.99


def test_codes_follow_a_quantized_scale_that_is_far_off() -> None:
    """A small block beside a large one: its scale comes back with the other sign, yet values keep theirs."""
    numbers = Codebook("NF4")
    x = matrix(2, 64)
    codes = numbers.nearest(x, np.float32([-0.02, 0.01]))
    back = NF4_LEVELS[codes] * np.float32([[-0.02], [0.01]])
    best = np.abs(NF4_LEVELS * np.float32([[[-0.02]], [[0.01]]]) - x[:, :, None]).min(axis=2)
    assert np.allclose(np.abs(back - x), best, atol=1e-8)


def test_codes_of_larger_blocks_are_held_by_smaller_ones() -> None:
    large, small = Codebook("NF4", 256), FourBit("NF4")
    assert small.for_numbers(large) is small
    assert small.for_numbers(Codebook("NF4", 64, nested=256)) is small
    assert small.for_numbers(Codebook("FP4", 64)) is None
    assert small.for_numbers(Codebook("NF4", 32)) is None
    assert FourBit("NF4", nested=True).for_numbers(Codebook("NF4")) is None
    for shape in ((4, 256), (16, 48), (8, 36)):
        x = matrix(*shape)
        codes = large.quantize(x, EncodeOptions(method=Method.ROUND))
        parts = list(small.pack(codes))
        assert [p.nbytes for p in parts[:2]] == [p.nbytes for p in small.parts(shape)[:2]]
        assert np.array_equal(small.decode(parts, *shape), large.values(codes))


def test_rows_that_share_a_scale_and_can_not_be_held_are_refused() -> None:
    nested, plain = find_format("bnb-nf4-dq", "safetensors"), find_format("bnb-nf4", "safetensors")
    assert nested.accepts((8192, 29568)) == plain.accepts((8192, 29568)) == ""
    assert "share a scale" in nested.accepts((1 << 20, 4097))
    assert nested.accepts((16, 4097)) == ""  # as few rows as there are can be held
    assert not nested.cuts_rows((4, 64))
    assert plain.cuts_rows((4, 64))
    assert not plain.cuts_rows((4, 65))


def test_int8_rows_are_those_of_the_rule() -> None:
    x = matrix(6, 40)
    x[3] = 0
    codes, scales, layout = stored(Int8Rows(), x, Method.ROUND)
    largest = np.abs(x).max(axis=1)
    want = np.rint(x * np.divide(np.float32(127), largest, out=np.zeros(6, np.float32), where=largest > 0)[:, None])
    assert np.array_equal(codes.view(np.int8).reshape(x.shape), want.astype(np.int8))
    assert np.array_equal(scales.view(np.float32), largest)
    assert layout.tobytes() == b"\0"
    back = Int8Rows().decode([codes, scales, layout], *x.shape)
    assert np.array_equal(back, (want * largest[:, None]).astype(np.float32) * np.float32(7.874015718698502e-3))


def test_long_int8_rows_are_those_of_whole_ones() -> None:
    x = matrix(2, 4096)
    form = Int8Rows()
    for method in Method:
        options = EncodeOptions(method=method)
        rows = form.fit_rows(lambda: (x[:, :1024], x[:, 1024:]), options)
        whole = form.encode(x, options)
        pieces = [form.encode(p, EncodeOptions(method=method, rows=rows)) for p in (x[:, :1024], x[:, 1024:])]
        assert np.array_equal(np.hstack([p[0].reshape(2, -1) for p in pieces]).reshape(-1), whole[0])
        assert np.array_equal(pieces[0][1], whole[1])


def test_scales_survive_what_nests_them() -> None:
    scales = np.abs(matrix(1000, 1)).reshape(-1)
    codes, largest = nest(scales, 0.02)
    assert len(largest) == 4
    back = unnest(codes, largest, 0.02)
    assert np.abs(back - scales).max() <= 0.00704 * largest.max()
