"""Which weights of a checkpoint are packed, and how. One function a scheme; the first that knows a weight claims it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.quantized_source import quantization_config
from core.errors import UserError
from core.packed import awq, bitsandbytes, compressed_tensors, float4, gpt_oss, gptq, hqq, mlx, scaled8
from core.packed.rotations import input_rotations, is_linear, stored_matrices
from core.packed.weight import AGAIN, PackedWeight
from core.tensor_info import TensorInfo
from kernels.rotation import Rotation

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


@dataclass(frozen=True)
class Found:
    """packed: weights. rotated: of plain weights, how they are, since their input is while the model runs. unused:
    names of tensors that say only that."""

    packed: list[PackedWeight]
    rotated: Mapping[str, Rotation] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()


def find_packed(checkpoint: Checkpoint) -> Found:
    """Every packed weight of a folder, and those that are rotated. Raises UserError, naming the tensor, where parts are
    missing or contradict, or where transforms make the weights something that can not be run or read."""
    if checkpoint.container is Container.GGUF:
        return Found([])
    config = quantization_config(checkpoint) or {}
    matrices = stored_matrices(checkpoint.tensors, config)
    left = {t.name: t for t in checkpoint.tensors if t.name not in matrices}
    found: list[PackedWeight] = []
    for scheme in SCHEMES:
        claimed = scheme(checkpoint, left, config)
        found += claimed
        for weight in claimed:
            for source in (*weight.sources, *weight.extra):
                left.pop(source.name, None)
    _check_schemes(found)
    found = _with_cache_scales(found, left)
    _check_left(left, found)
    return _with_rotations(checkpoint, config, found, left, matrices)


def _with_rotations(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    found: list[PackedWeight],
    left: Mapping[str, TensorInfo],
    matrices: Mapping[str, TensorInfo],
) -> Found:
    """Weights know their rotations; its matrices belong to the first of them."""
    shapes = {w.name: w.shape for w in found} | {t.name: t.shape for t in left.values() if is_linear(t)}
    rotations = input_rotations(checkpoint, shapes, config)
    if rotations and any(w.order is not None or w.transposed for w in found if w.name in rotations):
        raise UserError("Rotated weights whose columns have an order of their own can not be read.", AGAIN)
    found = [replace(w, rotation=rotations[w.name]) if w.name in rotations else w for w in found]
    first = next((i for i, w in enumerate(found) if w.rotation is not None), None)
    if first is not None:
        found[first] = replace(found[first], extra=(*found[first].extra, *matrices.values()))
    plain = {name: rotation for name, rotation in rotations.items() if name in left}
    return Found(found, plain, frozenset(matrices))


def _with_cache_scales(found: list[PackedWeight], left: dict[str, TensorInfo]) -> list[PackedWeight]:
    """Scales of the key-value cache, '….self_attn.k_scale', go with a weight of that module, or else with the first."""
    scales = [t for name, t in left.items() if name.endswith(CACHE_SCALES)] if found else []
    modules = {w.name.removesuffix(".weight").rpartition(".")[0]: i for i, w in enumerate(found)}
    own: dict[int, list[TensorInfo]] = {}
    for t in scales:
        left.pop(t.name)
        own.setdefault(modules.get(t.name.rpartition(".")[0], 0), []).append(t)
    return [replace(w, extra=(*w.extra, *own[i])) if i in own else w for i, w in enumerate(found)]


def _check_schemes(found: Sequence[PackedWeight]) -> None:
    """Raise UserError for two schemes in a folder."""
    apart = [w for w in found if w.scheme != scaled8.SCHEME]  # 8-bit weights stand beside those of other schemes
    other = next((w for w in apart if w.scheme != apart[0].scheme), None)
    if other is not None:
        raise UserError(
            f"'{apart[0].name}' is packed as {apart[0].scheme} does, and '{other.name}' as {other.scheme}.",
            "Keep the files of one model in a folder, or download the model again.",
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
