"""Attention over the cache. For Triton only; `attend` launches it, `caches` reads the cache.

Softmax is computed as the cache is walked: a running largest score, a sum, and the weighted values, rescaled whenever
the largest grows. Scores are in float32 and in powers of two. Codes become floats in registers, on their way to a
product.
"""

import triton
import triton.language as tl

from kernels.gpu.attention.growth import end_of, near_rows
from kernels.gpu.attention.turning import hadamard


@triton.jit
def _match(q, k, VECTOR: tl.constexpr):
    """q · kᵀ in float32. VECTOR: without matrix instructions."""
    if VECTOR:
        found = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2)
    else:
        found = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
    return found


@triton.jit
def _scores(
    q, partner, k, t, here, cos, sin, root,
    TURNED, ROPE: tl.constexpr, PAIRS: tl.constexpr, UNTURN: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """q · kᵀ. ROPE: keys are as they were before their rotary step, which is made of two products instead: with
    cos · k, and of the queries' partners in each pair with sin · k. UNTURN: runs that hadamard has turned; 0: none.
    """
    if ROPE:
        if UNTURN > 0:
            k = hadamard(k.to(tl.float32), UNTURN) / root
        d = tl.arange(0, k.shape[1])
        pair = d // 2 if PAIRS else d % TURNED
        there = here[:, None] & (d[None, :] < 2 * TURNED)
        place = t.to(tl.int64)[:, None] * TURNED + pair[None, :]
        c, s = tl.load(cos + place, mask=there, other=1.0), tl.load(sin + place, mask=there, other=0.0)
        found = _match(q, k * c, VECTOR) + _match(partner, k * s, VECTOR)
    else:
        found = _match(q, k, VECTOR)
    return found


@triton.jit
def _shares(scores, seen, largest, total, SCALE, SOFTCAP, CAPPED: tl.constexpr):
    """Powers of scores by the largest so far, what remains of former ones, and the new largest and total."""
    scores = scores * SCALE
    if CAPPED:  # cap · tanh(score / cap)
        scores = SOFTCAP * (2.0 * tl.sigmoid(scores * (2.0 / SOFTCAP)) - 1.0)
    scores = tl.where(seen, scores * 1.4426950408889634, float("-inf"))
    larger = tl.maximum(largest, tl.max(scores, 1))
    middle = tl.where(larger == float("-inf"), 0.0, larger)  # of rows that have seen nothing yet
    shares = tl.exp2(scores - middle[:, None])
    kept = tl.exp2(largest - middle)
    return shares, kept, larger, total * kept + tl.sum(shares, 1)


@triton.jit
def _weighted(shares, v, out, like, VECTOR: tl.constexpr):
    """out + shares · v, of the type of `like`."""
    if VECTOR:
        out += tl.sum(shares[:, :, None] * v.to(tl.float32)[None, :, :], 1)
    else:
        out = tl.dot(shares.to(like.dtype), v.to(like.dtype), out, input_precision="ieee")
    return out


@triton.jit
def _walk(
    q, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales, value_table,
    cos, sin, root, which, key_base, value_base, first, last, position, end, largest, total, out,
    SCALE, WINDOW, SOFTCAP, TURNED,
    READ_KEYS: tl.constexpr, READ_VALUES: tl.constexpr, KEY_BITS: tl.constexpr, KEY_GROUP: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_GROUP: tl.constexpr, ROPE: tl.constexpr, PAIRS: tl.constexpr,
    UNTURN: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, POSITIONS: tl.constexpr,
    STAGES: tl.constexpr, VECTOR: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Queries [rows, BLOCK] at `position` [rows] over tokens first … last, POSITIONS at a time, which are rows
    key_base + token and value_base + token of the cache. WAITS: a query sees those before `end` [rows].
    """
    for start in tl.range(first, last, POSITIONS, num_stages=STAGES):
        t = start + tl.arange(0, POSITIONS)
        here = t < last
        k = READ_KEYS(key_codes, key_high, key_scales, key_table, which, key_base + start, here,
                      WIDTH, KEY_BITS, KEY_GROUP, BLOCK)  # fmt: skip
        scores = _scores(q, partner, k, t, here, cos, sin, root, TURNED, ROPE, PAIRS, UNTURN, VECTOR)
        age = position[:, None] - t[None, :]
        seen = (age >= 0) & (age < WINDOW)
        if WAITS:
            seen = seen & here[None, :] & (t[None, :] < end[:, None])
        shares, kept, largest, total = _shares(scores, seen, largest, total, SCALE, SOFTCAP, CAPPED)
        v = READ_VALUES(value_codes, value_high, value_scales, value_table, which, value_base + start, here,
                        WIDTH, VALUE_BITS, VALUE_GROUP, BLOCK)  # fmt: skip
        out = _weighted(shares, v, out * kept[:, None], q, VECTOR)
    return largest, total, out


@triton.jit
def _walk_both(
    q, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales, value_table,
    key_near, value_near, own_keys, own_values, cos, sin, root, which, head, key_base, value_base,
    first, middle, tail, last, origin, begin, position, key_end, value_end, key_least, key_most, value_least,
    value_most, largest, total, out,
    HEADS, KEY_FIRST, KEY_RING, VALUE_FIRST, VALUE_RING, SCALE, WINDOW, SOFTCAP, TURNED,
    READ_KEYS: tl.constexpr, READ_VALUES: tl.constexpr, KEY_BITS: tl.constexpr, KEY_GROUP: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_GROUP: tl.constexpr, KEY_WAITS: tl.constexpr, VALUE_WAITS: tl.constexpr,
    ROPE: tl.constexpr, PAIRS: tl.constexpr, UNTURN: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, POSITIONS: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """As `_walk`, over tokens first … middle and tail … last, of which a query sees one side as codes at most: the
    other one, or both, are read as they wait. Which, is a matter of its own position: key_end, value_end [rows],
    between key_least and key_most, value_least and value_most.
    """
    few = tl.cdiv(tl.maximum(middle - first, 0), POSITIONS) * POSITIONS
    for i in tl.range(0, few + tl.maximum(last - tail, 0), POSITIONS, num_stages=1):
        start = tl.where(i < few, first + i, tail + i - few)
        t = start + tl.arange(0, POSITIONS)
        here = t < tl.where(i < few, middle, last)
        age = position[:, None] - t[None, :]
        seen = (age >= 0) & (age < WINDOW)
        coded = here
        if KEY_WAITS > 0:
            coded = here & (t >= KEY_FIRST) & (t < key_most)
        k = READ_KEYS(key_codes, key_high, key_scales, key_table, which, key_base + start, coded,
                      WIDTH, KEY_BITS, KEY_GROUP, BLOCK)  # fmt: skip
        scores = _scores(q, partner, k, t, here, cos, sin, root, TURNED, ROPE, PAIRS, UNTURN, VECTOR)
        key_coded = age == age
        if KEY_WAITS > 0:
            waiting = here & ((t < KEY_FIRST) | (t >= key_least))
            k = near_rows(key_near, own_keys, which, head, t, waiting, origin, begin, HEADS, KEY_FIRST, KEY_RING, True,
                          WIDTH, BLOCK).to(tl.float32)  # fmt: skip
            key_coded = (t[None, :] >= KEY_FIRST) & (t[None, :] < key_end[:, None])
            others = _scores(q, partner, k, t, here, cos, sin, root, TURNED, ROPE, PAIRS, UNTURN, VECTOR)
            scores = tl.where(key_coded, scores, others)
        value_coded = age == age
        if VALUE_WAITS > 0:
            value_coded = (t[None, :] >= VALUE_FIRST) & (t[None, :] < value_end[:, None])
        seen = seen & here[None, :] & ((key_coded & value_coded) == 0)
        shares, kept, largest, total = _shares(scores, seen, largest, total, SCALE, SOFTCAP, CAPPED)
        out *= kept[:, None]
        coded = here
        if VALUE_WAITS > 0:
            coded = here & (t >= VALUE_FIRST) & (t < value_most)
        v = READ_VALUES(value_codes, value_high, value_scales, value_table, which, value_base + start, coded,
                        WIDTH, VALUE_BITS, VALUE_GROUP, BLOCK)  # fmt: skip
        out = _weighted(tl.where(value_coded, shares, 0.0), v, out, q, VECTOR)
        if VALUE_WAITS > 0:
            waiting = here & ((t < VALUE_FIRST) | (t >= value_least))
            v = near_rows(value_near, own_values, which, head, t, waiting, origin, begin, HEADS, VALUE_FIRST,
                          VALUE_RING, True, WIDTH, BLOCK).to(tl.float32)  # fmt: skip
            out = _weighted(tl.where(value_coded, 0.0, shares), v, out, q, VECTOR)
    return largest, total, out


@triton.jit
def _attend(
    queries, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales, value_table,
    key_near, value_near, own_keys, own_values, key_done, value_done, cos, sin, root, s, slot, head, first, last,
    origin, begin, position, low, high_position,
    HEADS, KEY_CODED, VALUE_CODED, KEY_FIRST, KEY_RING, VALUE_FIRST, VALUE_RING, RECENT,
    SCALE, WINDOW, SOFTCAP, TURNED,
    READ_KEYS: tl.constexpr, READ_VALUES: tl.constexpr, KEY_BITS: tl.constexpr, KEY_GROUP: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_GROUP: tl.constexpr, KEY_WAITS: tl.constexpr, VALUE_WAITS: tl.constexpr,
    ROPE: tl.constexpr, PAIRS: tl.constexpr, UNTURN: tl.constexpr, CAPPED: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr, VECTOR: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Queries at `position` [rows], from `low` to `high_position`, over tokens first … last of a head of `slot`.

    Their own keys and values are in the cache, or, where tokens wait, those from `origin` on in the batch.
    """
    ROWS: tl.constexpr = queries.shape[0]
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, BLOCK), tl.float32)
    which = slot * HEADS + head
    key_base, value_base = which * KEY_CODED - KEY_FIRST, which * VALUE_CODED - VALUE_FIRST
    if KEY_WAITS + VALUE_WAITS == 0:
        largest, total, out = _walk(
            queries, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales,
            value_table, cos, sin, root, which, key_base, value_base, first, last, position, position, largest, total,
            out, SCALE, WINDOW, SOFTCAP, TURNED, READ_KEYS, READ_VALUES, KEY_BITS, KEY_GROUP, VALUE_BITS, VALUE_GROUP,
            ROPE, PAIRS, UNTURN, CAPPED, WIDTH, BLOCK, POSITIONS, STAGES, VECTOR, False,
        )  # fmt: skip
    else:
        key_end, value_end = position + 1, position + 1
        key_least, key_most, value_least, value_most = low + 1, high_position + 1, low + 1, high_position + 1
        if KEY_WAITS > 0:
            done = tl.load(key_done + s)
            key_end = end_of(done, position + 1, RECENT, KEY_WAITS)
            key_least = end_of(done, low + 1, RECENT, KEY_WAITS)
            key_most = end_of(done, high_position + 1, RECENT, KEY_WAITS)
        if VALUE_WAITS > 0:
            done = tl.load(value_done + s)
            value_end = end_of(done, position + 1, RECENT, VALUE_WAITS)
            value_least = end_of(done, low + 1, RECENT, VALUE_WAITS)
            value_most = end_of(done, high_position + 1, RECENT, VALUE_WAITS)
        sinks = tl.maximum(KEY_FIRST, VALUE_FIRST)
        begin_coded = tl.maximum(first, sinks)
        end_coded = tl.minimum(last, tl.minimum(key_most, value_most))
        largest, total, out = _walk(
            queries, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales,
            value_table, cos, sin, root, which, key_base, value_base, begin_coded, end_coded, position,
            tl.minimum(key_end, value_end), largest, total, out, SCALE, WINDOW, SOFTCAP, TURNED, READ_KEYS, READ_VALUES,
            KEY_BITS, KEY_GROUP, VALUE_BITS, VALUE_GROUP, ROPE, PAIRS, UNTURN, CAPPED, WIDTH, BLOCK, POSITIONS, STAGES,
            VECTOR, True,
        )  # fmt: skip
        tail = tl.maximum(begin_coded, tl.minimum(key_least, value_least) // ALIGN * ALIGN)
        largest, total, out = _walk_both(
            queries, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales,
            value_table, key_near, value_near, own_keys, own_values, cos, sin, root, which, head, key_base, value_base,
            first, tl.minimum(sinks, last), tail, last, origin, begin, position, key_end, value_end, key_least,
            key_most, value_least, value_most, largest, total, out, HEADS, KEY_FIRST, KEY_RING, VALUE_FIRST, VALUE_RING,
            SCALE, WINDOW, SOFTCAP, TURNED, READ_KEYS, READ_VALUES, KEY_BITS, KEY_GROUP, VALUE_BITS, VALUE_GROUP,
            KEY_WAITS, VALUE_WAITS, ROPE, PAIRS, UNTURN, CAPPED, WIDTH, BLOCK, POSITIONS, VECTOR,
        )  # fmt: skip
    return largest, total, out


@triton.jit
def _partners(q, place, here, TURNED, ROPE: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """What each query's values turn with, [rows, BLOCK]: of a pair (a, b) it is (b, −a)."""
    d = tl.arange(0, BLOCK)
    found = tl.zeros((here.shape[0], BLOCK), q.dtype.element_ty)
    if ROPE:
        if PAIRS:
            other, first = d ^ 1, d % 2 == 0
        else:
            other, first = tl.where(d < TURNED, d + TURNED, d - TURNED), d < TURNED
        there = here[:, None] & (d[None, :] < 2 * TURNED)
        found = tl.load(q + place[:, None] + other[None, :], mask=there, other=0)
        found = tl.where(first[None, :], found, -found)
    return found


@triton.jit
def attend_prompt(
    q, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales, value_table,
    key_near, value_near, own_keys, own_values, key_done, value_done, cos, sin, root,
    starts, sequences, positions, out,
    TOKENS, Q_STRIDE, Q_HEAD, OUT_STRIDE, OUT_HEAD, SEQUENCES, KEY_HEADS, CAPACITY, KEY_CODED, VALUE_CODED,
    KEY_FIRST, KEY_RING, VALUE_FIRST, VALUE_RING, RECENT, TURNED, SCALE, WINDOW, SOFTCAP,
    READ_KEYS: tl.constexpr, READ_VALUES: tl.constexpr, KEY_BITS: tl.constexpr, KEY_GROUP: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_GROUP: tl.constexpr, KEY_WAITS: tl.constexpr, VALUE_WAITS: tl.constexpr,
    ROPE: tl.constexpr, PAIRS: tl.constexpr, UNTURN: tl.constexpr, CAPPED: tl.constexpr, SHARE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr,
    VECTOR: tl.constexpr, ALIGN: tl.constexpr,
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
        partner = _partners(q, token * Q_STRIDE + head * Q_HEAD, r < count, TURNED, ROPE, PAIRS, BLOCK)
        slot = tl.load(sequences + s).to(tl.int64)
        there = (slot >= 0) & (slot < SEQUENCES) & (origin >= 0)
        first = tl.maximum(origin + before + 1 - WINDOW, 0) // ALIGN * ALIGN
        last = tl.where(there, tl.minimum(origin + tl.minimum(before + ROWS, count), CAPACITY), 0)
        _, total, found = _attend(
            queries, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales,
            value_table, key_near, value_near, own_keys, own_values, key_done, value_done, cos, sin, root, s, slot,
            head // SHARE, first, last, origin, begin, position, origin + before,
            origin + tl.minimum(before + ROWS, count) - 1, KEY_HEADS, KEY_CODED, VALUE_CODED, KEY_FIRST,
            KEY_RING, VALUE_FIRST, VALUE_RING, RECENT, SCALE, WINDOW, SOFTCAP, TURNED, READ_KEYS, READ_VALUES, KEY_BITS,
            KEY_GROUP, VALUE_BITS, VALUE_GROUP, KEY_WAITS, VALUE_WAITS, ROPE, PAIRS, UNTURN, CAPPED, WIDTH, BLOCK,
            POSITIONS, STAGES, VECTOR, ALIGN,
        )  # fmt: skip
        found = found / total[:, None]  # 0 / 0 of what has seen nothing
        place = out + token[:, None] * OUT_STRIDE + head * OUT_HEAD + d[None, :]
        tl.store(place, found.to(out.dtype.element_ty), mask=here)


@triton.jit
def attend_token(
    q, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales, value_table,
    key_near, value_near, own_keys, own_values, key_done, value_done, cos, sin, root,
    sequences, positions, out, sizes,
    Q_STRIDE, Q_HEAD, OUT_STRIDE, OUT_HEAD, SEQUENCES, KEY_HEADS, CAPACITY, KEY_CODED, VALUE_CODED,
    KEY_FIRST, KEY_RING, VALUE_FIRST, VALUE_RING, RECENT, TURNED, SCALE, WINDOW, SOFTCAP,
    READ_KEYS: tl.constexpr, READ_VALUES: tl.constexpr, KEY_BITS: tl.constexpr, KEY_GROUP: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_GROUP: tl.constexpr, KEY_WAITS: tl.constexpr, VALUE_WAITS: tl.constexpr,
    ROPE: tl.constexpr, PAIRS: tl.constexpr, UNTURN: tl.constexpr, CAPPED: tl.constexpr, SHARE: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, POSITIONS: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr, VECTOR: tl.constexpr, ALIGN: tl.constexpr,
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
    partner = _partners(q, m * Q_STRIDE + head * Q_HEAD, row < SHARE, TURNED, ROPE, PAIRS, BLOCK)
    at = tl.load(positions + m)
    slot = tl.load(sequences + m).to(tl.int64)
    there = (slot >= 0) & (slot < SEQUENCES) & (at >= 0) & (at < CAPACITY)
    oldest = tl.maximum(at + 1 - WINDOW, 0) // ALIGN * ALIGN
    share = tl.cdiv(tl.cdiv(at + 1 - oldest, SPLIT), POSITIONS) * POSITIONS
    first = oldest + part * share
    last = tl.where(there, tl.minimum(first + share, at + 1), 0)
    largest, total, found = _attend(
        queries, partner, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales,
        value_table, key_near, value_near, own_keys, own_values, key_done, value_done, cos, sin, root, m, slot,
        key_head, first, last, at, m, at + row * 0, at, at, KEY_HEADS, KEY_CODED, VALUE_CODED, KEY_FIRST,
        KEY_RING, VALUE_FIRST, VALUE_RING, RECENT, SCALE, WINDOW, SOFTCAP, TURNED, READ_KEYS, READ_VALUES, KEY_BITS,
        KEY_GROUP, VALUE_BITS, VALUE_GROUP, KEY_WAITS, VALUE_WAITS, ROPE, PAIRS, UNTURN, CAPPED, WIDTH, BLOCK,
        POSITIONS, STAGES, VECTOR, ALIGN,
    )  # fmt: skip
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
