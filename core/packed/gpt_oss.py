"""Experts of gpt-oss: MXFP4 stacks, which the model uses with rows and columns exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.errors import UserError
from core.formats.gpt_oss import GPT_OSS_EXPERTS
from core.formats.numbers import Codes
from core.packed.weight import AGAIN, PackedWeight
from core.tensor_info import TensorInfo

_GROUP = 32


class GptOssWeight(PackedWeight):
    """shape: [E, K, N], as the model has it and a 16-bit file of it stores it; the packed file has [E, N, K]."""

    transposed = True

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        experts, columns, rows = self.shape
        return experts, rows, columns

    def codes(self, start: int, stop: int) -> Codes:
        raise ValueError(f"'{self.name}' has no codes in its own rows")

    def values(self, start: int, stop: int, columns: Columns | None = None) -> np.ndarray:
        """Rows start…stop of [E · K, N]: of each expert, some columns of what is stored, read in whole groups."""
        height, width = self.shape[1:]
        left, right = columns or (0, width)
        out = np.empty((stop - start, right - left), np.float32)
        at = start
        while at < stop:
            expert, first = divmod(at, height)
            last = min(height, first + stop - at)
            out[at - start : at - start + last - first] = self._columns(expert, first, last, left, right).T
            at += last - first
        return out

    def _columns(self, expert: int, first: int, last: int, top: int, bottom: int) -> np.ndarray:
        """float32 [bottom − top, last − first] of an expert, as it is stored."""
        rows = self.stored_shape[1]
        whole = first // _GROUP * _GROUP, -(-last // _GROUP) * _GROUP
        window = (expert * rows + top, expert * rows + bottom)
        raw = [
            self.checkpoint.read_run(source, part.run(self.stored_shape, window, whole))
            for part, source in zip(self.format.parts(self.stored_shape), self.sources, strict=True)
        ]
        codes = self.format.unpack(raw, bottom - top, whole[1] - whole[0])
        return self.format.numbers.values(codes)[:, first - whole[0] : last - whole[0]]


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Every '…experts.gate_up_proj_blocks' and '…down_proj_blocks' with its scales."""
    blocks = [t for t in tensors.values() if t.name.endswith("_proj_blocks") and ".experts." in t.name]
    method = str(config.get("quant_method") or "mxfp4").lower()
    if blocks and method != "mxfp4":
        raise UserError(
            f"'{blocks[0].name}' is packed as gpt-oss does it, but config.json says '{method}'.",
            "Use the config.json that belongs to these weights, or download the model again.",
        )
    return [_experts(checkpoint, tensors, t) for t in blocks]


def _experts(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], blocks: TensorInfo) -> PackedWeight:
    name = blocks.name.removesuffix("_blocks")
    scales = tensors.get(f"{name}_scales")
    if scales is None:
        raise UserError(f"'{blocks.name}' can not be read without '{name}_scales', which is not there.", AGAIN)
    if name in tensors:
        raise UserError(f"'{name}' is there in 4 bits and a second time without.", AGAIN)
    if blocks.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape[-1] != 16 or not prod(blocks.shape):
        raise UserError(f"'{blocks.name}' holds no blocks of 32 codes.", AGAIN)
    experts, rows, groups, _ = blocks.shape
    if scales.dtype not in ("U8", "F8_E8M0") or scales.shape != blocks.shape[:-1]:
        raise UserError(
            f"'{scales.name}' is {scales.dtype} of the shape {list(scales.shape)}, which does not fit "
            f"'{blocks.name}' of {list(blocks.shape)}.",
            AGAIN,
        )
    shape = (experts, groups * _GROUP, rows)
    return GptOssWeight(checkpoint, name, shape, GPT_OSS_EXPERTS, "MXFP4", (blocks, scales))
