"""Which weights of a checkpoint are packed, and how. One function a scheme; the first that knows a weight claims it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.quantized_source import quantization_config
from core.errors import UserError
from core.packed import awq, bitsandbytes, compressed_tensors, float4, gpt_oss, gptq, hqq, mlx, scaled8
from core.packed.weight import AGAIN, PackedWeight
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

# Endings of tensors that mean nothing alone: parts of a packed weight, of the schemes above and of others.
_PARTS = (
    *(".qweight", ".qzeros", ".scales", ".biases", ".g_idx"),
    *(".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx"),
    *(".weight_global_scale", ".weight_scale_2", ".weight_scale_inv", ".pre_quant_scale"),
    *("_proj_blocks", "_proj_scales", ".SCB", ".weight.absmax", ".weight.quant_map", ".W_q"),
)
CACHE_SCALES = (".k_scale", ".v_scale", ".q_scale", ".kv_scale")
_CODES = ("I8", "U8", "I16", "U16", "I32", "U32")  # in which no model has its values
_OWN = (".qweight", ".weight_packed", "_proj_blocks")  # those by which a weight of the schemes above is known


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
    _check_schemes(config, found)
    found = _with_cache_scales(found, left)
    _check_left(left, found)
    return found


def _with_cache_scales(found: list[PackedWeight], left: dict[str, TensorInfo]) -> list[PackedWeight]:
    """Scales of the key-value cache, '….self_attn.k_scale', go with a weight of that module, or else with the first."""
    scales = [t for name, t in left.items() if name.endswith(CACHE_SCALES)] if found else []
    modules = {w.name.removesuffix(".weight").rpartition(".")[0]: i for i, w in enumerate(found)}
    own: dict[int, list[TensorInfo]] = {}
    for t in scales:
        left.pop(t.name)
        own.setdefault(modules.get(t.name.rpartition(".")[0], 0), []).append(t)
    return [replace(w, extra=(*w.extra, *own[i])) if i in own else w for i, w in enumerate(found)]


def _check_schemes(config: Mapping[str, Any], found: Sequence[PackedWeight]) -> None:
    """Raise UserError for two schemes in a folder, or values that mean nothing without what is not read."""
    apart = [w for w in found if w.scheme != scaled8.SCHEME]  # 8-bit weights stand beside those of other schemes
    other = next((w for w in apart if w.scheme != apart[0].scheme), None)
    if other is not None:
        raise UserError(
            f"'{apart[0].name}' is packed as {apart[0].scheme} does, and '{other.name}' as {other.scheme}.",
            "Keep the files of one model in a folder, or download the model again.",
        )
    if found and config.get("transform_config"):
        raise UserError(
            f"config.json has a transform_config, without whose rotations '{found[0].name}' means nothing.",
            "Use a version of the model that was made without transforms.",
        )


def _check_left(left: Mapping[str, TensorInfo], found: Sequence[PackedWeight]) -> None:
    """Raise UserError where a weight is there twice, or parts of one are left that no scheme could make it of."""
    for weight in found:
        if weight.name in left:
            packed = f"packed, as '{weight.sources[0].name}', and a second time without"
            raise UserError(f"'{weight.name}' is there {packed}.", "Remove the files that do not belong to the model.")
    lost = next((name for name in left if name.endswith(_PARTS if found else _OWN)), None)
    if lost is not None:
        raise UserError(f"'{lost}' is part of a packed weight, and what else of it is there does not fit it.", AGAIN)
    for t in left.values() if found else ():
        if t.dtype in _CODES and len(t.shape) > 1 and t.name.endswith(".weight"):
            raise UserError(f"'{t.name}' holds {t.dtype}, and no scales say what its values are.", AGAIN)
