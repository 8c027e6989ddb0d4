"""Products of activations and weights that are both codes. For Triton only; `kernels.gpu.products.scaled` launches it.

Rows of both are bytes, one code each, or two of 4 bits, the first in the low half; what pads them is 0. HOW a product
is made: 'int8' and 'fp8' by matrix instructions on the codes; 'scaled' by those that take the groups' scales, too; and
'upcast' in 16-bit floats, in which every code times its group's scale is exact.
"""

import triton
import triton.language as tl

from kernels.gpu.products.matmul import share_of
from kernels.gpu.rounding import e4m3_value, power_value


@triton.jit
def _values(codes, FORMAT: tl.constexpr, HALF: tl.constexpr):
    """Bytes → float32 of the code in each, or in its HALF (0: low)."""
    if FORMAT == "int8":
        values = codes.to(tl.float32)
    elif FORMAT == "e4m3":
        values = e4m3_value(codes.to(tl.int32))
    else:
        code = codes.to(tl.int32) >> (4 * HALF)
        half = (((code & 8) << 12) | ((code & 7) << 9)).to(tl.int16).to(tl.float16, bitcast=True)
        values = half.to(tl.float32) * 16384.0
    return values


@triton.jit
def _scale_values(raw, SCALE: tl.constexpr):
    if SCALE == "power":
        values = power_value(raw.to(tl.int32))
    elif SCALE == "e4m3":
        code = raw.to(tl.int32)
        values = tl.where(code == 0x7F, float("nan"), e4m3_value(code))
    else:
        values = raw
    return values


@triton.jit
def _group_scales(scales, row, inside, stride, step, COUNT: tl.constexpr):
    """[rows, COUNT] as stored: the scales of the groups of one step along the row."""
    g = step * COUNT + tl.arange(0, COUNT)
    here = inside[:, None] & (g[None, :] < stride)
    return tl.load(scales + row.to(tl.int64)[:, None] * stride + g[None, :], mask=here, other=0)


@triton.jit
def _spread(scales, ROWS: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """[ROWS, COUNT] → [ROWS, BLOCK], each for its group's bytes."""
    if COUNT == 1:
        each = tl.broadcast_to(scales, [ROWS, BLOCK])
    else:
        each = tl.reshape(tl.broadcast_to(scales[:, :, None], [ROWS, COUNT, BLOCK // COUNT]), [ROWS, BLOCK])
    return each


@triton.jit
def _final(total, x_scales, w_scales, m, n, M, N, X_GROUPS, TENSOR, GROUP: tl.constexpr):
    """Sums [ROWS, BATCH] times what was not in them: scales of whole rows, and the tensors'."""
    total = total.to(tl.float32)
    if GROUP == 0:
        total *= tl.load(w_scales + n, mask=n < N, other=0)[:, None]
        total *= tl.load(x_scales + m * X_GROUPS, mask=m < M, other=0)[None, :]
    return total * TENSOR


@triton.jit
def scaled_tile_product(
    x, x_scales, w, w_scales, floats, flags, blocks, out,
    M, N, K, BYTES, X_GROUPS, W_GROUPS, FLOATS_STRIDE, TENSOR,
    HOW: tl.constexpr, FORMAT: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, W_ROWS: tl.constexpr,
    OUTLIERS: tl.constexpr, FLOAT8: tl.constexpr, MIDDLE: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """x [M, BYTES] · w [N, BYTES]ᵀ → out [SPLIT, M, N]; BLOCK bytes a step. Groups are of GROUP columns (0: rows).

    W_ROWS: rows that share a group's scale. FLOAT8: the type of the card's 8-bit floats; MIDDLE: of upcast codes.
    OUTLIERS: columns whose flag is set are multiplied as floats [M, K], with the same weights.
    """
    HALVES: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    COUNT: tl.constexpr = BLOCK * HALVES // GROUP if GROUP > 0 else 1
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    byte = tl.arange(0, BLOCK)
    n_in, m_in = n < N, m < M
    first, last = share_of(tl.cdiv(BYTES, BLOCK), SPLIT)
    w_rows = w + n.to(tl.int64)[:, None] * BYTES + byte[None, :]
    x_rows = x + m.to(tl.int64)[:, None] * BYTES + byte[None, :]
    total = tl.zeros((ROWS, BATCH), tl.int32 if HOW == "int8" else tl.float32)
    apart = tl.zeros((ROWS, BATCH), tl.float32)
    for step in tl.range(first, last):
        there = byte[None, :] < BYTES - step * BLOCK
        a = tl.load(w_rows + step * BLOCK, mask=n_in[:, None] & there, other=0)
        b = tl.load(x_rows + step * BLOCK, mask=m_in[:, None] & there, other=0)
        if GROUP > 0:
            a_scales = _group_scales(w_scales, n // W_ROWS, n_in, W_GROUPS, step, COUNT)
            b_scales = _group_scales(x_scales, m, m_in, X_GROUPS, step, COUNT)
        if HOW == "int8":
            total = tl.dot(a, tl.trans(b), total, out_dtype=tl.int32)
        elif HOW == "scaled":
            if SCALE == "e4m3":
                a_scales = a_scales.to(tl.float8e4nv, bitcast=True)
                b_scales = b_scales.to(tl.float8e4nv, bitcast=True)
            total = tl.dot_scaled(a, a_scales, FORMAT, tl.trans(b), b_scales, FORMAT, total)
        elif SCALE == "single":
            if HOW == "fp8":
                left, right = a.to(FLOAT8, bitcast=True), b.to(FLOAT8, bitcast=True)
            else:
                left, right = _values(a, FORMAT, 0).to(MIDDLE), _values(b, FORMAT, 0).to(MIDDLE)
            if GROUP > 0:
                found = tl.dot(left, tl.trans(right), max_num_imprecise_acc=BLOCK)
                total += found * a_scales * tl.trans(b_scales)
            else:  # sm_90 adds 8-bit floats in less than float32: no more than BLOCK of them
                total = tl.dot(left, tl.trans(right), total, max_num_imprecise_acc=BLOCK)
        else:
            a_each = _spread(_scale_values(a_scales, SCALE), ROWS, COUNT, BLOCK)
            b_each = _spread(_scale_values(b_scales, SCALE), BATCH, COUNT, BLOCK)
            for half in tl.static_range(HALVES):
                left = (_values(a, FORMAT, half) * a_each).to(MIDDLE)
                right = (_values(b, FORMAT, half) * b_each).to(MIDDLE)
                total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
        if OUTLIERS:  # noqa: SIM102  (a constant, unlike what it is nested with)
            if tl.load(blocks + step) != 0:
                k = step * BLOCK + byte
                flagged = tl.load(flags + k, mask=k < K, other=0) != 0
                here = m_in[:, None] & flagged[None, :]
                kept = tl.load(floats + m.to(tl.int64)[:, None] * FLOATS_STRIDE + k[None, :], mask=here, other=0)
                apart = tl.dot(a.to(kept.dtype), tl.trans(kept), apart, input_precision="ieee")
    total = _final(total, x_scales, w_scales, m, n, M, N, X_GROUPS, TENSOR, GROUP)
    if OUTLIERS:
        total += apart * tl.load(w_scales + n, mask=n_in, other=0)[:, None]
    out += tl.program_id(1).to(tl.int64) * M * N
    place = out + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=m_in[None, :] & n_in[:, None])


@triton.jit
def scaled_vector_product(
    x, x_scales, w, w_scales, floats, flags, blocks, out,
    M, N, K, BYTES, X_GROUPS, W_GROUPS, FLOATS_STRIDE, TENSOR,
    FORMAT: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, W_ROWS: tl.constexpr, OUTLIERS: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """As `scaled_tile_product` without matrix instructions; BATCH, one to four tokens a program, is a power of two."""
    HALVES: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    COUNT: tl.constexpr = BLOCK * HALVES // GROUP if GROUP > 0 else 1
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    byte = tl.arange(0, BLOCK)
    n_in, m_in = n < N, m < M
    first, last = share_of(tl.cdiv(BYTES, BLOCK), SPLIT)
    w_rows = w + n.to(tl.int64)[:, None] * BYTES + byte[None, :]
    x_rows = x + m.to(tl.int64)[:, None] * BYTES + byte[None, :]
    sums = tl.zeros((BATCH, ROWS, BLOCK), tl.int32 if FORMAT == "int8" else tl.float32)
    apart = tl.zeros((BATCH, ROWS), tl.float32)
    for step in tl.range(first, last):
        there = byte[None, :] < BYTES - step * BLOCK
        a = tl.load(w_rows + step * BLOCK, mask=n_in[:, None] & there, other=0)
        b = tl.load(x_rows + step * BLOCK, mask=m_in[:, None] & there, other=0)
        if FORMAT == "int8":
            sums += a.to(tl.int32)[None, :, :] * b.to(tl.int32)[:, None, :]
        else:
            for half in tl.static_range(HALVES):
                left, right = _values(a, FORMAT, half), _values(b, FORMAT, half)
                if GROUP > 0:
                    a_scales = _group_scales(w_scales, n // W_ROWS, n_in, W_GROUPS, step, COUNT)
                    b_scales = _group_scales(x_scales, m, m_in, X_GROUPS, step, COUNT)
                    left *= _spread(_scale_values(a_scales, SCALE), ROWS, COUNT, BLOCK)
                    right *= _spread(_scale_values(b_scales, SCALE), BATCH, COUNT, BLOCK)
                sums += left[None, :, :] * right[:, None, :]
        if OUTLIERS:
            for at in tl.static_range(BLOCK // 128):
                if tl.load(blocks + step * (BLOCK // 128) + at, mask=step * BLOCK + at * 128 < K, other=0) != 0:
                    k = step * BLOCK + byte
                    flagged = tl.load(flags + k, mask=(k < K) & (byte // 128 == at), other=0) != 0
                    here = m_in[:, None] & flagged[None, :]
                    kept = tl.load(floats + m.to(tl.int64)[:, None] * FLOATS_STRIDE + k[None, :], mask=here, other=0)
                    apart += tl.sum(a.to(tl.float32)[None, :, :] * kept.to(tl.float32)[:, None, :], 2)
    total = tl.trans(tl.sum(sums, 2))
    total = _final(total, x_scales, w_scales, m, n, M, N, X_GROUPS, TENSOR, GROUP)
    if OUTLIERS:
        total += tl.trans(apart) * tl.load(w_scales + n, mask=n_in, other=0)[:, None]
    out += tl.program_id(1).to(tl.int64) * M * N
    place = out + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=m_in[None, :] & n_in[:, None])
