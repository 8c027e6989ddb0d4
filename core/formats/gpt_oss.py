"""Experts of gpt-oss: MXFP4 in the layout of its own files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.formats.coded import Coded, as_bytes
from core.formats.float4 import MXFP4
from core.formats.float4_packed import PACKING
from core.formats.numbers import Codes
from core.parts import Axis, Part
from kernels import families


class GptOssExperts(Coded):
    """A stack [E, N, K] as `…_blocks` U8 [E, N, K/32, 16] and `…_scales` U8 [E, N, K/32].

    It is read, and not written: no model but gpt-oss has files of this kind.
    """

    def __init__(self) -> None:
        super().__init__("gpt-oss-mxfp4", MXFP4, PACKING, "4-bit floats of gpt-oss", "gpt-oss-mxfp4")

    def accepts(self, shape: Sequence[int]) -> str:
        if len(shape) != 3 or 0 in shape:
            return "only stacks of experts are stored this way"
        return self.numbers.misfit(shape[-1])

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        experts, n, k = shape
        groups = k // 32
        return (
            Part("_blocks", "U8", (experts, n, groups, 16), experts * n * groups * 16, columns=Axis(16, 32)),
            Part("_scales", "U8", (experts, n, groups), experts * n * groups, columns=Axis(1, 32)),
        )

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        return as_bytes(families.pack_nibbles(codes.codes)), as_bytes(codes.scales)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        codes = families.unpack_nibbles(parts[0].reshape(rows, columns // 2))
        return Codes(codes, parts[1].reshape(rows, columns // 32))


GPT_OSS_EXPERTS = GptOssExperts()
