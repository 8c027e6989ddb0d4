"""MLX folders: `weight` in 32-bit words, `scales`, and `biases` where there are offsets; experts in one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.errors import UserError
from core.formats.mlx import MLX_BITS, MLX_FLOATS, MLXAffine, MLXWeights
from core.packed.weight import AGAIN, OTHER_CONFIG, PackedWeight, packed_weight
from core.roles import parse_name
from core.tensor_info import TensorInfo

_SCALES = {e.label: e for e in (ElementType.BF16, ElementType.F16, ElementType.F32)}
# The names of experts in a block, where they are not these of MLX.
_NAMED = {"block_sparse_moe": {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}}


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Weights of an MLX folder. Raises UserError that names a tensor whose parts are missing or contradict config."""
    said = checkpoint.config.get("quantization")  # what mlx-lm reads, whatever stands beside it
    config = said if isinstance(said, Mapping) and said else config
    found: list[PackedWeight] = []
    for t in tensors.values():
        base, ending = t.name.removesuffix(".scales"), ".scales"
        codes = tensors.get(f"{base}.weight")
        if not t.name.endswith(ending) or codes is None or codes.dtype not in ("U32", "I32"):
            continue
        if f"{base}.global_scale" in tensors:
            raise UserError(
                f"'{base}.global_scale' scales a whole weight, which is not known here and would be lost.",
                "Use the checkpoint that it was made from.",
            )
        form, columns = _format(config, base, codes, t)
        shape = (*codes.shape[:-1], columns)
        found += _weights(checkpoint, tensors, base, shape, form)
    return found


def _format(config: Mapping[str, Any], base: str, codes: TensorInfo, scales: TensorInfo) -> tuple[MLXWeights, int]:
    """How a weight is packed, and the length of its rows."""
    own = config.get(base)
    said = {**config, **own} if isinstance(own, Mapping) else config
    bits, group, mode = said.get("bits"), said.get("group_size"), said.get("mode", "affine")
    if own is False or not isinstance(bits, int) or not isinstance(group, int):
        raise UserError(f"config.json does not say in how many bits and groups '{codes.name}' is stored.", OTHER_CONFIG)
    form: MLXWeights | None = None
    if mode == "affine" and bits in MLX_BITS and group > 0 and scales.dtype in _SCALES:
        form = MLXAffine(bits, group, _SCALES[scales.dtype])
    elif scales.dtype == "U8":
        form = next((f for f in MLX_FLOATS if (f.mode, f.bits, f.numbers.group) == (mode, bits, group)), None)
    if form is None:
        raise UserError(
            f"'{codes.name}' is stored in MLX's mode '{mode}' with {bits} bits in groups of {group} and "
            f"{scales.dtype} scales, which is not known here.",
            OTHER_CONFIG,
        )
    columns = scales.columns * group
    if codes.columns * 32 != columns * bits or codes.shape[:-1] != scales.shape[:-1] or not prod(codes.shape):
        raise UserError(
            f"'{codes.name}' and '{scales.name}' are not {bits} bits in groups of {group}, as config.json says.",
            OTHER_CONFIG,
        )
    return form, columns


def plain_experts(t: TensorInfo) -> tuple[TensorInfo, ...]:
    """Experts that MLX keeps unquantized in one tensor, each as a tensor of its own; other tensors as they are."""
    block, dot, part = t.name.removesuffix(".weight").rpartition(".switch_mlp.")
    if not dot or len(t.shape) != 3:
        return (t,)
    part, count = _NAMED.get(block.rpartition(".")[2], {}).get(part, part), t.shape[0]
    found = []
    for i in range(count):
        name, size = f"{block}.experts.{i}.{part}.weight", t.nbytes // count
        named = parse_name(name, t.shape[1:])
        offset = t.offset + i * size
        own = replace(t, name=name, shape=t.shape[1:], nbytes=size, offset=offset, role=named.role)
        found.append(replace(own, layer=named.layer, expert=named.expert, experts=named.experts))
    return tuple(found)


def _weights(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], base: str, shape: tuple[int, ...], form: MLXWeights
) -> list[PackedWeight]:
    if len(shape) == 2:
        return [packed_weight(checkpoint, tensors, base, (shape[0], shape[1]), form, "MLX")]
    block, dot, part = base.rpartition(".switch_mlp.")
    if len(shape) != 3 or not dot:
        raise UserError(f"'{base}.weight' has {len(shape)} axes, and is no stack of experts that is known here.", AGAIN)
    part = _NAMED.get(block.rpartition(".")[2], {}).get(part, part)
    whole = packed_weight(checkpoint, tensors, base, shape, form, "MLX")
    return [whole.expert(i, f"{block}.experts.{i}.{part}.weight") for i in range(shape[0])]
