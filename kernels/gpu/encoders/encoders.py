"""Encoders that round to nearest, with the very bits of `kernels.reference`. For Triton only; `encode` launches it,
without fusing products and sums.

Steps and their order are those of the reference modules: groups, float8, fp4, legacy and solve.
"""

import triton
import triton.language as tl

from kernels.gpu.rounding import e2m1_code, e4m3_code, e4m3_value, e5m2_code, inverse_power, magnitude, nearest

LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _over(a, DIVISOR: tl.constexpr):
    """a / DIVISOR as IEEE 754 has it."""
    return tl.div_rn(a, tl.full(a.shape, DIVISOR, tl.float32))


@triton.jit
def _inverse(a):
    """1 / a, 0 where a is 0, never infinite."""
    found = tl.div_rn(tl.full(a.shape, 1.0, tl.float32), tl.where(a == 0, 1.0, a))
    return tl.where(a == 0, 0.0, tl.minimum(tl.maximum(found, -LARGEST), LARGEST))


@triton.jit
def _clamp(a, low, high):
    return tl.minimum(tl.maximum(a, low), high)


@triton.jit
def _stored_scale(scale, largest, SCALE: tl.constexpr):
    """As a reader of the type sees it: finite, positive; 1 for a group of zeros."""
    stored = tl.minimum(scale, LARGEST)
    least = 1  # float32's smallest, as bits: Triton takes a literal so small for a float64
    if SCALE == "F16":
        stored = tl.minimum(stored.to(tl.float16).to(tl.float32), 65504.0)
        least = 0x33800000
    elif SCALE == "BF16":
        word = stored.to(tl.int32, bitcast=True)
        word = ((word + 0x7FFF + ((word >> 16) & 1)) >> 16) << 16
        stored = tl.minimum(word.to(tl.float32, bitcast=True), 3.3895313892515355e38)
        least = 0x00010000
    stored = tl.where(stored == 0, tl.full(stored.shape, least, tl.int32).to(tl.float32, bitcast=True), stored)
    return tl.where(largest == 0, 1.0, stored)


@triton.jit
def encode_groups(
    x,
    codes,
    scales,
    zeros,
    GROUPS,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x [GROUPS, GROUP] → codes uint8 alike, scales float32 and zeros uint8 [GROUPS]; ROWS groups a program."""
    HALF: tl.constexpr = 1 << (BITS - 1)
    TOP: tl.constexpr = 2 * HALF - 1
    g = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, BLOCK)
    here = (g[:, None] < GROUPS) & (i[None, :] < GROUP)
    place = g.to(tl.int64)[:, None] * GROUP + i[None, :]
    v = tl.load(x + place, mask=here, other=0)  # ranges hold 0
    low, high = tl.minimum(tl.min(v, 1), 0.0), tl.maximum(tl.max(v, 1), 0.0)
    largest = tl.maximum(-low, high)
    if SYMMETRIC:
        scale = _stored_scale(_over(largest, 0.5 * TOP), largest, SCALE)
        zero = scale * 0.0
    else:
        scale = _stored_scale(_over(high - low, 1.0 * TOP), largest, SCALE)
        zero = nearest(_clamp(-HALF - tl.div_rn(low, scale), -1.0 * HALF, HALF - 1.0))
    scaled = tl.div_rn(v, tl.broadcast_to(scale[:, None], [ROWS, BLOCK])) + zero[:, None]
    code = nearest(_clamp(scaled, -1.0 * HALF, HALF - 1.0)) + HALF
    tl.store(codes + place, code.to(tl.int32).to(tl.uint8), mask=here)
    tl.store(scales + g, scale, mask=g < GROUPS)
    tl.store(zeros + g, (zero + HALF).to(tl.int32).to(tl.uint8), mask=g < GROUPS)


@triton.jit
def encode_float8(
    x,
    scales,
    codes,
    R,
    K,
    SCALES,
    A,
    B,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x [R, K] / the scale of its tile of A × B (SCALES in a row of tiles) → codes uint8 [R, K]."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (r[:, None] < R) & (k[None, :] < K)
    place = r.to(tl.int64)[:, None] * K + k[None, :]
    v = tl.load(x + place, mask=here, other=0)
    scale = tl.load(scales + (r // A).to(tl.int64)[:, None] * SCALES + (k // B)[None, :], mask=here, other=1.0)
    v = tl.div_rn(v, scale)
    if FORMAT == "F8_E4M3":
        code = e4m3_code(v)
    else:
        code = e5m2_code(_clamp(v, -57344.0, 57344.0))
    tl.store(codes + place, code.to(tl.uint8), mask=here)


@triton.jit
def encode_e2m1(
    x,
    scales,
    codes,
    GROUPS,
    TENSOR,
    RULE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """x [GROUPS, GROUP] → E2M1 codes uint8 alike and scale bytes uint8 [GROUPS].

    RULE: 'ggml' is ggml's MXFP4, ties down; 'given' takes the E8M0 scales that are there; 'nvfp4' E4M3's of amax / 6.
    """
    g = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = g.to(tl.int64)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = g < GROUPS
    v = tl.load(x + place, mask=inside[:, None], other=0)
    if RULE == "given":
        scale = tl.load(scales + g, mask=inside, other=127).to(tl.int32)
        code = e2m1_code(v * inverse_power(scale)[:, None])
    elif RULE == "ggml":
        largest = tl.max(magnitude(v), 1).to(tl.float32, bitcast=True)
        exponent = _clamp(largest, 4.70197740328915e-38, 8.507059173023462e37).to(tl.int32, bitcast=True) & 0x7F800000
        huge = largest >= 1.7014118346046923e38
        y = v * (0x7F000000 - exponent).to(tl.float32, bitcast=True)[:, None] * tl.where(huge, 0.5, 1.0)[:, None]
        a = tl.abs(y * 4.0)
        code = (a > 0.25).to(tl.int32) + (a > 0.75).to(tl.int32) + (a > 1.25).to(tl.int32) + (a > 1.75).to(tl.int32)
        code += (a > 2.5).to(tl.int32) + (a > 3.5).to(tl.int32) + (a > 5.0).to(tl.int32)
        code = tl.where((v < 0) & (code > 0), code | 8, code)
        scale = tl.where(largest == 0, 0, (exponent >> 23) - tl.where(huge, 1, 2))
    else:
        y = _clamp(tl.div_rn(v, tl.full(v.shape, 1.0, tl.float32) * TENSOR), -1e6, 1e6)
        scale = e4m3_code(_over(tl.max(tl.abs(y), 1), 6.0))
        code = e2m1_code(y * _inverse(e4m3_value(scale))[:, None])
    tl.store(codes + place, code.to(tl.uint8), mask=inside[:, None])
    if RULE != "given":
        tl.store(scales + g, scale.to(tl.uint8), mask=inside)


@triton.jit
def _store_half(place, scale, mask):
    """A float16 at an address of any parity."""
    bits = scale.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    tl.store(place, (bits & 255).to(tl.uint8), mask=mask)
    tl.store(place + 1, ((bits >> 8) & 255).to(tl.uint8), mask=mask)


@triton.jit
def encode_q8_0(x, blocks, BLOCKS, ROWS: tl.constexpr):
    """x [BLOCKS, 32] → uint8 [BLOCKS, 34]: a float16 scale and int8 codes, ties away from zero."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, 32)
    inside = b < BLOCKS
    at = b.to(tl.int64)
    v = tl.load(x + at[:, None] * 32 + i[None, :], mask=inside[:, None], other=0)
    scale = _over(tl.max(tl.abs(v), 1), 127.0)
    scaled = v * _inverse(scale)[:, None]
    size = tl.abs(scaled)
    near = nearest(size)
    near = tl.where(size - near == 0.5, near + 1.0, near).to(tl.int32)
    code = tl.where(scaled < 0, -near, near)
    tl.store(blocks + at[:, None] * 34 + 2 + i[None, :], (code & 255).to(tl.uint8), mask=inside[:, None])
    _store_half(blocks + at * 34, scale, inside)


@triton.jit
def encode_q4_0(x, blocks, BLOCKS, ROWS: tl.constexpr):
    """x [BLOCKS, 32] → uint8 [BLOCKS, 18]: the value of largest magnitude, of equals the first, becomes −8."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, 16)
    inside = b < BLOCKS
    at = b.to(tl.int64)
    first = tl.load(x + at[:, None] * 32 + i[None, :], mask=inside[:, None], other=0)
    second = tl.load(x + at[:, None] * 32 + 16 + i[None, :], mask=inside[:, None], other=0)
    largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
    in_first = tl.min(tl.where(tl.abs(first) == largest[:, None], i[None, :], 32), 1)
    in_second = tl.min(tl.where(tl.abs(second) == largest[:, None], i[None, :] + 16, 32), 1)
    chosen = tl.minimum(in_first, in_second)[:, None]
    extreme = tl.sum(tl.where(i[None, :] == chosen, first, 0.0), 1)
    extreme += tl.sum(tl.where(i[None, :] + 16 == chosen, second, 0.0), 1)
    scale = _over(extreme, -8.0)
    inverse = _inverse(scale)[:, None]
    low = tl.minimum((first * inverse + 8.5).to(tl.int32), 15)
    high = tl.minimum((second * inverse + 8.5).to(tl.int32), 15)
    packed = (low & 15) | ((high & 15) << 4)
    tl.store(blocks + at[:, None] * 18 + 2 + i[None, :], packed.to(tl.uint8), mask=inside[:, None])
    _store_half(blocks + at * 18, scale, inside)


@triton.jit
def feedback_block(
    w, target, matrix, steps, offsets, group, levels, middles, index, errors,
    START, R, K, GROUPS,
    COUNT: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """GPTQ's columns START … START + BLOCK: each in turn is rounded, and its error moves the targets of those after it.

    matrix [K, K] is transposed: row j is what column j does to all others. COUNT: levels. errors: float32 [R, BLOCK].
    """
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b = tl.arange(0, BLOCK)
    inside = r < R
    row = r.to(tl.int64)
    here = inside[:, None] & (START + b[None, :] < K)
    goal = tl.load(target + row[:, None] * K + START + b[None, :], mask=here, other=0)
    lowest = tl.load(levels)
    for j in tl.range(0, tl.minimum(K - START, BLOCK)):
        column = START + j
        g = tl.load(group + column)
        step = tl.load(steps + row * GROUPS + g, mask=inside, other=0)
        offset = tl.load(offsets + row * GROUPS + g, mask=inside, other=0)
        t = (tl.sum(tl.where(b[None, :] == j, goal, 0.0), 1) - offset) * _inverse(step)
        if EVEN:
            found = nearest(_clamp(t - lowest, 0.0, COUNT - 1.0)).to(tl.int32)
        else:
            found = tl.zeros((ROWS,), tl.int32)
            for at in tl.range(0, COUNT - 1):
                found += (t > tl.load(middles + at)).to(tl.int32)
        value = step * tl.load(levels + found) + offset
        error = tl.load(w + row * K + column, mask=inside, other=0) - value
        tl.store(index + row * K + column, found.to(tl.uint8), mask=inside)
        tl.store(errors + row * BLOCK + j, error, mask=inside)
        moved = tl.load(matrix + column.to(tl.int64) * K + START + b, mask=START + b < K, other=0)
        goal = tl.where(b[None, :] > j, goal + error[:, None] * moved[None, :], goal)


@triton.jit
def feedback_update(
    target,
    matrix,
    errors,
    START,
    R,
    K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What the block at START does to the targets of all columns after it, one of its columns after another."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = START + BLOCK + tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = r.to(tl.int64)
    here = (r[:, None] < R) & (k[None, :] < K)
    goal = tl.load(target + row[:, None] * K + k[None, :], mask=here, other=0)
    for j in tl.range(0, BLOCK):
        error = tl.load(errors + row * BLOCK + j, mask=r < R, other=0)
        moved = tl.load(matrix + (START + j).to(tl.int64) * K + k, mask=k < K, other=0)
        goal += error[:, None] * moved[None, :]
    tl.store(target + row[:, None] * K + k[None, :], goal, mask=here)
