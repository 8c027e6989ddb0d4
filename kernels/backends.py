"""Registers every implementation of every operation. Imported by `kernels.ops`; nothing else needs it."""

from __future__ import annotations

from functools import partial

import numpy as np

from kernels import cpu, dispatch
from kernels.layouts import BLOCK_KINDS, LAYOUTS, SOURCE_KINDS
from kernels.reference import blocks


def _encode_blocks(
    isa: str,
    kind: str,
    x: np.ndarray,
    importance: np.ndarray | None,
    search: bool,
    tensor_scale: float,
    threads: int,
) -> np.ndarray:
    assert cpu.extension is not None
    out = np.empty((x.shape[0], LAYOUTS[kind].row_bytes(x.shape[1])), np.uint8)
    cpu.extension.encode_blocks(isa, kind, x, importance, out, search, tensor_scale, threads)
    return out


def _decode_blocks(
    isa: str, kind: str, data: np.ndarray, columns: int, tensor_scale: float, threads: int
) -> np.ndarray:
    assert cpu.extension is not None
    out = np.empty((data.shape[0], columns), np.float32)
    cpu.extension.decode_blocks(isa, kind, data, out, tensor_scale, threads)
    return out


def _decodes(kind: str) -> str:
    assert cpu.extension is not None
    return "" if cpu.extension.decodes(kind) else f"no compiled decoder for {kind}"


def _encodes(kind: str) -> str:
    assert cpu.extension is not None
    return "" if cpu.extension.encodes(kind) else f"no compiled encoder for {kind}"


dispatch.register("encode_blocks", "reference", blocks.encode_blocks, variants=BLOCK_KINDS)
dispatch.register("decode_blocks", "reference", blocks.decode_blocks, variants=BLOCK_KINDS + SOURCE_KINDS)

for _rank, _isa in enumerate(reversed(cpu.instruction_sets), start=1):
    _backend = f"cpu:{_isa}"
    dispatch.register("encode_blocks", _backend, partial(_encode_blocks, _isa), _encodes, _rank)
    dispatch.register("decode_blocks", _backend, partial(_decode_blocks, _isa), _decodes, _rank)
