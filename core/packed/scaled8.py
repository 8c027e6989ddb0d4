"""Weights of a byte a value beside their scales: FP8 and INT8 of compressed-tensors, Hugging Face, FBGEMM and ModelOpt.

They differ in the scales' name and in what config.json says; which values share a scale shows in the scales' shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.errors import UserError
from core.formats.float8 import Float8
from core.formats.numbers import Integers
from core.formats.scaled8 import SCALED8, Inputs, Scaled8
from core.packed.weight import AGAIN, PackedWeight, packed_weight
from core.tensor_info import TensorInfo
from core.units import format_count

_FLOATS = {"F8_E4M3": ElementType.F8_E4M3, "F8_E5M2": ElementType.F8_E5M2}
_DTYPES = (*_FLOATS, "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
_SCALES = {e.label: e for e in (ElementType.BF16, ElementType.F16, ElementType.F32, ElementType.F8_E8M0)}
_SCALES["U8"] = ElementType.F8_E8M0
_OWN = "Use the config.json that belongs to these weights, or download the model again."
_TILE = (128, 128)
_MXFP8 = (1, 32)  # the one layout whose scales may be bytes that name no type
_ELSEWHERE = ("gptq", "gptq_marlin", "awq", "awq_marlin", "bitsandbytes", "hqq")  # methods that have no such weights
SCHEME = "8 bits"

# Of the activations and of the key-value cache: they belong to a weight, and none of its values is in them.
_BESIDE = tuple(
    f".{name}"
    for name in (
        "input_scale", "input_zero_point", "input_scale_ub", "activation_scale", "output_scale", "k_scale", "v_scale",
        "q_scale",
    )
)  # fmt: skip
Layout = tuple[int, int]  # rows and columns that share a scale, 0: all


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Weights of 8 bits with scales. Raises UserError where scales are missing, or would be left out."""
    some = any(name.endswith((".weight_scale", ".weight_scale_inv")) for name in tensors)
    declared = _declared(config)
    found = []
    for t in tensors.values():
        names = (t.name + "_scale", t.name + "_scale_inv", t.name.removesuffix(".weight") + ".scale")
        scales = [tensors[name] for name in names if name in tensors and name != t.name]
        if t.dtype in _DTYPES and t.name.endswith(".weight") and len(t.shape) == 2:
            if scales:
                _check_kind(t, scales[0], config)
                found.append(_weight(checkpoint, tensors, declared, t, scales))
            elif t.dtype != "I8" and (some or declared):
                raise UserError(f"'{t.name}' has no scale, without which its values are not known.", AGAIN)
        elif scales and t.dtype in (*_DTYPES, "BF16", "F16", "F32"):
            shape = " × ".join(format_count(n) for n in t.shape) or "1"
            raise UserError(
                f"'{t.name}' is {shape} in {t.dtype}, so its scales '{scales[0].name}' can not be applied.",
                "Use a checkpoint with one matrix a tensor, or the one that it was made from.",
            )
    return found


def _check_kind(t: TensorInfo, scale: TensorInfo, config: Mapping[str, Any]) -> None:
    """Raise UserError where config.json names a method without such weights, or integers for floats and vice versa."""
    method = str(config.get("quant_method") or "").lower()
    groups = config.get("config_groups")
    weights = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    kinds = {str(w.get("type")) for w in weights if isinstance(w, Mapping)}
    if method in ("fp8", "fbgemm_fp8"):
        kinds = {"float"}
    wrong = kinds == {"float" if t.dtype == "I8" else "int"}
    if wrong or method in _ELSEWHERE:
        said = f"8-bit {'integers' if t.dtype == 'I8' else 'floats'} with the scales '{scale.name}'"
        raise UserError(f"'{t.name}' holds {said}, but config.json says otherwise.", _OWN)


def _weight(
    checkpoint: Checkpoint,
    tensors: Mapping[str, TensorInfo],
    declared: list[Layout | None],
    t: TensorInfo,
    scales: list[TensorInfo],
) -> PackedWeight:
    base, scale = t.name.removesuffix(".weight"), scales[0]
    twice = scales[1:] + [tensors[n] for n in (t.name + "_packed",) if n in tensors]
    if twice:
        raise UserError(f"'{scale.name}' and '{twice[0].name}' both say what '{t.name}' is.", AGAIN)
    kind = _SCALES.get(scale.dtype)
    if kind is None:
        raise UserError(f"'{scale.name}' holds {scale.dtype}, which are no scales.", AGAIN)
    layout = _layout(t, scale, declared)
    if layout is None:
        shape = " × ".join(format_count(n) for n in scale.shape) or "1"
        raise UserError(
            f"'{scale.name}' has {shape} scales, which do not fit '{t.name}' of {format_count(t.rows)} × "
            f"{format_count(t.columns)}.",
            "Scales belong to a tensor, a row, a group of a row, or a tile; download the model again.",
        )
    if declared and not any(_same(d, layout, t) for d in declared):
        raise UserError(f"'{scale.name}' has {_words(layout)}, but config.json says otherwise.", _OWN)
    height, size = layout
    if scale.dtype == "U8" and layout != _MXFP8:
        raise UserError(f"'{scale.name}' has {_words(layout)} in U8, which are no such scales.", AGAIN)
    if t.dtype == "I8":
        if height > 1 or kind is ElementType.F8_E8M0:
            raise UserError(f"'{t.name}' holds 8-bit integers with {_words(layout)}, which are not known here.", AGAIN)
        numbers: Float8 | Integers = Integers(8, size, f"{t.name}_zero_point" not in tensors, kind)
    else:
        dtype = t.dtype.removesuffix("FNUZ")
        numbers = Float8(_FLOATS[dtype], height, size, kind, dtype != t.dtype)
    given = tensors.get(base + ".input_scale")
    static = given is not None and given.values == 1 and given.dtype in ("F32", "BF16", "F16")
    input_type = _SCALES[given.dtype] if static and given is not None else ElementType.F32
    suffix = scale.name.removeprefix(t.name) if scale.name.startswith(t.name) else ".scale"
    form = Scaled8(
        _name(numbers, suffix, static, not scale.shape), "", numbers, Inputs.TENSOR if static else Inputs.NONE, "", "",
        suffix, whole=t.dtype == "I8" and not height, input_type=input_type,
    )  # fmt: skip
    return packed_weight(
        checkpoint, tensors, base, (t.rows, t.columns), form, SCHEME, extra=_BESIDE[1:] if static else _BESIDE
    )


def _name(numbers: Float8 | Integers, suffix: str, static: bool, scalar: bool) -> str:
    """Of the format that writes such weights, where there is one; else what the numbers are called."""
    fits = [
        f
        for f in SCALED8
        if replace(f.numbers, scale=numbers.scale) == numbers and (f.suffix, f.needs_input) == (suffix, static)
    ]
    best = [f for f in fits if f.scalar == scalar] or fits
    return best[0].name if best else numbers.label


def _layout(t: TensorInfo, scale: TensorInfo, declared: list[Layout | None]) -> Layout | None:
    """Which values share a scale, by the scales' shape; where tiles of several sizes would fit, config.json decides."""
    n, k = t.rows, t.columns
    shape = scale.shape
    tiles = [d for d in declared if d and d[0] > 1 and d[1]] or [_TILE]
    tiled = bool(declared) and all(d and d[0] > 1 for d in declared)
    if tiled and (found := _tiled(shape, n, k, tiles)):  # it may be a single one
        return found
    if scale.values == 1:
        return 0, 0
    if scale.values == n and shape[0] == n:
        return 1, 0
    if len(shape) == 2 and shape[0] == n and shape[1] and k % shape[1] == 0:
        return 1, k // shape[1]
    return _tiled(shape, n, k, tiles)


def _tiled(shape: tuple[int, ...], n: int, k: int, tiles: list[Layout]) -> Layout | None:
    return next((d for d in tiles if shape == (-(-n // d[0]), -(-k // d[1]))), None)


def _same(declared: Layout | None, found: Layout, t: TensorInfo) -> bool:
    """Whether config.json's word and the shape agree; a group or a tile that is the whole row or matrix is both."""
    if declared is None or declared == found:
        return True
    reach = [(min(h or t.rows, t.rows), min(s or t.columns, t.columns)) for h, s in (declared, found)]
    return reach[0] == reach[1]


def _words(layout: Layout) -> str:
    height, size = layout
    if not height:
        return "one scale"
    if height == 1:
        return f"a scale for each group of {size}" if size else "a scale for each row"
    return f"a scale for each tile of {height} × {size}"


def _declared(config: Mapping[str, Any]) -> list[Layout | None]:
    """Layouts that config.json names; None: it says of some weights what is not known here. [] when it is silent."""
    method = str(config.get("quant_method") or config.get("quant_algo") or "").lower()
    if method == "fp8":
        size = config.get("weight_block_size")
        return [_pair(size)] if size else [(0, 0), (1, 0)]
    if method == "fbgemm_fp8":
        return [(1, 0)]
    if method.startswith("modelopt"):
        known: dict[str, Layout] = {"FP8": (0, 0), "FP8_PER_CHANNEL_PER_TOKEN": (1, 0), "MXFP8": (1, 32)}
        return [known.get(str(config.get("quant_algo")).upper())]
    if method.startswith("compressed"):
        groups = config.get("config_groups")
        return [_strategy(g) for g in groups.values()] if isinstance(groups, Mapping) else []
    return [None] if method else []


def _strategy(group: Any) -> Layout | None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    size = weights.get("group_size")
    strategy = weights.get("strategy")
    if strategy == "block":
        return _pair(weights.get("block_structure"))
    if strategy == "group" and isinstance(size, int) and size > 0:
        return 1, size
    return {"tensor": (0, 0), "channel": (1, 0)}.get(str(strategy))


def _pair(size: Any) -> Layout | None:
    """[128, 128]; old releases wrote '128x128'."""
    parts = str(size).lower().split("x") if isinstance(size, str) else size
    try:
        height, width = (int(n) for n in parts)
    except (TypeError, ValueError):
        return None
    return (height, width) if height > 0 and width > 0 else None
