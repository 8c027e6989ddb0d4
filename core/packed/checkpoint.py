"""A checkpoint with packed weights, seen by its weights: each is one tensor, with its name and shape in the model.

Everything that reads values (plan, run, doctor, Inspect) reads these; `stored` is what lies on the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.reading import column_range, row_range
from core.errors import UserError
from core.packed.find import find_packed
from core.packed.mlx import plain_experts
from core.packed.weight import PackedWeight
from core.roles import parse_name
from core.tensor_info import TensorInfo
from kernels import ops
from kernels.rotation import Rotation


def unpacked(checkpoint: Checkpoint) -> Checkpoint:
    """The view of a checkpoint in which packed weights are plain; the checkpoint itself when it has none.

    Where they contradict each other, or their config, the checkpoint keeps the error as its `packed_problem`.
    """
    try:
        found = find_packed(checkpoint)
    except UserError as problem:
        checkpoint.packed_problem = problem
        return checkpoint
    seen = found.packed or found.rotated or found.unused
    return UnpackedCheckpoint(checkpoint, found.packed, found.rotated, found.unused) if seen else checkpoint


class UnpackedCheckpoint(Checkpoint):
    """`dtype` of a packed weight is its label ('int4 g128'); its bytes are those of all tensors it is made of.

    rotated: plain weights that are stored as W R; they are seen as W, in float32. unused: tensors that are left out.
    """

    def __init__(
        self,
        stored: Checkpoint,
        weights: Sequence[PackedWeight],
        rotated: Mapping[str, Rotation] | None = None,
        unused: Collection[str] = (),
    ) -> None:
        self._stored = stored
        self._rotated = dict(rotated or {})
        self.path, self.container, self.files = stored.path, stored.container, stored.files
        self.config, self.side_files, self.architecture = stored.config, stored.side_files, stored.architecture
        self.notes = getattr(stored, "notes", ())
        self.packed = {w.name: w for w in weights}
        place: dict[str, list[PackedWeight]] = {}
        for w in weights:
            place.setdefault(w.sources[0].name, []).append(w)
        plain = plain_experts if weights and weights[0].scheme == "MLX" else lambda t: (t,)
        parts = {t.name for w in weights for t in (*w.sources, *w.extra)} | set(unused)
        self.tensors = tuple(
            replace(info, dtype="F32", nbytes=4 * info.values) if info.name in self._rotated else info
            for t in stored.tensors
            if t.name in place or t.name not in parts
            for info in (map(_info, place[t.name]) if t.name in place else plain(t))
        )

    @property
    def stored(self) -> Checkpoint:
        return self._stored

    @property
    def changed(self) -> bool:
        return bool(self._rotated)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._stored.metadata

    @property
    def file_bytes(self) -> int:
        return self._stored.file_bytes

    def read_raw(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        if tensor.name in self.packed:
            raise ValueError(f"'{tensor.name}' has no bytes of its own")
        if tensor.name in self._rotated:
            return ops.from_float32(self.read_rows(tensor, start, stop, columns), "F32")
        return self._stored.read_raw(tensor, start, stop, columns)

    def read_rows(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        weight = self.packed.get(tensor.name)
        if tensor.name in self._rotated:
            rows = self._stored.read_rows(self._stored.tensor(tensor.name), start, stop)
            left, right = column_range(tensor, columns)
            return np.ascontiguousarray(self._rotated[tensor.name].undo(rows)[:, left:right])
        if weight is None:
            return self._stored.read_rows(tensor, start, stop, columns)
        return weight.values(*row_range(tensor, start, stop), column_range(tensor, columns))

    def fingerprint(self) -> str:
        return self._stored.fingerprint()

    def close(self) -> None:
        self._stored.close()


def _info(w: PackedWeight) -> TensorInfo:
    named, first = parse_name(w.name, w.shape), w.sources[0]
    return TensorInfo(
        name=w.name,
        shape=w.shape,
        dtype=w.label,
        nbytes=w.nbytes,
        file=first.file,
        offset=first.offset,
        role=named.role,
        layer=named.layer,
        expert=named.expert,
        experts=named.experts,
        packed=True,
        numbers=None if w.transposed or w.order is not None or w.rotation is not None else w.format.numbers,
        scales_fit=w.scales_fit,
        input_scale=w.format.needs_input,
    )
