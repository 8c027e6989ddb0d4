"""The self-test of the compiled kernels: each operation on a small odd array, bit for bit against the reference."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernels import dispatch, families, ops, solve
from kernels.layouts import BLOCK_KINDS, LAYOUTS, PLAIN_KINDS

ROWS = 3


@dataclass(frozen=True)
class Trial:
    """Of one operation, or block type. reason: '' when the bits are the reference's. backend: what runs."""

    op: str
    variant: str
    backend: str
    reason: str


def values(columns: int, rows: int = ROWS) -> np.ndarray:
    """float32 with a row of zeros, ties and an outlier."""
    x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(np.float32)
    x[1] = 0
    x[2] = np.rint(4 * x[2]) / 8
    x[0, columns // 2] = 100
    return x


def trials() -> Iterator[Trial]:
    """Every operation that is compiled here; none where nothing is. Well under a second in all."""
    for op, variant, work in _work():
        backend = dispatch.find(op, variant).backend
        if backend.startswith("cpu"):
            yield Trial(op, variant, backend, _compared(work, backend))


def _compared(work: Callable[[], Any], backend: str) -> str:
    found = []
    for name in (backend, "reference"):
        try:
            with dispatch.only(name), np.errstate(all="ignore"):
                found.append(_bytes(work()))
        except Exception as error:  # noqa: BLE001  (whatever a broken build raises is the result)
            return f"{name} failed: {error}"
    return "" if found[0] == found[1] else "its result is not the reference's"


def _bytes(result: Any) -> bytes:
    if isinstance(result, tuple):
        return b"|".join(_bytes(part) for part in result)
    return np.ascontiguousarray(result).tobytes() if isinstance(result, np.ndarray) else repr(result).encode()


def _work() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    x = values(150)
    even = values(160)
    for kind in (kind for kind in BLOCK_KINDS if kind not in PLAIN_KINDS):
        rows = values(2 * LAYOUTS[kind].block)
        data = ops.encode_blocks(kind, rows, search=False)
        yield "encode_blocks", kind, partial(ops.encode_blocks, kind, rows, search=False)
        yield "decode_blocks", kind, partial(ops.decode_blocks, kind, data, rows.shape[1])
    codes, scales, zeros = ops.encode_groups(even, 4, 32, False, search=False)
    halves = ops.from_float32(x, "BF16")
    amax = families.tile_amax(x, 2, 64)
    tiles = np.maximum(amax / np.float32(448), np.float32(1e-30))
    powers = families.e8m0_from_amax(families.tile_amax(even, 1, 32), 2)
    rng = np.random.default_rng(1)
    matrix = (rng.standard_normal((48, 48)) / 7).astype(np.float32)
    grid = np.full((ROWS, 2), 0.2, np.float32), np.zeros((ROWS, 2), np.float32)
    group = np.repeat(np.arange(2, dtype=np.int32), 24)
    yield "encode_groups", "", lambda: ops.encode_groups(even, 4, 32, False, search=True)
    yield "decode_groups", "", lambda: ops.decode_groups(codes, scales, zeros, 4, 32)
    yield "to_half", "", lambda: (ops.from_float32(x, "F16"), ops.from_float32(x, "BF16"))
    yield "from_half", "", lambda: (ops.to_float32(halves, "F16"), ops.to_float32(halves, "BF16"))
    yield "pack_bits", "", lambda: ops.pack_bits(codes, 5)
    yield "unpack_bits", "", lambda: ops.unpack_bits(ops.pack_bits(codes, 3), 3, 160)
    yield "scan", "", lambda: repr(ops.scan(x))
    yield "crc32", "", lambda: ops.crc32(halves.reshape(-1)) - zlib.crc32(halves.tobytes())
    yield "to_float8", "", lambda: (ops.from_float32(x, "F8_E4M3"), ops.from_float32(x, "F8_E5M2"))
    yield "from_float8", "", lambda: ops.to_float32(np.arange(256, dtype=np.uint8)[None], "F8_E4M3")
    yield "encode_float8", "", lambda: families.encode_float8(x, "F8_E4M3", tiles, 2, 64)
    yield "tile_amax", "", lambda: families.tile_amax(x, 2, 64)
    yield "encode_e2m1", "", lambda: (*families.encode_fp4(even, 32, "E8M0", rule="mlx"), powers)
    yield "encode_codebook", "", lambda: families.encode_codebook(even, families.NF4_LEVELS, 32)
    yield "encode_affine", "", lambda: families.encode_affine(even, 4, 32)
    yield "half_quadratic", "", lambda: families.half_quadratic(even, 4, 32, iterations=3)
    yield (
        *("solve_feedback", ""),
        lambda: solve.feedback(values(48), matrix, *grid, group, np.arange(-8, 8, dtype=np.float32)),
    )
