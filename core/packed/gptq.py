"""GPTQ folders, and AutoRound's in GPTQ's layout: qweight, qzeros, scales and g_idx of each linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.contract import ElementType
from core.errors import UserError
from core.formats.gptq import BITS, Gptq, StoredGroups
from core.packed.weight import AGAIN, OTHER_CONFIG, PackedWeight, check_method, packed_weight
from core.tensor_info import TensorInfo
from core.units import format_count

AUTO_ROUND = ("auto-round", "auto_round", "intel/auto-round")  # writes either layout
_METHODS = ("gptq", "gptq_marlin", *AUTO_ROUND)
SCALES = {e.label: e for e in (ElementType.F16, ElementType.BF16, ElementType.F32)}
# What config.json calls the layout → whether zero points are stored less one (1) or as they are (2).
_VERSIONS = {
    "gptq": 1, "gptq_v2": 2, "auto_round:auto_gptq": 1, "auto_round:gptq": 1, "auto_round": 2, "auto_round:gptqmodel": 2
}  # fmt: skip
_OVERRIDES = ("dynamic", "extra_config")  # of GPTQModel and AutoRound, for some of the modules


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[PackedWeight]:
    """Weights of a GPTQ folder."""
    return [
        _weight(checkpoint, tensors, config, t.name.removesuffix(".qweight"))
        for t in tensors.values()
        if t.name.endswith(".qweight") and t.dtype in ("I32", "U32") and _is_gptq(t, tensors, config)
    ]


def _is_gptq(qweight: TensorInfo, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> bool:
    """It has a column for each output, as its scales have; AWQ has a column for eight."""
    scales = tensors.get(f"{qweight.name.removesuffix('.qweight')}.scales")
    if scales is None:
        return str(config.get("quant_method")).lower() in ("gptq", "gptq_marlin")
    return scales.columns == qweight.columns


def part(tensors: Mapping[str, TensorInfo], base: str, end: str) -> TensorInfo:
    """'{base}.{end}', a matrix. Raises UserError when it is not there."""
    found = tensors.get(f"{base}.{end}")
    if found is None:
        raise UserError(f"'{base}.qweight' can not be read without '{base}.{end}', which is not there.", AGAIN)
    if len(found.shape) != 2 or not found.values or (end == "scales" and found.dtype not in SCALES):
        raise UserError(f"'{found.name}' can not be {end} of a layer.", AGAIN)
    return found


def _weight(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], base: str
) -> PackedWeight:
    qweight, scales, qzeros = (part(tensors, base, end) for end in ("qweight", "scales", "qzeros"))
    check_method(qweight, config, _METHODS, "GPTQ")
    index = _index(checkpoint, tensors.get(f"{base}.g_idx"), scales.rows)
    bits, columns = _size(qweight, scales, qzeros, None if index is None else len(index))
    _check_config(config, base, bits, columns, scales.rows, index)
    groups = _groups(index, columns, scales.rows, config, base)
    size = columns // len(groups.source)
    form = Gptq(
        bits,
        0 if size == columns else size,
        _symmetric(config),
        _version(config, bits, base),
        groups=groups,
        scale=SCALES[scales.dtype],
    )
    shape = (scales.columns, columns)
    return packed_weight(checkpoint, tensors, base, shape, form, "GPTQ", groups.order, extra=(".g_idx",))


def _index(checkpoint: Checkpoint, given: TensorInfo | None, groups: int) -> np.ndarray | None:
    """Group of each column, int64 [K]; None where the file has none, or zeros for it, as AutoGPTQ and ExLlama have it.

    Raises UserError for a group that is not there.
    """
    if given is None or not given.values:
        return None
    if given.dtype not in ("I32", "I64") or len(given.shape) != 1:
        raise UserError(f"'{given.name}' can not be the groups of columns.", AGAIN)
    raw = checkpoint.read_raw(given).reshape(-1)
    index = raw.view("<i4" if given.dtype == "I32" else "<i8").astype(np.int64)
    if not index.any() and groups > 1:
        return None
    wrong = np.flatnonzero((index < 0) | (index >= groups))
    if len(wrong):
        raise UserError(
            f"'{given.name}' puts column {format_count(wrong[0])} into group {format_count(index[wrong[0]])}; "
            f"there are {format_count(groups)}.",
            AGAIN,
        )
    return index


def _size(qweight: TensorInfo, scales: TensorInfo, qzeros: TensorInfo, indexed: int | None) -> tuple[int, int]:
    """Bits of a code, and how long rows are, as the shapes of all parts have it."""
    outputs = scales.columns
    for bits in BITS:
        columns = qweight.rows * 32 // bits if indexed is None else indexed
        if (
            -(-outputs * bits // 32) == qzeros.columns
            and -(-columns * bits // 32) == qweight.rows
            and (qweight.columns, qzeros.rows) == (outputs, scales.rows)
        ):
            return bits, columns
    raise UserError(f"'{qweight.name}' contradicts its scales, its zero points or its g_idx.", AGAIN)


def _check_config(
    config: Mapping[str, Any], base: str, bits: int, columns: int, groups: int, index: np.ndarray | None
) -> None:
    """Raise UserError where config.json means other weights than these. Where it is silent, it fits."""
    if config.get("desc_act") is False and index is not None and (np.diff(index) < 0).any():
        raise UserError(
            f"'{base}.g_idx' orders columns by activations, but config.json says desc_act is false.", OTHER_CONFIG
        )
    if _overrides(config):
        return  # by patterns, which only their own program matches; shapes say enough
    size = config.get("group_size")
    if size is not None and type(size) is not int:
        raise UserError(f"config.json says that groups of '{base}.qweight' have the size {size!r}.", OTHER_CONFIG)
    declared = -(-columns // size) if isinstance(size, int) and size > 0 else 1
    if config.get("bits") not in (None, bits) or (isinstance(size, int) and declared != groups):
        raise UserError(
            f"'{base}.qweight' holds {bits}-bit codes with {format_count(groups)} groups a row, but config.json "
            "says otherwise.",
            OTHER_CONFIG,
        )
    if index is not None and isinstance(size, int) and 0 < size < columns:
        sizes = np.bincount(index, minlength=groups)
        if np.count_nonzero(sizes == size) < groups - bool(columns % size):
            other = np.flatnonzero(sizes != size)[0]
            raise UserError(
                f"'{base}.g_idx' puts {format_count(sizes[other])} columns into group {format_count(other)}, but "
                f"config.json says {format_count(size)}.",
                OTHER_CONFIG,
            )


def _overrides(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = [config[key].values() for key in _OVERRIDES if isinstance(config.get(key), Mapping)]
    return [o for each in given for o in each if isinstance(o, Mapping)]


def _symmetric(config: Mapping[str, Any]) -> bool:
    """Whether all zero points are the middle; asymmetric, which is never wrong, where that is not sure."""
    return config.get("sym") is True and all(o.get("sym", True) is True for o in _overrides(config))


def _version(config: Mapping[str, Any], bits: int, base: str) -> int:
    if not config:
        raise UserError(
            f"Nothing beside '{base}.qweight' says whether its zero points are stored less one, as GPTQ files have two "
            "layouts.",
            "Add the model's quantization_config to config.json, or its quantize_config.json to the folder.",
        )
    named = config.get("packing_format") or config.get("checkpoint_format") or config.get("format") or "gptq"
    layout = str(named).lower()
    if layout == "gptq_p" and bits != 3:
        layout = "gptq"  # planes of 2, 4 and 8 bits are the same words
    if layout not in _VERSIONS:
        raise UserError(
            f"config.json says that '{base}.qweight' is in the layout '{named}', which is not known here.",
            "Convert the model to the layout 'gptq' with the program that made it.",
        )
    return _VERSIONS[layout]


def _groups(index: np.ndarray | None, columns: int, count: int, config: Mapping[str, Any], base: str) -> StoredGroups:
    """Groups of equal size, however the file's are: those of odd sizes are cut, columns are sorted by group."""
    if index is None:
        size = config.get("group_size")
        if not (isinstance(size, int) and size > 0 and -(-columns // size) == count):
            size = columns if count == 1 else columns // count
        if -(-columns // size) != count:
            raise UserError(
                f"'{base}.scales' has {format_count(count)} groups for {format_count(columns)} columns, and no g_idx.",
                AGAIN,
            )
        index = np.arange(columns) // size
    ordered = bool((np.diff(index) >= 0).all())
    sizes = np.bincount(index, minlength=count)
    size = gcd(*(int(n) for n in sizes))
    source = np.repeat(np.arange(count), sizes // size)
    return StoredGroups(count, source, None if ordered else np.argsort(index, kind="stable"))
