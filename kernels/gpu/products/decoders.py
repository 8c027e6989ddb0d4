"""The small functions that tell one format from another: levels of codes, and scales of groups. For Triton only.

Levels: words [R, W] of the codes and of their further bits → float32 [R, W], the levels of one slot. All are exact in
float16 and bfloat16 but those of a table. Scales: group `g` of rows `n` → scale and offset float32 [R]; where a format
has no offset, the second value is not used.
"""

import triton
import triton.language as tl


@triton.jit
def integers(low, high, table, SLOT: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr):
    """code − MIDDLE with no conversion, which is slow on most GPUs: the bits are left where they are, within the
    mantissa of a power of two of which they are whole units, and the power is subtracted. Mantissas have 23 bits.
    """
    AT: tl.constexpr = SLOT * BITS
    PLACE: tl.constexpr = AT if AT + BITS + HIGH <= 23 else AT - 16
    bits = low if AT + BITS + HIGH <= 23 else low >> 16
    bits = (bits & (((1 << BITS) - 1) << PLACE)) | ((150 - PLACE) << 23)
    if HIGH > 0:
        UP: tl.constexpr = PLACE + BITS - SLOT * HIGH
        moved = high << UP if UP >= 0 else high >> -UP
        bits |= moved & (((1 << HIGH) - 1) << (PLACE + BITS))
    return bits.to(tl.float32, bitcast=True) - ((1 << (23 - PLACE)) + MIDDLE)


@triton.jit
def codebook(low, high, table, SLOT: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr):
    """One of sixteen levels; 64 bytes that stay in the first cache."""
    return tl.load(table + ((low >> (SLOT * 4)) & 15))


@triton.jit
def e2m1(low, high, table, SLOT: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr):
    """Twice OCP's 4-bit float, whose bits are float16's at another exponent; the scales are halved, as GGML's are."""
    code = (low >> (SLOT * 4)) & 15
    half = (((code & 8) << 12) | ((code & 7) << 9)).to(tl.int16).to(tl.float16, bitcast=True)
    return half.to(tl.float32) * 32768.0


@triton.jit
def e4m3(low, high, table, SLOT: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr):
    code = (low >> (SLOT * 8)) & 255
    half = (((code & 128) << 8) | ((code & 127) << 7)).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.where((code & 127) == 127, float("nan"), half.to(tl.float32) * 256.0)


@triton.jit
def e5m2(low, high, table, SLOT: tl.constexpr, BITS: tl.constexpr, HIGH: tl.constexpr, MIDDLE: tl.constexpr):
    half = (((low >> (SLOT * 8)) & 255) << 8).to(tl.int16).to(tl.float16, bitcast=True)
    return half.to(tl.float32)


@triton.jit
def _half(bits):
    return (bits & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def plain(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    scale = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.float32)
    return scale, scale


@triton.jit
def zeros(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """scale · (code − zero): levels are code − MIDDLE, and the rest is the offset."""
    scale = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.float32)
    zero = tl.load(third + g * stride + n, mask=mask, other=0).to(tl.float32)
    return scale, (MIDDLE - zero) * scale


@triton.jit
def minimums(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    scale = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.float32)
    return scale, tl.load(third + g * stride + n, mask=mask, other=0).to(tl.float32)


@triton.jit
def powers(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """E8M0: 2^(code − 127); 2^-127 is float32's only by its denormals."""
    code = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.int32)
    scale = tl.where(code == 0, 0x00400000, code << 23).to(tl.float32, bitcast=True)
    return scale, scale


@triton.jit
def half_powers(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """Half of E8M0, 2^(code − 128), which is finite for every code."""
    code = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.int32)
    half = tl.where(code < 2, 0x00200000 << (code & 1), (code - 1) << 23).to(tl.float32, bitcast=True)
    return half, half


@triton.jit
def unsigned_e4m3(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """Half of NVFP4's scale: the sign bit counts for nothing, and what would be NaN is 0."""
    code = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.int32)
    value = _half((code & 127) << 7) * 128.0
    scale = tl.where(code == 127, 0.0, value) * TENSOR
    return scale, scale


@triton.jit
def nibble_pairs(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """Q2_K: 4-bit scale and minimum of a group in one byte, d and dmin of a super-block in one word."""
    pair = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.int32)
    above = tl.load(third + (g * GROUP // 256) * stride + n, mask=mask, other=0)
    return (pair & 15).to(tl.float32) * _half(above), -((pair >> 4).to(tl.float32) * _half(above >> 16))


@triton.jit
def byte_pairs(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """Q4_K, Q5_K: 6-bit scale and minimum of a group in two bytes."""
    pair = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.int32)
    above = tl.load(third + (g * GROUP // 256) * stride + n, mask=mask, other=0)
    return (pair & 255).to(tl.float32) * _half(above), -(((pair >> 8) & 255).to(tl.float32) * _half(above >> 16))


@triton.jit
def sixes(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """Q3_K, IQ4_XS: 6-bit scale, 32 more than it stands for."""
    scale = tl.load(scales + g * stride + n, mask=mask, other=32).to(tl.int32) - 32
    above = tl.load(third + (g * GROUP // 256) * stride + n, mask=mask, other=0)
    value = scale.to(tl.float32) * _half(above.to(tl.int32))
    return value, value


@triton.jit
def signed_bytes(scales, third, g, n, mask, stride, TENSOR, MIDDLE: tl.constexpr, GROUP: tl.constexpr):
    """Q6_K: int8 scale of a group."""
    scale = tl.load(scales + g * stride + n, mask=mask, other=0).to(tl.int8, bitcast=True)
    above = tl.load(third + (g * GROUP // 256) * stride + n, mask=mask, other=0)
    value = scale.to(tl.float32) * _half(above.to(tl.int32))
    return value, value
