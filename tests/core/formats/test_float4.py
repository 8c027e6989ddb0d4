"""4-bit floats: their numbers against the libraries that define them, and their ways from one packing to another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.formats import EncodeOptions, Method, find_format
from core.formats.float4 import MXFP4, NVFP4, RECIPROCAL, Float4, TensorScale, power_scale
from core.formats.float4_packed import MODELOPT_NVFP4, MXFP4A16, NVFP4A16
from core.formats.numbers import Codes

E4M3, E8M0 = NVFP4.scale, MXFP4.scale
LEVELS = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def weights(rows: int = 5, columns: int = 192, size: float = 0.05) -> np.ndarray:
    return (np.random.default_rng(4).standard_t(4, (rows, columns)) * size).astype(np.float32)


def some_codes(scale_bytes: np.ndarray, tensor_scale: float = 1.0, columns: int = 128) -> Codes:
    rng = np.random.default_rng(7)
    group = 16 if scale_bytes.max() < 0x7F else 32
    codes = rng.integers(0, 16, (6, columns), np.uint8)
    return Codes(codes, rng.choice(scale_bytes, (6, columns // group)).astype(np.uint8), tensor_scale=tensor_scale)


def e4m3(codes: np.ndarray) -> np.ndarray:
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def test_bytes_are_low_nibble_first_and_the_tensor_scale_is_a_divisor_or_a_factor() -> None:
    codes = Codes(np.arange(16, dtype=np.uint8)[None], np.uint8([[0x38]]), tensor_scale=0.25)
    packed, scales, one = NVFP4A16.pack(codes)
    assert packed.tobytes() == bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE])
    assert scales.tobytes() == b"\x38"
    assert one.view(np.float32)[0] == 4.0
    assert MODELOPT_NVFP4.pack(codes)[2].view(np.float32)[0] == 0.25
    assert np.array_equal(NVFP4A16.decode([packed, scales, one], 1, 16), LEVELS[None] * np.float32(0.25))
    shapes = [(p.suffix, p.dtype, p.shape) for p in NVFP4A16.parts((8, 64))]
    assert shapes == [("_packed", "U8", (8, 32)), ("_scale", "F8_E4M3", (8, 4)), ("_global_scale", "F32", (1,))]
    shapes = [(p.suffix, p.dtype, p.shape) for p in MODELOPT_NVFP4.parts((8, 64))]
    own = [("", "U8", (8, 32)), ("_scale", "F8_E4M3", (8, 4)), ("_scale_2", "F32", ())]
    assert shapes == [*own, (".input_scale", "F32", ())]
    assert [(p.suffix, p.dtype, p.shape) for p in MXFP4A16.parts((8, 64))] == [
        ("_packed", "U8", (8, 32)),
        ("_scale", "U8", (8, 2)),
    ]


@pytest.mark.parametrize("divisor", [3.0, 1000.1, 0.0123, 2.0**-7])
def test_values_are_those_of_compressed_tensors(divisor: float) -> None:
    """Scale / divisor in float32 first, then the product, to the last bit."""
    codes = some_codes(np.arange(1, 0x7F), 1 / float(np.float32(divisor)))
    scales = torch.from_numpy(e4m3(codes.scales)) / torch.tensor([divisor])
    want = torch.from_numpy(LEVELS[codes.codes]).reshape(6, -1, 16) * scales[:, :, None]
    numbers = NVFP4.with_tensor(TensorScale.DIVISOR)
    assert np.array_equal(numbers.values(codes), want.reshape(6, -1).numpy())
    assert np.array_equal(NVFP4A16.like_this(numbers).pack(codes)[2].view(np.float32), np.float32([divisor])), (
        "the divisor itself comes back"
    )


def test_rounding_takes_the_scales_of_compressed_tensors() -> None:
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.quant_scheme import MXFP4A16 as PRESET
    from compressed_tensors.quantization.utils.helpers import calculate_qparams

    x = torch.from_numpy(weights(40, 256)).bfloat16()
    groups = x.reshape(40, -1, 32)
    args: QuantizationArgs = PRESET["weights"]
    scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), args)
    got = MXFP4A16.numbers.quantize(x.float().numpy(), EncodeOptions(method=Method.ROUND))
    assert np.array_equal(got.scales, compress_mx_scale(scale, torch.uint8).numpy())
    steps = (groups / scale[:, :, None]).float().reshape(40, -1).numpy()
    best = np.abs(np.clip(steps, -6, 6)[:, :, None] - LEVELS).min(axis=2)
    assert np.array_equal(np.abs(np.clip(steps, -6, 6) - LEVELS[got.codes]), best)


def test_the_scale_rules_differ_and_their_values_do_not() -> None:
    x = weights()
    options = EncodeOptions(method=Method.ROUND)
    made = {rule: Float4(E8M0, rule=rule).quantize(x, options) for rule in ("floor", "compressed-tensors", "mlx")}
    assert len({codes.scales.tobytes() for codes in made.values()}) == 3
    for codes in made.values():
        assert np.array_equal(MXFP4.values(codes), MXFP4A16.numbers.values(codes))
        assert np.abs(MXFP4.values(codes) - x).reshape(-1, 32).max() <= 0.35 * np.abs(x).max()
    assert Float4(E8M0, rule="mlx") == MXFP4


@pytest.mark.parametrize("size", [1e-30, 1e-6, 0.02, 1.0, 7e4])
def test_the_tensor_scale_is_a_power_of_two_whatever_the_size(size: float) -> None:
    """So its reciprocal is exact, and the error is that of unit size."""
    x = weights(16, 256, size)
    options = EncodeOptions(amax=float(np.abs(x).max()))
    codes = NVFP4.quantize(x, options)
    assert np.log2(codes.tensor_scale) % 1 == 0
    assert float(np.float32(1 / np.float32(codes.tensor_scale))) * codes.tensor_scale == 1
    error = np.linalg.norm(NVFP4.values(codes).astype(np.float64) - x) / np.linalg.norm(x.astype(np.float64))
    assert error < 0.11


def test_zeros_have_a_tensor_scale() -> None:
    assert power_scale(0.0) == 1.0
    codes = NVFP4.quantize(np.zeros((2, 32), np.float32), EncodeOptions())
    assert not NVFP4.values(codes).any()


N, P, F, D = (
    NVFP4.with_tensor(t) for t in (TensorScale.NONE, TensorScale.POWER, TensorScale.FACTOR, TensorScale.DIVISOR)
)


@pytest.mark.parametrize(
    ("name", "container", "numbers", "rounding"),
    [
        ("nvfp4a16", "safetensors", P, 0.0),
        ("nvfp4a16", "safetensors", N, 0.0),
        ("nvfp4a16", "safetensors", D, 0.0),
        ("nvfp4a16", "safetensors", F, RECIPROCAL),
        ("NVFP4", "gguf", P, 0.0),
        ("NVFP4", "gguf", F, 0.0),
        ("NVFP4", "gguf", D, RECIPROCAL),
        ("NVFP4", "gguf", MXFP4, None),
        ("MXFP4", "gguf", MXFP4, 0.0),
        ("MXFP4", "gguf", P, None),
        ("mxfp4a16", "safetensors", MXFP4, 0.0),
        ("mxfp4a16", "safetensors", N, None),
        ("Q4_0", "gguf", MXFP4, None),
        ("w4a16-g32", "safetensors", MXFP4, None),
    ],
)
def test_what_each_packing_takes_over(name: str, container: str, numbers: Float4, rounding: float | None) -> None:
    form = find_format(name, container)
    taken = form.for_numbers(numbers)
    if rounding is None:
        assert taken is None
        return
    assert taken is not None
    assert taken.rounding(numbers) == rounding
    scale_bytes = np.arange(1, 0x7F) if numbers.scale is E4M3 else np.arange(100, 150)
    factor = {N: 1.0, P: 2.0**-9, F: float(np.float32(0.0123)), D: 1 / float(np.float32(217.3))}.get(numbers, 1.0)
    codes = some_codes(scale_bytes, factor, 128)
    want, got = numbers.values(codes), taken.decode(taken.pack(codes), 6, 128)
    if rounding:
        assert np.allclose(got, want, rtol=rounding, atol=0)
    else:
        assert np.array_equal(got, want)


def test_modelopt_takes_factors_as_they_are_and_divisors_rounded() -> None:
    assert MODELOPT_NVFP4.for_numbers(F) is not None
    assert (MODELOPT_NVFP4.rounding(P), MODELOPT_NVFP4.for_numbers(D).rounding(D)) == (0.0, RECIPROCAL)  # type: ignore[union-attr]


def test_gguf_refuses_scales_that_its_blocks_have_not() -> None:
    codes = Codes(np.zeros((1, 64), np.uint8), np.uint8([[0x38, 0x7F, 0x38, 0x38]]))
    with pytest.raises(ValueError, match="0x7E"):
        find_format("NVFP4", "gguf").pack(codes)
