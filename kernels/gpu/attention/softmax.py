"""Attention over the cache. For Triton only; `attend` launches it, `caches` reads the cache.

Softmax is computed as the cache is walked: a running largest score, a sum, and the weighted values, rescaled whenever
the largest grows. Scores are in float32 and in powers of two.
"""

import triton
import triton.language as tl


@triton.jit
def _walk(
    q, keys, key_scales, values, value_scales, base, first, last, position, largest, total, out,
    SCALE, WINDOW, SOFTCAP,
    READ: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    POSITIONS: tl.constexpr, STAGES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Queries [rows, BLOCK] at `position` [rows] over rows base + first … last of the cache, POSITIONS at a time.

    VECTOR: without matrix instructions.
    """
    for start in tl.range(first, last, POSITIONS, num_stages=STAGES):
        t = start + tl.arange(0, POSITIONS)
        here = t < last
        k = READ(keys, key_scales, base + t, here, WIDTH, GROUP, BLOCK)
        if VECTOR:
            scores = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2) * SCALE
        else:
            scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * SCALE
        if CAPPED:  # cap · tanh(score / cap)
            scores = SOFTCAP * (2.0 * tl.sigmoid(scores * (2.0 / SOFTCAP)) - 1.0)
        age = position[:, None] - t[None, :]
        seen = (age >= 0) & (age < WINDOW)
        scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        middle = tl.where(larger == float("-inf"), 0.0, larger)  # of rows that have seen nothing yet
        shares = tl.exp2(scores - middle[:, None])
        kept = tl.exp2(largest - middle)
        total = total * kept + tl.sum(shares, 1)
        v = READ(values, value_scales, base + t, here, WIDTH, GROUP, BLOCK)
        out *= kept[:, None]
        if VECTOR:
            out += tl.sum(shares[:, :, None] * v.to(tl.float32)[None, :, :], 1)
        else:
            out = tl.dot(shares.to(q.dtype), v.to(q.dtype), out, input_precision="ieee")
        largest = larger
    return largest, total, out


@triton.jit
def attend_prompt(
    q, keys, key_scales, values, value_scales, starts, sequences, positions, out,
    TOKENS, Q_STRIDE, Q_HEAD, OUT_STRIDE, OUT_HEAD, SEQUENCES, KEY_HEADS, CAPACITY, SCALE, WINDOW, SOFTCAP,
    READ: tl.constexpr, CAPPED: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """q [M, heads, WIDTH] → out alike: ROWS tokens of one sequence and one head a program.

    Tokens starts[s] … starts[s + 1] are of the cache's slot sequences[s], and at positions[s] and after. What is
    outside of q or of the cache is neither read nor written, and becomes NaN.
    """
    s, head = tl.program_id(2), tl.program_id(1)
    begin = tl.maximum(tl.load(starts + s), 0)
    count = tl.minimum(tl.load(starts + s + 1), TOKENS) - begin
    before = tl.program_id(0) * ROWS
    if before < count:
        r = before + tl.arange(0, ROWS)
        origin = tl.load(positions + s)
        position = tl.where(origin + r < CAPACITY, origin + r, -1)  # which sees nothing
        token = (begin + r).to(tl.int64)
        d = tl.arange(0, BLOCK)
        here = (r[:, None] < count) & (d[None, :] < WIDTH)
        queries = tl.load(q + token[:, None] * Q_STRIDE + head * Q_HEAD + d[None, :], mask=here, other=0)
        slot = tl.load(sequences + s).to(tl.int64)
        there = (slot >= 0) & (slot < SEQUENCES) & (origin >= 0)
        base = (slot * KEY_HEADS + head // SHARE) * CAPACITY
        first = tl.maximum(origin + before + 1 - WINDOW, 0)
        last = tl.where(there, tl.minimum(origin + tl.minimum(before + ROWS, count), CAPACITY), 0)
        _, total, found = _walk(
            *(queries, keys, key_scales, values, value_scales, base, first, last, position),
            *(tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)),
            *(tl.zeros((ROWS, BLOCK), tl.float32), SCALE, WINDOW, SOFTCAP),
            *(READ, CAPPED, WIDTH, GROUP, BLOCK, POSITIONS, STAGES, VECTOR),
        )
        found = found / total[:, None]  # 0 / 0 of what has seen nothing
        place = out + token[:, None] * OUT_STRIDE + head * OUT_HEAD + d[None, :]
        tl.store(place, found.to(out.dtype.element_ty), mask=here)


@triton.jit
def attend_token(
    q, keys, key_scales, values, value_scales, sequences, positions, out, sizes,
    Q_STRIDE, Q_HEAD, OUT_STRIDE, OUT_HEAD, SEQUENCES, KEY_HEADS, CAPACITY, SCALE, WINDOW, SOFTCAP,
    READ: tl.constexpr, CAPPED: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """q [M, heads, WIDTH] → out [M, heads, SPLIT, WIDTH]: all heads of a key head, over one part of the token's past.

    Token m is at positions[m] of slot sequences[m]; where the cache has neither, nothing is read, and it becomes NaN.
    sizes [M, heads, SPLIT]: log2 of the part's sum of powers.
    """
    part, key_head, m = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = tl.arange(0, ROWS)
    head = (key_head * SHARE + row).to(tl.int64)
    d = tl.arange(0, BLOCK)
    here = (row[:, None] < SHARE) & (d[None, :] < WIDTH)
    queries = tl.load(q + m * Q_STRIDE + head[:, None] * Q_HEAD + d[None, :], mask=here, other=0)
    at = tl.load(positions + m)
    slot = tl.load(sequences + m).to(tl.int64)
    there = (slot >= 0) & (slot < SEQUENCES) & (at >= 0) & (at < CAPACITY)
    base = (slot * KEY_HEADS + key_head) * CAPACITY
    oldest = tl.maximum(at + 1 - WINDOW, 0)
    share = tl.cdiv(tl.cdiv(at + 1 - oldest, SPLIT), POSITIONS) * POSITIONS
    first = oldest + part * share
    last = tl.where(there, tl.minimum(first + share, at + 1), 0)
    largest, total, found = _walk(
        *(queries, keys, key_scales, values, value_scales, base, first, last, at + row * 0),
        *(tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)),
        *(tl.zeros((ROWS, BLOCK), tl.float32), SCALE, WINDOW, SOFTCAP),
        *(READ, CAPPED, WIDTH, GROUP, BLOCK, POSITIONS, STAGES, VECTOR),
    )
    found = tl.where(there, found / tl.where(total > 0, total, 1.0)[:, None], float("nan"))
    place = out + m * OUT_STRIDE + head[:, None] * OUT_HEAD + part * WIDTH + d[None, :]
    tl.store(place, found.to(out.dtype.element_ty), mask=here)
    if SPLIT > 1:
        size = tl.where(total > 0, largest + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        size = tl.where(there, size, 0.0)
        tl.store(sizes + (m * KEY_HEADS * SHARE + head) * SPLIT + part, size, mask=row < SHARE)


@triton.jit
def combine_parts(
    parts,
    sizes,
    out,
    OUT_STRIDE,
    OUT_HEAD,
    HEADS,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """parts [M, heads, SPLIT, WIDTH] → out [M, heads, WIDTH], each by its share of the sum. PARTS: SPLIT or more."""
    head, m = tl.program_id(0), tl.program_id(1).to(tl.int64)
    part, d = tl.arange(0, PARTS), tl.arange(0, BLOCK)
    row = (m * HEADS + head) * SPLIT + part
    size = tl.load(sizes + row, mask=part < SPLIT, other=float("-inf"))
    share = tl.exp2(size - tl.max(size, 0))
    share = share / tl.sum(share, 0)
    here = (part[:, None] < SPLIT) & (d[None, :] < WIDTH)
    values = tl.load(parts + row[:, None] * WIDTH + d[None, :], mask=here, other=0)
    found = tl.sum(values * share[:, None], 0)
    tl.store(out + m * OUT_STRIDE + head * OUT_HEAD + d, found.to(out.dtype.element_ty), mask=d < WIDTH)


@triton.jit
def store_cache(
    k, v, keys, key_scales, values, value_scales, sequences, positions,
    K_STRIDE, K_HEAD, V_STRIDE, V_HEAD, KEY_HEADS, CAPACITY, SEQUENCES,
    WRITE: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """k, v [M, key heads, WIDTH] into the cache; a slot or position that it has not is left out."""
    m = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    d = tl.arange(0, BLOCK)
    slot, position = tl.load(sequences + m), tl.load(positions + m)
    heads = tl.where(slot >= 0, tl.where(slot < SEQUENCES, KEY_HEADS, 0), 0)
    heads = tl.where(position >= 0, tl.where(position < CAPACITY, heads, 0), 0)
    there = head < heads
    here = there[:, None] & (d[None, :] < WIDTH)
    row = (slot.to(tl.int64) * KEY_HEADS + head) * CAPACITY + position
    one = tl.load(k + m * K_STRIDE + head[:, None] * K_HEAD + d[None, :], mask=here, other=0)
    WRITE(keys, key_scales, row, there, one, WIDTH, GROUP, BLOCK)
    one = tl.load(v + m * V_STRIDE + head[:, None] * V_HEAD + d[None, :], mask=here, other=0)
    WRITE(values, value_scales, row, there, one, WIDTH, GROUP, BLOCK)
