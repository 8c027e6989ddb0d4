"""The steps between products: norms, activation functions, and what a product with 8-bit activations takes.

For Triton only; `kernels.gpu.steps` launches it. A program that needs a whole row has it in registers, so that each is
read once.
"""

import triton
import triton.language as tl

from kernels.gpu.rounding import e4m3_code, inverse_of, magnitude, nearest


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
def _group_inverse(v, LARGEST: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Of each group along a row: LARGEST / amax for each of its values [ROWS, BLOCK], and amax / LARGEST."""
    if GROUP == 0:
        inverse, scale, _ = inverse_of(tl.max(magnitude(v), 1), LARGEST)
        each = tl.broadcast_to(inverse[:, None], [ROWS, BLOCK])
        scale = scale[:, None]
    else:
        groups = tl.reshape(magnitude(v), [ROWS, BLOCK // GROUP, GROUP])
        inverse, scale, _ = inverse_of(tl.max(groups, 2), LARGEST)
        each = tl.reshape(tl.broadcast_to(inverse[:, :, None], [ROWS, BLOCK // GROUP, GROUP]), [ROWS, BLOCK])
    return each, scale


@triton.jit
def token_step(
    x,
    second,
    gain,
    out,
    scales,
    M,
    K,
    X_STRIDE,
    SECOND_STRIDE,
    OUT_STRIDE,
    SCALE_STRIDE,
    EPS,
    STEP: tl.constexpr,
    RESIDUAL: tl.constexpr,
    CODES: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x [M, K] → out [M, K]. STEP: '' none, 'norm', or an activation function of x times `second`.

    RESIDUAL: second is added to x first, and the sum stored in it. CODES: '' floats, 'int8' or 'e4m3' with a scale for
    GROUP columns (0: the row). Codes of columns past K, up to OUT_STRIDE, are 0.
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
    place = out + row * OUT_STRIDE + k[None, :]
    if CODES == "":
        tl.store(place, v.to(out.dtype.element_ty), mask=here)
    else:
        g = tl.arange(0, BLOCK // GROUP if GROUP > 0 else 1)
        if CODES == "int8":
            each, scale = _group_inverse(v, 127.0, GROUP, ROWS, BLOCK)
            codes = tl.where(each > 0, nearest(v * each), 0.0).to(tl.int32)
        else:
            each, scale = _group_inverse(v, 448.0, GROUP, ROWS, BLOCK)
            codes = tl.where(each > 0, e4m3_code(v * each), 0)
        there = (m[:, None] < M) & (k[None, :] < OUT_STRIDE)
        tl.store(place, codes.to(out.dtype.element_ty), mask=there)
        count = (K + GROUP - 1) // GROUP if GROUP > 0 else 1
        some = (m[:, None] < M) & (g[None, :] < count)
        tl.store(scales + row * SCALE_STRIDE + g[None, :], scale, mask=some)


@triton.jit
def rotate(
    x,
    cos,
    sin,
    positions,
    out,
    HEADS,
    X_STRIDE,
    X_HEAD,
    OUT_STRIDE,
    OUT_HEAD,
    WIDTH,
    TURNED,
    PAIRS: tl.constexpr,
    COPY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    REST: tl.constexpr,
):
    """x [M, heads, WIDTH] → out: the first 2 · TURNED values of each head turned by the tables' row of its position.

    cos, sin: float32 [positions, TURNED]. PAIRS: values 2i and 2i + 1 turn together, else i and i + TURNED. COPY: the
    REST of a head is copied, where out is not x.
    """
    m = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, BLOCK)
    position = tl.load(positions + m).to(tl.int64)
    turning = i < TURNED
    c = tl.load(cos + position * TURNED + i, mask=turning, other=0)[None, :]
    s = tl.load(sin + position * TURNED + i, mask=turning, other=0)[None, :]
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
