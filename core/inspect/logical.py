"""A checkpoint seen by its weights: packed codes with their scales are one tensor again, whatever the format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.reading import column_range, row_range
from core.roles import parse_name
from core.runtime.storage import Stored, stored_weights
from core.tensor_info import TensorInfo


class LogicalCheckpoint(Checkpoint):
    """The weights of another checkpoint under the names and shapes that they have in the model.

    `dtype` is what the weight is stored as ('BF16', 'Q4_K', 'int4 g128'). config says nothing of quantization. unknown:
    tensors that are stored in no known way. Raises UserError when packed weights contradict each other.
    """

    def __init__(self, of: Checkpoint) -> None:
        self._of = of
        self.path, self.container, self.files = of.path, of.container, of.files
        self.config = {k: v for k, v in of.config.items() if k not in ("quantization_config", "compression_config")}
        self.side_files, self.architecture = of.side_files, of.architecture
        stored, unknown = stored_weights(of)
        self.unknown = tuple(unknown)
        self._stored = {s.name: s for s in stored}
        order = {t.name: i for i, t in enumerate(of.stored.tensors)}
        stored.sort(key=lambda s: order[s.sources[0].name])
        self.tensors = tuple(_info(s) for s in stored)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._of.metadata

    def read_raw(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        sources = self._stored[tensor.name].sources
        if len(sources) == 1:
            return self._of.stored.read_raw(sources[0], start, stop, columns)
        return self.read_rows(tensor, start, stop, columns).view(np.uint8)

    def read_rows(
        self, tensor: TensorInfo, start: int = 0, stop: int | None = None, columns: Columns | None = None
    ) -> np.ndarray:
        start, stop = row_range(tensor, start, stop)
        left, right = column_range(tensor, columns)
        rows = self._stored[tensor.name].values(start, stop).reshape(stop - start, tensor.columns)
        return rows if (left, right) == (0, tensor.columns) else np.ascontiguousarray(rows[:, left:right])

    def fingerprint(self) -> str:
        return self._of.fingerprint()


def _info(s: Stored) -> TensorInfo:
    named = parse_name(s.name, s.shape)
    first = s.sources[0]
    return TensorInfo(
        name=s.name,
        shape=tuple(s.shape),
        dtype=s.format,
        nbytes=s.nbytes,
        file=first.file,
        offset=first.offset,
        role=named.role,
        layer=named.layer,
        expert=named.expert,
        experts=named.experts,
        tied_to=first.tied_to if len(s.sources) == 1 else "",
    )
