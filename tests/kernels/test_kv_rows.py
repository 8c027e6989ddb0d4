"""Rows of a cache in every format, against the field's own definitions and against blocks made by hand."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kernels.kv import CACHE_FORMATS, quantized
from kernels.reference.kv import (
    decode_group,
    decode_rows,
    encode_group,
    encode_rows,
    hadamard,
    normal_levels,
)
from kernels.reference.kv_cache import HeadCache

DIMS = (64, 80, 96, 128, 256)
LENGTHS = (1, 31, 32, 33, 127, 128, 129)
ROWS = [name for name, form in CACHE_FORMATS.items() if not form.channels]
CHANNELS = [name for name, form in CACHE_FORMATS.items() if form.channels]
GGML = [name for name in ROWS if hasattr(gguf.GGMLQuantizationType, name) and name not in ("F16", "F32", "BF16")]
# Largest error a value, in steps of the scale's own unit: half a step, and what rounding the scale adds.
# A searched scale may cut: 1 − 0.85 · 7 / 8.
ERROR = {
    "INT8": 0.0045, "INT4": 0.08, "INT8-g64": 0.0045, "INT4-g64": 0.256, "INT4-g32": 0.256,
    "U8-g64": 0.005, "U4-g64": 0.07, "U4-g32": 0.07, "U2-g32": 0.34,
}  # fmt: skip


def rows(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Of differing size, with channels that stand out, as keys have them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, dim)) * rng.lognormal(0, 1, (count, 1))
    x[:, :: max(dim // 3, 1)] *= 8
    return x.astype(np.float32)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", GGML)
def test_ggml_types(name: str, dim: int) -> None:
    """Bytes and values of gguf's own quantization; it has no encoder of IQ4_NL, whose values are the nearest."""
    kind = gguf.GGMLQuantizationType[name]
    x = rows(7, dim)
    whole = np.pad(x, ((0, 0), (0, -dim % 32)), mode="edge")
    data = encode_rows(name, x)
    if name != "IQ4_NL":
        np.testing.assert_array_equal(data, gguf.quantize(whole, kind))
    got = decode_rows(name, data, dim)
    np.testing.assert_array_equal(got, gguf.dequantize(data, kind)[:, :dim])
    if name == "IQ4_NL":
        scales = np.repeat(data.reshape(-1, 18)[:, :2].copy().view(np.float16).astype(np.float32), 32, axis=1)
        levels = scales.reshape(whole.shape)[:, :dim, None] * np.array(
            [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
        )
        np.testing.assert_allclose(np.abs(got - x), np.abs(levels - x[..., None]).min(axis=2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [("FP8", torch.float8_e4m3fn, 448.0), ("FP8-E5M2", torch.float8_e5m2, 57344.0)])
def test_float8_with_scales_of_tensor_and_head(dtype: tuple[str, torch.dtype, float]) -> None:
    name, kind, largest = dtype
    x = rows(40, 96)
    scales = (np.abs(x).reshape(5, -1).max(axis=1) / largest).astype(np.float32).repeat(8)[:, None]
    for form, scale in ((name, np.float32(0.03)), (f"{name}-head", scales)):
        data = encode_rows(form, x, scale)
        want = torch.from_numpy(np.clip(x / scale, -largest, largest)).to(kind)
        np.testing.assert_array_equal(data, want.view(torch.uint8).numpy())
        np.testing.assert_array_equal(decode_rows(form, data, 96, scale), want.float().numpy() * scale)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32"])
def test_floats(name: str) -> None:
    x = np.concatenate([rows(5, 33), np.array([[np.inf, -np.inf, np.nan, *[1e-6] * 30]], np.float32)])
    kind = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[name]
    want = torch.from_numpy(x).to(kind).float().numpy()
    np.testing.assert_array_equal(decode_rows(name, encode_rows(name, x), 33), want)


def test_integers_by_hand() -> None:
    """Scale 1 in float16 is 0x3C00; −3 in four bits is 13; the first code is the low half."""
    x = np.array([[7, -3, 0.4, 0.6, -7, 2.5, 3.5, -0.5]], np.float32)
    want = [0x00, 0x3C, 7 | 13 << 4, 0 | 1 << 4, 9 | 2 << 4, 4 | 0 << 4]
    np.testing.assert_array_equal(encode_rows("INT4", x), np.array([want], np.uint8))
    np.testing.assert_array_equal(decode_rows("INT4", encode_rows("INT4", x), 8), [[7, -3, 0, 1, -7, 2, 4, 0]])
    wide = np.array([[254, -127, 1, 3]], np.float32)  # scale 2; halves go to the even code
    np.testing.assert_array_equal(encode_rows("INT8", wide), np.array([[0, 0x40, 127, 256 - 64, 0, 2]], np.uint8))
    zeros = np.zeros((1, 4), np.float32)
    np.testing.assert_array_equal(encode_rows("INT8", zeros), np.array([[0, 0x3C, 0, 0, 0, 0]], np.uint8))


def test_integers_in_groups_by_hand() -> None:
    """−8 … 7 in four bits with scale 1 lose nothing; a positive extreme has a negative scale, so 8 is −8 · −1. Groups
    that a row does not fill take its last value."""
    x = np.array([[-8, 7, 0, 3, *[1] * 28, 8, -7, *[2] * 6]], np.float32)
    first, second = [0x00, 0x3C, 8 | 7 << 4, 0 | 3 << 4, *[17] * 14], [0x00, 0xBC, 8 | 7 << 4, *[14 | 14 << 4] * 15]
    np.testing.assert_array_equal(encode_rows("INT4-g32", x), np.array([first + second], np.uint8))
    np.testing.assert_array_equal(decode_rows("INT4-g32", encode_rows("INT4-g32", x), 40), x)
    wide = np.array([[*[254, -127] * 32, *[127, 1] * 8]], np.float32)  # scales 2 and 1; halves go to the even code
    want = [0, 0x40, *[127, 256 - 64] * 32, 0, 0x3C, *[127, 1] * 8, *[1] * 48]
    np.testing.assert_array_equal(encode_rows("INT8-g64", wide), np.array([want], np.uint8))
    zeros = np.zeros((1, 32), np.float32)
    np.testing.assert_array_equal(decode_rows("INT4-g32", encode_rows("INT4-g32", -zeros), 32), zeros)


@pytest.mark.parametrize(("name", "loss"), [("INT4-g32", 0.00686), ("INT4-g64", 0.00825)])
def test_a_narrower_scale_is_searched(name: str, loss: float) -> None:
    """Of normal values: less is lost than with the extreme at −8, as Q4_0 has it; no scale of the four does better."""
    x = np.random.default_rng(2).standard_normal((2000, 64)).astype(np.float32)
    group = CACHE_FORMATS[name].group
    got = decode_rows(name, encode_rows(name, x), 64)
    assert float(((got - x) ** 2).mean() / (x**2).mean()) == pytest.approx(loss, rel=0.02)
    parts = x.reshape(-1, group)
    extreme = parts[np.arange(len(parts)), np.abs(parts).argmax(axis=1)][:, None]
    errors = [
        ((np.clip(np.rint(parts / s), -8, 7) * s - parts) ** 2).sum(1)
        for s in (extreme / -8 * f for f in (1, 0.95, 0.9, 0.85))
    ]
    mine = ((got - x) ** 2).reshape(-1, group).sum(axis=1)
    np.testing.assert_allclose(mine, np.min(errors, axis=0), rtol=5e-3)


def test_scale_and_minimum_by_hand() -> None:
    """0 … 3 with scale 1, minimum −1; two bits a code from the lowest up."""
    x = np.tile(np.array([-1, 0, 1, 2], np.float32), 8)[None]
    head = [0x00, 0x3C, 0x00, 0xBC]
    np.testing.assert_array_equal(encode_rows("U2-g32", x), np.array([head + [0b11100100] * 8], np.uint8))
    np.testing.assert_array_equal(decode_rows("U2-g32", encode_rows("U2-g32", x), 32), x)
    # As a channel: 32 tokens of one channel, beside one that does not change.
    group = np.stack([x[0], np.full(32, 5, np.float32)], axis=1)
    data = encode_group("U2-t32", group)
    np.testing.assert_array_equal(data[:12], np.array(head + [0b11100100] * 8, np.uint8))
    np.testing.assert_array_equal(data[12:], np.array([0, 0, 0x00, 0x45] + [0] * 8, np.uint8))
    np.testing.assert_array_equal(decode_group("U2-t32", data, 2), group)


def test_levels_are_those_of_the_literature() -> None:
    """Max, Quantizing for minimum distortion, 1960, table I."""
    for bits, want in (
        (2, [0.4528, 1.510]),
        (3, [0.2451, 0.7560, 1.344, 2.152]),
        (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733]),
    ):
        levels = normal_levels(bits)
        np.testing.assert_allclose(levels[1 << bits - 1 :], want, rtol=6e-4)
        np.testing.assert_array_equal(levels, -levels[::-1])


@pytest.mark.parametrize(("name", "loss"), [("LM2", 0.1175), ("LM3", 0.03454), ("LM4", 0.009497)])
def test_levels_of_a_rotated_vector(name: str, loss: float) -> None:
    """Of a normal vector, exactly the distortion that Max's tables give; the row is its norm and three bits a value."""
    x = np.random.default_rng(1).standard_normal((4000, 128)).astype(np.float32) * 3
    data = encode_rows(name, x)
    got = decode_rows(name, data, 128)
    assert float(((got - x) ** 2).mean() / (x**2).mean()) == pytest.approx(loss, rel=0.02)
    norms = data[:, :2].copy().view(np.float16)[:, 0].astype(np.float64)
    np.testing.assert_allclose(norms, np.linalg.norm(x.astype(np.float64), axis=1), rtol=5e-4)
    bits, levels = CACHE_FORMATS[name].bits, normal_levels(CACHE_FORMATS[name].bits)
    word = int.from_bytes(data[0, 2:].tobytes(), "little")  # the first code in the lowest bits
    codes = [word >> bits * i & (1 << bits) - 1 for i in range(128)]
    np.testing.assert_allclose(got[0], levels[codes] * norms[0] / 128**0.5, rtol=1e-6)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", sorted(ERROR))
def test_errors_are_half_a_step(name: str, dim: int) -> None:
    x = rows(20, dim)
    got = decode_rows(name, encode_rows(name, x), dim)
    assert np.abs(got - x).max(axis=1).max() > 0
    spread = np.abs(x).max(axis=1) if name.startswith("INT") else np.ptp(x, axis=1)
    assert (np.abs(got - x).max(axis=1) <= ERROR[name] / (2 if name.startswith("U") else 1) * spread * 1.01).all()


@pytest.mark.parametrize("dim", DIMS)
def test_rotation_is_its_own_inverse_and_keeps_products(dim: int) -> None:
    x, y = rows(5, dim), rows(5, dim, 1)
    np.testing.assert_allclose(hadamard(hadamard(x)), x, atol=1e-5 * np.abs(x).max())
    np.testing.assert_allclose((hadamard(x) * hadamard(y)).sum(1), (x * y).sum(1), rtol=1e-4, atol=1e-3)
    size = dim & -dim
    want = np.array([(-1) ** (3 & i).bit_count() for i in range(size)]) / size**0.5
    np.testing.assert_allclose(hadamard(np.eye(dim, dtype=np.float32)[3])[:size], want, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in ROWS if n not in ("F32", "F16", "BF16")])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(name: str, odd: float) -> None:
    x = rows(3, 64)
    x[1, 40] = odd
    got = decode_rows(name, encode_rows(name, x), 64)
    assert np.isfinite(got[[0, 2]]).all()
    if name.startswith("FP8") and np.isinf(odd):
        assert abs(got[1, 40]) == (448 if "E5M2" not in name else 57344)  # clipped, as every value out of range
    else:
        assert not np.isfinite(got[1, 40])


def test_rows_of_another_contract_are_refused() -> None:
    data = encode_rows("Q8_0", rows(2, 64))
    for name, dim in (("Q4_0", 64), ("Q8_0", 96), ("INT8", 64)):
        with pytest.raises(ValueError, match="bytes"):
            decode_rows(name, data, dim)
    with pytest.raises(ValueError, match="bytes"):
        decode_group("U2-t32", np.zeros(11, np.uint8), 1)
    with pytest.raises(ValueError, match="groups of 32"):
        encode_group("U2-t32", rows(31, 64))
    with pytest.raises(ValueError, match="together"):
        CACHE_FORMATS["U4-t32"].row_bytes(64)


@pytest.mark.parametrize("name", list(CACHE_FORMATS))
@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (16, 0), (64, 4)])
def test_one_by_one_equals_all_at_once(name: str, window: int, sinks: int) -> None:
    for dim in (64, 80):
        x = rows(max(LENGTHS), dim)
        single = HeadCache(name, dim, window, sinks)
        for length in LENGTHS:
            for token in x[len(single) : length]:
                single.append(token[None])
            bulk = HeadCache(name, dim, window, sinks)
            bulk.append(x[:length])
            np.testing.assert_array_equal(single.read(), bulk.read())
            assert single.nbytes == bulk.nbytes
            first, last = quantized(length, CACHE_FORMATS[name].waits, window, sinks)
            if not CACHE_FORMATS[name].is_float:
                half = x[:length].astype(np.float16)
                np.testing.assert_array_equal(bulk.read()[last:], half[last:])
                np.testing.assert_array_equal(bulk.read()[: min(first, sinks)], half[: min(first, sinks)])


@pytest.mark.parametrize("name", list(CACHE_FORMATS))
@pytest.mark.parametrize("keep", LENGTHS[:-1])
def test_truncation(name: str, keep: int) -> None:
    """What is left is as it was, and going on with other tokens is as if these had come at first."""
    x, other = rows(129, 64), rows(60, 64, 5)
    held, fresh = HeadCache(name, 64), HeadCache(name, 64)
    held.append(x)
    before = held.read()
    held.truncate(keep)
    assert len(held) == keep
    left = held.read()
    waits = CACHE_FORMATS[name].waits
    cut = keep // waits * waits
    np.testing.assert_array_equal(left[:cut], before[:cut])
    np.testing.assert_allclose(left[cut:], before[cut:keep], rtol=1e-3, atol=1e-3)
    fresh.append(x[:keep])
    assert held.nbytes == fresh.nbytes
    held.append(other)
    fresh.append(other)
    if waits == 1:
        np.testing.assert_array_equal(held.read(), fresh.read())
    assert held.nbytes == fresh.nbytes


@pytest.mark.parametrize("name", ["INT4", "Q4_0"])
def test_rotation_spreads_outliers(name: str) -> None:
    """Rows with a few large values lose less once they are rotated; queries that are, too, give the same products."""
    x, query = rows(128, 128), np.random.default_rng(3).standard_normal(128).astype(np.float32)
    errors = []
    for rotate in (False, True):
        held = HeadCache(name, 128, rotate=rotate)
        held.append(x)
        scores = held.read() @ (hadamard(query) if rotate else query)
        errors.append(float(((scores - x @ query) ** 2).mean()))
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("name", CHANNELS)
def test_groups_of_channels_close_only_when_full(name: str) -> None:
    held = HeadCache(name, 64, window=10)
    x = rows(128, 64)
    for count, closed in ((41, 0), (42, 32), (73, 32), (74, 64)):
        held.append(x[len(held) : count])
        assert held.nbytes == closed // 32 * CACHE_FORMATS[name].unit_bytes(64) + (count - closed) * 128
