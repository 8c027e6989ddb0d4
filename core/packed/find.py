"""Which weights of a checkpoint are packed, and how. One function a scheme; the first that knows a weight claims it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.quantized_source import quantization_config
from core.errors import UserError
from core.packed import awq, bitsandbytes, compressed_tensors, float4, gpt_oss, gptq, hqq, mlx, scaled8
from core.packed.weight import PackedWeight
from core.tensor_info import TensorInfo

# Given the checkpoint, the tensors that no scheme before it has claimed, and config.json's word on quantization ({}).
Scheme = Callable[[Checkpoint, Mapping[str, TensorInfo], Mapping[str, Any]], list[PackedWeight]]

SCHEMES: tuple[Scheme, ...] = (
    compressed_tensors.find,
    float4.find_compressed,
    float4.find_modelopt,
    gptq.find,
    awq.find,
    bitsandbytes.find,
    gpt_oss.find,
    mlx.find,
    scaled8.find,
    hqq.find,
)


def find_packed(checkpoint: Checkpoint) -> list[PackedWeight]:
    """Every packed weight of a folder. Raises UserError, naming the tensor, where parts are missing or contradict."""
    if checkpoint.container is Container.GGUF:
        return []
    config = quantization_config(checkpoint) or {}
    left = {t.name: t for t in checkpoint.tensors}
    found: list[PackedWeight] = []
    for scheme in SCHEMES:
        claimed = scheme(checkpoint, left, config)
        found += claimed
        for weight in claimed:
            for source in (*weight.sources, *weight.extra):
                left.pop(source.name, None)
    other = next((w for w in found if w.scheme != found[0].scheme), None)
    if other is not None:
        raise UserError(
            f"'{found[0].name}' is packed as {found[0].scheme} does, and '{other.name}' as {other.scheme}.",
            "Keep the files of one model in a folder, or download the model again.",
        )
    return found
