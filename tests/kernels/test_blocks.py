"""Encoders and decoders of every GGML block type, in a loop over the table, so that none can forget its test."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kernels import dispatch, ops
from kernels.layouts import LAYOUTS, PLAIN_KINDS, SOURCE_KINDS, WRITTEN_KINDS

KINDS = [kind for kind in WRITTEN_KINDS if kind not in PLAIN_KINDS]
READ_ONLY = [kind for kind in SOURCE_KINDS if kind not in WRITTEN_KINDS]
PLAIN_IN_GGUF = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4"]
# What the formats promise: the largest |x̂ − x| as a share of the largest |x| of the scale's values.
CLIPPING = {"Q8_0": 0.006, "Q4_0": 0.35, "Q4_1": 0.35, "Q5_0": 0.2, "Q5_1": 0.2, "TQ1_0": 1, "TQ2_0": 1}
CLIPPING |= {"MXFP4": 0.35, "NVFP4": 0.35}
TENSOR_SCALE = 1e-3


def encode(kind: str, x: np.ndarray, *args, **settings) -> np.ndarray:
    return ops.encode_blocks(kind, x, *args, tensor_scale=TENSOR_SCALE if kind == "NVFP4" else 1.0, **settings)


def decode(kind: str, data: np.ndarray, columns: int, **settings) -> np.ndarray:
    return ops.decode_blocks(kind, data, columns, tensor_scale=TENSOR_SCALE if kind == "NVFP4" else 1.0, **settings)


def assert_same_blocks(kind: str, got: np.ndarray, want: np.ndarray, what: str) -> None:
    size = LAYOUTS[kind].bytes
    differ = np.flatnonzero((got.reshape(-1, size) != want.reshape(-1, size)).any(axis=1))
    if len(differ):
        pairs = [(a.reshape(-1, size)[differ[0]].tobytes().hex(" ")) for a in (got, want)]
        pytest.fail(f"{kind} {what}: {len(differ)} blocks differ, block {differ[0]} is\n{pairs[0]}, not\n{pairs[1]}")


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_encoders_give_the_bytes_of_the_reference(kind, hard_rows, importance_of) -> None:
    x = hard_rows(2 * LAYOUTS[kind].block)
    weights = importance_of(x.shape[1])
    for search, importance in ((False, None), (True, None), (True, weights)):
        with dispatch.only("reference"):
            want = encode(kind, x, importance, search)
        for backend in dispatch.backends():
            with dispatch.only(backend):
                what = f"on {backend}, search {search}, importance {importance is not None}"
                assert_same_blocks(kind, encode(kind, x, importance, search), want, what)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_blocks_and_threads(kind, compiled, importance_of) -> None:
    block = LAYOUTS[kind].block
    x = np.random.default_rng(1).standard_normal((1, 65 * block)).astype(np.float32)
    weights = importance_of(block)
    with dispatch.only(compiled):
        whole = encode(kind, x, np.tile(weights, 65))
        for blocks in (1, 15, 16, 17, 31, 33, 63, 65):
            part = encode(kind, x[:, : blocks * block], np.tile(weights, blocks), threads=blocks % 3 + 1)
            assert_same_blocks(kind, part, whole[:, : part.shape[1]], f"{blocks} blocks")
        rows = encode(kind, x.reshape(65, block), weights, threads=3)
        assert_same_blocks(kind, rows, whole, "one block a row")


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_encoded_as_its_copy(kind, compiled) -> None:
    block = LAYOUTS[kind].block
    x = np.random.default_rng(2).standard_normal((6, 2 * block)).astype(np.float64)
    with dispatch.only(compiled):
        want = encode(kind, x.astype(np.float32)[::2].copy())
        assert_same_blocks(kind, encode(kind, x[::2]), want, "strided rows")
        assert_same_blocks(kind, encode(kind, np.asfortranarray(x[::2])), want, "column order")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_can_not_be_encoded_is_refused(kind, bad) -> None:
    block = LAYOUTS[kind].block
    x = np.zeros((3, 2 * block), np.float32)
    x[1, block + 3] = bad
    for backend in dispatch.backends():
        with dispatch.only(backend), pytest.raises(ValueError, match="NaN or Inf"):
            encode(kind, x)
    with pytest.raises(ValueError, match="multiple of"):
        encode(kind, np.zeros((1, block + 1), np.float32))
    with pytest.raises(ValueError, match="importance"):
        encode(kind, np.zeros((1, block), np.float32), np.ones(block + 1))


@pytest.mark.parametrize("kind", KINDS + list(READ_ONLY))
def test_decoders_give_the_bits_of_gguf(kind) -> None:
    layout = LAYOUTS[kind]
    data = np.random.default_rng(3).integers(0, 256, (40, 3 * layout.bytes), np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
        for backend in dispatch.backends():
            if kind in READ_ONLY and backend != "reference":
                continue
            with dispatch.only(backend):
                got = ops.decode_blocks(kind, data, 3 * layout.block, threads=2)
            same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
            assert same.all(), f"{kind} on {backend}: {(~same).sum()} values differ"


@pytest.mark.parametrize("kind", PLAIN_IN_GGUF)
def test_without_search_the_bytes_are_ggmls(kind, hard_rows, compiled) -> None:
    x = np.delete(hard_rows(4 * LAYOUTS[kind].block), [1, 2], axis=0)  # gguf-py and ggml differ for −0 and denormals
    with np.errstate(all="ignore"):
        want = gguf.quantize(x, gguf.GGMLQuantizationType[kind])
    with dispatch.only(compiled):
        assert_same_blocks(kind, ops.encode_blocks(kind, x, search=False), want, "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_search_lowers_the_error(kind, importance_of) -> None:
    x = np.random.default_rng(4).standard_normal((32, 1024)).astype(np.float32)
    weights = importance_of(1024)

    def error(w, *args) -> float:
        return float((w * (decode(kind, encode(kind, x, *args), 1024) - x).astype(np.float64) ** 2).sum())

    plain, searched = error(1.0, None, False), error(1.0, None, True)
    assert searched < plain
    assert error(weights, weights, True) < error(weights, None, True)


@pytest.mark.parametrize("kind", CLIPPING)
def test_even_extreme_importance_does_not_clip_beyond_the_promise(kind) -> None:
    rng = np.random.default_rng(5)
    columns = LAYOUTS[kind].block * 4
    x = rng.standard_normal((64, columns)).astype(np.float32)
    group = 16 if kind == "NVFP4" else LAYOUTS[kind].block
    for spread in (4, 12):
        weights = np.exp(spread * rng.standard_normal(columns)).astype(np.float32)
        scale = float(np.abs(x).max()) / (6 * 448) if kind == "NVFP4" else 1.0
        data = ops.encode_blocks(kind, x, weights, tensor_scale=scale)
        decoded = ops.decode_blocks(kind, data, columns, tensor_scale=scale)
        assert ops.max_group_error_ratio(x, decoded, group) <= CLIPPING[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_come_back_as_zeros(kind) -> None:
    block = LAYOUTS[kind].block
    for zero in (0.0, -0.0):
        x = np.full((2, block), zero, np.float32)
        for search in (False, True):
            assert (decode(kind, encode(kind, x, None, search), block) == 0).all()


# Blocks worked out by hand.


def test_q8_0_block() -> None:
    x = np.zeros(32, np.float32)
    x[:6] = [127, -127, 1.5, -1.5, 0.5, 3]  # d = 1; halves go away from zero without search
    want = bytes([0x00, 0x3C, 127, 129, 2, 254, 1, 3]) + bytes(26)
    assert ops.encode_blocks("Q8_0", x[None], search=False).tobytes() == want


def test_q4_0_block() -> None:
    x = np.zeros(32, np.float32)
    x[[0, 1, 16, 17]] = [-8, 7, 3, -1]  # d = −8 / −8 = 1; code = value + 8
    want = bytes([0x00, 0x3C, 0 | 11 << 4, 15 | 7 << 4]) + bytes([0x88] * 14)
    for search in (False, True):
        assert ops.encode_blocks("Q4_0", x[None], search=search).tobytes() == want


def test_q5_1_block() -> None:
    x = np.arange(32, dtype=np.float32) / 2 - 1  # d = 15.5 / 31, m = −1, codes 0 … 31
    want = bytes([0x00, 0x38, 0x00, 0xBC, 0, 0, 0xFF, 0xFF]) + bytes(j | j << 4 for j in range(16))
    assert ops.encode_blocks("Q5_1", x[None], search=False).tobytes() == want


def test_tq1_0_and_tq2_0_blocks() -> None:
    x = np.zeros(256, np.float32)
    x[0], x[32], x[240] = 2, -2, 2
    # Digits 2 0 1 1 1 are 2·81 + 0·27 + 9 + 3 + 1 = 175, and ⌈175·256/243⌉ = 185; 1 1 1 1 1 is 121 → 128.
    # The last four bytes have four digits and a 0: 2 1 1 1 0 is 201 → 212, 1 1 1 1 0 is 120 → 127.
    want = bytes([185] + [128] * 47 + [212, 127, 127, 127, 0x00, 0x40])
    assert ops.encode_blocks("TQ1_0", x[None], search=False).tobytes() == want
    # 2-bit codes of values 0, 32, 64, 96 share byte 0: 2, 0, 1, 1. Value 240 is the fourth of byte 32 + 16.
    want = bytes([0b01010010] + [0b01010101] * 47 + [0b10010101] + [0b01010101] * 15 + [0x00, 0x40])
    assert ops.encode_blocks("TQ2_0", x[None], search=False).tobytes() == want


def test_mxfp4_block() -> None:
    x = np.zeros(32, np.float32)
    x[:8] = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    x[16:24] = -x[:8]
    # amax 6: exponent floor(log2 6) − 2 = 0, stored as 127. −0 is code 0.
    want = bytes([127, 0x00, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7]) + bytes(8)
    for search in (False, True):
        assert ops.encode_blocks("MXFP4", x[None], search=search).tobytes() == want


def test_nvfp4_block() -> None:
    x = np.zeros(64, np.float32)
    x[0], x[8], x[16], x[63] = 6, -3, 0.75, 2688  # scales 1, 1/8, 0 and 448 with a tensor scale of 1
    want = bytes([0x38, 0x20, 0x00, 0x7E]) + bytes([7 | 13 << 4] + [0] * 7 + [7] + [0] * 7 + [0] * 15 + [7 << 4])
    assert ops.encode_blocks("NVFP4", x[None], search=False).tobytes() == want
    assert (ops.decode_blocks("NVFP4", np.frombuffer(want, np.uint8)[None], 64) == x).all()


def test_nvfp4_scale_codes_are_the_nearest() -> None:
    torch = pytest.importorskip("torch")
    scales = np.float32(2.0) ** np.random.default_rng(6).uniform(-12, 9, 4096).astype(np.float32)
    x = np.zeros((1024, 64), np.float32)
    x[:, ::16] = (scales.clip(0, 448) * 6).reshape(1024, 4)
    want = torch.from_numpy(x[:, ::16] / 6).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (ops.encode_blocks("NVFP4", x, search=False)[:, :4] == want).all()
