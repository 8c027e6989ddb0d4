"""The source as a calibrated method has changed it: what a run packs instead of the source."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.reading import column_range, row_range
from core.contract import ElementType
from core.formats.numbers import Codes, Numbers, joined
from core.methods.scratch import BlockFile
from core.packed.checkpoint import UnpackedCheckpoint
from core.tensor_info import Role, TensorInfo
from kernels import ops
from kernels.rotation import Rotation

_PLAIN = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Part:
    """Rows start…stop (of a vector, values) of a checkpoint's tensor, which are a weight of a block's file.

    add: what the decoder adds to a vector's stored values.
    """

    start: int
    stop: int
    file: BlockFile
    weight: str
    add: float = 0.0


class _Parts:
    """A tensor that is made of parts, one after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = sorted(parts, key=lambda p: p.start)
        self._starts = [p.start for p in self._parts]

    def touched(self, start: int, stop: int) -> list[tuple[Part, int, int]]:
        """Each part of that stretch, and from where to where in it."""
        found = []
        for part in self._parts[max(0, bisect_right(self._starts, start) - 1) :]:
            low, high = max(start, part.start), min(stop, part.stop)
            if low < high:
                found.append((part, low - part.start, high - part.start))
        return found


class ChangedTensor(_Parts):
    """A tensor with other values than the source's, float32, in all of its rows or some: of a fused projection, or a
    stack of experts, only one part may have changed."""

    def values(self, start: int, stop: int, others: Callable[[int, int], np.ndarray]) -> np.ndarray:
        """Rows of a matrix, or values of a vector, as the checkpoint would store them. others: the source's own, from
        one to another, for those that did not change."""
        found, at = [], start
        for part, low, high in self.touched(start, stop):
            if at < part.start + low:
                found.append(others(at, part.start + low))
            found.append(part.file.values(part.weight, low, high) - np.float32(part.add))
            at = part.start + high
        if at < stop:
            found.append(others(at, stop))
        return np.concatenate(found)


class SolvedWeight(_Parts):
    """A weight whose codes were chosen. What `core.packed.read_codes` asks of a packed weight."""

    def __init__(self, parts: Sequence[Part], numbers: Numbers, columns: int) -> None:
        super().__init__(parts)
        self.numbers, self._columns = numbers, columns

    def codes(self, start: int, stop: int) -> Codes:
        return joined([p.file.codes(p.weight, a, b) for p, a, b in self.touched(start, stop)])

    def values(self, start: int, stop: int, columns: Columns | None = None) -> np.ndarray:
        values = self.numbers.values(self.codes(start, stop))
        left, right = columns or (0, self._columns)
        return values if (left, right) == (0, self._columns) else np.ascontiguousarray(values[:, left:right])

    def scales_fit(self, dtype: ElementType) -> bool:
        """Numbers were chosen for the target as they are: no other type of scales is asked for."""
        return False


class CalibratedCheckpoint(UnpackedCheckpoint):
    """changed: tensors with new values; solved: weights with chosen codes; added: tensors that the source has not, of
    which `changed` has the values. Everything else is the source's own. rotations: changed tensors that are W R, for an
    input that is rotated while the model runs."""

    def __init__(
        self,
        source: Checkpoint,
        changed: Mapping[str, ChangedTensor],
        solved: Mapping[str, SolvedWeight],
        added: Sequence[TensorInfo] = (),
        rotations: Mapping[str, Rotation] | None = None,
    ) -> None:
        self._stored = source
        self.rotations = dict(rotations or {})
        self._rotated = {}  # the source rotates back itself
        self.path, self.container, self.files = source.path, source.container, source.files
        untied = {"tie_word_embeddings": False} if source.config and any(t.role is Role.HEAD for t in added) else {}
        self.config = {**source.config, **untied}
        self.side_files, self.architecture = source.side_files, source.architecture
        self.notes = getattr(source, "notes", ())
        self._changed = dict(changed)
        own = source.packed if isinstance(source, UnpackedCheckpoint) else {}
        kept = {name: w for name, w in own.items() if name not in changed and name not in solved}
        self.packed = kept | dict(solved)  # type: ignore[assignment]
        self._solved = dict(solved)
        self.tensors = tuple(self._info(t) for t in (*source.tensors, *added))

    @property
    def stored(self) -> Checkpoint:
        return self._stored.stored

    @property
    def changed(self) -> bool:
        return bool(self._changed or self._solved) or self._stored.changed

    @property
    def unsolved(self) -> CalibratedCheckpoint:
        """The same before any codes were chosen: what errors are measured against."""
        names = {t.name for t in self._stored.tensors}
        added = [t for t in self.tensors if t.name not in names]
        return CalibratedCheckpoint(self._stored, self._changed, {}, added, self.rotations)

    def is_solved(self, name: str) -> bool:
        """Whether the codes of that tensor were chosen."""
        return name in self._solved

    def _info(self, t: TensorInfo) -> TensorInfo:
        if t.name in self._solved:
            w = self._solved[t.name]
            return replace(
                t, dtype=w.numbers.label, packed=True, numbers=w.numbers, scales_fit=w.scales_fit, tied_to=""
            )
        if t.name not in self._changed:
            return t
        dtype = t.dtype if t.dtype in _PLAIN else "BF16"
        width = 4 if dtype == "F32" else 2
        return replace(t, dtype=dtype, nbytes=t.values * width, packed=False, numbers=None, scales_fit=None, tied_to="")

    def read_raw(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        if tensor.name not in self._changed:
            return super().read_raw(tensor, start, stop, columns)
        values = self.read_rows(tensor, start, stop, columns)
        return ops.from_float32(values, tensor.dtype)

    def read_rows(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        if tensor.name in self._solved or tensor.name not in self._changed:
            return super().read_rows(tensor, start, stop, columns)
        first, last = row_range(tensor, start, stop)
        left, right = column_range(tensor, columns)
        found = self._changed[tensor.name]
        if len(tensor.shape) < 2:
            whole = found.values(0, tensor.columns, lambda a, b: self._own(tensor.name).reshape(-1)[a:b])
            return whole[None, left:right]
        values = found.values(first, last, lambda a, b: self._own(tensor.name, a, b))
        return values if (left, right) == (0, tensor.columns) else np.ascontiguousarray(values[:, left:right])

    def _own(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows of the source's tensor, float32."""
        return self._stored.read_rows(self._stored.tensor(name), start, stop)


def untied_head(embedding: TensorInfo, gguf: bool) -> TensorInfo:
    """The head of a model whose embedding was its head, once they differ."""
    name = "output.weight" if gguf else "lm_head.weight"
    return replace(embedding, name=name, role=Role.HEAD, tied_to="")
