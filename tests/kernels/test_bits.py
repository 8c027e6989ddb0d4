"""Packing against one big integer a row."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, ops


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_a_little_endian_bit_stream(bits) -> None:
    rng = np.random.default_rng(bits)
    for columns in (1, 7, 15, 16, 17, 31, 32, 33, 63, 65, 97):
        codes = rng.integers(0, 1 << bits, (5, columns), np.uint8)
        words = -(-columns * bits // 32)
        stream = [sum(int(code) << (i * bits) for i, code in enumerate(row)) for row in codes]
        want = b"".join(number.to_bytes(4 * words, "little") for number in stream)
        for backend in dispatch.backends():
            with dispatch.only(backend):
                packed = ops.pack_bits(codes, bits, threads=2)
                assert packed.dtype == np.int32
                assert packed.shape == (5, words)
                assert packed.tobytes() == want, (backend, columns)
                assert (ops.unpack_bits(packed, bits, columns, threads=2) == codes).all(), (backend, columns)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError):
        ops.pack_bits(np.zeros((1, 8), np.uint8), 9)
    with pytest.raises(ValueError):
        ops.unpack_bits(np.zeros((1, 2), np.int32), 4, 7)
