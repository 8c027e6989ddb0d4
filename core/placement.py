"""From decided tensors to a layout: names, metadata and offsets of the output, for each container."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from core.checkpoint.base import Checkpoint, Container
from core.checkpoint.gguf import refuse_matrix
from core.checkpoint.quantized_source import quantized_source
from core.errors import UserError
from core.export.ecosystems import ECOSYSTEMS
from core.export.folder import folder_layout
from core.export.gguf import gguf_layout, requantized_metadata
from core.export.gguf_values import GGUFValue, encode_record, u32
from core.export.layout import Layout, PlacedPart
from core.formats import Format
from core.formats.cache_scale import CacheScale
from core.formats.coded import Coded
from core.methods.choice import Calibrated
from core.methods.record import KEY, gguf_records, record_of
from core.models import model_shape
from core.models.gguf_metadata import gguf_metadata
from core.models.gguf_tensors import MappedTensor, identity_tensors, map_tensors
from core.models.shape import ModelShape
from core.parts import Part
from core.targets import Target

if TYPE_CHECKING:
    from core.plan import TensorPlan


@dataclass(frozen=True)
class Prepared:
    """What of a checkpoint does not depend on the recipe. metadata: encoded GGUF records, {} for folders."""

    mapped: tuple[MappedTensor, ...]
    model: ModelShape | None
    metadata: Mapping[str, bytes]


_CACHE: weakref.WeakKeyDictionary[Checkpoint, dict[str, Prepared]] = weakref.WeakKeyDictionary()


def prepare(checkpoint: Checkpoint, target: Target) -> Prepared:
    """Names and metadata for the target's container; kept as long as the checkpoint is, since tokenizers are slow."""
    kept = _CACHE.setdefault(checkpoint, {})
    kind = target.ecosystem or target.container
    if kind not in kept:
        kept[kind] = _prepare(checkpoint, target)
    return kept[kind]


def _prepare(checkpoint: Checkpoint, target: Target) -> Prepared:
    model = model_shape(checkpoint)
    if target.is_folder:
        if checkpoint.container is Container.GGUF:
            raise UserError(
                f"{target.name} needs the original Hugging Face folder; this is a GGUF file.",
                "Open the original model's folder, or choose a GGUF target such as Q4_K_M.",
            )
        mapped = tuple(t for t in identity_tensors(checkpoint) if not all(s.tied_to for s in t.sources))
        return Prepared(ECOSYSTEMS[target.ecosystem].mapped(checkpoint, mapped), model, {})
    if checkpoint.container is Container.GGUF:
        refuse_matrix(checkpoint)
        values: Mapping[str, GGUFValue | bytes] = requantized_metadata(checkpoint, target.file_type)
        mapped = identity_tensors(checkpoint)
    else:
        mapped = map_tensors(checkpoint)
        values = gguf_metadata(checkpoint, target.file_type, mapped)
    records = {k: v if isinstance(v, bytes) else encode_record(k, v) for k, v in values.items()}
    return Prepared(mapped, model, records)


def stored_parts(t: TensorPlan) -> tuple[Part, ...]:
    """The arrays that a planned tensor becomes in the file."""
    return parts_of(t.source, t.format)


def parts_of(t: MappedTensor, encoding: Format | None) -> tuple[Part, ...]:
    """The same before there is a plan. encoding None: its bytes are copied."""
    if encoding is not None:
        return encoding.parts(t.shape)
    return (Part("", t.dtype, t.pieces[0].tensor.shape, t.source_bytes),)


def part_name(tensor: str, suffix: str) -> str:
    """'…weight' and '_packed' → '…weight_packed'; 'blk.0.attn_q.weight' and '.scale' → 'blk.0.attn_q.scale'."""
    return tensor.removesuffix(".weight") + suffix if suffix.startswith(".") else tensor + suffix


class Draft(NamedTuple):
    """What placing needs of a decided tensor: its name in the file, its format (None: copied), and its parts."""

    name: str
    format: Format | None
    parts: tuple[Part, ...]


def place(
    checkpoint: Checkpoint,
    target: Target,
    prepared: Prepared,
    drafts: Sequence[Draft],
    calibrated: Calibrated | None = None,
    online_run: int = 0,
) -> Layout:
    """Exact offsets of every part. `PlacedPart.tensor` counts `drafts`, `part` counts their parts. calibrated: what
    chooses numbers from data, which the output says of itself. online_run: values that a rotation of the down
    projections' inputs mixes; 0: there is none."""
    flat = [(i, j) for i, d in enumerate(drafts) for j in range(len(d.parts))]
    arrays = [(part_name(d.name, p.suffix), p.shape, p.dtype, p.nbytes) for d in drafts for p in d.parts]
    if target.is_folder:
        chosen = {d.name: d.format for d in drafts if isinstance(d.format, Coded)}
        cache = any(isinstance(d.format, CacheScale) for d in drafts)
        more = {KEY: record_of(calibrated)} if calibrated is not None else {}
        ecosystem = ECOSYSTEMS[target.ecosystem]
        layout = folder_layout(checkpoint, arrays, ecosystem, chosen, cache=cache, more=more, run=online_run)
    else:
        # What was prepared names the target that it was first prepared for.
        arrays = [
            (name, shape or (1,), dtype, nbytes) for name, shape, dtype, nbytes in arrays
        ]  # a scalar has one axis
        own = gguf_records(calibrated) if calibrated is not None else {}
        layout = gguf_layout(arrays, {**prepared.metadata, "general.file_type": u32(target.file_type), **own})
    if len(flat) == len(drafts):  # one part each: the layout counts as we do
        return layout
    parts = tuple(PlacedPart(*flat[p.tensor], p.file, p.offset, p.nbytes) for p in layout.parts)
    return replace(layout, parts=parts)


def refuse_encoded_source(checkpoint: Checkpoint) -> None:
    """Raise UserError for a checkpoint whose weights are packed in a scheme that this version does not decode."""
    if checkpoint.packed_problem:
        raise checkpoint.packed_problem
    found = quantized_source(checkpoint)
    if found is None or found.readable or found.stale:
        return
    raise UserError(
        f"This checkpoint is already quantized ({found.label}), and such weights can not be converted yet.",
        "Open the original 16-bit model instead.",
    )
