"""Weight matrices packed for a GPU and copied to it piece by piece: what `kernels.matrix` is for the processor.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
import torch

from kernels.gpu.products.scaled import MOST_COLUMNS, ScaledWeights, upload_scaled
from kernels.gpu.products.weight_only import FLOATS, Weights, upload
from kernels.gpu.runtime.device import Device
from kernels.gpu.runtime.operands import DenseOperand, Operand, PackedOperand, ScaledOperand
from kernels.gpu.weights.forms import GGML_FORMS, Form, float8_form, grouped_form
from kernels.gpu.weights.layout import Packed, are_powers, pack_blocks, pack_elements, pack_groups
from kernels.layouts import LAYOUTS, PLAIN_KINDS
from kernels.matrix import (
    SCALE_TYPES,
    Activations,
    Matrix,
    NoKernel,
    check_size,
    checked_piece,
    float8_scales,
    permutation,
    pieces,
)
from kernels.reference.matrix import element_bytes, integer_levels

_TILE = 16  # rows
_PLANES = ("low", "high", "scales", "third")


@dataclass(frozen=True)
class DeviceMatrices:
    """Makes matrices on a device. activations: of the program that they are for.

    allows(form): '' where the kernels for a format may be used, else why not (a self-test that failed).
    """

    device: Device
    activations: Activations = Activations.FAST
    allows: Callable[[Form], str] = lambda _form: ""

    def from_blocks(
        self, kind: str, rows: int, columns: int, read: Callable[[int, int], np.ndarray], tensor_scale: float = 1.0
    ) -> Matrix:
        """As `kernels.matrix.from_blocks`."""
        if kind in PLAIN_KINDS:
            return self.from_elements(kind, rows, columns, read)
        check_size(rows, columns)
        if kind not in GGML_FORMS:
            raise NoKernel(f"the GPU has no decoder for {kind}")
        self._check(GGML_FORMS[kind])
        row_bytes = LAYOUTS[kind].row_bytes(columns)
        parts = _Parts(self.device, rows)
        for start, stop in pieces(rows, row_bytes):
            data = checked_piece(read(start, stop), np.uint8, (stop - start, row_bytes))
            parts.put(start, pack_blocks(kind, data, columns, tensor_scale))
        return Matrix(rows, columns, kind, parts.operand("integer"))

    def from_groups(
        self,
        rows: int,
        columns: int,
        bits: int,
        group: int,
        read: Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray | None]],
        scale_dtype: str = "BF16",
        symmetric: bool = True,
        table: np.ndarray | None = None,
        offsets: bool = False,
        order: np.ndarray | None = None,
    ) -> Matrix:
        """As `kernels.matrix.from_groups`."""
        check_size(rows, columns)
        if scale_dtype not in SCALE_TYPES:
            raise ValueError(f"scales are F16, BF16 or F32, not {scale_dtype}")
        whole = group >= columns
        third = "" if table is not None else "minimums" if offsets else "" if symmetric else "zeros"
        try:
            form = grouped_form(bits, 0 if whole else group, third, table is not None)
        except ValueError as error:
            raise NoKernel(str(error)) from error
        self._check(form)
        order = None if order is None else permutation(order, columns)
        name = f"int{bits}" if table is None else "table4"
        name += " per row" if whole else f" g{group}"
        codes_alone = bits == 8 and whole and not third and order is None and columns <= MOST_COLUMNS
        kept: _Parts | _ScaledParts = _Parts(self.device, rows)
        if codes_alone and self.activations is Activations.TOKEN:
            kept = _ScaledParts(self.device, rows)
        groups = -(-columns // group)
        for start, stop in pieces(rows, columns):
            codes, scales, zeros = read(start, stop)
            if bool(third) == (zeros is None):
                raise ValueError("zeros or offsets are given where, and only where, groups are not symmetric")
            codes = checked_piece(codes, np.uint8, (stop - start, columns))
            scales = checked_piece(scales, np.float32, (stop - start, groups))
            if zeros is not None:
                zeros = checked_piece(zeros, np.float32 if offsets else np.uint8, (stop - start, groups))
            if isinstance(kept, _ScaledParts):
                kept.put(start, codes, scales)
            else:
                kept.put(start, pack_groups(codes, scales, zeros, bits, group, scale_dtype, table, order))
        integer = table is None or integer_levels(np.asarray(table, np.float32)) is not None
        return Matrix(rows, columns, name, kept.operand("integer" if integer else "float"), order)

    def from_elements(
        self,
        dtype: str,
        rows: int,
        columns: int,
        read: Callable[[int, int], np.ndarray],
        scales: np.ndarray | None = None,
        tiling: tuple[int, int] = (128, 128),
    ) -> Matrix:
        """As `kernels.matrix.from_elements`."""
        check_size(rows, columns)
        row_bytes = columns * element_bytes(dtype)
        if dtype in FLOATS:
            if scales is not None:
                raise ValueError(f"{dtype} weights have no scales")
            return Matrix(rows, columns, dtype, self._floats(dtype, rows, columns, row_bytes, read))
        a, b = rows, columns
        if scales is not None:
            scales, a, b = float8_scales(np.ascontiguousarray(scales, np.float32), rows, columns, tiling)
        powers = are_powers(scales)
        form = float8_form(dtype, 0 if b >= columns else b, 0 if a >= rows else a, powers)
        self._check(form)
        parts = _Parts(self.device, rows)
        for start, stop in pieces(rows, row_bytes, lcm(_TILE, 1 if a >= rows else a)):
            data = checked_piece(read(start, stop), np.uint8, (stop - start, row_bytes))
            own = scales if scales is None or a >= rows else scales[start // a : -(-stop // a)]
            parts.put(start, pack_elements(dtype, data, own, (min(a, stop - start), b), powers), form.fitted(columns))
        return Matrix(rows, columns, dtype, parts.operand("float"))

    def _floats(
        self, dtype: str, rows: int, columns: int, row_bytes: int, read: Callable[[int, int], np.ndarray]
    ) -> Operand:
        with self.device.work():
            kept = torch.empty((rows, columns), dtype=FLOATS[dtype], device=self.device.name)
        for start, stop in pieces(rows, row_bytes):
            data = checked_piece(read(start, stop), np.uint8, (stop - start, row_bytes))
            with self.device.work():
                values = torch.from_numpy(np.require(data, requirements=["C", "W"])).view(FLOATS[dtype])
                kept[start:stop] = self.device.send(values)
        return DenseOperand(self.device, kept)

    def _check(self, form: Form) -> None:
        why = self.allows(form)
        if why:
            raise NoKernel(why)


class _Parts:
    """Planes of one matrix on the device, filled from pieces of it; no second copy of the whole exists anywhere."""

    def __init__(self, device: Device, rows: int) -> None:
        self._device, self._rows = device, rows
        self._planes: dict[str, torch.Tensor] = {}
        self._made: Weights | None = None

    def put(self, start: int, packed: Packed, form: Form | None = None) -> None:
        """Rows from `start` on. form: of the whole matrix, where that of a piece may differ."""
        piece = upload(packed, "cpu")
        form = form or piece.form
        with self._device.work():
            for name in _PLANES:
                values: torch.Tensor | None = getattr(piece, name)
                if values is None:
                    continue
                every = 1 if name in ("low", "high") else form.scale_rows
                whole = -(-self._rows // every) if every else 1
                if name not in self._planes:
                    shape = (values.shape[0], whole, *values.shape[2:])
                    self._planes[name] = torch.empty(shape, dtype=values.dtype, device=self._device.name)
                first = start // every if every else 0
                self._planes[name][:, first : first + values.shape[1]] = self._device.send(values)
            if self._made is None:
                kept = {n: getattr(piece, n) for n in ("table", "order")}
                sent = {n: None if v is None else self._device.send(v) for n, v in kept.items()}
                self._made = replace(piece, form=form, rows=self._rows, table=sent["table"], order=sent["order"])

    def operand(self, kind: str) -> Operand:
        assert self._made is not None
        order = self._made.order
        nbytes = sum(plane.nbytes for plane in self._planes.values()) + (0 if order is None else order.nbytes)
        kept = self._planes
        made = replace(
            self._made, nbytes=nbytes, low=kept["low"], high=kept.get("high"), scales=kept["scales"],
            third=kept.get("third"),
        )  # fmt: skip
        return PackedOperand(self._device, made, kind)


class _ScaledParts:
    """int8 codes and scales of one matrix, filled from pieces."""

    def __init__(self, device: Device, rows: int) -> None:
        self._device, self._rows = device, rows
        self._made: ScaledWeights | None = None

    def put(self, start: int, codes: np.ndarray, scales: np.ndarray) -> None:
        signed = (codes.astype(np.int16) - 128).astype(np.int8)
        piece = upload_scaled("int8", signed, scales[:, 0], "cpu")
        stop = start + len(codes)
        with self._device.work():
            if self._made is None:
                shape = (self._rows, piece.codes.shape[1])
                kept = torch.empty(shape, dtype=torch.int8, device=self._device.name)
                each = torch.empty(self._rows, dtype=torch.float32, device=self._device.name)
                self._made = replace(piece, rows=self._rows, codes=kept, scales=each)
            self._made.codes[start:stop] = self._device.send(piece.codes)
            self._made.scales[start:stop] = self._device.send(piece.scales)

    def operand(self, _kind: str) -> Operand:
        assert self._made is not None
        return ScaledOperand(self._device, self._made)
