"""How keys and values of a batch come into the cache. For Triton only; `grow` launches it.

Where no token waits, rows are written when they come (`store_cache`). Else what is old enough becomes codes first
(`close_tokens`), the batch attends, and then its own last rows are kept beside the codes (`keep_tokens`), in float16:
the first ones for ever, all others in a ring, by their position.
"""

import triton
import triton.language as tl


@triton.jit
def near_rows(
    near, own, which, head, t, here, origin, begin,
    HEADS, FIRST, RING, OWN: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float16 [tokens, BLOCK] of tokens t that are no codes, past WIDTH the last value: before `origin` as they are
    kept, and with OWN from there on in the batch, whose row `begin` is token `origin`; own [M, heads, WIDTH].
    """
    d = tl.arange(0, BLOCK)
    if WIDTH < BLOCK:
        d = tl.minimum(d, WIDTH - 1)
    place = tl.where(t < FIRST, t, FIRST + t % tl.maximum(RING, 1))
    kept = here & (t < origin)
    row = which.to(tl.int64) * (FIRST + RING) + place
    found = tl.load(near + row[:, None] * WIDTH + d[None, :], mask=kept[:, None], other=0)
    if OWN:
        row = (begin + t - origin).to(tl.int64) * HEADS + head
        mine = here & (t >= origin)
        found += tl.load(own + row[:, None] * WIDTH + d[None, :], mask=mine[:, None], other=0)
    return found


@triton.jit
def end_of(done, count, WINDOW, WAITS: tl.constexpr):
    """Up to where tokens are codes when there are `count`: groups of WAITS that are older than the window."""
    return tl.maximum(done, tl.maximum(count - WINDOW, 0) // WAITS * WAITS)


@triton.jit
def store_cache(
    k, v, key_codes, key_high, key_scales, key_table, value_codes, value_high, value_scales, value_table,
    sequences, positions, K_STRIDE, K_HEAD, V_STRIDE, V_HEAD, KEY_HEADS, CAPACITY, SEQUENCES,
    WRITE_KEYS: tl.constexpr, WRITE_VALUES: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    KEY_BITS: tl.constexpr, KEY_GROUP: tl.constexpr, VALUE_BITS: tl.constexpr, VALUE_GROUP: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """k, v [M, key heads, WIDTH] into the cache; what it has no place for is left out. KEYS, VALUES: which."""
    m = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    d = tl.arange(0, BLOCK)
    if WIDTH < BLOCK:
        d = tl.minimum(d, WIDTH - 1)
    slot, position = tl.load(sequences + m), tl.load(positions + m)
    heads = tl.where(slot >= 0, tl.where(slot < SEQUENCES, KEY_HEADS, 0), 0)
    heads = tl.where(position >= 0, tl.where(position < CAPACITY, heads, 0), 0)
    there = head < heads
    which = slot.to(tl.int64) * KEY_HEADS + head
    row = which * CAPACITY + position
    if KEYS:
        one = tl.load(k + m * K_STRIDE + head[:, None] * K_HEAD + d[None, :], mask=there[:, None], other=0)
        WRITE_KEYS(key_codes, key_high, key_scales, key_table, which, row, there, one.to(tl.float32),
                   WIDTH, KEY_BITS, KEY_GROUP, BLOCK)  # fmt: skip
    if VALUES:
        one = tl.load(v + m * V_STRIDE + head[:, None] * V_HEAD + d[None, :], mask=there[:, None], other=0)
        WRITE_VALUES(value_codes, value_high, value_scales, value_table, which, row, there, one.to(tl.float32),
                     WIDTH, VALUE_BITS, VALUE_GROUP, BLOCK)  # fmt: skip


@triton.jit
def close_tokens(
    own, near, codes, high, scales, table, starts, sequences, positions, done,
    SEQUENCES, CAPACITY, HEADS, FIRST, RING, CODED, WINDOW,
    WRITE: tl.constexpr, WAITS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Tokens of one side that are old enough once all of the batch are there become codes; ROWS a program.

    Runs as of `softmax.attend_prompt`; done int32 [S]: up to where a run's sequence is codes already. CODED: tokens
    that a head has codes of, from token FIRST on.
    """
    s, head = tl.program_id(2), tl.program_id(1)
    begin, slot, origin = tl.load(starts + s), tl.load(sequences + s), tl.load(positions + s)
    count = origin + tl.load(starts + s + 1) - begin
    there = (slot >= 0) & (slot < SEQUENCES) & (origin >= 0) & (count <= CAPACITY)
    before = tl.load(done + s)
    last = tl.where(there, end_of(before, count, WINDOW, WAITS), 0)
    t = tl.maximum(before, FIRST) + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = (t < last) & (t < FIRST + CODED)
    which = slot.to(tl.int64) * HEADS + head
    x = near_rows(near, own, which, head, t, here, origin, begin, HEADS, FIRST, RING, True, WIDTH, BLOCK)
    row = which * CODED + t - FIRST
    WRITE(codes, high, scales, table, which + t * 0, row, here, x.to(tl.float32), WIDTH, BITS, GROUP, BLOCK)


@triton.jit
def keep_tokens(
    own, near, sequences, positions, ends, SEQUENCES, CAPACITY, HEADS, FIRST, RING,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """own [M, heads, WIDTH]: rows of the first tokens, and of those that the ring has when there are `ends` int32 [M]
    tokens of their sequence, to where they wait.
    """
    m = tl.program_id(0)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    slot, t = tl.load(sequences + m), tl.load(positions + m)
    kept = (t < FIRST) | (t >= tl.load(ends + m) - RING)
    there = (slot >= 0) & (slot < SEQUENCES) & (t >= 0) & (t < CAPACITY) & kept
    here = (head < tl.where(there, HEADS, 0))[:, None] & (d[None, :] < WIDTH)
    source = own + (m.to(tl.int64) * HEADS + head)[:, None] * WIDTH + d[None, :]
    row = (slot.to(tl.int64) * HEADS + head) * (FIRST + RING) + tl.where(t < FIRST, t, FIRST + t % tl.maximum(RING, 1))
    tl.store(near + row[:, None] * WIDTH + d[None, :], tl.load(source, mask=here, other=0), mask=here)


@triton.jit
def reopen_tokens(
    near, codes, high, scales, table, cut, HEADS, FIRST, RING, CODED,
    READ: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """cut int32 [3]: a slot, and a range of its tokens from a multiple of ROWS on, which wait again."""
    slot, begin, end = tl.load(cut), tl.load(cut + 1), tl.load(cut + 2)
    which = slot.to(tl.int64) * HEADS + tl.program_id(0)
    t, d = begin + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    here = t < end
    x = READ(codes, high, scales, table, which, which * CODED + begin - FIRST, here, WIDTH, BITS, GROUP, BLOCK)
    row = which * (FIRST + RING) + FIRST + t % tl.maximum(RING, 1)
    here = here[:, None] & (d[None, :] < WIDTH)
    tl.store(near + row[:, None] * WIDTH + d[None, :], x.to(tl.float16), mask=here)
