"""4-bit floats in folders: NVFP4 and MXFP4 of compressed-tensors, NVFP4 of ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.formats.float4 import TensorScale, is_power_of_two
from core.formats.float4_packed import MODELOPT_NVFP4, MODELOPT_NVFP4A16, MXFP4A16, NVFP4A4, NVFP4A16, PackedFloat4
from core.packed.compressed_tensors import METHODS
from core.packed.weight import AGAIN, OTHER_CONFIG, PackedWeight, check_method, packed_weight
from core.tensor_info import TensorInfo

_FORMATS = {"F8_E4M3": NVFP4A16, "U8": MXFP4A16, "F8_E8M0": MXFP4A16}  # by the type of their scales
_MODELOPT = ("modelopt", "modelopt_fp4", "modelopt_mixed")


def find_compressed(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> list[PackedWeight]:
    """'nvfp4-pack-quantized' and 'mxfp4-pack-quantized' weights, with 16- or 4-bit activations alike."""
    packed = [t for t in tensors.values() if t.name.endswith(".weight_packed") and t.dtype == "U8"]
    found = [_compressed(checkpoint, tensors, config, t) for t in packed]
    return _with_tensor_scales(found, TensorScale.DIVISOR)


def _compressed(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], codes: TensorInfo
) -> PackedWeight:
    base = codes.name.removesuffix(".weight_packed")
    check_method(codes, config, METHODS, "compressed-tensors")
    scales = _needed(tensors, codes, f"{base}.weight_scale")
    form = _FORMATS.get(scales.dtype)
    if form is None:
        raise UserError(f"'{scales.name}' holds {scales.dtype}, which are no scales of 4-bit floats.", AGAIN)
    extra = ".weight_global_scale" if form is MXFP4A16 else ""
    for name in (f"{base}.weight_zero_point", base + extra if extra else ""):
        if name in tensors:
            raise UserError(f"'{name}' has no use in {form.numbers.label}, which '{codes.name}' is.", AGAIN)
    declared = _declared(config)
    if declared and not any(_fits(d, form.numbers.group) for d in declared):
        raise UserError(f"'{codes.name}' holds {form.numbers.label}, but config.json says otherwise.", OTHER_CONFIG)
    shape = (codes.rows, 2 * codes.columns)
    _check_groups(codes, shape, form)
    if form is NVFP4A16 and f"{base}.input_global_scale" in tensors:
        form = NVFP4A4
    return packed_weight(checkpoint, tensors, base, shape, form, "compressed-tensors")


def find_modelopt(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]
) -> list[PackedWeight]:
    """ModelOpt's NVFP4: '….weight' in bytes, with '….weight_scale' and '….weight_scale_2'."""
    second = {name.removesuffix("_scale_2") for name in tensors if name.endswith(".weight_scale_2")}
    claims = "NVFP4" in str(config.get("quant_algo") or "").upper()
    found = []
    for codes in tensors.values():
        if codes.dtype != "U8" or not codes.name.endswith(".weight") or not (claims or codes.name in second):
            continue
        base = codes.name.removesuffix(".weight")
        check_method(codes, config, _MODELOPT, "ModelOpt")
        if f"{base}.pre_quant_scale" in tensors:
            raise UserError(
                f"'{base}.pre_quant_scale' scales what '{codes.name}' is multiplied with, which can not be read yet.",
                "Use a version of the model that was made without AWQ.",
            )
        shape = (codes.rows, 2 * codes.columns)
        _check_groups(codes, shape, MODELOPT_NVFP4)
        form = MODELOPT_NVFP4 if f"{base}.input_scale" in tensors else MODELOPT_NVFP4A16
        found.append(packed_weight(checkpoint, tensors, base, shape, form, "ModelOpt"))
    lost = sorted(second - {w.name for w in found})
    if lost:
        raise UserError(f"'{lost[0]}_scale_2' belongs to '{lost[0]}', which is not there in 4-bit floats.", AGAIN)
    return _with_tensor_scales(found, TensorScale.FACTOR)


def _with_tensor_scales(found: Sequence[PackedWeight], other: TensorScale) -> list[PackedWeight]:
    """The weights with what their tensor scales are: powers of two, all of them, or else the other kind.

    Raises UserError that names a scale which is not a positive number.
    """
    powers = True
    for weight in found:
        if weight.format.numbers.tensor is TensorScale.NONE:  # type: ignore[attr-defined]
            continue
        one, *_inputs = [_scale(weight, source) for source in weight.sources[2:]]
        powers = powers and is_power_of_two(one)
    if powers:
        return list(found)
    return [_of_kind(w, other) for w in found]


def _scale(weight: PackedWeight, source: TensorInfo) -> float:
    value = float(weight.checkpoint.read_raw(source).reshape(-1).view(np.float32)[0])
    if not (np.isfinite(value) and value > 0 and np.isfinite(np.float32(1 / value))):
        raise UserError(f"'{source.name}' is {value:g}, which is no scale.", AGAIN)
    return value


def _of_kind(weight: PackedWeight, kind: TensorScale) -> PackedWeight:
    form = weight.format
    assert isinstance(form, PackedFloat4)
    if form.numbers.tensor is TensorScale.NONE:
        return weight
    return replace(weight, format=form.like_this(form.numbers.with_tensor(kind)))


def _needed(tensors: Mapping[str, TensorInfo], codes: TensorInfo, name: str) -> TensorInfo:
    found = tensors.get(name)
    if found is None:
        raise UserError(f"'{codes.name}' can not be read without '{name}', which is not there.", AGAIN)
    return found


def _check_groups(codes: TensorInfo, shape: tuple[int, int], form: PackedFloat4) -> None:
    if len(codes.shape) != 2:
        raise UserError(f"'{codes.name}' is no matrix.", AGAIN)
    if problem := form.accepts(shape):
        raise UserError(f"'{codes.name}' can not be {form.numbers.label}: {problem}.", AGAIN)


def _declared(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What config.json says of weights, one mapping a group."""
    groups = config.get("config_groups")
    found = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    return [w for w in found if isinstance(w, Mapping)]


def _fits(declared: Mapping[str, Any], group: int) -> bool:
    """Whether a scheme is of these weights; where it is silent, it fits."""
    return (
        declared.get("num_bits") in (None, 4)
        and declared.get("type") in (None, "float")
        and declared.get("group_size") in (None, group)
        and declared.get("symmetric") in (None, True)
    )
