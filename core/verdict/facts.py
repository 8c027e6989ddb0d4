"""What a report says of a file besides its quality: its numeric contract, its size, how it is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.assign import FLOAT_DTYPES
from core.catalog import granularity_text
from core.checkpoint.base import Checkpoint, Container
from core.contract import NumericContract
from core.errors import UserError
from core.formats import find_format
from core.packed.checkpoint import UnpackedCheckpoint
from core.packed.weight import PackedWeight
from core.serving import Command, quoted, serving_target
from core.targets import Target, find_target
from core.tensor_info import TensorInfo
from core.units import format_count


@dataclass(frozen=True)
class ContractRow:
    """Tensors of one role in one format. contract: in words. bits: stored bits a value, scales included."""

    role: str
    format: str
    tensors: int
    values: int
    bytes: int
    contract: str

    @property
    def bits(self) -> float:
        return 8 * self.bytes / self.values if self.values else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "bits_per_value": self.bits}


@dataclass(frozen=True)
class Facts:
    """One side. bytes: of the files with weights. fingerprint: of headers, sizes and times."""

    name: str
    path: Path
    container: str
    architecture: str
    bytes: int
    parameters: int
    fingerprint: str
    contract: tuple[ContractRow, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "container": self.container,
            "architecture": self.architecture,
            "bytes": self.bytes,
            "parameters": self.parameters,
            "fingerprint": self.fingerprint,
            "contract": [row.to_dict() for row in self.contract],
        }


def facts_of(checkpoint: Checkpoint) -> Facts:
    """From headers alone."""
    groups: dict[tuple[str, str], list[TensorInfo]] = {}
    for t in checkpoint.tensors:
        if not t.tied_to:
            groups.setdefault((t.role.value, t.dtype), []).append(t)
    rows = (
        ContractRow(
            role,
            dtype,
            len(found),
            sum(t.values for t in found),
            sum(t.nbytes for t in found),
            _words(_contract(checkpoint, found[0]), dtype),
        )
        for (role, dtype), found in groups.items()
    )
    return Facts(
        checkpoint.path.name or str(checkpoint.path),
        checkpoint.path,
        checkpoint.container.value,
        checkpoint.architecture,
        checkpoint.file_bytes,
        sum(t.values for t in checkpoint.tensors if not t.tied_to),
        checkpoint.fingerprint(),
        tuple(sorted(rows, key=lambda row: -row.bytes)),
    )


def _contract(checkpoint: Checkpoint, tensor: TensorInfo) -> NumericContract | None:
    packed = getattr(checkpoint, "packed", {}).get(tensor.name)
    if packed is not None:
        contract: NumericContract = packed.format.contract
        return contract
    try:
        return find_format(tensor.dtype, "gguf").contract if checkpoint.container is Container.GGUF else None
    except UserError:
        return None


def _words(contract: NumericContract | None, dtype: str) -> str:
    if contract is None:
        return "values stand for themselves" if dtype in FLOAT_DTYPES else "not written by this program"
    if contract.scale is None:
        return "values stand for themselves"
    zero = "symmetric" if contract.symmetric else "with a zero point or minimum"
    return f"{granularity_text(contract)}, {zero}"


def packed_of(checkpoint: Checkpoint) -> tuple[PackedWeight, ...]:
    """Its packed weights."""
    return tuple(checkpoint.packed.values()) if isinstance(checkpoint, UnpackedCheckpoint) else ()


def target_of(checkpoint: Checkpoint) -> Target | None:
    """The target that its most common packed format belongs to; None where none does."""
    if checkpoint.container is Container.GGUF:
        sizes: dict[str, int] = {}
        for t in checkpoint.tensors:
            sizes[t.dtype] = sizes.get(t.dtype, 0) + t.nbytes
        name = max(sizes, key=lambda dtype: sizes[dtype], default="")
    else:
        packed = packed_of(checkpoint)
        name = packed[0].format.name if packed else "hf-bf16"
    try:
        return find_target(name)
    except UserError:
        return None


def commands(checkpoint: Checkpoint) -> tuple[Command, ...]:
    """How it is served, for each runtime that reads it; the one that it is made for first."""
    target = target_of(checkpoint)
    if target is not None:
        return serving_target(target, checkpoint.path, rotated=any(w.rotation for w in packed_of(checkpoint)))
    if checkpoint.container is Container.GGUF:
        return (Command("llama.cpp", f"llama-server -m {quoted(checkpoint.path)}"),)
    return (Command("vLLM", f"vllm serve {quoted(checkpoint.path)}"),)


def rollback(source: Checkpoint) -> tuple[str, ...]:
    """Steps back to the source, in words."""
    first = commands(source)[0]
    return (
        f"Stop the server, and serve the source again ({first.runtime}): {first.text}",
        (
            f"The source was only read: its weights are {format_count(source.file_bytes)} bytes, fingerprint "
            f"{source.fingerprint()}."
        ),
        "Answers made with the artifact are not marked; keep the time of the change with this report.",
    )
