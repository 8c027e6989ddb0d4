"""compressed-tensors folders: pack-quantized integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.errors import UserError
from core.formats.pack_quantized import PackQuantized
from core.packed.weight import AGAIN, OTHER_CONFIG, PackedWeight, check_method, packed_weight
from core.tensor_info import TensorInfo
from core.units import format_count

METHODS = ("compressed-tensors", "compressed_tensors")
_SCALES = {e.label: e for e in (ElementType.BF16, ElementType.F16, ElementType.F32)}


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Weights of a compressed-tensors folder."""
    return [
        _pack_quantized(checkpoint, tensors, config, t)
        for t in tensors.values()
        if t.name.endswith(".weight_packed") and t.dtype in ("I32", "U32")
    ]


def _pack_quantized(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], codes: TensorInfo
) -> PackedWeight:
    base = codes.name.removesuffix(".weight_packed")
    check_method(codes, config, METHODS, "compressed-tensors")
    scales, size, zeros, index = (
        tensors.get(f"{base}.weight_{end}") for end in ("scale", "shape", "zero_point", "g_idx")
    )
    if scales is None or size is None:
        missing = f"{base}.weight_{'scale' if scales is None else 'shape'}"
        raise UserError(f"'{codes.name}' can not be read without '{missing}', which is not there.", AGAIN)
    if scales.dtype not in _SCALES:
        raise UserError(f"'{scales.name}' holds {scales.dtype}, which are no scales.", AGAIN)
    shape = _shape(checkpoint, size)
    rows, columns = shape
    fitting = [bits for bits in range(1, 9) if columns and -(-columns * bits // 32) == codes.columns]
    groups = scales.columns
    if not fitting or rows != codes.rows or scales.rows != rows or not groups or columns % groups:
        raise UserError(f"'{codes.name}', its scales and '{size.name}' contradict each other.", AGAIN)
    bits, group = fitting[-1], columns // groups
    declared = _declared(config)
    if declared and not any(_fits(d, bits, zeros is None, group, columns) for d in declared):
        kind = f"int{bits} g{group}" + ("" if zeros is None else " asymmetric")
        raise UserError(
            f"'{codes.name}' holds {kind}, but config.json says otherwise.",
            OTHER_CONFIG,
        )
    order = None if index is None else _order(checkpoint, index, columns, groups)
    zero_bytes = zeros is not None and zeros.dtype == "I8"
    form = PackQuantized(
        bits, 0 if groups == 1 else group, zeros is None, _SCALES[scales.dtype], order=order, zero_bytes=zero_bytes
    )
    return packed_weight(checkpoint, tensors, base, shape, form, "compressed-tensors", order, extra=(".weight_g_idx",))


def _order(checkpoint: Checkpoint, index: TensorInfo, columns: int, groups: int) -> np.ndarray | None:
    """int64 [K], columns sorted by their group (actorder 'group'); None where they are, or −1 says that there is none.

    Raises UserError for groups that are not there, or not of one size.
    """
    if index.dtype not in ("I32", "I64") or index.shape != (columns,):
        raise UserError(f"'{index.name}' can not be the groups of {format_count(columns)} columns.", AGAIN)
    raw = checkpoint.read_raw(index).reshape(-1)
    group = raw.view("<i4" if index.dtype == "I32" else "<i8").astype(np.int64)
    if (group == -1).any():
        return None
    if (group < 0).any() or (np.bincount(group, minlength=groups) != columns // groups).any():
        raise UserError(f"'{index.name}' does not make {format_count(groups)} groups of one size.", AGAIN)
    return None if bool((np.diff(group) >= 0).all()) else np.argsort(group, kind="stable")


def _shape(checkpoint: Checkpoint, size: TensorInfo) -> tuple[int, int]:
    if size.dtype not in ("I64", "I32") or size.values != 2:
        raise UserError(f"'{size.name}' is no shape.", AGAIN)
    given = checkpoint.read_raw(size).reshape(-1).view("<i8" if size.dtype == "I64" else "<i4")
    return int(given[0]), int(given[1])


def _declared(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What config.json says of weights, one mapping a group."""
    groups = config.get("config_groups")
    found = [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    return [w for w in found if isinstance(w, Mapping)]


def _fits(declared: Mapping[str, Any], bits: int, symmetric: bool, group: int, columns: int) -> bool:
    """Whether a scheme is this one; a group longer than the row is the row, too. Where it is silent, it fits."""
    size = 0 if declared.get("strategy") == "channel" else declared.get("group_size")
    whole = min(size, columns) if isinstance(size, int) and size > 0 else columns
    return (
        declared.get("num_bits") in (None, bits)
        and declared.get("symmetric") in (None, symmetric)
        and (size is None or group == whole)
    )
