"""One packed weight: the format it is stored in, the tensors that hold its parts, and its values by rows."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.contract import ElementType
from core.errors import UserError
from core.formats.coded import Coded
from core.formats.numbers import Codes
from core.tensor_info import TensorInfo
from core.units import format_count
from kernels import ops
from kernels.rotation import Rotation

AGAIN = "Download the model again, or use the checkpoint that it was made from."
OTHER_CONFIG = "Use the config.json that belongs to these weights, or download the model again."
PIECE = 1 << 20  # scales looked at in one go
_SAME = {"U32": "I32", "U8": "U8", "F4": "U8", "F8_E8M0": "U8"}  # names under which the same bits are stored


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """name: of the weight in the model, '….weight'; shape: [N, K]. sources: the tensor of each part of the format.

    number, count: which matrix it is of so many that are stored in one tensor [count, N, K].
    transposed: rows of the model are no rows of what is stored, so that it has values only (`core.packed.gpt_oss`).

    order: int64 [K], where columns are stored in another order than they are used in: stored column j is column
    order[j]; None: as they are. rotation: what is stored is W R, for an input that is rotated while the model runs.
    `codes` come as they are stored, `values` as they are used: in their order, and rotated back.
    """

    checkpoint: Checkpoint
    name: str
    shape: tuple[int, ...]
    format: Coded
    scheme: str
    sources: tuple[TensorInfo, ...]
    order: np.ndarray | None = None
    extra: tuple[TensorInfo, ...] = ()  # belong to it, hold no numbers of it
    number: int = 0
    count: int = 1
    rotation: Rotation | None = None
    _fits: dict[ElementType, bool] = field(default_factory=dict, init=False)

    transposed: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """'int4 g128 asymmetric': what its numbers are, whatever the scheme that packs them."""
        return self.format.numbers.label

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.sources, *self.extra)) // self.count

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of all matrices that are stored together with this one."""
        return self.shape if self.count == 1 else (self.count, *self.shape)

    @property
    def first_row(self) -> int:
        """Where its rows begin among theirs."""
        return self.number * self.shape[0]

    def expert(self, number: int, name: str) -> PackedWeight:
        """One matrix of a stack [E, N, K], which this is."""
        count, rows, columns = self.shape
        return replace(self, name=name, shape=(rows, columns), number=number, count=count)

    def raw(self, number: int, start: int, stop: int) -> np.ndarray:
        """The bytes of a part that rows start…stop touch, uint8. Raises UserError when the file is short."""
        part = self.format.parts(self.stored_shape)[number]
        if part.constant:
            return np.empty(0, np.uint8)
        where = (self.first_row + start, self.first_row + stop)
        return self.checkpoint.read_run(self.sources[number], part.run(self.stored_shape, where, (0, self.shape[1])))

    def codes(self, start: int, stop: int) -> Codes:
        """Codes of rows start…stop. Raises UserError when the file is short."""
        rows, columns = self.shape
        unit = self.format.unit_rows(self.shape)
        first, last = start // unit * unit, min(-(-stop // unit) * unit, rows)
        raw = [self.raw(number, first, last) for number in range(len(self.sources))]
        try:
            found = self.format.unpack(raw, last - first, columns)
        except ValueError as problem:
            raise UserError(f"'{self.name}' can not be read: {problem}.", AGAIN) from None
        return found if (first, last) == (start, stop) else found.rows(start - first, stop - first)

    def scales_fit(self, dtype: ElementType) -> bool:
        """Whether each of its scales is a value of that float type. Reads them, the first time."""
        if dtype not in self._fits:
            parts = zip(self.format.parts(self.shape), self.sources, strict=True)
            of = next(source for part, source in parts if "scale" in part.suffix)
            step = max(1, PIECE // max(1, of.columns))
            pieces = (self.checkpoint.read_rows(of, at, min(at + step, of.rows)) for at in range(0, of.rows, step))
            self._fits[dtype] = all(
                np.array_equal(x, ops.to_float32(ops.from_float32(x, dtype.label), dtype.label)) for x in pieces
            )
        return self._fits[dtype]

    def values(self, start: int, stop: int, columns: Columns | None = None) -> np.ndarray:
        """float32 [R, K], or the columns asked for."""
        values = self.format.numbers.values(self.codes(start, stop))
        if self.order is not None:
            used = np.empty_like(values)
            used[:, self.order] = values
            values = used
        if self.rotation is not None:
            values = self.rotation.undo(values)
        left, right = columns or (0, self.shape[1])
        return values if (left, right) == (0, self.shape[1]) else np.ascontiguousarray(values[:, left:right])


def check_method(codes: TensorInfo, config: Mapping[str, Any], own: Container[str], scheme: str) -> None:
    """Raise UserError where config.json names another method than those of the scheme; it may name none."""
    method = str(config.get("quant_method") or "").lower()
    if method and method not in own:
        raise UserError(f"'{codes.name}' is packed as {scheme} does it, but config.json says '{method}'.", OTHER_CONFIG)


def packed_weight(
    checkpoint: Checkpoint,
    tensors: Mapping[str, TensorInfo],
    base: str,
    shape: tuple[int, ...],
    form: Coded,
    scheme: str,
    order: np.ndarray | None = None,
    extra: tuple[str, ...] = (),
) -> PackedWeight:
    """The weight '{base}.weight' whose parts are all there and have the types and shapes that its format means.

    extra: endings ('.g_idx') of tensors that belong to it too, where they are there. Raises UserError that names the
    tensor which is missing or does not fit.
    """
    sources: list[TensorInfo] = []
    if 0 in shape:
        raise UserError(f"'{base}.weight' has no values.", AGAIN)
    for part in form.parts(shape):
        name = base + part.suffix if part.suffix.startswith(".") else f"{base}.weight{part.suffix}"
        found = tensors.get(name)
        if found is None:
            first = sources[0].name if sources else f"{base}.weight"
            raise UserError(f"'{first}' can not be read without '{name}', which is not there.", AGAIN)
        if part.constant and (found.dtype, part.dtype) == ("I32", "I64") and found.shape == part.shape:
            sources.append(found)  # shapes, which their own scheme has read
            continue
        same_bits = _SAME.get(found.dtype, found.dtype) == _SAME.get(part.dtype, part.dtype)
        if not same_bits or found.nbytes != part.nbytes or _squeezed(found.shape) != _squeezed(part.shape):
            raise UserError(
                f"'{name}' is {found.dtype} {_size(found.shape)}, where a weight of {_size(shape)} in "
                f"{form.numbers.label} needs {part.dtype} {_size(part.shape)}.",
                OTHER_CONFIG,
            )
        sources.append(found)
    beside = tuple(tensors[base + end] for end in extra if base + end in tensors)
    return PackedWeight(checkpoint, f"{base}.weight", shape, form, scheme, tuple(sources), order, beside)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _size(shape: tuple[int, ...]) -> str:
    return " × ".join(format_count(n) for n in shape) or "1"
