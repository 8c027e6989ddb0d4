"""How keys and values are read from the cache: the small functions that tell one kind of cache from another. For Triton
only; `writers` has the other half.

A cache is rows of WIDTH values, one a position of a key head. A reader gives the rows from `first` on, as many as
`here` has, [rows, BLOCK]: floats as they are stored, codes as float32; finite past WIDTH. `which`: slot · heads + head.

Codes are a plane of bytes, the first code in a byte's lowest bits; third and fifth bits are a plane of their own, and
so are scales (of a row first all scales, then all minimums). GROUP values of a row share a scale; 0: the whole row.
"""

import triton
import triton.language as tl

UNIT = tl.constexpr(32)  # tokens that share the scales of their channels


@triton.jit
def _split_codes(data, first, here, STORED: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """uint8 [rows, BLOCK] of rows of STORED codes with 1, 2, 4 or 8 bits; 0 past them."""
    ROWS: tl.constexpr = here.shape[0]
    PER: tl.constexpr = 8 // BITS
    BYTES: tl.constexpr = (STORED + PER - 1) // PER
    row, b = first + tl.arange(0, ROWS), tl.arange(0, BLOCK // PER)
    found = tl.load(data + row[:, None] * BYTES + b[None, :], mask=here[:, None] & (b[None, :] < BYTES), other=0)
    if BITS < 8:  # halves of bytes, then of these, and so on: no value changes its thread
        found = tl.reshape(tl.join(found & 15, found >> 4), [ROWS, 2 * BLOCK // PER])
    if BITS < 4:
        found = tl.reshape(tl.join(found & 3, found >> 2), [ROWS, 4 * BLOCK // PER])
    if BITS < 2:
        found = tl.reshape(tl.join(found & 1, found >> 1), [ROWS, BLOCK])
    return found


@triton.jit
def _codes(codes, high, first, here, STORED: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """int32 [rows, BLOCK], of any number of bits that a cache has."""
    LOW: tl.constexpr = BITS - 1 if BITS == 3 or BITS == 5 else BITS
    found = _split_codes(codes, first, here, STORED, LOW, BLOCK)
    if LOW < BITS:
        found = found | (_split_codes(high, first, here, STORED, 1, BLOCK) << LOW)
    return found.to(tl.int32)


@triton.jit
def stored_values(WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """Codes of a row: groups are filled up."""
    return tl.constexpr((WIDTH + GROUP - 1) // GROUP * GROUP if GROUP > 0 else WIDTH)


@triton.jit
def _scales(
    scales, first, here,
    STORED: tl.constexpr, GROUP: tl.constexpr, PLANES: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float32 [rows, BLOCK], of each value its group's. PLANES: 2 with minimums, of which plane 1 is that."""
    ROWS: tl.constexpr = here.shape[0]
    row = first + tl.arange(0, ROWS)
    if GROUP == 0:
        one = tl.load(scales + row, mask=here, other=0).to(tl.float32)
        found = tl.broadcast_to(one[:, None], [ROWS, BLOCK])
    else:
        COUNT: tl.constexpr = STORED // GROUP
        g = tl.arange(0, BLOCK // GROUP)
        place = scales + row[:, None] * (PLANES * COUNT) + PLANE * COUNT + g[None, :]
        each = tl.load(place, mask=here[:, None] & (g[None, :] < COUNT), other=0).to(tl.float32)
        found = tl.reshape(tl.broadcast_to(each[:, :, None], [ROWS, BLOCK // GROUP, GROUP]), [ROWS, BLOCK])
    return found


@triton.jit
def read_floats(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As stored: float16, bfloat16 or float32."""
    row, d = first + tl.arange(0, here.shape[0]), tl.arange(0, BLOCK)
    return tl.load(codes + row[:, None] * WIDTH + d[None, :], mask=here[:, None] & (d[None, :] < WIDTH), other=0)


@triton.jit
def read_signed(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """scale · code in two's complement: INT8, INT4, Q8_0."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    HALF: tl.constexpr = 1 << (BITS - 1)
    code = (_codes(codes, high, first, here, STORED, BITS, BLOCK) ^ HALF) - HALF
    return code.to(tl.float32) * _scales(scales, first, here, STORED, GROUP, 1, 0, BLOCK)


@triton.jit
def read_centred(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """scale · (code − half): Q4_0, Q5_0."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    code = _codes(codes, high, first, here, STORED, BITS, BLOCK) - (1 << (BITS - 1))
    return code.to(tl.float32) * _scales(scales, first, here, STORED, GROUP, 1, 0, BLOCK)


@triton.jit
def read_affine(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """scale · code + minimum: Q4_1, Q5_1, U8 … U2."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    code = _codes(codes, high, first, here, STORED, BITS, BLOCK).to(tl.float32)
    low = _scales(scales, first, here, STORED, GROUP, 2, 1, BLOCK)
    return code * _scales(scales, first, here, STORED, GROUP, 2, 0, BLOCK) + low


@triton.jit
def read_levels(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """scale · a level of the table, which stays in the first cache: IQ4_NL, LM4 … LM2."""
    STORED: tl.constexpr = stored_values(WIDTH, GROUP)
    level = tl.load(table + _codes(codes, high, first, here, STORED, BITS, BLOCK))
    return level * _scales(scales, first, here, STORED, GROUP, 1, 0, BLOCK)


@triton.jit
def read_e4m3(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The scale is given, of each head: float32 [slots, heads]. The bits are float16's at another exponent."""
    code = _codes(codes, high, first, here, WIDTH, 8, BLOCK)
    half = (((code & 128) << 8) | ((code & 127) << 7)).to(tl.int16).to(tl.float16, bitcast=True)
    value = tl.where((code & 127) == 127, float("nan"), half.to(tl.float32) * 256.0)
    return value * tl.load(scales + which)


@triton.jit
def read_e5m2(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    half = (_codes(codes, high, first, here, WIDTH, 8, BLOCK) << 8).to(tl.int16).to(tl.float16, bitcast=True)
    return half.to(tl.float32) * tl.load(scales + which)


@triton.jit
def read_channels(
    codes, high, scales, table, which, first, here,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """scale · code + minimum, both of a channel and UNIT rows: float16 [units, 2, WIDTH]: U4-t32, U2-t32.

    Rows are asked for at multiples of their number or of UNIT.
    """
    ROWS: tl.constexpr = here.shape[0]
    UNITS: tl.constexpr = ROWS // UNIT if ROWS > UNIT else 1
    code = _codes(codes, high, first, here, WIDTH, BITS, BLOCK).to(tl.float32)
    u, d = tl.arange(0, UNITS), tl.arange(0, BLOCK)
    some = tl.max(tl.reshape(here.to(tl.int32), [UNITS, ROWS // UNITS]), 1) > 0
    place = scales + (first // UNIT + u)[:, None] * (2 * WIDTH) + d[None, :]
    there = some[:, None] & (d[None, :] < WIDTH)
    scale = tl.load(place, mask=there, other=0).to(tl.float32)
    low = tl.load(place + WIDTH, mask=there, other=0).to(tl.float32)
    values = tl.reshape(code, [UNITS, ROWS // UNITS, BLOCK]) * scale[:, None, :] + low[:, None, :]
    return tl.reshape(values, [ROWS, BLOCK])
