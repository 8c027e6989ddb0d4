"""How keys and values become a cache's codes, with the very bits of `kernels.reference.kv`. For Triton only; `growth`
calls them, and is launched without fusing products and sums.

A writer takes rows float32 [rows, BLOCK], past WIDTH filled up with the row's last value, and puts those that are
`here` into `row` (int64 [rows]) of the planes that `caches` describes. A group with a value that is not finite gets the
codes of zeros and a scale that is NaN.
"""

import triton
import triton.language as tl

from kernels.gpu.attention.caches import UNIT, stored_values
from kernels.gpu.rounding import e4m3_code, e5m2_code, magnitude, nearest

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
def _finite(x, AXIS: tl.constexpr):
    """Whether all values along the axis are; int32."""
    return tl.min((magnitude(x) < 0x7F800000).to(tl.int32), AXIS)


@triton.jit
def _half_or_nan(scale, finite):
    """float16 of the scale, 0x7E00 where a value was not finite."""
    return tl.where(finite != 0, scale.to(tl.float16).to(tl.int16, bitcast=True), 0x7E00).to(tl.int16)


@triton.jit
def _put(data, row, here, code, STORED: tl.constexpr, BITS: tl.constexpr):
    """Codes int32 [rows, BLOCK] of 1, 2, 4 or 8 bits as bytes of rows of STORED codes."""
    ROWS: tl.constexpr = code.shape[0]
    BLOCK: tl.constexpr = code.shape[1]
    PER: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = (STORED + PER - 1) // PER
    code = tl.where(tl.arange(0, BLOCK)[None, :] < STORED, code & ((1 << BITS) - 1), 0)
    if BITS < 2:
        low, high = tl.split(tl.reshape(code, [ROWS, BLOCK // 2, 2]))
        code = low | (high << 1)
    if BITS < 4:
        low, high = tl.split(tl.reshape(code, [ROWS, 2 * BLOCK // PER, 2]))
        code = low | (high << 2)
    if BITS < 8:
        low, high = tl.split(tl.reshape(code, [ROWS, BLOCK // PER, 2]))
        code = low | (high << 4)
    b = tl.arange(0, BLOCK // PER)
    here = here[:, None] & (b[None, :] < BYTES)
    tl.store(data + row[:, None] * BYTES + b[None, :], code.to(tl.uint8), mask=here)


@triton.jit
def _put_codes(codes, high, row, here, code, STORED: tl.constexpr, BITS: tl.constexpr):
    LOW: tl.constexpr = BITS - 1 if BITS == 3 or BITS == 5 else BITS
    _put(codes, row, here, code, STORED, LOW)
    if LOW < BITS:
        _put(high, row, here, code >> LOW, STORED, 1)


@triton.jit
def _put_scales(
    scales, row, here, bits, STORED: tl.constexpr, GROUP: tl.constexpr, PLANES: tl.constexpr, PLANE: tl.constexpr
):
    """float16's bits int16 [rows, groups]."""
    COUNT: tl.constexpr = STORED // GROUP
    g = tl.arange(0, bits.shape[1])
    place = scales + row[:, None] * (PLANES * COUNT) + PLANE * COUNT + g[None, :]
    tl.store(place, bits.to(tl.float16, bitcast=True), mask=here[:, None] & (g[None, :] < COUNT))


@triton.jit
def _groups(x, GROUP: tl.constexpr):
    """[rows, groups, GROUP] with zeros for groups that are not finite, and which are; int32 [rows, groups]."""
    v = tl.reshape(x, [x.shape[0], x.shape[1] // GROUP, GROUP])
    finite = _finite(v, 2)
    return tl.where(finite[:, :, None] != 0, v, 0.0), finite


@triton.jit
def _extreme(v, GROUP: tl.constexpr):
    """The value of largest magnitude of each group, of equals the first."""
    i = tl.arange(0, GROUP)[None, None, :]
    size = tl.abs(v)
    at = tl.min(tl.where(size == tl.max(size, 2)[:, :, None], i, GROUP), 2)
    return tl.sum(tl.where(i == at[:, :, None], v, 0.0), 2)


@triton.jit
def write_floats(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)
    place = codes + row[:, None] * WIDTH + d[None, :]
    tl.store(place, x.to(codes.dtype.element_ty), mask=here[:, None] & (d[None, :] < WIDTH))


@triton.jit
def write_signed(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """INT8, INT4: the largest magnitude of the row at the largest code; of zeros, the scale is 1."""
    MOST: tl.constexpr = 1.0 * ((1 << (BITS - 1)) - 1)
    finite = _finite(x, 1)
    x = tl.where(finite[:, None] != 0, x, 0.0)
    half = _over(tl.max(tl.abs(x), 1), MOST).to(tl.float16)
    scale = tl.where(half == 0, 1.0, half.to(tl.float32))
    code = nearest(_clamp(tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)), -MOST, MOST)).to(tl.int32)
    _put_codes(codes, high, row, here, code, WIDTH, BITS)
    tl.store(scales + row, _half_or_nan(scale, finite).to(tl.float16, bitcast=True), mask=here)


@triton.jit
def write_signed_groups(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """INT8-g64: each group as `write_signed` has the row."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    MOST: tl.constexpr = 1.0 * ((1 << (BITS - 1)) - 1)
    v, finite = _groups(x, GROUP)
    half = _over(tl.max(tl.abs(v), 2), MOST).to(tl.float16)
    scale = tl.where(half == 0, 1.0, half.to(tl.float32))
    code = nearest(_clamp(tl.div_rn(v, tl.broadcast_to(scale[:, :, None], v.shape)), -MOST, MOST)).to(tl.int32)
    _put_codes(codes, high, row, here, tl.reshape(code, x.shape), STORED, BITS)
    _put_scales(scales, row, here, _half_or_nan(scale, finite), STORED, GROUP, 1, 0)


@triton.jit
def _narrower(v, extreme, least, best, code, SHARE: tl.constexpr):
    """What was best, or this share of the scale that puts the extreme at -8, where the squared error is less."""
    half = (extreme * (SHARE / -8)).to(tl.float16)
    unit = tl.broadcast_to(half.to(tl.float32)[:, :, None], v.shape)
    tried = _clamp(nearest(tl.div_rn(v, tl.where(unit == 0, 1.0, unit))), -8.0, 7.0)
    tried = tl.where(unit == 0, 0.0, tried)
    missed = (tried * unit - v).to(tl.float64)
    error = tl.sum(missed * missed, 2)
    better = error < least
    best = tl.where(better, half.to(tl.int16, bitcast=True), best)
    return tl.where(better, error, least), best, tl.where(better[:, :, None], tried.to(tl.int32), code)


@triton.jit
def write_searched(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """INT4-g64, INT4-g32: of four scales the one with the least squared error, summed in float64 in another order than
    the reference's, which tells only sums apart that differ by less than 10^-15 of themselves."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    v, finite = _groups(x, GROUP)
    extreme = _extreme(v, GROUP) + 0.0
    least = tl.full(extreme.shape, float("inf"), tl.float64)
    best = tl.full(extreme.shape, 0x7E00, tl.int16)
    code = tl.zeros(v.shape, tl.int32)
    least, best, code = _narrower(v, extreme, least, best, code, 1.0)  # `NARROWER` of the reference
    least, best, code = _narrower(v, extreme, least, best, code, 0.95)
    least, best, code = _narrower(v, extreme, least, best, code, 0.9)
    least, best, code = _narrower(v, extreme, least, best, code, 0.85)
    _put_codes(codes, high, row, here, tl.reshape(code, x.shape), STORED, BITS)
    _put_scales(scales, row, here, tl.where(finite != 0, best, 0x7E00).to(tl.int16), STORED, GROUP, 1, 0)


@triton.jit
def write_q8_0(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ties away from zero."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    v, finite = _groups(x, GROUP)
    scale = _over(tl.max(tl.abs(v), 2), 127.0)
    scaled = v * _inverse(scale)[:, :, None]
    size = tl.abs(scaled)
    near = nearest(size)
    near = tl.where(size - near == 0.5, near + 1.0, near).to(tl.int32)
    code = tl.reshape(tl.where(scaled < 0, -near, near), x.shape)
    _put_codes(codes, high, row, here, code, STORED, BITS)
    _put_scales(scales, row, here, _half_or_nan(scale, finite), STORED, GROUP, 1, 0)


@triton.jit
def write_centred(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Q4_0, Q5_0: the value of largest magnitude, of equals the first, becomes the lowest code."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    HALF: tl.constexpr = 1 << (BITS - 1)
    v, finite = _groups(x, GROUP)
    scale = _over(_extreme(v, GROUP), -1.0 * HALF)
    raised = v * _inverse(scale)[:, :, None] + (HALF + 0.5)
    code = tl.reshape(tl.minimum(raised.to(tl.int32), 2 * HALF - 1), x.shape)
    _put_codes(codes, high, row, here, code, STORED, BITS)
    _put_scales(scales, row, here, _half_or_nan(scale, finite), STORED, GROUP, 1, 0)


@triton.jit
def _last_of(v, value, GROUP: tl.constexpr):
    """Of the values that equal `value`, the last: zeros have signs."""
    i = tl.arange(0, GROUP)[None, None, :]
    at = tl.max(tl.where(v == value[:, :, None], i, -1), 2)
    bits = tl.sum(tl.where(i == at[:, :, None], v.to(tl.int32, bitcast=True), 0), 2)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def write_ggml_affine(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Q4_1, Q5_1: codes are found before scale and minimum are rounded."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    TOP: tl.constexpr = (1 << BITS) - 1
    v, finite = _groups(x, GROUP)
    low, most = tl.min(v, 2), tl.max(v, 2)
    low = tl.where(low == 0, _last_of(v, low, GROUP), low)
    width = tl.where(most == low, 0.0, most - low)
    scale = _over(width, 1.0 * TOP)
    raised = (v - low[:, :, None]) * _inverse(scale)[:, :, None] + 0.5
    code = tl.reshape(tl.minimum(raised.to(tl.int32), TOP), x.shape)
    _put_codes(codes, high, row, here, code, STORED, BITS)
    _put_scales(scales, row, here, _half_or_nan(scale, finite), STORED, GROUP, 2, 0)
    _put_scales(scales, row, here, low.to(tl.float16).to(tl.int16, bitcast=True), STORED, GROUP, 2, 1)


@triton.jit
def _line(low, most, TOP: tl.constexpr):
    """Scale and minimum as float16 of the lowest and the highest value."""
    low = low.to(tl.float16)
    return _over(most - low.to(tl.float32), 1.0 * TOP).to(tl.float16), low


@triton.jit
def _on_line(v, scale, low, TOP: tl.constexpr):
    """Codes int32 of values, with a scale and a minimum for each."""
    step = scale.to(tl.float32)
    scaled = tl.div_rn(v - low.to(tl.float32), tl.broadcast_to(tl.where(step > 0, step, 1.0), v.shape))
    return nearest(_clamp(tl.where(step > 0, scaled, 0.0), 0.0, 1.0 * TOP)).to(tl.int32)


@triton.jit
def write_affine(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """U8 … U2 along the head: codes by the rounded scale and minimum."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    TOP: tl.constexpr = (1 << BITS) - 1
    v, finite = _groups(x, GROUP)
    scale, low = _line(tl.min(v, 2), tl.max(v, 2), TOP)
    code = tl.reshape(_on_line(v, scale[:, :, None], low[:, :, None], TOP), x.shape)
    _put_codes(codes, high, row, here, code, STORED, BITS)
    _put_scales(scales, row, here, _half_or_nan(scale.to(tl.float32), finite), STORED, GROUP, 2, 0)
    _put_scales(scales, row, here, low.to(tl.int16, bitcast=True), STORED, GROUP, 2, 1)


@triton.jit
def write_channels(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """U4, U2 along the tokens: UNIT rows that follow one another, from a multiple of UNIT on; all or none are here."""
    TOP: tl.constexpr = (1 << BITS) - 1
    finite = _finite(x, 0)
    x = tl.where(finite[None, :] != 0, x, 0.0)
    scale, low = _line(tl.min(x, 0), tl.max(x, 0), TOP)
    _put_codes(codes, high, row, here, _on_line(x, scale[None, :], low[None, :], TOP), WIDTH, BITS)
    d = tl.arange(0, BLOCK)
    place = scales + tl.min(row, 0) // UNIT * (2 * WIDTH) + d
    there = d < tl.min(here.to(tl.int32), 0) * WIDTH
    tl.store(place, _half_or_nan(scale.to(tl.float32), finite).to(tl.float16, bitcast=True), mask=there)
    tl.store(place + WIDTH, low, mask=there)


@triton.jit
def write_e4m3(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.load(scales + which, mask=here, other=1.0)
    code = e4m3_code(tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)))
    _put(codes, row, here, code, WIDTH, 8)


@triton.jit
def write_e5m2(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    scale = tl.load(scales + which, mask=here, other=1.0)
    v = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    _put(codes, row, here, e5m2_code(tl.where(v == v, _clamp(v, -57344.0, 57344.0), v)), WIDTH, 8)


@triton.jit
def _nearest_level(x, levels, COUNT: tl.constexpr):
    """Of x, any shape and type, the index of the nearest of COUNT ascending levels; half-way, the lower."""
    code = tl.zeros(x.shape, tl.int32)
    for at in tl.static_range(COUNT - 1):
        pair = tl.load(levels + at).to(x.dtype) + tl.load(levels + at + 1).to(x.dtype)
        code += (pair / 2 < x).to(tl.int32)  # exact
    return code


@triton.jit
def write_normal(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """LM4 … LM2: the length of the row, and the nearest levels of the row ÷ its length · √WIDTH."""
    COUNT: tl.constexpr = 1 << BITS
    d = tl.arange(0, BLOCK)[None, :]
    wide = tl.where(d < WIDTH, x, 0.0).to(tl.float64)
    length = tl.sqrt(tl.sum(wide * wide, 1))
    some = length > 0
    longer = (x * tl.load(table + 2 * COUNT)).to(tl.float64)
    unit = tl.where(some[:, None], longer / tl.where(some, length, 1.0)[:, None], 0.0)
    code = tl.where(unit == unit, _nearest_level(unit, table + COUNT, COUNT), COUNT - 1)
    _put_codes(codes, high, row, here, code, WIDTH, BITS)
    bits = _half_or_nan(length.to(tl.float32), (length == length).to(tl.int32))
    tl.store(scales + row, bits.to(tl.float16, bitcast=True), mask=here)


@triton.jit
def _one_of(v, at, GROUP: tl.constexpr):
    """[rows, groups]: the value at place `at` of each group."""
    return tl.sum(tl.where(tl.arange(0, GROUP)[None, None, :] == at, v, 0.0), 2)


@triton.jit
def _better_scale(
    wanted, low, most, allowed, unit, inverse_unit, fit, left, squares, change, inverse_scale, least, bits, value
):
    """Keeps the scale that was wanted, as float16 has it, where it leaves less than `least` of the fit's error."""
    turned = wanted < 0
    up, down = tl.where(turned, -low, most), tl.where(turned, most, -low)
    one = tl.full(up.shape, 1.0, tl.float32)
    short = tl.maximum((up - allowed) * _over(one, 113.0), (down - allowed) * _over(one, 127.0))
    size = tl.minimum(tl.maximum(tl.abs(wanted), short), allowed * _over(one, 12.0))
    half = (size * unit).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    half = tl.maximum(tl.minimum(half, 0x7BFF), tl.where(size == 0, 0, 1))
    half = half | ((wanted.to(tl.int32, bitcast=True) >> 16) & 0x8000)
    stored = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * inverse_unit
    missed = stored * inverse_scale - 1.0 - change
    error = (left + squares * missed * missed) * (fit * fit)
    better = error < least
    return tl.where(better, error, least), tl.where(better, half, bits), tl.where(better, stored, value)


@triton.jit
def write_iq4_nl(
    codes, high, scales, table, which, row, here, x,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The better of two scales: that which brings the extreme value to −127, and the one fitted to its codes.

    Steps and their order are those of `kernels.reference.search_block.search_scale`.
    """
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    v, finite = _groups(x, GROUP)
    largest = tl.max(tl.abs(v), 2)
    exponent = _clamp(largest, 8.673617379884035e-19, 1.152921504606847e18).to(tl.int32, bitcast=True) & 0x7F800000
    unit = exponent.to(tl.float32, bitcast=True)
    inverse_unit = (0x7F000000 - exponent).to(tl.float32, bitcast=True)
    v = _clamp(v * inverse_unit[:, :, None], -2.0, 2.0)
    allowed = tl.minimum(largest * inverse_unit, 2.0) * 0.349
    low, most = tl.minimum(tl.min(v, 2), 0.0), tl.maximum(tl.max(v, 2), 0.0)
    inverse_scale = _inverse(tl.where(most < -low, low, most)) * -127.0
    scale = _inverse(inverse_scale)
    scaled = v * inverse_scale[:, :, None]
    level = tl.load(table + _nearest_level(scaled, table, 16))
    missed = scaled - level
    ee, eq, qq = largest * 0.0, largest * 0.0, largest * 0.0
    for at in tl.range(0, GROUP):  # sums one after another
        e, q = _one_of(missed, at, GROUP), _one_of(level, at, GROUP)
        ee, eq, qq = ee + e * e, eq + e * q, qq + q * q
    change = eq * _inverse(qq)
    left = ee - change * eq
    left = tl.where(left < ee * 9.5367431640625e-07, 0.0, left)
    least, bits, value = largest * 0.0 + 3.0e38, tl.zeros(largest.shape, tl.int32), largest * 0.0
    least, bits, value = _better_scale(
        scale, low, most, allowed, unit, inverse_unit, scale, left, qq, change, inverse_scale, least, bits, value
    )
    least, bits, value = _better_scale(
        *(scale + scale * change, low, most, allowed, unit, inverse_unit, scale, left, qq, change, inverse_scale),
        *(least, bits, value),
    )
    # No level is zero: below four steps of float16 all values would become the lowest positive one.
    vanishes = tl.minimum(largest * inverse_unit, 2.0) * unit < 2.384185791015625e-07
    factor = tl.where(vanishes, 0.0, _inverse(value))
    code = tl.reshape(_nearest_level(v * factor[:, :, None], table, 16), x.shape)
    _put_codes(codes, high, row, here, code, STORED, BITS)
    bits = tl.where(finite != 0, tl.where(vanishes, 0, bits), 0x7E00).to(tl.int16)
    _put_scales(scales, row, here, bits, STORED, GROUP, 1, 0)
