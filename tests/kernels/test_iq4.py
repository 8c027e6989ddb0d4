"""Encoders of IQ4_NL and IQ4_XS: packing by hand, error against llama.cpp's, one set of bits everywhere."""

from __future__ import annotations

import encoder_samples as samples
import gguf
import numpy as np
import pytest

from kernels import dispatch, ops
from kernels.layouts import IQ4_LEVELS

COMPILED = [name for name in dispatch.backends() if name != "reference"]
KINDS = ("IQ4_NL", "IQ4_XS")
LEVELS = np.array(IQ4_LEVELS, np.float32)

# nRMSE in percent of ggml's encoder; how they were obtained is said in test_kquants.py.
LLAMA_CPP = {
    "IQ4_NL": {
        "normal": (7.5774, 7.0798),
        "laplace": (8.8399, 8.4125),
        "student": (9.435, 8.8996),
        "channels": (12.4022, 11.6578),
        "positive": (7.4508, 6.9726),
        "offset": (5.361, 5.0742),
        "constant": (0.0208, 0.0206),
        "spike": (4.7908, 3.1052),
    },
    "IQ4_XS": {
        "normal": (7.6306, 7.1547),
        "laplace": (8.9141, 8.5194),
        "student": (9.5312, 9.0494),
        "channels": (12.5465, 11.8703),
        "positive": (7.5061, 7.0482),
        "offset": (5.4141, 5.131),
        "constant": (1.5522, 1.5696),
        "spike": (5.0184, 3.331),
    },
}
REACHED = {"IQ4_NL": (7.4, 7.9), "IQ4_XS": (7.45, 7.95)}
# As core.formats promises: |x̂ − x| as a share of the largest |x| of 32 and of 256 values.
BOUNDS = {"IQ4_NL": (0.35, 32), "IQ4_XS": (0.5, 256)}


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


def test_a_column_of_32_that_has_all_importance_is_met() -> None:
    x, weights = samples.samples()["normal"], (np.arange(samples.COLUMNS) % 32 == 9).astype(np.float32)
    assert samples.error_percent("IQ4_XS", x, ops.encode_blocks("IQ4_XS", x, weights), weights) < 0.25


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_leaves_its_formats_bound(kind) -> None:
    samples.assert_within_bound(kind, *BOUNDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_float16_and_nothing_at_all(kind) -> None:
    x = samples.samples()["normal"]
    huge = ops.decode_blocks(kind, ops.encode_blocks(kind, x * np.float32(1e12)), x.shape[1])
    assert np.isfinite(huge).all()
    assert (huge[np.abs(x) > 0.5] * x[np.abs(x) > 0.5] > 0).all()
    for nothing in (0.0, -0.0, 1e-12, 1e-42):
        assert not ops.decode_blocks(kind, ops.encode_blocks(kind, x * np.float32(nothing)), x.shape[1]).any()


def test_packing_of_iq4_nl_by_hand() -> None:
    """Twice the levels, in order and then backwards: d = 2, byte j holds codes j and 15 − j."""
    x = np.concatenate([2 * LEVELS, 2 * LEVELS[::-1]])[None]
    want = bytes.fromhex("0040 f0 e1 d2 c3 b4 a5 96 87 78 69 5a 4b 3c 2d 1e 0f")
    assert ops.encode_blocks("IQ4_NL", x).tobytes().hex(" ") == want.hex(" ")


def test_packing_of_iq4_xs_by_hand() -> None:
    """d = 1; L + 32 = 0, 63, 48, 31, 40, 12, 37, 33; sub-block j counts the codes up from j in both halves."""
    scales = np.array([-32, 31, 16, -1, 8, -20, 5, 1])
    codes = (np.arange(16)[None] + np.arange(8)[:, None]) % 16
    half = scales[:, None] * LEVELS[codes]
    x = np.concatenate([half, half], axis=1).reshape(1, 256)
    # Top bit pairs 0, 3, 3, 1, 2, 0, 2, 2 from the lowest; low nibbles 0 f, 0 f, 8 c, 5 1.
    head = bytes.fromhex("003c 7ca2 f0 f0 c8 15")
    want = head + bytes(int(c | c << 4) for c in codes.reshape(-1))
    assert ops.encode_blocks("IQ4_XS", x).tobytes().hex(" ") == want.hex(" ")


@pytest.mark.parametrize("kind", KINDS)
def test_gguf_decodes_each_value_in_its_place(kind) -> None:
    x = np.where(np.eye(256) > 0, 9.0, -1.0).astype(np.float32)
    decoded = gguf.dequantize(ops.encode_blocks(kind, x), gguf.GGMLQuantizationType[kind])
    assert (decoded.argmax(axis=1) == np.arange(256)).all()
