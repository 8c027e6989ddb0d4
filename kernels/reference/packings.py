"""How codes lie in the files of GPTQ, AWQ, HQQ and GGUF's 4-bit floats, in numpy."""

from __future__ import annotations

import numpy as np

from kernels.reference.bits import pack_bits, unpack_bits

# Nibble i of an AWQ word holds row 8c + AWQ_ORDER[i].
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# GGUF's blocks of 4-bit floats: values, bytes of scales, values that share nibbles low and high.
FP4_BLOCKS = {"MXFP4": (32, 1, 32), "NVFP4": (64, 4, 16)}


def pack_nibbles(codes: np.ndarray, low_first: bool, _threads: int) -> np.ndarray:
    first, second = codes[:, ::2] & 15, codes[:, 1::2] & 15
    return first | second << 4 if low_first else second | first << 4


def unpack_nibbles(packed: np.ndarray, low_first: bool, _threads: int) -> np.ndarray:
    low, high = packed & 15, packed >> 4
    return np.stack([low, high] if low_first else [high, low], axis=2).reshape(len(packed), -1)


def pack_columns(codes: np.ndarray, bits: int, threads: int) -> np.ndarray:
    return np.ascontiguousarray(pack_bits(codes, bits, threads).view("<u4").T)


def unpack_columns(packed: np.ndarray, bits: int, start: int, stop: int, threads: int) -> np.ndarray:
    """packed: uint32 [W, N] → codes of rows start … stop."""
    words = np.ascontiguousarray(packed[:, start:stop].T)
    return unpack_bits(words.view(np.uint8), bits, packed.shape[0] * 32 // bits, threads)


def pack_awq(codes: np.ndarray, _threads: int) -> np.ndarray:
    words = np.zeros((codes.shape[1], len(codes) // 8), np.uint32)
    for i, row in enumerate(AWQ_ORDER):
        words |= (codes[row::8].T & 15).astype(np.uint32) << np.uint32(4 * i)
    return words


def unpack_awq(packed: np.ndarray, start: int, stop: int, _threads: int) -> np.ndarray:
    """packed: uint32 [K, N / 8] → codes [stop − start, K]."""
    rows = np.arange(start, stop)
    shifts = np.array([4 * AWQ_ORDER.index(row % 8) for row in rows], np.uint32)
    return np.ascontiguousarray(packed[:, rows // 8].T >> shifts[:, None] & np.uint32(15), dtype=np.uint8)


def pack_halves(codes: np.ndarray, bits: int) -> np.ndarray:
    fields = 10 if bits == 3 else 8 // bits
    step = -(-len(codes) // fields)
    out = np.zeros((step, codes.shape[1]), np.int32 if bits == 3 else np.uint8)
    for k in range(fields):
        part = codes[k * step : (k + 1) * step]
        out[: len(part)] |= (part & ((1 << bits) - 1)).astype(out.dtype) << (bits * (fields - 1 - k))
    return out


def unpack_halves(packed: np.ndarray, bits: int, rows: int) -> np.ndarray:
    fields = 10 if bits == 3 else 8 // bits
    step = len(packed)
    out = np.empty((fields * step, packed.shape[1]), np.uint8)
    for k in range(fields):
        out[k * step : (k + 1) * step] = packed >> (bits * (fields - 1 - k)) & ((1 << bits) - 1)
    return out[:rows]


def join_fp4_blocks(codes: np.ndarray, scales: np.ndarray, kind: str, _threads: int) -> np.ndarray:
    block, header, run = FP4_BLOCKS[kind]
    halves = codes.reshape(len(codes), -1, block // run, 2, run // 2)
    nibbles = (halves[..., 0, :] & 15 | halves[..., 1, :] << 4).reshape(len(codes), -1, block // 2)
    return np.concatenate([scales.reshape(len(codes), -1, header), nibbles], axis=2).reshape(len(codes), -1)


def split_fp4_blocks(blocks: np.ndarray, kind: str, _threads: int) -> tuple[np.ndarray, np.ndarray]:
    block, header, run = FP4_BLOCKS[kind]
    parts = blocks.reshape(len(blocks), -1, header + block // 2)
    nibbles = parts[..., header:].reshape(len(blocks), -1, block // run, run // 2)
    codes = np.stack([nibbles & 15, nibbles >> 4], axis=3).reshape(len(blocks), -1)
    return codes, np.ascontiguousarray(parts[..., :header].reshape(len(blocks), -1))
