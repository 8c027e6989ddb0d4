"""The steps between products: norms, activation functions, and what a product with 8-bit activations takes.

For Triton only; `apply` launches it. A program that needs a whole row has it in registers, so that each is
read once.
"""

import triton
import triton.language as tl

from kernels.gpu.rounding import (
    e2m1_code,
    e4m3_code,
    e4m3_value,
    inverse_of,
    inverse_power,
    magnitude,
    nearest,
    power_code,
)


@triton.jit
def activate(x, KIND: tl.constexpr):
    """'silu', 'gelu' (exact) or 'gelu_tanh', whose ½ · (1 + tanh y) is the logistic function of 2y."""
    if KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        y = x * tl.sigmoid(x)
    return y


@triton.jit
def _encode(v, amax, TENSOR, CODES: tl.constexpr):
    """v [rows, groups, values], amax as bits [rows, groups] → codes int32, scales [rows, groups]. There is no −0."""
    if CODES == "int8" or CODES == "e4m3":
        inverse, scale = inverse_of(amax, 127.0 if CODES == "int8" else 448.0)
        scaled = v * inverse[:, :, None]
        usable = inverse > 0
    elif CODES == "nvfp4":
        largest = tl.div_rn(amax.to(tl.float32, bitcast=True), tl.full(amax.shape, 1.0, tl.float32) * TENSOR)
        usable = amax < 0x7F800000
        scale = tl.where(usable, e4m3_code(tl.div_rn(largest, tl.full(amax.shape, 6.0, tl.float32))), 0x7F)
        value = e4m3_value(scale)
        usable = usable & (scale > 0)
        inverse = tl.div_rn(tl.full(amax.shape, 1.0, tl.float32), tl.where(usable, value, 1.0))
        scaled = tl.div_rn(v, tl.full(v.shape, 1.0, tl.float32) * TENSOR) * inverse[:, :, None]
    else:
        scale = power_code(amax, 8 if CODES == "mxfp8" else 2)
        scaled = v * inverse_power(scale)[:, :, None]
        usable = scale < 255
    if CODES == "int8":
        codes = nearest(scaled).to(tl.int32)
    elif CODES == "e4m3" or CODES == "mxfp8":
        codes = e4m3_code(scaled)
        codes = tl.where((codes & 127) == 0, 0, codes)
    else:
        codes = e2m1_code(scaled)
    return tl.where(usable[:, :, None], codes, 0), scale


@triton.jit
def token_step(
    x, second, gain, out, scales, flags,
    M, K, X_STRIDE, SECOND_STRIDE, OUT_STRIDE, SCALE_STRIDE, EPS, TENSOR,
    STEP: tl.constexpr, RESIDUAL: tl.constexpr, CODES: tl.constexpr, SKIP: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x [M, K] → out [M, K]. STEP: '' none, 'norm', or an activation function of x times `second`.

    RESIDUAL: second is added to x first, and the sum stored in it. CODES: '' floats, or a kind of
    `apply.CODES`, with a scale for GROUP columns (0: the row), SCALE_STRIDE of them. OUT_STRIDE: bytes of a
    row of codes; what is past K is 0. SKIP: columns whose flag is set count as 0.
    """
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = (m[:, None] < M) & (k[None, :] < K)
    row = m.to(tl.int64)[:, None]
    v = tl.load(x + row * X_STRIDE + k[None, :], mask=here, other=0).to(tl.float32)
    if RESIDUAL:
        place = second + row * SECOND_STRIDE + k[None, :]
        v += tl.load(place, mask=here, other=0).to(tl.float32)
        tl.store(place, v.to(second.dtype.element_ty), mask=here)
    if STEP == "norm":
        mean = tl.sum(v * v, 1) / K
        v = v * (1.0 / tl.sqrt(mean + EPS))[:, None]
        v = v * tl.load(gain + k, mask=k < K, other=0).to(tl.float32)[None, :]
    elif STEP != "":
        up = tl.load(second + row * SECOND_STRIDE + k[None, :], mask=here, other=0).to(tl.float32)
        v = activate(v, STEP) * up
    if CODES == "":
        place = out + row * OUT_STRIDE + k[None, :]
        tl.store(place, v.to(out.dtype.element_ty), mask=here)
    else:
        if SKIP:
            v = tl.where(tl.load(flags + k, mask=k < K, other=0)[None, :] != 0, 0.0, v)
        GROUPS: tl.constexpr = BLOCK // GROUP if GROUP > 0 else 1
        parts = tl.reshape(v, [ROWS, GROUPS, BLOCK // GROUPS])
        codes, scale = _encode(parts, tl.max(magnitude(parts), 2), TENSOR, CODES)
        if CODES == "mxfp4" or CODES == "nvfp4":
            low, up = tl.split(tl.reshape(codes, [ROWS, BLOCK // 2, 2]))
            codes = low | (up << 4)
            k = tl.arange(0, BLOCK // 2)
        else:
            codes = tl.reshape(codes, [ROWS, BLOCK])
        place = out + row * OUT_STRIDE + k[None, :]
        tl.store(place, codes.to(out.dtype.element_ty), mask=(m[:, None] < M) & (k[None, :] < OUT_STRIDE))
        g = tl.arange(0, GROUPS)
        some = (m[:, None] < M) & (g[None, :] < SCALE_STRIDE)
        tl.store(scales + row * SCALE_STRIDE + g[None, :], scale.to(scales.dtype.element_ty), mask=some)


@triton.jit
def outlier_columns(x, flags, blocks, M, K, STRIDE, THRESHOLD, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """x [M, K] → flags int8 [K]: 1 where some |x| ≥ THRESHOLD; blocks int32 [⌈K / BLOCK⌉]: whether one of it is 1."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.int32)
    for first in tl.range(0, M, ROWS):
        m = first + tl.arange(0, ROWS)
        here = (m[:, None] < M) & (k[None, :] < K)
        v = tl.load(x + m.to(tl.int64)[:, None] * STRIDE + k[None, :], mask=here, other=0).to(tl.float32)
        v = tl.where(v == v, tl.abs(v), 0.0)  # a NaN is no outlier
        largest = tl.maximum(largest, tl.max(v.to(tl.int32, bitcast=True), 0))
    found = (largest.to(tl.float32, bitcast=True) >= THRESHOLD).to(tl.int32)
    tl.store(flags + k, found.to(tl.int8), mask=k < K)
    tl.store(blocks + tl.program_id(0), tl.max(found, 0))


@triton.jit
def rotate(
    x, cos, sin, positions, out,
    HEADS, X_STRIDE, X_HEAD, OUT_STRIDE, OUT_HEAD, WIDTH, TURNED, POSITIONS,
    PAIRS: tl.constexpr, COPY: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """x [M, heads, WIDTH] → out: the first 2 · TURNED values of each head turned by the tables' row of its position.

    cos, sin: float32 [POSITIONS, TURNED]; heads at another position become NaN. PAIRS: values 2i and 2i + 1 turn
    together, else i and i + TURNED. COPY: the REST of a head is copied, where out is not x.
    """
    m = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    i = tl.arange(0, BLOCK)
    position = tl.load(positions + m).to(tl.int64)
    turning = i < TURNED
    known = i < tl.where((position >= 0) & (position < POSITIONS), TURNED, 0)
    c = tl.load(cos + position * TURNED + i, mask=known, other=float("nan"))[None, :]
    s = tl.load(sin + position * TURNED + i, mask=known, other=float("nan"))[None, :]
    source = x + m * X_STRIDE + head[:, None] * X_HEAD
    target = out + m * OUT_STRIDE + head[:, None] * OUT_HEAD
    there = head[:, None] < HEADS
    if PAIRS:
        both = tl.arange(0, 2 * BLOCK)
        here = there & (both[None, :] < 2 * TURNED)
        values = tl.load(source + both[None, :], mask=here, other=0).to(tl.float32)
        a, b = tl.split(tl.reshape(values, [ROWS, BLOCK, 2]))
        turned = tl.reshape(tl.join(a * c - b * s, b * c + a * s), [ROWS, 2 * BLOCK])
        tl.store(target + both[None, :], turned.to(out.dtype.element_ty), mask=here)
    else:
        here = there & turning[None, :]
        a = tl.load(source + i[None, :], mask=here, other=0).to(tl.float32)
        b = tl.load(source + TURNED + i[None, :], mask=here, other=0).to(tl.float32)
        tl.store(target + i[None, :], (a * c - b * s).to(out.dtype.element_ty), mask=here)
        tl.store(target + TURNED + i[None, :], (b * c + a * s).to(out.dtype.element_ty), mask=here)
    if COPY:
        rest = 2 * TURNED + tl.arange(0, REST)
        here = there & (rest[None, :] < WIDTH)
        tl.store(target + rest[None, :], tl.load(source + rest[None, :], mask=here, other=0), mask=here)
