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
    """LARGEST / amax, amax / LARGEST and whether the first is finite; the second is NaN if amax is Inf or NaN."""
    amax = amax_bits.to(tl.float32, bitcast=True)
    usable = (amax_bits < 0x7F800000) & (amax_bits > 0)
    inverse = tl.div_rn(tl.full(amax.shape, LARGEST, tl.float32), tl.where(usable, amax, 1.0))
    usable = usable & (inverse < float("inf"))
    scale = tl.where(usable, tl.div_rn(amax, tl.full(amax.shape, LARGEST, tl.float32)), 0.0)
    return tl.where(usable, inverse, 0.0), tl.where(amax_bits < 0x7F800000, scale, float("nan")), usable


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
