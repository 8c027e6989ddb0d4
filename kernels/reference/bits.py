"""Codes of 1 … 8 bits as a dense little-endian bit stream: code i at bit i · bits, whatever words that straddles."""

from __future__ import annotations

import numpy as np


def pack_bits(codes: np.ndarray, bits: int, _threads: int) -> np.ndarray:
    rows, columns = codes.shape
    stream = np.zeros((rows, -(-columns * bits // 32) * 32), np.uint8)
    stream[:, : columns * bits] = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little").reshape(
        rows, columns * bits
    )
    return np.packbits(stream, axis=1, bitorder="little")


def unpack_bits(packed: np.ndarray, bits: int, columns: int, _threads: int) -> np.ndarray:
    stream = np.unpackbits(packed, axis=1, bitorder="little")[:, : columns * bits].reshape(len(packed), columns, bits)
    return np.packbits(stream, axis=2, bitorder="little")[:, :, 0]
