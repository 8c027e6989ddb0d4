"""Products with experts of a mixture, which a program finds out itself. For Triton only; `experts` launches it."""

import triton
import triton.language as tl

from kernels.gpu.products.matmul import vector_product


@triton.jit
def expert_product(
    x, chosen, places, tensor_scales, low, high, scales, third, table, out,
    N, K, TILES, STRIDE, SHARE,
    LEVELS: tl.constexpr, SCALES: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, SPAN: tl.constexpr, WORDS: tl.constexpr, SCALE_ROWS: tl.constexpr, OFFSET: tl.constexpr,
    EVEN: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """x [pairs / SHARE, K] · weights of expert chosen[pair] → out [pairs, SPLIT, N]; a pair is a token and an expert.

    places: int64 [experts, 4], how many elements after the first expert's an expert's low, high, scales and third
    begin; multiples of 16. All else as `vector_product`, which multiplies one token here.
    """
    pair = tl.program_id(2)
    expert = tl.load(chosen + pair)
    places += expert * 4
    low += tl.multiple_of(tl.load(places), 16)
    high += tl.multiple_of(tl.load(places + 1), 16)
    scales += tl.multiple_of(tl.load(places + 2), 16)
    third += tl.multiple_of(tl.load(places + 3), 16)
    vector_product(
        x + pair // SHARE * K, low, high, scales, third, table, low, out + pair.to(tl.int64) * SPLIT * N,
        N, K, TILES, STRIDE, tl.load(tensor_scales + expert),
        LEVELS, SCALES, BITS, HIGH, MIDDLE, GROUP, SPAN, WORDS, SCALE_ROWS, OFFSET,
        False, EVEN, 1, ROWS, SPLIT, UNROLLED,
    )  # fmt: skip
