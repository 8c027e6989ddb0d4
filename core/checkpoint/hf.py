"""Safetensors files as a checkpoint: a Hugging Face folder, or one file alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.checkpoint.architecture import architecture_of, text_config
from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.folder import WeightFiles, read_json, side_files
from core.checkpoint.reading import FileCheckpoint
from core.checkpoint.safetensors import read_header
from core.checkpoint.wrapped_names import own_names, renamed
from core.errors import UserError
from core.roles import natural_key
from core.tensor_info import Role, TensorInfo

_SAMPLE = 1 << 16


def open_safetensors(path: Path, weights: WeightFiles, folder: Path | None) -> FileCheckpoint:
    """Open the weight files; `folder` gives config and side files; None: a file alone. Raises UserError."""
    headers = [read_header(file, index) for index, file in enumerate(weights.files)]
    tensors = [tensor for header in headers for tensor in header.tensors]
    seen: dict[str, int] = {}
    for tensor in tensors:
        if seen.setdefault(tensor.name, tensor.file) != tensor.file:
            raise UserError(
                f"{tensor.name[:80]} is both in {weights.files[seen[tensor.name]].name} and in "
                f"{weights.files[tensor.file].name}.",
                "Remove the file that is not part of this model.",
            )
    tensors.sort(key=lambda t: natural_key(t.name))
    config = read_json(folder / "config.json", required=False) if folder else {}
    notes = [("extra-bytes", header.file.path.name) for header in headers if header.extra]
    notes += index_notes(weights.index, tensors, weights.files)
    notes += [("unfinished", name) for name in weights.unfinished]
    if names := own_names([t.name for t in tensors]):
        notes.append(("wrapped-names", tensors[0].name))
        tensors = renamed(tensors, names)
    checkpoint = FileCheckpoint(
        path,
        Container.SAFETENSORS,
        [header.file for header in headers],
        tensors,
        config=config,
        side_files=side_files(folder) if folder else (),
        architecture=architecture_of(config),
        notes=notes,
    )
    tie_head(checkpoint)
    return checkpoint


def index_notes(
    index: Mapping[str, str], tensors: Sequence[TensorInfo], files: Sequence[Path]
) -> list[tuple[str, str]]:
    """Where an index and the files' own headers disagree."""
    if not index:
        return []
    there = {tensor.name: files[tensor.file].name for tensor in tensors}
    notes = [("index-missing", name) for name in index if name not in there]
    notes += [("index-moved", name) for name, file in index.items() if there.get(name, file) != file]
    return notes


def tie_head(checkpoint: FileCheckpoint) -> None:
    """Mark a stored head that repeats the embedding: where the config says they are one, samples are compared."""
    if not says_tied(checkpoint.config):
        return
    embed = next((t for t in checkpoint.tensors if t.role is Role.EMBED), None)
    head = next((t for t in checkpoint.tensors if t.role is Role.HEAD), None)
    if embed is None or head is None or head.tied_to or embed.tied_to:
        return
    if (embed.shape, embed.dtype) != (head.shape, head.dtype) or not same_samples(checkpoint, embed, head):
        checkpoint.notes += (("tied-head-differs", head.name),)
        return
    checkpoint.tensors = tuple(replace(t, tied_to=embed.name) if t is head else t for t in checkpoint.tensors)


def says_tied(config: Mapping[str, Any]) -> bool:
    """Whether the config states that embedding and head are one tensor."""
    value = config.get("tie_word_embeddings")
    return bool(text_config(config).get("tie_word_embeddings") if value is None else value)


def same_samples(checkpoint: Checkpoint, one: TensorInfo, other: TensorInfo) -> bool:
    """Whether 64 KiB each of the first, middle and last rows are the same bytes in both tensors."""
    if not one.rows or not one.nbytes:
        return True
    count = min(one.rows, max(1, _SAMPLE // max(1, one.nbytes // one.rows)))
    for start in {0, (one.rows - count) // 2, one.rows - count}:
        if (checkpoint.read_raw(one, start, start + count) != checkpoint.read_raw(other, start, start + count)).any():
            return False
    return True
