"""Float32 to the codes of smaller types, by bits alone, so that it is the same on every card. For Triton only.

Names and steps as in `kernels.reference.floats`, `float8` and `fp4`.
"""

import triton
import triton.language as tl


@triton.jit
def nearest(x):
    """Nearest integer as float32, ties to even, of |x| ≤ 2²². Not to be fused with a product before it."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def magnitude(x):
    """|x| as its bits, int32: they are in the order of the values, with Inf and NaN above all others."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def inverse_of(amax_bits, LARGEST: tl.constexpr):
    """LARGEST / amax and amax / LARGEST; 0 and 0 if the first is not finite, 0 and NaN if amax is not."""
    usable = (amax_bits < 0x7F800000) & (amax_bits > 0)
    amax = tl.where(usable, amax_bits.to(tl.float32, bitcast=True), 1.0)
    largest = tl.full(amax.shape, LARGEST, tl.float32)
    inverse = tl.div_rn(largest, amax)
    usable = usable & (inverse < float("inf"))
    scale = tl.where(usable, tl.div_rn(amax, largest), 0.0)
    return tl.where(usable, inverse, 0.0), tl.where(amax_bits < 0x7F800000, scale, float("nan"))


@triton.jit
def e4m3_code(x):
    """Nearest, ties to even; at most 448; NaN is 0x7F."""
    bits = x.to(tl.int32, bitcast=True)
    limited = tl.minimum(tl.abs(x), 448.0)
    word = limited.to(tl.int32, bitcast=True)
    normal = ((word + 0x7FFFF + ((word >> 20) & 1)) >> 20) - 960
    small = (limited * 512.0 + 12582912.0).to(tl.int32, bitcast=True) & 15
    code = tl.where(limited < 0.015625, small, normal)
    code = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7F, code)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def e5m2_code(x):
    """Nearest, ties to even; what is too large is Inf, 0x7C; NaN is 0x7F."""
    bits = x.to(tl.int32, bitcast=True)
    word = bits & 0x7FFFFFFF
    limited = tl.minimum(tl.abs(x), 65536.0)
    place = limited.to(tl.int32, bitcast=True)
    normal = tl.minimum(((place + 0xFFFFF + ((place >> 21) & 1)) >> 21) - 448, 0x7C)
    small = (limited * 65536.0 + 12582912.0).to(tl.int32, bitcast=True) & 7
    code = tl.where(limited < 6.103515625e-05, small, normal)
    code = tl.where(word > 0x7F800000, 0x7F, code)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def e2m1_code(x):
    """Nearest, ties to even, at most 6; there is no −0."""
    a = tl.abs(x)
    code = tl.minimum(nearest(a + a), nearest(tl.minimum(a, 4096.0)) + 2.0)
    code = tl.minimum(code, nearest(tl.minimum(a, 4096.0) * 0.5) + 4.0)
    code = tl.where(a > 5.0, 7.0, code).to(tl.int32)
    return tl.where((x < 0) & (code > 0), code | 8, code)


@triton.jit
def power_code(amax_bits, EXPONENT: tl.constexpr):
    """E8M0 of ⌊log2 amax⌋ − EXPONENT, 0 … 254; of zeros 0, of Inf and NaN 255."""
    code = tl.maximum((amax_bits >> 23) - EXPONENT, 0)
    return tl.where(amax_bits < 0x7F800000, code, 255)


@triton.jit
def power_value(code):
    """2^(code − 127); 255 is NaN. 2^-127 is float32's only by its denormals."""
    bits = tl.where(code == 0, 0x00400000, code << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def inverse_power(code):
    """2^(127 − code), 0 for NaN."""
    bits = tl.where(code == 254, 0x00400000, (254 - code) << 23)
    return tl.where(code == 255, 0, bits).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_value(code):
    """Float32 of an E4M3 code that is a number."""
    half = (((code & 128) << 8) | ((code & 127) << 7)).to(tl.int16).to(tl.float16, bitcast=True)
    return half.to(tl.float32) * 256.0
