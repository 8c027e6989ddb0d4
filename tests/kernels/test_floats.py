"""Stored elements from and to float32, against numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, ops


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, NaN aside."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def test_every_float16_and_bfloat16_is_read_exactly() -> None:
    torch = pytest.importorskip("torch")
    codes = np.arange(65536, dtype=np.uint16).reshape(1, -1)
    for dtype, torch_type in (("F16", torch.float16), ("BF16", torch.bfloat16)):
        want = torch.from_numpy(codes.view(np.int16)).view(torch_type).float().numpy()
        for backend in dispatch.backends():
            with dispatch.only(backend):
                values = ops.to_float32(codes.view(np.uint8), dtype)
                assert same_values(values, want), (backend, dtype)
                back = ops.from_float32(values, dtype).view(np.uint16)
            keeps = ~np.isnan(want)
            assert (back == codes)[keeps].all(), (backend, dtype)


def test_rounding_to_16_bits() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 30000, np.uint64).astype(np.uint32)  # every exponent, NaN and Inf too
    halves = rng.integers(0, 0x7C00, 3000).astype(np.uint16).view(np.float16).astype(np.float64)
    ties = (halves[1:] + halves[:-1]) / 2
    special = [0.0, -0.0, 65519.99, 65520, 65535, 1e-8, 2.0**-25, 2.0**-24, 1.5 * 2.0**-24, 3.4e38]
    x = np.concatenate([bits.view(np.float32), ties.astype(np.float32), np.array(special, np.float32)])[None]
    for columns in (x.shape[1], 1, 15, 17, 33):
        part = x[:, -columns:]
        with np.errstate(all="ignore"):
            f16 = part.astype(np.float16).view(np.uint16)
        bf16 = torch.from_numpy(np.ascontiguousarray(part)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        real = ~np.isnan(part)
        for backend in dispatch.backends():
            with dispatch.only(backend):
                for dtype, want in (("F16", f16), ("BF16", bf16)):
                    got = ops.from_float32(part, dtype, threads=2).view(np.uint16)
                    assert (got == want)[real].all(), (backend, dtype)
                    assert np.isnan(ops.to_float32(got.view(np.uint8), dtype)[~real]).all()
        with dispatch.only("reference"):
            want = [ops.from_float32(part, dtype).tobytes() for dtype in ("F16", "BF16")]
        for backend in dispatch.backends():
            with dispatch.only(backend):
                assert [ops.from_float32(part, dtype).tobytes() for dtype in ("F16", "BF16")] == want


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0"])
def test_all_codes_of_the_8_bit_floats(dtype) -> None:
    torch = pytest.importorskip("torch")
    names = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
    codes = np.arange(256, dtype=np.uint8).reshape(4, 64)
    want = torch.from_numpy(codes).view(getattr(torch, names[dtype])).float().numpy()
    assert same_values(ops.to_float32(codes, dtype), want)


@pytest.mark.parametrize(("dtype", "name"), [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")])
def test_rounding_to_8_bits(dtype, name) -> None:
    torch = pytest.importorskip("torch")
    levels = ops.to_float32(np.arange(128, dtype=np.uint8)[None], dtype)[0]
    levels = levels[np.isfinite(levels)].astype(np.float64)
    ties = (levels[1:] + levels[:-1]) / 2
    rng = np.random.default_rng(1)
    wide = rng.standard_normal(5000) * 2.0 ** rng.integers(-20, 18, 5000)
    x = np.concatenate([levels, ties, wide, [464, 464.1, 480, 61440, 61439, 1e9, np.inf, np.nan, 0]]).astype(np.float32)
    x = np.stack([x, -x])
    want = torch.from_numpy(x).to(getattr(torch, name)).view(torch.uint8).numpy()
    got = ops.from_float32(x, dtype)
    real = ~np.isnan(x)
    assert (got == want)[real].all()
    assert np.isnan(ops.to_float32(got, dtype)[~real]).all()


def test_integers_and_wide_floats() -> None:
    for dtype, kind in (("I8", "i1"), ("U16", "<u2"), ("I32", "<i4"), ("I64", "<i8"), ("U64", "<u8"), ("F64", "<f8")):
        x = np.array([[0, 1, 100], [7, 3, 127]], kind)
        assert (ops.to_float32(x.view(np.uint8).reshape(2, -1), dtype) == x).all()
    assert (ops.to_float32(np.array([[0, 1]], np.uint8), "BOOL") == [[0, 1]]).all()
    x = np.array([[1.5, -0.0]], np.float32)
    for dtype in ("F32", "F64"):
        assert ops.to_float32(ops.from_float32(x, dtype), dtype).tobytes() == x.tobytes()
    for bad in ("I8", "Q4_0", ""):
        with pytest.raises(ValueError):
            ops.from_float32(x, bad)
    with pytest.raises(ValueError):
        ops.to_float32(np.zeros((1, 3), np.uint8), "F16")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_types_keep_what_is_not_finite(kind) -> None:
    x = np.array([[1, -0.0, np.inf, -np.inf, np.nan]], np.float32)
    assert same_values(ops.decode_blocks(kind, ops.encode_blocks(kind, x), 5), x)
