"""Encoders of K-quants: packing by hand, error against llama.cpp's, one set of bits everywhere."""

from __future__ import annotations

import encoder_samples as samples
import gguf
import numpy as np
import pytest

from kernels import dispatch, ops
from kernels.layouts import LAYOUTS

COMPILED = [name for name in dispatch.backends() if name != "reference"]
KINDS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")

# nRMSE in percent of ggml_quantize_chunk (ggml 0.25.3, from the xllamacpp package) on the samples of
# tests/encoder_samples.py, without and with its importance: its error_percent on what the `Ggml` class of
# tests/benchmarks/encode_rate.py encodes, cut to four decimals.
LLAMA_CPP = {
    "Q2_K": {
        "normal": (29.4632, 23.7882),
        "laplace": (34.853, 27.405),
        "student": (34.5398, 27.1253),
        "channels": (30.6707, 25.1113),
        "positive": (18.7956, 16.7286),
        "offset": (3.0783, 2.7899),
        "constant": (2.6576, 2.4914),
        "spike": (3.133, 2.2153),
    },
    "Q3_K": {
        "normal": (15.0598, 13.515),
        "laplace": (17.7587, 16.5995),
        "student": (18.301, 16.9172),
        "channels": (18.9924, 18.2184),
        "positive": (14.4974, 12.8848),
        "offset": (7.276, 6.4791),
        "constant": (1.5726, 1.5661),
        "spike": (1.5975, 1.2681),
    },
    "Q4_K": {
        "normal": (7.1015, 6.4786),
        "laplace": (8.5831, 7.975),
        "student": (8.6868, 8.073),
        "channels": (10.2475, 9.5692),
        "positive": (4.2301, 3.9333),
        "offset": (0.7695, 0.7236),
        "constant": (0.6377, 0.5772),
        "spike": (3.5254, 2.8196),
    },
    "Q5_K": {
        "normal": (3.6058, 3.3023),
        "laplace": (4.3089, 4.0208),
        "student": (4.439, 4.1881),
        "channels": (5.1307, 4.7878),
        "positive": (2.0664, 1.9236),
        "offset": (0.402, 0.4003),
        "constant": (0.6097, 0.5537),
        "spike": (3.5441, 2.85),
    },
    "Q6_K": {
        "normal": (1.7715, 1.617),
        "laplace": (2.205, 2.0841),
        "student": (2.2835, 2.1739),
        "channels": (3.1056, 3.0123),
        "positive": (1.7632, 1.6256),
        "offset": (0.9122, 0.8392),
        "constant": (0.3606, 0.3611),
        "spike": (1.5966, 1.2676),
    },
}
# What is reached on normal values, in percent: with search, without.
REACHED = {"Q2_K": (26.4, 28.8), "Q3_K": (14.5, 15.1), "Q4_K": (7.1, 7.7), "Q5_K": (3.5, 3.8), "Q6_K": (1.66, 1.87)}
# As core.formats promises: |x̂ − x| as a share of the super-block's largest |x|.
BOUNDS = {"Q2_K": 1.0, "Q3_K": 0.8, "Q4_K": 0.5, "Q5_K": 0.3, "Q6_K": 0.15}


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_no_larger_than_llama_cpps(kind) -> None:
    samples.assert_errors_at_most(kind, LLAMA_CPP[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_error_that_is_reached(kind) -> None:
    x = samples.samples()["normal"]
    for search, limit in zip((True, False), REACHED[kind], strict=True):
        assert samples.error_percent(kind, x, ops.encode_blocks(kind, x, search=search), None) < limit


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_gives_the_bytes_of_the_reference(kind) -> None:
    weights = samples.importance()
    for name, x in samples.samples().items():
        for importance in (None, weights):
            with dispatch.only("reference"):
                want = ops.encode_blocks(kind, x[:5], importance)
            for backend in COMPILED:
                with dispatch.only(backend):
                    got = ops.encode_blocks(kind, x[:5], importance)
                assert np.array_equal(got, want), f"{kind} on {name}, {backend}, importance {importance is not None}"


@pytest.mark.parametrize("kind", KINDS)
def test_where_few_columns_count_every_instruction_set_gives_the_same_bytes(kind) -> None:
    x, weights = samples.samples()["channels"][:2], samples.few_columns()
    with dispatch.only("reference"):
        want = ops.encode_blocks(kind, x, weights)
    for backend in COMPILED:
        with dispatch.only(backend):
            assert np.array_equal(ops.encode_blocks(kind, x, weights), want), f"{kind}, {backend}"


@pytest.mark.parametrize(
    ("kind", "limit"), [("Q2_K", 0.6), ("Q3_K", 0.8), ("Q4_K", 0.03), ("Q5_K", 0.03), ("Q6_K", 0.35)]
)
def test_a_column_of_32_that_has_all_importance_is_met(kind, limit) -> None:
    x, weights = samples.samples()["normal"], (np.arange(samples.COLUMNS) % 32 == 9).astype(np.float32)
    assert samples.error_percent(kind, x, ops.encode_blocks(kind, x, weights), weights) < limit


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_leaves_its_formats_bound(kind) -> None:
    samples.assert_within_bound(kind, BOUNDS[kind], 256)


@pytest.mark.parametrize("kind", KINDS)
def test_scales_at_the_ends_of_float16(kind) -> None:
    x = samples.samples()["normal"]
    usual = samples.error_percent(kind, x, ops.encode_blocks(kind, x), None)
    for unit in (1e-4, 1e4):  # ggml's own encoder loses a tenth of Q6_K's values at 1e-4
        scaled = x * np.float32(unit)
        assert samples.error_percent(kind, scaled, ops.encode_blocks(kind, scaled), None) < 1.05 * usual
    huge = ops.decode_blocks(kind, ops.encode_blocks(kind, x * np.float32(1e12)), x.shape[1])
    assert np.isfinite(huge).all()
    assert (huge * x >= 0).all()
    for nothing in (0.0, -0.0, 1e-12, 1e-42):
        assert not ops.decode_blocks(kind, ops.encode_blocks(kind, x * np.float32(nothing)), x.shape[1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_importance_has_no_unit(kind) -> None:
    x, weights = samples.samples()["student"], samples.importance()
    want = ops.encode_blocks(kind, x, weights)
    for unit in (2.0**-80, 2.0**60):
        assert np.array_equal(ops.encode_blocks(kind, x, weights * np.float32(unit)), want)
    flat = samples.error_percent(kind, x, ops.encode_blocks(kind, x, np.zeros_like(weights)), None)
    assert flat < 1.02 * samples.error_percent(kind, x, ops.encode_blocks(kind, x), None)


def codes_of(levels: int, salt: int) -> np.ndarray:
    """int [8, 32]: every code 0 … levels somewhere in each 16 values, in an order without pattern."""
    index = np.arange(256)
    codes = (index * 7 + index // 16 * salt + salt) % (levels + 1)
    if levels > 15:  # both ends in each 32
        codes[index % 32 == 3], codes[index % 32 == 19] = 0, levels
    return codes.reshape(8, 32)


def bits_at(codes: np.ndarray, first: int, count: int, per_byte: int) -> bytes:
    """Bits first … first + count − 1 of the codes, those of values i, 32 + i, 64 + i … side by side in a byte."""
    out = bytearray()
    for start in range(0, 8, per_byte):
        for i in range(32):
            byte = 0
            for k in range(per_byte):
                byte |= (int(codes[start + k, i]) >> first & (1 << count) - 1) << (k * count)
            out.append(byte)
    return bytes(out)


def test_packing_of_q4_k_and_q5_k_by_hand() -> None:
    scales = np.array([63, 1, 18, 47, 33, 62, 16, 5])  # L and M of the sub-blocks; d = 1, dmin = 1/2
    minima = np.array([63, 0, 32, 7, 48, 15, 62, 20])
    # L: 63, 1, 18, 47, above them the top bits of 33, 62, 16, 5 (2, 3, 1, 0); M likewise; low nibbles M, L of the rest.
    head = bytes.fromhex("003c 0038  bf c1 52 2f  ff 00 e0 47  01 fe e0 45")
    for kind, levels in (("Q4_K", 15), ("Q5_K", 31)):
        codes = codes_of(levels, 5)
        x = (scales[:, None] * codes - 0.5 * minima[:, None]).reshape(1, 256)
        high = bits_at(codes, 4, 1, 8) if kind == "Q5_K" else b""
        want = head + high + bits_at(codes, 0, 4, 2)
        assert ops.encode_blocks(kind, x).tobytes().hex(" ") == want.hex(" ")


def test_packing_of_q2_k_by_hand() -> None:
    scales = np.array([15, 1, 7, 4, 9, 2, 14, 11, 3, 5, 8, 10, 12, 13, 6, 15])  # d = 2, dmin = 1
    minima = np.array([0, 1, 15, 3, 7, 2, 5, 9, 4, 6, 8, 10, 11, 12, 13, 14])
    codes = codes_of(3, 3)
    x = (2 * scales[:, None] * codes.reshape(16, 16) - minima[:, None]).reshape(1, 256)
    head = bytes(int(scale | low << 4) for scale, low in zip(scales, minima, strict=True))
    want = head + bits_at(codes, 0, 2, 4) + bytes.fromhex("0040 003c")
    assert ops.encode_blocks("Q2_K", x).tobytes().hex(" ") == want.hex(" ")


def test_packing_of_q3_k_and_q6_k_by_hand() -> None:
    """One 1.0 among zeros goes to the lowest code, as that code and the lowest L are powers of two."""
    x = np.zeros((1, 256), np.float32)
    x[0, 37] = 1
    # Q3_K: d = −(1/4)/−32 = 2^-7, L + 32 = 0 in sub-block 2 and 32 elsewhere; codes q + 4 are 0 there and 4 elsewhere.
    mask = bytearray(b"\xff" * 32)
    mask[5] = 0xFD  # value 37 is bit 1 of byte 5
    want = bytes(mask) + bytes(64) + bytes(8) + bytes.fromhex("aa aa a8 aa  0020")
    assert ops.encode_blocks("Q3_K", x).tobytes().hex(" ") == want.hex(" ")
    # Q6_K: d = −(1/32)/−128 = 2^-12, L = −128 in sub-block 2; codes q + 32 are 0 there and 32 elsewhere.
    high = bytearray(b"\xaa" * 64)
    high[5] = 0xA2  # value 37 is bits 2, 3 of byte 5
    want = bytes(128) + bytes(high) + bytes.fromhex("00 00 80") + bytes(13) + bytes.fromhex("000c")
    assert ops.encode_blocks("Q6_K", x).tobytes().hex(" ") == want.hex(" ")


@pytest.mark.parametrize("kind", KINDS)
def test_gguf_decodes_each_value_in_its_place(kind) -> None:
    """A value that stands out comes back where it was, so no two places are exchanged."""
    x = np.where(np.eye(256) > 0, 9.0, -1.0).astype(np.float32)
    decoded = gguf.dequantize(ops.encode_blocks(kind, x), gguf.GGMLQuantizationType[kind])
    assert (decoded.argmax(axis=1) == np.arange(256)).all()
    assert ops.encode_blocks(kind, x).shape == (256, LAYOUTS[kind].bytes)
