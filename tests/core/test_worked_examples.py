"""Numbers that were computed elsewhere, by hand or from other sources: the program must give the same."""

from __future__ import annotations

import numpy as np
import pytest

from core import memory
from core.contract import ByteCount, ElementType, NumericContract, PerGroup
from core.models.shape import ModelShape
from core.units import format_binary, format_bytes, format_decimal, format_duration, format_tokens_per_second
from kernels.reference.integers import quantize_asymmetric, quantize_levels, quantize_symmetric

LLAMA3_70B = ModelShape("llama", 80, 8192, 64, 8, 128, 28672, 128256, 8192)
F16, F32 = ElementType.F16, ElementType.F32
NF4 = np.array(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)


def mse(x: np.ndarray, reconstruction: np.ndarray) -> float:
    return float(np.mean((reconstruction - x) ** 2))


def snr_db(x: np.ndarray, reconstruction: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(x**2) / np.sum((reconstruction - x) ** 2)))


# Memory arithmetic


def test_seven_billion_weights_of_two_bytes() -> None:
    assert format_bytes(7 * 10**9 * 2) == "14.00 GB (13.04 GiB)"


def test_key_value_cache_of_llama_3_70b() -> None:
    assert memory.kv_values_per_token(LLAMA3_70B) == 163_840
    assert memory.kv_bytes_per_token(LLAMA3_70B, 16) == 320 * 1024
    assert format_binary(memory.kv_bytes(LLAMA3_70B, 8192)) == "2.50 GiB"
    assert memory.tokens_that_fit(LLAMA3_70B, 35 * 10**9, 16) == 106_811
    assert memory.tokens_that_fit(LLAMA3_70B, 35 * 10**9, 8) == 213_623


def test_seventy_billion_weights_in_w4a16() -> None:
    quantized = 68_500_000_000
    weights = ByteCount(payload=quantized * 4 // 8, scales=quantized // 128 * 2)
    result = memory.estimate(weights, kept=2_100_000_000 * 2)
    assert format_decimal(result.bytes_of("kept")) == "4.20 GB"
    assert format_decimal(weights.total) == "35.32 GB"
    assert format_decimal(result.used) == "39.52 GB"


@pytest.mark.parametrize(
    ("weight_bytes", "bandwidth", "milliseconds", "rate"),
    [
        (141e9, 3.35e12, 42.09, "23.8 tokens/s"),
        (40e9, 3.35e12, 11.94, "83.8 tokens/s"),
        (8e9 * 2, 3.35e12, 4.776, "209.4 tokens/s"),
        (8e9 * 4.5 / 8, 3.35e12, 1.343, "744.4 tokens/s"),
        (8e9 * 2, 100e9, 160.0, "6.25 tokens/s"),
    ],
)
def test_decode_bound(weight_bytes: float, bandwidth: float, milliseconds: float, rate: str) -> None:
    bound = memory.estimate(ByteCount(payload=int(weight_bytes)), bandwidth=bandwidth).decode
    assert bound is not None
    assert bound.seconds_per_step * 1e3 == pytest.approx(milliseconds, rel=3e-4)
    assert format_tokens_per_second(bound.tokens_per_second) == rate
    assert format_duration(bound.seconds_per_step) == f"{milliseconds:.2f} ms"


# Effective bits


@pytest.mark.parametrize(
    ("scale", "zero", "group", "bits", "ratio", "share"),
    [
        (F16, None, 128, 4.125, 3.879, 0.0303),
        (F16, None, 64, 4.25, 3.765, 0.0588),
        (F16, None, 32, 4.5, 3.556, 0.111),
        (F32, None, 64, 4.5, 3.556, 0.111),
        (F16, F16, 32, 5.0, 3.2, 0.2),
        (F16, None, 8, 6.0, 2.667, 0.333),
    ],
)
def test_effective_bits(
    scale: ElementType, zero: ElementType | None, group: int, bits: float, ratio: float, share: float
) -> None:
    contract = NumericContract("", ElementType.INT, 4, PerGroup(group), scale=scale, zero=zero)
    assert contract.effective_bits == bits
    assert 16 / contract.effective_bits == pytest.approx(ratio, abs=5e-4)
    assert 1 - contract.bits / contract.effective_bits == pytest.approx(share, abs=5e-4)


def test_effective_bits_of_double_quantization() -> None:
    single = NumericContract("", ElementType.CODEBOOK, 4, PerGroup(64), scale=ElementType.U8)
    double = NumericContract(
        "", ElementType.CODEBOOK, 4, PerGroup(64), scale=ElementType.U8, outer_scale=F32, outer_group=256
    )
    assert single.effective_bits == 4.125
    assert double.effective_bits == 4 + 8 / 64 + 32 / (64 * 256)
    assert round(double.effective_bits, 3) == 4.127
    assert 16 / double.effective_bits == pytest.approx(3.877, abs=5e-4)


# Error


@pytest.mark.parametrize(
    ("bits", "error", "largest", "half_step"),
    [(8, 3.335e-7, 0.001002, 0.001005), (4, 9.892e-5, 0.017992, 0.018236), (2, 5.074e-3, 0.125280, 0.127649)],
)
def test_one_symmetric_scale(bits: int, error: float, largest: float, half_step: float) -> None:
    x = np.random.RandomState(0).normal(0, 0.1, 100)
    quantized = quantize_symmetric(x, bits)
    reconstruction = quantized.dequantize()
    assert mse(x, reconstruction) == pytest.approx(error, rel=2e-4)
    assert np.abs(x - reconstruction).max() == pytest.approx(largest, abs=5e-7)
    assert quantized.scales[0, 0] / 2 == pytest.approx(half_step, abs=5e-7)
    assert np.abs(x - reconstruction).max() < half_step


def test_grouping_wins_back_what_an_outlier_row_costs() -> None:
    w = np.random.RandomState(0).normal(0, 0.1, (64, 256))
    w[0] *= 10
    expected = {None: 7.940e-3, 0: 2.990e-4, 128: 2.818e-4, 64: 2.509e-4, 32: 2.050e-4}
    got = {group: quantize_symmetric(w, 4, group).dequantize() for group in expected}
    for group, error in expected.items():
        assert mse(w, got[group]) == pytest.approx(error, rel=3e-4)
    assert [round(snr_db(w, got[group]), 2) for group in (None, 0, 32)] == [4.96, 19.20, 20.84]


@pytest.mark.parametrize(("bits", "ratio"), [(8, 4.15), (4, 4.56)])
def test_asymmetric_wins_on_skewed_values(bits: int, ratio: float) -> None:
    x = np.maximum(np.random.RandomState(0).normal(0.3, 0.2, 2000), 0)
    symmetric, asymmetric = (q(x, bits).dequantize() for q in (quantize_symmetric, quantize_asymmetric))
    assert mse(x, symmetric) / mse(x, asymmetric) == pytest.approx(ratio, abs=5e-3)


def test_nf4_against_int4_on_normal_values() -> None:
    x = np.random.RandomState(0).normal(0, 0.1, 2**20)
    nf4, int4 = mse(x, quantize_levels(x, NF4, 32)), mse(x, quantize_symmetric(x, 4, 32).dequantize())
    assert nf4 == pytest.approx(7.607e-5, rel=2e-4)
    assert int4 == pytest.approx(9.413e-5, rel=2e-4)
    assert nf4 / int4 == pytest.approx(0.808, abs=5e-4)


def test_one_outlier_takes_the_resolution_of_its_neighbours() -> None:
    rest = np.array([0.7, -0.4, 0.9, -0.8, 0.3, -0.6, 0.5, -0.2, 0.75, -0.5, 0.6])
    with_outlier, without = quantize_symmetric(np.array([7.0, *rest]), 4), quantize_symmetric(rest, 4)
    assert with_outlier.scales[0, 0] == 1.0
    assert np.abs(with_outlier.dequantize()[1:] - rest).mean() == pytest.approx(0.3227, abs=5e-5)
    assert without.scales[0, 0] == pytest.approx(0.1286, abs=5e-5)
    assert np.abs(without.dequantize() - rest).mean() == pytest.approx(0.0305, abs=5e-5)


@pytest.mark.parametrize("quantize", [quantize_symmetric, quantize_asymmetric])
def test_an_all_zero_group_has_scale_one_and_code_zero(quantize) -> None:
    zero = quantize(np.zeros((2, 8)), 4, 8)
    assert (zero.scales == 1).all()
    assert (zero.codes == 0).all()
    assert (zero.dequantize() == 0).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [None, 0, 16])
def test_error_stays_within_half_a_step(bits: int, group: int | None) -> None:
    x = np.random.default_rng(1).standard_t(2, (8, 64))
    quantized = quantize_symmetric(x, bits, group)
    error = np.abs(quantized.dequantize() - x).reshape(len(quantized.scales), -1)
    assert (error <= quantized.scales / 2 * (1 + 1e-12)).all()


# Identities, in float64


def test_smoothquant_leaves_the_product_alone() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(16, 32)), rng.normal(size=(32, 24))
    x[:, 3] *= 50
    s = np.abs(x).max(0) ** 0.5 / np.abs(w).max(1) ** 0.5
    np.testing.assert_allclose((x / s) @ (s[:, None] * w), x @ w, rtol=1e-12, atol=1e-12)
    assert np.abs(x / s).max() < np.abs(x).max() / 4  # the outlier has moved into the weights


def test_awq_scaling_and_rotation_leave_the_product_alone() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(16, 32)), rng.normal(size=(32, 24))
    scale = rng.uniform(0.5, 4, 32)
    rotation, _ = np.linalg.qr(rng.normal(size=(32, 32)))
    np.testing.assert_allclose((x / scale) @ (scale[:, None] * w), x @ w, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose((x @ rotation) @ (rotation.T @ w), x @ w, rtol=1e-11, atol=1e-11)


def test_gptq_lowers_the_output_error_and_never_the_weight_error() -> None:
    """Columns are rounded in turn; the error of each is passed on to later ones through the inverse Hessian."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(256, 16)) @ rng.normal(size=(16, 32)) + 0.1 * rng.normal(size=(256, 32))
    w = rng.normal(size=(8, 32))
    scales = np.abs(w).max(1) / 7
    nearest = np.clip(np.rint(w / scales[:, None]), -7, 7) * scales[:, None]
    hessian = x.T @ x
    inverse = np.linalg.cholesky(np.linalg.inv(hessian + 0.01 * np.mean(np.diag(hessian)) * np.eye(32))).T
    left, gptq = w.copy(), np.zeros_like(w)
    for j in range(32):
        gptq[:, j] = np.clip(np.rint(left[:, j] / scales), -7, 7) * scales
        left[:, j:] -= np.outer((left[:, j] - gptq[:, j]) / inverse[j, j], inverse[j, j:])
    assert np.linalg.norm(x @ (w - gptq).T) < 0.8 * np.linalg.norm(x @ (w - nearest).T)
    assert np.linalg.norm(w - gptq) >= np.linalg.norm(w - nearest)


@pytest.mark.parametrize("bits", [2.0, 4.125, 4.5, 8.5])
def test_unfused_dequantization_moves_more_than_16_bit_weights(bits: float) -> None:
    values = 4096 * 4096
    plain = 2 * values
    fused = bits / 8 * values
    unfused = fused + 2 * values + 2 * values  # read codes, write the 16-bit copy, read it again
    assert fused < plain < unfused
    fast, slow = (memory.decode_bound(int(n), 1e12).seconds_per_step for n in (plain, unfused))
    assert slow > 2 * fast


def test_online_softmax_equals_plain_softmax() -> None:
    rng = np.random.default_rng(5)
    scores, values = rng.normal(0, 30, (4, 96)), rng.normal(size=(96, 8))
    weights = np.exp(scores - scores.max(1, keepdims=True))
    plain = weights / weights.sum(1, keepdims=True) @ values

    largest, total, out = np.full((4, 1), -np.inf), np.zeros((4, 1)), np.zeros((4, 8))
    for start in range(0, 96, 32):
        block = scores[:, start : start + 32]
        new = np.maximum(largest, block.max(1, keepdims=True))
        rescale, terms = np.exp(largest - new), np.exp(block - new)
        total = total * rescale + terms.sum(1, keepdims=True)
        out = out * rescale + terms @ values[start : start + 32]
        largest = new
    np.testing.assert_allclose(out / total, plain, rtol=1e-12, atol=1e-14)
