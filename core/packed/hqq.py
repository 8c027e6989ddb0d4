"""HQQ: modules of hqq's own `qmodel.pt`, and of safetensors in which each of their settings is a small tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.contract import ElementType
from core.errors import UserError
from core.formats.coded import read_scales
from core.formats.hqq import PACKINGS, HqqColumns, HqqFormat
from core.formats.numbers import Codes
from core.packed.weight import AGAIN, PackedWeight, packed_weight
from core.parts import Run
from core.tensor_info import TensorInfo
from core.units import format_count

_SCALES = {e.label: e for e in (ElementType.F16, ElementType.BF16, ElementType.F32)}
_SETTINGS = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
    "quant_zero", "compute_dtype", "offload_meta", "stores_quant_config", "encoded_state_dict", "channel_wise",
    "optimize", "round_zero",
)  # fmt: skip
_TEXT = ("packing", "unpack_view_dtype", "compute_dtype")


@dataclass(frozen=True, eq=False)
class HqqWeight(PackedWeight):
    """Codes of rows of the weight, whose groups are rows of the format's matrix or, `across`, its columns (axis 0)."""

    across: bool = False

    @property
    def transposed(self) -> bool:  # type: ignore[override]
        """Groups that are columns belong to no rows of the weight: it has values only."""
        return self.across

    def _flat(self, start: int, stop: int) -> np.ndarray:
        """Codes number start…stop, in the order of the weight's values, uint8."""
        form = self.format
        assert isinstance(form, HqqFormat)
        item = 4 if form.bits == 3 else 1  # bytes of codes that lie together
        length = self.sources[0].nbytes // item
        found = []
        for number in range(form.slices):
            first, last = max(start, number * length), min(stop, (number + 1) * length)
            if first < last:
                run = Run((first - number * length) * item, (last - first) * item)
                raw = self.checkpoint.read_run(self.sources[0], run)
                found.append(form.unpack_lanes(raw, last - first)[number])
        return np.concatenate(found) if found else np.empty(0, np.uint8)

    def codes(self, start: int, stop: int) -> Codes:
        rows, columns = stop - start, self.shape[1]
        form = self.format
        assert isinstance(form, HqqFormat)
        each, scale = columns // form.numbers.size, form.numbers.scale
        run = Run(start * each * scale.bytes, rows * each * scale.bytes)
        scales, zeros = (read_scales(self.checkpoint.read_run(s, run), scale, rows) for s in self.sources[1:])
        return Codes(self._flat(start * columns, stop * columns).reshape(rows, columns), scales, zeros)

    def values(self, start: int, stop: int, columns: Columns | None = None) -> np.ndarray:
        if not self.across:
            return super().values(start, stop, columns)
        form, width = self.format, self.shape[1]
        assert isinstance(form, HqqFormat)
        scale, first, last = form.numbers.scale, start * width, stop * width
        whole = (self.checkpoint.read_run(s, Run(0, s.nbytes)) for s in self.sources[1:])
        scales, zeros = (read_scales(raw, scale, 1)[0] for raw in whole)
        group = np.arange(first, last) % len(scales)
        rows = ((self._flat(first, last).astype(np.float32) - zeros[group]) * scales[group]).reshape(-1, width)
        left, right = columns or (0, width)
        return np.ascontiguousarray(rows[:, left:right])


def find(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], _: Mapping[str, Any]) -> list[PackedWeight]:
    """Every module with `W_q`. Raises UserError that names the tensor where settings are missing or contradict it."""
    plain = getattr(checkpoint.stored, "plain", {})
    return [
        _weight(checkpoint, tensors, t.name.removesuffix(".W_q"), plain)
        for t in tensors.values()
        if t.name.endswith(".W_q")
    ]


def _weight(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], base: str, plain: Mapping[str, Any]
) -> PackedWeight:
    said = {key: _setting(checkpoint, tensors, f"{base}.{key}", plain) for key in _SETTINGS}
    name, bits, axis, shape = f"{base}.W_q", said["nbits"], said["axis"], said["shape"]
    for key, unknown in (("quant_scale", "scales"), ("quant_zero", "zeros")):
        if said[key] or f"{base}.{key.removeprefix('quant_')}_q" in tensors:
            raise UserError(
                f"'{name}' has {unknown} that are quantized themselves, which hqq no longer writes.",
                "Quantize the model again with a current hqq, or use the checkpoint that it was made from.",
            )
    if said["view_as_float"]:
        raise UserError(f"'{name}' is stored as if it were floats, which is not known here.", AGAIN)
    if bits is None or shape is None:
        missing = "nbits" if bits is None else "shape"
        raise UserError(f"'{name}' can not be read without '{base}.{missing}', which is not there.", AGAIN)
    numbers = (bits, axis, *(shape if isinstance(shape, tuple | list) else (shape,)), said["group_size"] or 1)
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise UserError(
            f"'{name}' has bits, axis, shape and group size {bits!r}, {axis!r}, {shape!r} and {said['group_size']!r}, "
            "which are not all whole numbers.",
            AGAIN,
        )
    if bits not in PACKINGS or axis not in (0, 1) or len(numbers) != 5 or said["packing"] != PACKINGS[bits]:
        raise UserError(
            f"'{name}' has {bits} bits along axis {axis} in '{said['packing']}', which is not known here.", AGAIN
        )
    scale = tensors.get(f"{base}.scale")
    if scale is not None and scale.dtype not in _SCALES:
        raise UserError(f"'{scale.name}' holds {scale.dtype}, which are no scales.", AGAIN)
    group = said["group_size"] or shape[1 if axis == 1 else 0]
    values = shape[0] * shape[1]
    if said["channel_wise"] is False or group <= 0 or values % group or (axis == 1 and shape[1] % group):
        raise UserError(
            f"'{name}' is {format_count(shape[0])} × {format_count(shape[1])}, which groups of {group} do not divide.",
            AGAIN,
        )
    form = HqqFormat(bits, group, _SCALES[scale.dtype] if scale is not None else ElementType.F16)
    settings = tuple(f".{key}" for key in _SETTINGS)
    stored = (shape[0], shape[1]) if axis == 1 else (group, values // group)
    arranged = form if axis == 1 else HqqColumns(form)
    found = packed_weight(checkpoint, tensors, base, stored, arranged, "HQQ", extra=settings)
    return HqqWeight(
        checkpoint, found.name, (shape[0], shape[1]), form, "HQQ", found.sources, extra=found.extra, across=axis == 0
    )


def _setting(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo], name: str, plain: Mapping[str, Any]) -> Any:
    """A setting of a module as a Python value; None where it is not there."""
    if name in plain:
        value = plain[name]
        return tuple(value) if isinstance(value, list | tuple) else value
    tensor = tensors.get(name)
    if tensor is None or tensor.nbytes > 64:
        return None
    raw = checkpoint.read_raw(tensor).reshape(-1)
    key = name.rpartition(".")[2]
    if key in _TEXT:
        return raw.tobytes().decode("ascii", "replace")
    values = [int(v) for v in raw.view({"U8": "u1", "I32": "<i4", "I64": "<i8"}.get(tensor.dtype, "u1"))]
    return tuple(values) if key == "shape" else values[0]
