"""bitsandbytes folders: 4-bit weights with their quant_state, and the rows of LLM.int8()."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.errors import UserError
from core.formats.bitsandbytes import FourBit, Int8Rows
from core.formats.codebook import NESTED, TABLES
from core.packed.weight import AGAIN, PackedWeight, packed_weight
from core.tensor_info import TensorInfo

_STATE = ".weight.quant_state.bitsandbytes__"
_ABSMAX = ".weight.absmax"
_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_DTYPES = ("bfloat16", "float16", "float32")
_STORAGE = {e.label: e for e in (ElementType.U8, ElementType.BF16, ElementType.F16, ElementType.F32, ElementType.F64)}
_SCALES = {e.label: e for e in (ElementType.F32, ElementType.BF16, ElementType.F16)}
_MOST_STATE = 1 << 16  # bytes
_OTHER_CONFIG = "Use the config.json that belongs to these weights, or download the model again."


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Weights of a bitsandbytes folder."""
    found = []
    for t in tensors.values():
        base, state, kind = t.name.partition(_STATE)
        if state:
            _agrees(config, t, four=True)
            found.append(_four_bit(checkpoint, tensors, base, kind, t))
        elif t.name.endswith(".SCB"):
            _agrees(config, t, four=False)
            found.append(_int8(checkpoint, tensors, t.name.removesuffix(".SCB"), t))
    whole = {s.name for w in found for s in (*w.sources, *w.extra)}
    for t in tensors.values():
        if t.name.endswith(_ABSMAX) and t.name not in whole:
            raise UserError(f"'{t.name}' can not be read without a quant_state beside it, which is not there.", AGAIN)
        if t.dtype == "I8" and t.name.endswith(".weight") and t.name not in whole and _method(config) == "bitsandbytes":
            missing = t.name.removesuffix("weight") + "SCB"
            raise UserError(f"'{t.name}' can not be read without '{missing}', which is not there.", AGAIN)
    return found


def _method(config: Mapping[str, Any]) -> str:
    return str(config.get("quant_method") or "").lower()


def _agrees(config: Mapping[str, Any], t: TensorInfo, four: bool) -> None:
    """Raise UserError where config.json says that this tensor can not be."""
    method = _method(config)
    bits = {4: config.get("load_in_4bit", config.get("_load_in_4bit")), 8: config.get("load_in_8bit")}
    other = bits[8] and not bits[4] if four else bits[4] and not bits[8]
    if method not in ("", "bitsandbytes") or other:
        said = f"{8 if four else 4} bits" if method in ("", "bitsandbytes") else method
        raise UserError(
            f"'{t.name}' is of bitsandbytes' {4 if four else 8} bits, but config.json says {said}.", _OTHER_CONFIG
        )


def _four_bit(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], base: str, kind: str, state: TensorInfo
) -> PackedWeight:
    codes, absmax = (tensors.get(base + end) for end in (".weight", _ABSMAX))
    if codes is None or absmax is None:
        missing = base + (".weight" if codes is None else _ABSMAX)
        raise UserError(f"'{state.name}' can not be read without '{missing}', which is not there.", AGAIN)
    text = _state(checkpoint, state)
    size, shape = text.get("blocksize"), text.get("shape")
    if text.get("quant_type") != kind or kind.upper() not in TABLES:
        raise UserError(f"'{state.name}' is of an unknown kind: {text.get('quant_type')}.", AGAIN)
    if size not in _SIZES or text.get("dtype") not in _DTYPES:
        raise UserError(f"'{state.name}' has blocks of {size} and {text.get('dtype')}, which is not known.", AGAIN)
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise UserError(f"'{state.name}' has a weight of {shape}; only matrices can be read.", AGAIN)
    nested_map = _nested(checkpoint, tensors, base, text, state)
    if codes.dtype not in _STORAGE or (absmax.dtype not in _SCALES and nested_map is None):
        bad = codes if codes.dtype not in _STORAGE else absmax
        raise UserError(f"'{bad.name}' holds {bad.dtype}, which bitsandbytes does not write.", AGAIN)
    form = FourBit(
        kind.upper(),
        nested_map is not None,
        size,
        _STORAGE[codes.dtype],
        _SCALES.get(absmax.dtype, ElementType.F32),
        state.nbytes,
        nested_map,
    )
    rows, columns = shape
    weight = packed_weight(checkpoint, tensors, base, (rows, columns), form, "bitsandbytes")
    _check_levels(checkpoint, weight)
    return weight


def _state(checkpoint: Checkpoint, state: TensorInfo) -> dict[str, Any]:
    try:
        if state.dtype != "U8" or state.nbytes > _MOST_STATE:
            raise ValueError
        text = json.loads(checkpoint.read_raw(state).tobytes())
    except (ValueError, RecursionError):
        raise UserError(f"'{state.name}' is not the JSON that it should be.", AGAIN) from None
    if not isinstance(text, dict):
        raise UserError(f"'{state.name}' is not the JSON that it should be.", AGAIN)
    return text


def _nested(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], base: str, text: Mapping[str, Any], state: TensorInfo
) -> np.ndarray | None:
    """The 256 levels of scales that are quantized themselves; None where they are plain."""
    table = tensors.get(f"{base}.weight.nested_quant_map")
    outer = tensors.get(f"{base}.weight.nested_absmax")
    offset = text.get("nested_offset")
    if table is None and outer is None and offset is None:
        return None
    if table is None or outer is None:
        missing = f"{base}.weight." + ("nested_quant_map" if table is None else "nested_absmax")
        raise UserError(f"'{base}.weight' can not be read without '{missing}', which is not there.", AGAIN)
    if text.get("nested_blocksize") != NESTED or type(offset) not in (int, float) or not isfinite(offset or 0):
        raise UserError(f"'{state.name}' does not say how its scales are quantized.", AGAIN)
    if table.dtype != "F32" or table.values != 256:
        raise UserError(f"'{table.name}' is {table.dtype} of {table.values} values, not 256 levels in F32.", AGAIN)
    return checkpoint.read_raw(table).reshape(-1).view(np.float32)


def _check_levels(checkpoint: Checkpoint, weight: PackedWeight) -> None:
    """bitsandbytes decodes with its own table, whatever the file's; where they differ, one of them is wrong."""
    levels = weight.sources[2]
    given = checkpoint.read_raw(levels).reshape(-1).view(np.float32)
    form = weight.format
    assert isinstance(form, FourBit)
    if not np.allclose(given, form.numbers.levels, atol=1e-3):
        raise UserError(f"'{levels.name}' does not hold the levels of {form.numbers.table}.", AGAIN)


def _int8(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], base: str, scales: TensorInfo) -> PackedWeight:
    codes, layout = (tensors.get(base + end) for end in (".weight", ".weight_format"))
    if codes is None:
        raise UserError(f"'{scales.name}' can not be read without '{base}.weight', which is not there.", AGAIN)
    if codes.dtype != "I8" or len(codes.shape) != 2 or scales.dtype not in _SCALES:
        bad = scales if scales.dtype not in _SCALES else codes
        raise UserError(f"'{bad.name}' holds {bad.dtype}, which LLM.int8() does not write.", AGAIN)
    if layout is not None and (layout.dtype != "U8" or checkpoint.read_raw(layout).reshape(-1)[:1].any()):
        raise UserError(
            f"'{layout.name}' says that rows lie in the order of one kind of GPU, which is not read here.",
            "Save the model again with a newer bitsandbytes, or use the checkpoint that it was made from.",
        )
    rows, columns = codes.shape
    form = Int8Rows(layout is not None, _SCALES[scales.dtype])
    return packed_weight(checkpoint, tensors, base, (rows, columns), form, "bitsandbytes")
