"""Hadamard's rotation of heads, as `kernels.reference.kv.hadamard` has it. For Triton only; `grow` launches it."""

import triton
import triton.language as tl


@triton.jit
def hadamard(x, SIZE: tl.constexpr):
    """Floats [rows, BLOCK] turned along runs of SIZE values, a power of two that divides BLOCK; without ÷ √SIZE.

    Each round adds and subtracts neighbours, and what it makes of them goes to the two halves of the run: after as many
    rounds as SIZE has bits all is where it was. Sums are the reference's, in its order.
    """
    ROWS: tl.constexpr = x.shape[0] * x.shape[1] // SIZE
    ROUNDS: tl.constexpr = (
        (SIZE > 1) + (SIZE > 2) + (SIZE > 4) + (SIZE > 8) + (SIZE > 16) + (SIZE > 32) + (SIZE > 64) + (SIZE > 128)
    )
    y = tl.reshape(x, [ROWS, SIZE])
    for _round in tl.static_range(ROUNDS):
        a, b = tl.split(tl.reshape(y, [ROWS, SIZE // 2, 2]))
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 2, 1]), [ROWS, SIZE])
    return tl.reshape(y, [x.shape[0], x.shape[1]])


@triton.jit
def turn_heads(x, out, RUNS, ROOT, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """x [RUNS, SIZE] → out alike, turned and ÷ ROOT, which is √SIZE."""
    run = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    i = tl.arange(0, SIZE)[None, :]
    values = tl.load(x + run * SIZE + i, mask=run < RUNS, other=0).to(tl.float64)
    turned = hadamard(values, SIZE) / tl.load(ROOT)
    tl.store(out + run * SIZE + i, turned.to(tl.float32).to(out.dtype.element_ty), mask=run < RUNS)
