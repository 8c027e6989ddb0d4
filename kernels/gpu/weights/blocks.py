"""GGML blocks as fields and back, bit for bit: codes one a byte, scales one a group, and what stands above them.

`split` and `join` are inverse for every block of these types, whatever its bytes are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.layouts import LAYOUTS

_HEADS = {"Q4_0": 1, "Q5_0": 1, "IQ4_NL": 1, "Q4_1": 2, "Q5_1": 2}  # float16 numbers at the start of a block


@dataclass(frozen=True)
class Fields:
    """codes: uint8 [N, K]. scales: [N, groups]; third: minimums [N, groups], d [N, K / 256], d and dmin, or None.

    Float16 numbers are uint16; pairs of 6-bit scale and minimum uint16 (scale low), d and dmin uint32 (d low).
    """

    codes: np.ndarray
    scales: np.ndarray
    third: np.ndarray | None = None


def split(kind: str, data: np.ndarray) -> Fields:
    """Blocks uint8 [N, row bytes] → fields."""
    rows = len(data)
    blocks = np.ascontiguousarray(data).reshape(-1, LAYOUTS[kind].bytes)
    found = _SPLIT[kind](kind, blocks)
    third = None if found.third is None else found.third.reshape(rows, -1)
    return Fields(found.codes.reshape(rows, -1), found.scales.reshape(rows, -1), third)


def join(kind: str, fields: Fields) -> np.ndarray:
    """Fields → blocks uint8 [N, row bytes]."""
    rows, count = len(fields.codes), fields.codes.size // LAYOUTS[kind].block
    third = None if fields.third is None else fields.third.reshape(count, -1)
    parts = Fields(fields.codes.reshape(count, -1), fields.scales.reshape(count, -1), third)
    return _JOIN[kind](kind, parts).reshape(rows, -1)


def _halves(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view("<u2")


def _bytes(values: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(values)
    return values.view(np.uint8).reshape(len(values), -1)


def _spread(data: np.ndarray, bits: int, run: int) -> np.ndarray:
    """Bytes in runs: field f of byte i of a run is code f · run + i → codes of `bits` bits."""
    parts = data.reshape(len(data), -1, 1, run) >> np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (parts & np.uint8((1 << bits) - 1)).reshape(len(data), -1)


def _gather(codes: np.ndarray, bits: int, run: int) -> np.ndarray:
    parts = codes.reshape(len(codes), -1, 8 // bits, run)
    out = np.zeros((len(codes), parts.shape[1], run), np.uint8)
    for field in range(8 // bits):
        out |= parts[:, :, field] << np.uint8(field * bits)
    return out.reshape(len(codes), -1)


def _split_legacy(kind: str, blocks: np.ndarray) -> Fields:
    head = 2 * _HEADS[kind]
    numbers = _halves(blocks[:, :head])
    codes = _spread(blocks[:, -16:], 4, 16)
    if kind.startswith("Q5"):
        codes |= np.unpackbits(blocks[:, head : head + 4], axis=1, bitorder="little") << np.uint8(4)
    return Fields(codes, numbers[:, :1], numbers[:, 1:] if head == 4 else None)


def _join_legacy(kind: str, fields: Fields) -> np.ndarray:
    parts = [_bytes(fields.scales)]
    if fields.third is not None:
        parts.append(_bytes(fields.third))
    if kind.startswith("Q5"):
        parts.append(np.packbits(fields.codes >> np.uint8(4), axis=1, bitorder="little"))
    return np.hstack([*parts, _gather(fields.codes & np.uint8(15), 4, 16)])


def _split_q8_0(_kind: str, blocks: np.ndarray) -> Fields:
    return Fields(blocks[:, 2:] ^ np.uint8(128), _halves(blocks[:, :2]))


def _join_q8_0(_kind: str, fields: Fields) -> np.ndarray:
    return np.hstack([_bytes(fields.scales), fields.codes ^ np.uint8(128)])


def _split_q2_k(_kind: str, blocks: np.ndarray) -> Fields:
    return Fields(_spread(blocks[:, 16:80], 2, 32), blocks[:, :16], np.ascontiguousarray(blocks[:, 80:]).view("<u4"))


def _join_q2_k(_kind: str, fields: Fields) -> np.ndarray:
    assert fields.third is not None
    return np.hstack([fields.scales, _gather(fields.codes, 2, 32), _bytes(fields.third)])


def _split_q3_k(_kind: str, blocks: np.ndarray) -> Fields:
    codes = _spread(blocks[:, 32:96], 2, 32) | _spread(blocks[:, :32], 1, 32) << np.uint8(2)
    scales = _spread(blocks[:, 96:104], 4, 8) | _spread(blocks[:, 104:108], 2, 4) << np.uint8(4)
    return Fields(codes, scales, _halves(blocks[:, 108:]))


def _join_q3_k(_kind: str, fields: Fields) -> np.ndarray:
    assert fields.third is not None
    high, low = _gather(fields.codes >> np.uint8(2), 1, 32), _gather(fields.codes & np.uint8(3), 2, 32)
    scales = [_gather(fields.scales & np.uint8(15), 4, 8), _gather(fields.scales >> np.uint8(4), 2, 4)]
    return np.hstack([high, low, *scales, _bytes(fields.third)])


def _split_pairs(kind: str, blocks: np.ndarray) -> Fields:
    """Q4_K and Q5_K: byte j < 4 has the first scales and two bits of the later, 4 … 7 the same of minimums."""
    packed = blocks[:, 4:16]
    first, second, later = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.hstack([first & 63, later & 15 | (first >> 6) << 4]).astype(np.uint16)
    minimums = np.hstack([second & 63, later >> 4 | (second >> 6) << 4]).astype(np.uint16)
    codes = _spread(blocks[:, -128:], 4, 32)
    if kind == "Q5_K":
        codes |= _spread(blocks[:, 16:48], 1, 32) << np.uint8(4)
    return Fields(codes, scales | minimums << np.uint16(8), np.ascontiguousarray(blocks[:, :4]).view("<u4"))


def _join_pairs(kind: str, fields: Fields) -> np.ndarray:
    assert fields.third is not None
    scales, minimums = (fields.scales & 255).astype(np.uint8), (fields.scales >> 8).astype(np.uint8)
    first = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    second = minimums[:, :4] | (minimums[:, 4:] >> 4) << 6
    later = scales[:, 4:] & 15 | (minimums[:, 4:] & 15) << 4
    high = [_gather(fields.codes >> np.uint8(4), 1, 32)] if kind == "Q5_K" else []
    return np.hstack([_bytes(fields.third), first, second, later, *high, _gather(fields.codes & np.uint8(15), 4, 32)])


def _split_q6_k(_kind: str, blocks: np.ndarray) -> Fields:
    codes = _spread(blocks[:, :128], 4, 64) | _spread(blocks[:, 128:192], 2, 32) << np.uint8(4)
    return Fields(codes, blocks[:, 192:208], _halves(blocks[:, 208:]))


def _join_q6_k(_kind: str, fields: Fields) -> np.ndarray:
    assert fields.third is not None
    low, high = _gather(fields.codes & np.uint8(15), 4, 64), _gather(fields.codes >> np.uint8(4), 2, 32)
    return np.hstack([low, high, fields.scales, _bytes(fields.third)])


def _split_iq4_xs(_kind: str, blocks: np.ndarray) -> Fields:
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    top = (_halves(blocks[:, 2:4]) >> shifts & 3).astype(np.uint8)
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(len(blocks), 8)
    return Fields(_spread(blocks[:, 8:], 4, 16), low | top << np.uint8(4), _halves(blocks[:, :2]))


def _join_iq4_xs(_kind: str, fields: Fields) -> np.ndarray:
    assert fields.third is not None
    top = np.zeros((len(fields.scales), 1), np.uint16)
    for j in range(8):
        top[:, 0] |= (fields.scales[:, j] >> 4).astype(np.uint16) << np.uint16(2 * j)
    low = fields.scales[:, 0::2] & 15 | (fields.scales[:, 1::2] & 15) << 4
    return np.hstack([_bytes(fields.third), _bytes(top), low, _gather(fields.codes, 4, 16)])


def _split_tq2_0(_kind: str, blocks: np.ndarray) -> Fields:
    return Fields(_spread(blocks[:, :64], 2, 32), _halves(blocks[:, 64:]))


def _join_tq2_0(_kind: str, fields: Fields) -> np.ndarray:
    return np.hstack([_gather(fields.codes, 2, 32), _bytes(fields.scales)])


def _split_mxfp4(_kind: str, blocks: np.ndarray) -> Fields:
    return Fields(_spread(blocks[:, 1:], 4, 16), blocks[:, :1])


def _join_mxfp4(_kind: str, fields: Fields) -> np.ndarray:
    return np.hstack([fields.scales, _gather(fields.codes, 4, 16)])


def _split_nvfp4(_kind: str, blocks: np.ndarray) -> Fields:
    return Fields(_spread(blocks[:, 4:], 4, 8), blocks[:, :4])


def _join_nvfp4(_kind: str, fields: Fields) -> np.ndarray:
    return np.hstack([fields.scales, _gather(fields.codes, 4, 8)])


_WAYS: dict[str, tuple[Callable[[str, np.ndarray], Fields], Callable[[str, Fields], np.ndarray]]] = {
    **dict.fromkeys(_HEADS, (_split_legacy, _join_legacy)),
    "Q8_0": (_split_q8_0, _join_q8_0),
    "Q2_K": (_split_q2_k, _join_q2_k),
    "Q3_K": (_split_q3_k, _join_q3_k),
    "Q4_K": (_split_pairs, _join_pairs),
    "Q5_K": (_split_pairs, _join_pairs),
    "Q6_K": (_split_q6_k, _join_q6_k),
    "IQ4_XS": (_split_iq4_xs, _join_iq4_xs),
    "TQ2_0": (_split_tq2_0, _join_tq2_0),
    "MXFP4": (_split_mxfp4, _join_mxfp4),
    "NVFP4": (_split_nvfp4, _join_nvfp4),
}
_SPLIT = {kind: way[0] for kind, way in _WAYS.items()}
_JOIN = {kind: way[1] for kind, way in _WAYS.items()}
