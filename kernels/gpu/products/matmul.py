"""The products' one skeleton. For Triton only; `weight_only` launches it, `kernels.gpu.weights.layout` is its layout.

A program takes ROWS rows of weights and walks along their tiles. A tile is one load of words; its slots are shifted out
one after another, each a slice of neighbouring columns, multiplied and added in float32. Formats differ in LEVELS and
SCALES (functions of `kernels.gpu.products.decoders`) and in numbers known when it is compiled.
"""

import triton
import triton.language as tl


@triton.jit
def share_of(STEPS, SPLIT: tl.constexpr):
    """Of the steps along a row, where those of this program (its second number of SPLIT) begin and end."""
    share = tl.cdiv(STEPS, SPLIT)
    first = tl.program_id(1) * share
    return first, tl.minimum(first + share, STEPS)


@triton.jit
def _own_rows(N, WORDS: tl.constexpr, ROWS: tl.constexpr):
    """Rows of this program, whether they exist, and where their words are in a tile."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return n, n < N, n[:, None] * WORDS + tl.arange(0, WORDS)[None, :]


@triton.jit
def _group_of(tile, SLOT, TILE: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr):
    """The group that a slot's columns are in; 0 where a row is one group."""
    g = tile * 0
    if GROUP > 0:
        if GROUP % TILE == 0:
            g = tile // (GROUP // TILE)
        elif TILE % GROUP == 0:
            g = tile * (TILE // GROUP) + SLOT * WORDS // GROUP
        else:
            g = (tile * TILE + SLOT * WORDS) // GROUP
    return g


@triton.jit
def _scale_rows(n, SCALE_ROWS: tl.constexpr):
    rows = n
    if SCALE_ROWS == 0:
        rows = n * 0
    elif SCALE_ROWS > 1:
        rows = n // SCALE_ROWS
    return rows


@triton.jit
def _slot_product(
    x, words, further, table, order, k, scale, offset, K, sum0, sum1, sum2, sum3,
    SLOT: tl.constexpr, LEVELS: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr,
    OFFSET: tl.constexpr, ORDERED: tl.constexpr, EVEN: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    """Sums [rows, words] of one to four tokens, with those of columns k [words] added, whose codes are in slot SLOT."""
    w = LEVELS(words, further, table, SLOT, BITS, HIGH, MIDDLE) * scale[:, None]
    if OFFSET:
        w += offset[:, None]
    here = k < K
    if ORDERED:
        k = tl.load(order + k, mask=here, other=0)
    if EVEN:
        x0 = tl.load(x + k).to(tl.float32)
    else:
        x0 = tl.load(x + k, mask=here, other=0).to(tl.float32)
    sum0 += w * x0[None, :]
    if BATCH > 1:
        x1 = tl.load(x + K + k, mask=here, other=0).to(tl.float32)
        sum1 += w * x1[None, :]
    if BATCH > 2:
        x2 = tl.load(x + 2 * K + k, mask=here, other=0).to(tl.float32)
        sum2 += w * x2[None, :]
    if BATCH > 3:
        x3 = tl.load(x + 3 * K + k, mask=here, other=0).to(tl.float32)
        sum3 += w * x3[None, :]
    return sum0, sum1, sum2, sum3


@triton.jit
def vector_product(
    x, low, high, scales, third, table, order, out,
    N, K, TILES, STRIDE, TENSOR,
    LEVELS: tl.constexpr, SCALES: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, SPAN: tl.constexpr, WORDS: tl.constexpr, SCALE_ROWS: tl.constexpr, OFFSET: tl.constexpr,
    ORDERED: tl.constexpr, EVEN: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    UNROLLED: tl.constexpr,
):  # fmt: skip
    """x [BATCH, K], one to four tokens → out [SPLIT, BATCH, N], each program's share of the tiles.

    UNROLLED: all slots of a tile at once; else up to four that share a scale, so that fewer x are in registers.
    """
    SLOTS: tl.constexpr = 32 // BITS
    TILE: tl.constexpr = SLOTS * WORDS
    CODES: tl.constexpr = SPAN // WORDS if SPAN < 4 * WORDS else 4
    STEPS: tl.constexpr = SLOTS // CODES
    n, inside, place = _own_rows(N, WORDS, ROWS)
    word = tl.arange(0, WORDS)
    first, last = share_of(TILES, SPLIT)
    low += first.to(tl.int64) * N * WORDS
    high += first.to(tl.int64) * N * WORDS
    scale_n = _scale_rows(n, SCALE_ROWS)
    sum0 = tl.zeros((ROWS, WORDS), tl.float32)
    sum1 = tl.zeros((ROWS, WORDS), tl.float32)
    sum2 = tl.zeros((ROWS, WORDS), tl.float32)
    sum3 = tl.zeros((ROWS, WORDS), tl.float32)
    there = (n < tl.where(first < last, N, 0))[:, None]
    after = tl.load(low + place, mask=there, other=0)
    further_after = after
    if HIGH > 0:
        further_after = tl.load(high + place, mask=there, other=0)
    for tile in tl.range(first, last):
        words = after
        further = further_after.to(tl.int32)
        low += N * WORDS
        high += N * WORDS
        there = (n < tl.where(tile + 1 < last, N, 0))[:, None]
        after = tl.load(low + place, mask=there, other=0)  # arrives while this tile is computed
        if HIGH > 0:
            further_after = tl.load(high + place, mask=there, other=0)
        if UNROLLED:
            for SLOT in tl.static_range(SLOTS):
                if SLOT * WORDS % SPAN == 0:
                    g = _group_of(tile, SLOT, TILE, WORDS, GROUP)
                    scale, offset = SCALES(scales, third, g, scale_n, inside, STRIDE, TENSOR, MIDDLE, GROUP)
                sum0, sum1, sum2, sum3 = _slot_product(
                    *(x, words, further, table, order, tile * TILE + SLOT * WORDS + word, scale, offset, K),
                    *(sum0, sum1, sum2, sum3, SLOT, LEVELS, BITS, HIGH, MIDDLE, OFFSET, ORDERED, EVEN, BATCH),
                )
        else:
            for step in tl.range(0, STEPS, num_stages=1):
                g = _group_of(tile, step * CODES, TILE, WORDS, GROUP)
                scale, offset = SCALES(scales, third, g, scale_n, inside, STRIDE, TENSOR, MIDDLE, GROUP)
                moved, more = words >> (step * CODES * BITS), further >> (step * CODES * HIGH)
                for SLOT in tl.static_range(CODES):
                    sum0, sum1, sum2, sum3 = _slot_product(
                        *(x, moved, more, table, order, tile * TILE + (step * CODES + SLOT) * WORDS + word),
                        *(scale, offset, K, sum0, sum1, sum2, sum3, SLOT, LEVELS, BITS, HIGH, MIDDLE, OFFSET),
                        *(ORDERED, EVEN, BATCH),
                    )
    out += tl.program_id(1) * BATCH * N + n
    tl.store(out, tl.sum(sum0, 1), mask=inside)
    if BATCH > 1:
        tl.store(out + N, tl.sum(sum1, 1), mask=inside)
    if BATCH > 2:
        tl.store(out + 2 * N, tl.sum(sum2, 1), mask=inside)
    if BATCH > 3:
        tl.store(out + 3 * N, tl.sum(sum3, 1), mask=inside)


@triton.jit
def _span_product(
    x, words, further, scales, third, table, order, tile, span,
    FIRST: tl.constexpr,
    m, scale_n, inside,
    M, K, STRIDE, TENSOR,
    LEVELS: tl.constexpr, SCALES: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, SPAN: tl.constexpr, WORDS: tl.constexpr, OFFSET: tl.constexpr, ORDERED: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """float32 [rows, tokens] of the slots that share a scale; their codes are from slot FIRST of the words on.

    The scale comes after their sum, in float32; an offset times the sum of their x is added.
    """
    SLOTS: tl.constexpr = SPAN // WORDS
    TILE: tl.constexpr = 32 // BITS * WORDS
    word = tl.arange(0, WORDS)
    for j in tl.static_range(SLOTS):
        slot = span * SLOTS + j
        k = tile * TILE + slot * WORDS + word
        here = (m[None, :] < M) if EVEN else (k[:, None] < K) & (m[None, :] < M)
        if ORDERED:
            k = tl.load(order + k, mask=k < K, other=0)
        tokens = tl.load(x + m[None, :] * K + k[:, None], mask=here, other=0)
        levels = LEVELS(words, further, table, FIRST + j, BITS, HIGH, MIDDLE).to(tokens.dtype)
        if j == 0:
            sums = tl.dot(levels, tokens)
            of_x = tl.sum(tokens.to(tl.float32), 0)
        else:
            sums = tl.dot(levels, tokens, sums)
            of_x += tl.sum(tokens.to(tl.float32), 0)
    g = _group_of(tile, span * SLOTS, TILE, WORDS, GROUP)
    scale, offset = SCALES(scales, third, g, scale_n, inside, STRIDE, TENSOR, MIDDLE, GROUP)
    sums *= scale[:, None]
    if OFFSET:
        sums += offset[:, None] * of_x[None, :]
    return sums


@triton.jit
def tile_product(
    x, low, high, scales, third, table, order, out,
    M, N, K, TILES, STRIDE, TENSOR,
    LEVELS: tl.constexpr, SCALES: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, SPAN: tl.constexpr, WORDS: tl.constexpr, SCALE_ROWS: tl.constexpr, OFFSET: tl.constexpr,
    ORDERED: tl.constexpr, EVEN: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr, UNROLLED: tl.constexpr,
):  # fmt: skip
    """x [M, K], BATCH tokens a program → out [SPLIT, M, N]. Levels, exact in 16 bits, meet tokens in tensor cores.

    UNROLLED: all slots of a tile at once, for cards whose loads go to shared memory by themselves.
    """
    SLOTS: tl.constexpr = 32 // BITS
    SPANS: tl.constexpr = SLOTS * WORDS // SPAN
    CODES: tl.constexpr = SPAN // WORDS
    n, inside, place = _own_rows(N, WORDS, ROWS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    first, last = share_of(TILES, SPLIT)
    low += first.to(tl.int64) * N * WORDS
    high += first.to(tl.int64) * N * WORDS
    scale_n = _scale_rows(n, SCALE_ROWS)
    total = tl.zeros((ROWS, BATCH), tl.float32)
    for tile in tl.range(first, last, num_stages=STAGES):
        words = tl.load(low + place, mask=inside[:, None], other=0)
        further = words
        if HIGH > 0:
            further = tl.load(high + place, mask=inside[:, None], other=0).to(tl.int32)
        if UNROLLED:
            for span in tl.static_range(SPANS):
                total += _span_product(
                    *(x, words, further, scales, third, table, order, tile, span, span * CODES, m, scale_n, inside),
                    *(M, K, STRIDE, TENSOR, LEVELS, SCALES, BITS, HIGH, MIDDLE, GROUP, SPAN, WORDS),
                    *(OFFSET, ORDERED, EVEN),
                )
        else:
            for span in tl.range(0, SPANS, num_stages=1):
                moved, more = words >> (span * CODES * BITS), further >> (span * CODES * HIGH)
                total += _span_product(
                    *(x, moved, more, scales, third, table, order, tile, span, 0, m, scale_n, inside),
                    *(M, K, STRIDE, TENSOR, LEVELS, SCALES, BITS, HIGH, MIDDLE, GROUP, SPAN, WORDS),
                    *(OFFSET, ORDERED, EVEN),
                )
        low += N * WORDS
        high += N * WORDS
    out += tl.program_id(1) * M * N
    tl.store(out + m[None, :] * N + n[:, None], total, mask=(m[None, :] < M) & inside[:, None])


@triton.jit
def add_parts(parts, out, COUNT, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """parts float32 [SPLIT, COUNT] → out [COUNT]: always in the same order, so that no run differs from another."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(parts + i, mask=i < COUNT, other=0)
    for part in tl.static_range(1, SPLIT):
        total += tl.load(parts + part * COUNT + i, mask=i < COUNT, other=0)
    tl.store(out + i, total, mask=i < COUNT)


@triton.jit
def dequantize(
    low, high, scales, third, table, out,
    N, K, STRIDE, TENSOR,
    LEVELS: tl.constexpr, SCALES: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr,
    GROUP: tl.constexpr, SPAN: tl.constexpr, WORDS: tl.constexpr, SCALE_ROWS: tl.constexpr, OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Weights → out [N, K] in stored order, one tile of ROWS rows a program."""
    SLOTS: tl.constexpr = 32 // BITS
    TILE: tl.constexpr = SLOTS * WORDS
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, WORDS)
    inside = n < N
    tile = tl.program_id(1)
    place = tile.to(tl.int64) * N * WORDS + n[:, None] * WORDS + word[None, :]
    words = tl.load(low + place, mask=inside[:, None], other=0)
    further = words
    if HIGH > 0:
        further = tl.load(high + place, mask=inside[:, None], other=0).to(tl.int32)
    scale_n = _scale_rows(n, SCALE_ROWS)
    for SLOT in tl.static_range(SLOTS):
        if SLOT * WORDS % SPAN == 0:
            g = _group_of(tile, SLOT, TILE, WORDS, GROUP)
            scale, offset = SCALES(scales, third, g, scale_n, inside, STRIDE, TENSOR, MIDDLE, GROUP)
        w = LEVELS(words, further, table, SLOT, BITS, HIGH, MIDDLE) * scale[:, None]
        if OFFSET:
            w += offset[:, None]
        k = tile * TILE + SLOT * WORDS + word
        tl.store(out + n[:, None].to(tl.int64) * K + k[None, :], w, mask=inside[:, None] & (k[None, :] < K))
