"""Every number format that Bitsmith writes, in one list: a new one is a file, a line here, a row in the tests."""

from __future__ import annotations

from core.errors import UserError
from core.formats.awq import AWQ
from core.formats.base import EncodeOptions, Format, Method
from core.formats.bitsandbytes import BITSANDBYTES
from core.formats.float4_packed import COMPRESSED_FLOAT4, MODELOPT_NVFP4
from core.formats.ggml import GGML_FORMATS
from core.formats.gptq import GPTQ
from core.formats.hqq import HQQ
from core.formats.mlx import MLX
from core.formats.pack_quantized import PACK_QUANTIZED
from core.formats.plain import PLAIN
from core.formats.scaled8 import SCALED8

FORMATS: tuple[Format, ...] = (
    *GGML_FORMATS,
    *PACK_QUANTIZED,
    *SCALED8,
    *COMPRESSED_FLOAT4,
    MODELOPT_NVFP4,
    *GPTQ,
    *AWQ,
    *BITSANDBYTES,
    *MLX,
    *HQQ,
    *PLAIN,
)

_BY_NAME = {(f.container, f.name.lower()): f for f in FORMATS}


def find_format(name: str, container: str) -> Format:
    """The format of that name (any case) in 'gguf' or 'safetensors'. Raises UserError that lists the names."""
    found = _BY_NAME.get((container, name.lower()))
    if found is None:
        names = ", ".join(f.name for f in FORMATS if f.container == container)
        raise UserError(f"{name} is not a format for this output.", f"Use one of: {names}.")
    return found


__all__ = ["FORMATS", "EncodeOptions", "Format", "Method", "find_format"]
