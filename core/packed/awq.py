"""AWQ folders in the GEMM layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.formats.awq import UNIT, Awq
from core.packed.gptq import AUTO_ROUND, SCALES, part
from core.packed.weight import AGAIN, OTHER_CONFIG, PackedWeight, check_method, packed_weight
from core.tensor_info import TensorInfo
from core.units import format_count

_METHODS = ("awq", "awq_marlin", *AUTO_ROUND)


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Weights of an AWQ folder."""
    return [
        _weight(checkpoint, tensors, config, t.name.removesuffix(".qweight"))
        for t in tensors.values()
        if t.name.endswith(".qweight") and t.dtype in ("I32", "U32") and _is_awq(t, tensors, config)
    ]


def _is_awq(qweight: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> bool:
    scales = tensors.get(f"{qweight.name.removesuffix('.qweight')}.scales")
    if scales is None or scales.columns == qweight.columns * UNIT:
        return scales is not None or str(config.get("quant_method")).lower() in ("awq", "awq_marlin")
    return False


def _weight(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], base: str
) -> PackedWeight:
    qweight, scales, _ = (part(tensors, base, end) for end in ("qweight", "scales", "qzeros"))
    check_method(qweight, config, _METHODS, "AWQ")
    layout = str(config.get("version") or config.get("format") or "gemm").lower()
    if layout != "gemm":
        raise UserError(
            f"config.json says that '{base}.qweight' is in AWQ's layout '{layout}', which is not known here.",
            "Get the model in AWQ's layout 'gemm'.",
        )
    columns, groups = qweight.rows, scales.rows
    if columns % groups:
        raise UserError(
            f"'{scales.name}' has {format_count(groups)} groups for rows of {format_count(columns)} values.", AGAIN
        )
    bits, size = (config.get(a, config.get(b)) for a, b in (("bits", "w_bit"), ("group_size", "q_group_size")))
    if size is not None and type(size) is not int:
        raise UserError(f"config.json says that groups of '{qweight.name}' have the size {size!r}.", OTHER_CONFIG)
    declared = columns // size if isinstance(size, int) and size > 0 else 1
    if bits not in (None, 4) or (isinstance(size, int) and declared != groups):
        raise UserError(
            f"'{qweight.name}' holds 4-bit codes in groups of {columns // groups}, but config.json says otherwise.",
            OTHER_CONFIG,
        )
    form = Awq(0 if groups == 1 else columns // groups, SCALES[scales.dtype])
    return packed_weight(checkpoint, tensors, base, (scales.columns, columns), form, "AWQ")
