"""Every ecosystem that folders are written for, by name."""

from __future__ import annotations

from core.export.awq import AwqFolders
from core.export.bitsandbytes import BitsAndBytes
from core.export.compressed_tensors import CompressedTensors
from core.export.ecosystem import Ecosystem
from core.export.fp8 import HuggingFaceFP8
from core.export.gptq import GptqFolders
from core.export.hqq import Hqq
from core.export.mlx import Mlx
from core.export.modelopt import ModelOpt
from core.export.plain import PlainFolder

ECOSYSTEMS: dict[str, Ecosystem] = {
    e.name: e
    for e in (
        CompressedTensors(),
        GptqFolders(),
        AwqFolders(),
        HuggingFaceFP8(),
        ModelOpt(),
        BitsAndBytes(),
        Mlx(),
        Hqq(),
        PlainFolder(),
    )
}
