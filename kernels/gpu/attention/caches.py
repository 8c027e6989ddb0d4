"""How keys and values lie in the cache: the small functions that tell one kind of cache from another. For Triton only.

A cache is rows of WIDTH values, one a position of a key head. A reader gives rows as [rows, BLOCK] in 16 bits or
float32, zeros past WIDTH; a writer stores them. `scales` is for kinds that have codes, with a scale for GROUP values.
"""

import triton
import triton.language as tl


@triton.jit
def read_floats(data, scales, row, here, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """As stored: float16, bfloat16 or float32."""
    d = tl.arange(0, BLOCK)
    return tl.load(data + row[:, None] * WIDTH + d[None, :], mask=here[:, None] & (d[None, :] < WIDTH), other=0)


@triton.jit
def write_floats(data, scales, row, here, values, WIDTH: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    place = data + row[:, None] * WIDTH + d[None, :]
    tl.store(place, values.to(data.dtype.element_ty), mask=here[:, None] & (d[None, :] < WIDTH))
