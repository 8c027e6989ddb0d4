"""checkpoint × recipe → Plan: every tensor's fate, reason and exact bytes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from core.contract import ByteCount
from core.export.layout import Layout
from core.formats import Format
from core.models.gguf_tensors import MappedTensor
from core.recipe import Recipe
from core.targets import Target
from core.tensor_info import Role


class Action(Enum):
    """quantize: fewer bits than before, or another block type. keep: a plain 16- or 32-bit type. copy: byte for byte."""

    QUANTIZE = "quantize"
    KEEP = "keep"
    COPY = "copy"


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the output. bytes.total includes the padding that follows it in the file.

    source: how its values are read. reason: one clause, why this format. fallback: it is not the format that the
    target wanted, because its rows do not divide.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None
    action: Action
    format: Format
    bytes: ByteCount
    source: MappedTensor
    source_dtype: str
    source_bytes: int
    reason: str
    fallback: bool = False

    @property
    def values(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True)
class Plan:
    """Everything a run needs to know; `bytes_total` is the exact size of what will be written (all files of a folder).

    warnings: sentences for the user, shown before the run. bits_per_weight: payload and metadata of all tensors over
    all values. expected_seconds, expected_memory: estimates (bytes of resident memory).
    """

    recipe: Recipe
    target: Target
    tensors: tuple[TensorPlan, ...]
    layout: Layout
    source_bytes: int
    source_fingerprint: str
    warnings: tuple[str, ...] = ()
    expected_seconds: float = 0.0
    expected_memory: int = 0
    scratch_bytes: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes_total(self) -> int:
        return self.layout.total_bytes

    @property
    def bytes(self) -> ByteCount:
        """By kind, summed over tensors and the files' headers and side files; the total is `bytes_total`."""
        total = sum((t.bytes for t in self.tensors), ByteCount())
        return total + ByteCount(header=self.bytes_total - total.total)

    @property
    def change(self) -> float:
        """Output size against the source's tensors, as a share: −0.7 means 70 % smaller."""
        return self.bytes_total / self.source_bytes - 1.0 if self.source_bytes else 0.0

    @property
    def fallback_share(self) -> float:
        """Share of the quantizable values that got another format than the target's because rows do not divide."""
        counted = [t for t in self.tensors if t.action is not Action.KEEP or t.fallback]
        values = sum(t.values for t in counted)
        return sum(t.values for t in counted if t.fallback) / values if values else 0.0

    @property
    def bits_per_weight(self) -> float:
        values = sum(t.values for t in self.tensors)
        return 8 * sum(t.bytes.total for t in self.tensors) / values if values else 0.0
