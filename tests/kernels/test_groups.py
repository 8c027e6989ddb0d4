"""Group-wise integer codes: compressed-tensors' rounding, the search, and packing."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, ops


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("symmetric", [True, False])
def test_compiled_groups_are_those_of_the_reference(bits, symmetric, hard_rows, importance_of, compiled) -> None:
    x = hard_rows(96)
    weights = importance_of(96)
    for group, scale_dtype in ((32, "F16"), (96, "BF16"), (6, "F32")):
        for search, importance in ((False, None), (True, None), (True, weights)):
            settings = (bits, group, symmetric, scale_dtype, search, importance)
            with dispatch.only("reference"):
                want = ops.encode_groups(x, *settings)
            with dispatch.only(compiled):
                got = ops.encode_groups(x, *settings, threads=3)
                decoded = ops.decode_groups(*got, bits, group, threads=2)
            for a, b in zip(got, want, strict=True):
                assert (a is None and b is None) or a.tobytes() == b.tobytes(), settings
            with dispatch.only("reference"):
                assert ops.decode_groups(*want, bits, group).tobytes() == decoded.tobytes()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scale_dtype", ["F32", "BF16"])
def test_plain_codes_are_those_of_compressed_tensors(bits, symmetric, scale_dtype) -> None:
    torch = pytest.importorskip("torch")
    ct = pytest.importorskip("compressed_tensors.quantization")
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    x = np.random.default_rng(0).standard_t(3, (24, 128)).astype(np.float32)
    x[3, :32] = np.abs(x[3, :32])
    dtype = {"F32": None, "BF16": torch.bfloat16}[scale_dtype]
    args = ct.QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=32, scale_dtype=dtype
    )
    w = torch.from_numpy(x)
    groups = w.reshape(24, 4, 32)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    codes, scales, zeros = ops.encode_groups(x, bits, 32, symmetric, scale_dtype, search=False)
    assert (scales == scale.float().numpy()).all()
    half = 1 << (bits - 1)
    if symmetric or scale_dtype == "F32":  # there the zero point is computed before the scale is rounded
        if not symmetric:
            assert zeros is not None
            assert (zeros.astype(int) - half == zero.numpy()).all()
        want = quantize(w, scale, zero, args, dtype=torch.int8).numpy()
        assert (codes.astype(int) - half == want).all()


def test_a_group_of_zeros_has_scale_one_and_decodes_to_zeros() -> None:
    for symmetric, code in ((True, 8), (False, 0)):
        codes, scales, zeros = ops.encode_groups(np.zeros((1, 64), np.float32), 4, 32, symmetric)
        assert (scales == 1).all()
        assert (codes == code).all()
        assert (ops.decode_groups(codes, scales, zeros, 4, 32) == 0).all()


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_group_is_worse_for_the_search(bits, symmetric, importance_of) -> None:
    x = np.random.default_rng(1).standard_t(4, (64, 256)).astype(np.float32)
    for weights in (None, importance_of(256)):
        w = np.ones(256) if weights is None else weights.astype(np.float64)

        def errors(search: bool, weights=weights, w=w) -> np.ndarray:
            parts = ops.encode_groups(x, bits, 64, symmetric, "BF16", search, weights)
            e = ops.decode_groups(*parts, bits, 64).astype(np.float64) - x
            return (w * e * e).reshape(64, 4, 64).sum(axis=2)

        plain, searched = errors(False), errors(True)
        assert (searched <= plain * (1 + 1e-5)).all()
        assert searched.sum() < (0.99 if bits == 8 else 0.97) * plain.sum()


@pytest.mark.parametrize(("bits", "promise"), [(4, 0.35), (8, 0.02)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_even_extreme_importance_does_not_clip_beyond_the_promise(bits, promise, symmetric) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((64, 256)).astype(np.float32)
    x[:8] = np.abs(x[:8])
    weights = np.exp(12 * rng.standard_normal(256)).astype(np.float32)
    parts = ops.encode_groups(x, bits, 64, symmetric, "BF16", True, weights)
    assert ops.max_group_error_ratio(x, ops.decode_groups(*parts, bits, 64), 64) <= promise


def test_what_can_not_be_encoded_is_refused() -> None:
    x = np.zeros((2, 64), np.float32)
    for bits, group, scale in ((0, 32, "F16"), (9, 32, "F16"), (4, 48, "F16"), (4, 0, "F16"), (4, 32, "I8")):
        with pytest.raises(ValueError):
            ops.encode_groups(x, bits, group, True, scale)
    x[1, 40] = np.inf
    for backend in dispatch.backends():
        with dispatch.only(backend), pytest.raises(ValueError, match="NaN or Inf"):
            ops.encode_groups(x, 4, 32, True)
