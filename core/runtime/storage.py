"""How weights lie in a checkpoint, and how each becomes a matrix of the engine.

`STORAGES` lists the ways. A new one is a function that is given the checkpoint and the tensors that none before it has
claimed, and says which of them are weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from core.checkpoint.base import Checkpoint
from core.packed.checkpoint import UnpackedCheckpoint
from core.runtime.packed import packed_matrix
from core.runtime.reading import Conversion, NoLayout, Reading
from core.tensor_info import TensorInfo
from kernels import ops
from kernels.layouts import BLOCK_KINDS, PLAIN_KINDS, SOURCE_KINDS
from kernels.matrix import Matrix, NoKernel
from kernels.rotation import Rotation

_FLOAT8 = ("F8_E4M3", "F8_E5M2")
KEPT, KEPT_BYTES = "F16", 2  # what a weight is decoded to when the engine has no layout for its format


@dataclass(frozen=True)
class Stored:
    """One weight of a checkpoint, before it is read.

    shape: of the values, row-major; one axis: a vector. sources: tensors that it is made of, its own first.
    matrix(start, stop, reading): rows start…stop (all axes but the last multiplied) in the engine's layout; ValueError
    before anything was read: the engine has none for it. values(start, stop): the same rows as float32. rotation: the
    matrix is of W R, which only an input times R may meet; the values are those of W.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    sources: tuple[TensorInfo, ...]
    matrix: Callable[[int, int, Reading], Matrix]
    values: Callable[[int, int], np.ndarray]
    rotation: Rotation | None = None

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        return sum(source.nbytes for source in self.sources)

    @property
    def packs(self) -> bool:
        """Whether the engine keeps the format as it is."""
        return self.format not in SOURCE_KINDS

    def load(self, start: int, stop: int, reading: Reading, rotated: bool = False) -> Matrix:
        """Rows start…stop, decoded where the engine has no layout for the format, which `reading` then tells. rotated:
        whether the input will be, too; otherwise a rotated weight is decoded and rotated back."""
        before = reading.bytes_done
        try:
            if self.rotation is not None and not rotated:
                raise NoLayout("its input would have to be rotated first, which is done for down projections only")
            return self.matrix(start, stop, reading)
        except ValueError as error:
            if reading.bytes_done != before and not isinstance(error, NoLayout | NoKernel):
                raise
            reading.converted(Conversion(self.name, self.format, KEPT, str(error)))
        piece = max(self.nbytes // max(self.rows, 1), 1)

        def read(first: int, last: int) -> np.ndarray:
            reading.took((last - first) * piece)
            return ops.from_float32(self.values(start + first, start + last), KEPT)

        return reading.matrices.from_elements(KEPT, stop - start, self.shape[-1], read)


Storage = Callable[[Checkpoint, Mapping[str, TensorInfo]], list[Stored]]


def _tensor_bytes(
    checkpoint: Checkpoint, tensor: TensorInfo, base: int, reading: Reading
) -> Callable[[int, int], np.ndarray]:
    def read(start: int, stop: int) -> np.ndarray:
        raw = checkpoint.read_raw(tensor, base + start, base + stop)
        reading.took(raw.nbytes)
        return raw

    return read


def ggml_blocks(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo]) -> list[Stored]:
    """GGML's block types. NVFP4 has one more scale, or one an expert, in '….scale' beside '….weight'."""
    found = []
    for tensor in tensors.values():
        if tensor.dtype in PLAIN_KINDS or tensor.dtype not in (*BLOCK_KINDS, *SOURCE_KINDS):
            continue
        scale = tensors.get(tensor.name.removesuffix(".weight") + ".scale") if tensor.dtype == "NVFP4" else None

        def load(
            start: int,
            stop: int,
            reading: Reading,
            tensor: TensorInfo = tensor,
            scale: TensorInfo | None = scale,
        ) -> Matrix:
            if tensor.dtype in SOURCE_KINDS:
                raise NoLayout(f"the engine has no layout for {tensor.dtype}")
            factor = 1.0
            if scale is not None:
                values = checkpoint.read_rows(scale).reshape(-1)
                factor = float(values[start * len(values) // max(tensor.rows, 1)])
            read = _tensor_bytes(checkpoint, tensor, start, reading)
            return reading.matrices.from_blocks(tensor.dtype, stop - start, tensor.columns, read, factor)

        sources = (tensor,) if scale is None else (tensor, scale)
        values = partial(checkpoint.read_rows, tensor)
        found.append(Stored(tensor.name, tensor.shape, tensor.dtype, sources, load, values))
    return found


def packed_weights(checkpoint: Checkpoint) -> list[Stored]:
    """What `core.packed` has found."""
    found = checkpoint.packed.values() if isinstance(checkpoint, UnpackedCheckpoint) else ()
    return [
        Stored(w.name, w.shape, w.label, (*w.sources, *w.extra), partial(packed_matrix, w), w.values, w.rotation)
        for w in found
    ]


def plain_elements(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo]) -> list[Stored]:
    """8-, 16- and 32-bit floats without scales; 64-bit ones are rounded to 32."""
    found = []
    for tensor in tensors.values():
        if tensor.dtype not in (*PLAIN_KINDS, *_FLOAT8, "F64"):
            continue

        def load(start: int, stop: int, reading: Reading, tensor: TensorInfo = tensor) -> Matrix:
            read = _tensor_bytes(checkpoint, tensor, start, reading)
            if tensor.dtype != "F64":
                return reading.matrices.from_elements(tensor.dtype, stop - start, tensor.columns, read)

            def rounded(first: int, last: int) -> np.ndarray:
                return ops.from_float32(ops.to_float32(read(first, last), "F64"), "F32")

            return reading.matrices.from_elements("F32", stop - start, tensor.columns, rounded)

        values = partial(checkpoint.read_rows, tensor)
        found.append(Stored(tensor.name, tensor.shape or (1,), tensor.dtype, (tensor,), load, values))
    return found


STORAGES: tuple[Storage, ...] = (ggml_blocks, plain_elements)

# Scales of activations and of the cache: of no use where activations are scaled as they come.
_UNUSED = re.compile(r"\.(?:input_(?:scale|global_scale|zero_point)|output_scale|[kvq]_scale|scaled_fp8)$")


def stored_weights(checkpoint: Checkpoint) -> tuple[list[Stored], list[TensorInfo]]:
    """Every weight of the checkpoint, and the tensors that are stored in no known way."""
    if checkpoint.packed_problem:
        raise checkpoint.packed_problem
    base = checkpoint if checkpoint.changed else checkpoint.stored
    left = {t.name: t for t in base.tensors if not (t.packed or _UNUSED.search(t.name))}
    shown = {t.name: t for t in checkpoint.tensors if not t.packed}
    apart = {name: t for name, t in shown.items() if name not in left and not _UNUSED.search(name)}
    if apart:  # matrices that the file keeps in one tensor, seen one by one
        places = {(t.file, t.offset) for t in apart.values()}
        left = {n: t for n, t in left.items() if n in shown or (t.file, t.offset) not in places} | apart
    found: list[Stored] = []
    for storage in (lambda _stored, _left: packed_weights(checkpoint), *STORAGES):
        claimed = storage(base, left)
        found += claimed
        for stored in claimed:
            for source in stored.sources:
                left.pop(source.name, None)
    return [_as_it_was(s, base.rotations[s.name]) if s.name in base.rotations else s for s in found], list(
        left.values()
    )


def _as_it_was(stored: Stored, rotation: Rotation) -> Stored:
    """Of a view that gives W R."""
    return replace(stored, rotation=rotation, values=lambda start, stop: rotation.undo(stored.values(start, stop)))
