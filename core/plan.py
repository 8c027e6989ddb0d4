"""checkpoint × recipe → Plan: every tensor's fate, reason and exact bytes, before anything runs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from math import prod
from operator import attrgetter

from core import few_bits
from core.assign import FLOAT_DTYPES, Fate, decide
from core.checkpoint.base import Checkpoint, Container
from core.contract import ByteCount, PerBlock
from core.errors import UserError
from core.export.cache_scales import cache_scales, check_cache
from core.export.layout import Layout
from core.export.online import check_online, online_matrix, online_note
from core.formats import Format
from core.joined import JOINED, apart_warning, module_of
from core.models.gguf_tensors import MappedTensor, conversion_warning
from core.output import RESERVE
from core.parts import Part
from core.placement import Draft, part_name, parts_of, place, prepare, refuse_encoded_source
from core.recipe import Misfit, Recipe
from core.targets import Target, find_target
from core.tensor_info import Role
from core.threads import worker_count
from core.units import format_bytes, format_count

FALLBACK_WARNING = 0.1  # share of the quantizable values in another format than asked for that is worth a warning
BASE_MEMORY = 160_000_000  # interpreter, numpy and the kernels
BLOCK_BUDGET = 256_000_000  # row blocks in flight, all threads together


class Action(Enum):
    """quantize: fewer bits, or another block type. repack: the same numbers, packed another way. keep: a plain 16- or
    32-bit type. copy: byte for byte."""

    QUANTIZE = "quantize"
    REPACK = "repack"
    KEEP = "keep"
    COPY = "copy"


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the output. bytes.total includes the padding that follows it in the file.

    format: how it is encoded, None when its bytes are copied; format_name: what the file will call it.
    source: how its values are read. reason: one clause, why this format. fallback: it is not the format that the
    target wanted, because its rows do not divide. fused: other tensors that a runtime makes one with it, where the
    format has one scale for all of them. rounding: where codes are taken over, by how much of itself a value may
    change, since a scale is stored as its reciprocal. chosen_by: the method that chooses its numbers from data, or ''.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    layer: int | None
    action: Action
    format_name: str
    format: Format | None
    bytes: ByteCount
    source: MappedTensor
    source_dtype: str
    source_bytes: int
    reason: str
    fallback: bool = False
    fused: tuple[MappedTensor, ...] = ()
    rounding: float = 0.0
    chosen_by: str = ""

    @property
    def lossless(self) -> bool:
        """Whether its codes are those of the source."""
        return self.action is Action.REPACK

    @property
    def needs_input(self) -> bool:
        """Whether the range of its activations has to be measured before it is written."""
        return self.format is not None and self.format.needs_input and not (self.lossless and self.source.input_scale)

    @property
    def values(self) -> int:
        return prod(self.shape)

    @property
    def columns(self) -> int:
        """Length of a row, the last axis; 1 for a scalar."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """All axes but the last, multiplied."""
        return prod(self.shape[:-1])


@dataclass(frozen=True)
class Plan:
    """Everything a run needs to know; `bytes_total` is the exact size of what will be written (all files of a folder).

    source_bytes: of the source's files with weights.

    warnings: sentences for the user, shown before the run. bits_per_weight: payload and metadata of all tensors over
    all values. expected_seconds, expected_memory: estimates (bytes of resident memory). scratch_bytes: room on the disk
    that a run asks for beside the output, which needs no second copy. choosing_seconds: of the expected ones,
    those that go by before anything is written, while numbers are chosen from data.
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
    choosing_seconds: float = 0.0

    @property
    def lossless_note(self) -> str:
        """What is said of weights that keep their numbers; '' when there are none."""
        kept = sum(t.lossless for t in self.tensors)
        others = sum(t.action is Action.QUANTIZE for t in self.tensors)
        if not kept:
            return ""
        if any(t.rounding for t in self.tensors):
            return (
                f"{format_count(kept)} of {format_count(kept + others)} weights keep their codes and scales; "
                "the tensor's own is rounded."
            )
        if not others:
            return "Lossless: the quantized weights keep their numbers, and only their packing changes."
        return (
            f"{format_count(kept)} of {format_count(kept + others)} weights keep their numbers (lossless); "
            "the others are quantized anew."
        )

    @property
    def bytes_total(self) -> int:
        return self.layout.total_bytes

    @property
    def source_bytes_read(self) -> int:
        """Source bytes that a run reads; less than `source_bytes` when some tensors are not taken over."""
        return sum(t.source_bytes for t in self.tensors)

    @property
    def bytes(self) -> ByteCount:
        """By kind, summed over tensors and the files' headers and side files; the total is `bytes_total`."""
        total = ByteCount.sum(t.bytes for t in self.tensors)
        return total + ByteCount(header=self.bytes_total - total.total)

    @property
    def change(self) -> float:
        """Output size against the source's weight files, as a share: −0.7 means 70 % smaller."""
        return self.bytes_total / self.source_bytes - 1.0 if self.source_bytes else 0.0

    @property
    def fallback_share(self) -> float:
        """Share of the quantizable values that got another format than the target's because rows do not divide."""
        counted = [t for t in self.tensors if t.action is Action.QUANTIZE or t.fallback]
        values = sum(t.values for t in counted)
        return sum(t.values for t in counted if t.fallback) / values if values else 0.0

    @property
    def bits_per_weight(self) -> float:
        values = sum(t.values for t in self.tensors)
        return 8 * sum(t.bytes.total for t in self.tensors) / values if values else 0.0


def make_plan(checkpoint: Checkpoint, recipe: Recipe, forecasts: bool = True) -> Plan:
    """Decide everything a run will do. Reads headers and tokenizer files only; a second plan of a checkpoint is quick.

    forecasts: also what choosing numbers from data will take, and whether it is possible; sizes do not depend on it.
    Raises UserError when the recipe or the checkpoint makes the target impossible.
    """
    target = find_target(recipe.target)
    if not checkpoint.tensors:
        raise UserError("This checkpoint has no tensors.", "Choose a folder or file that holds a model's weights.")
    refuse_encoded_source(checkpoint)
    if recipe.calibrated is not None:
        from core.methods.forecast import announced

        checkpoint = announced(checkpoint, recipe.calibrated)
    prepared = prepare(checkpoint, target)
    gguf = checkpoint.container is Container.GGUF
    mapped = prepared.mapped
    fates = decide(target, recipe, mapped, prepared.model, gguf)
    if recipe.calibrated is not None and recipe.calibrated.transforms and _some_move(mapped, fates):
        mapped = tuple(_without_numbers(t) for t in mapped)  # a transform changes them with the others
        fates = decide(target, recipe, mapped, prepared.model, gguf)
    decided = _without_stale_scales(list(zip(mapped, _outcomes(mapped, fates), strict=True)))
    check_online(recipe.calibrated, target)
    run = 0
    if recipe.online:
        from core.runtime.load import decoder_config

        matrix, form = online_matrix(decoder_config(checkpoint), prepared.mapped)
        decided.append((matrix, _outcome(matrix, Fate(form, "the rotation of what comes into the down projections"))))
        run = matrix.columns
    if recipe.cache:
        check_cache(recipe.cache, target)
        added = cache_scales(target, prepared.mapped)
        decided += [(t, _outcome(t, Fate(form, "the range of a cache in 8 bits"))) for t, form in added]
    drafts = [Draft(t.name, o.fate.format, o.parts) for t, o in decided]
    layout = place(checkpoint, target, prepared, drafts, recipe.calibrated, run)
    tensors = _with_padding(decided, layout)
    if measured := next((t for t in tensors if t.needs_input), None):
        from core.calibrate import check_can_calibrate

        check_can_calibrate(checkpoint, measured.format_name)
    plan = Plan(
        recipe=recipe,
        target=target,
        tensors=tensors,
        layout=layout,
        source_bytes=checkpoint.file_bytes,
        source_fingerprint=checkpoint.fingerprint(),
        expected_seconds=estimate_seconds(tensors) + calibration_seconds(tensors),
        expected_memory=BASE_MEMORY + BLOCK_BUDGET,
        scratch_bytes=RESERVE,
    )
    plan = replace(plan, warnings=tuple(_warnings(plan, checkpoint)))
    if recipe.calibrated is not None and forecasts:
        from core.methods.forecast import forecast

        plan = forecast(plan, checkpoint)
    from core.hardware.cpu import short_of_memory

    short = short_of_memory(plan.expected_memory, BASE_MEMORY)
    return replace(plan, warnings=(*plan.warnings, short)) if short else plan


# 10⁶ values a second that one thread of a 2023 desktop encodes, decodes and compares; only for the estimate shown.
RATES: dict[str, float] = {"Q2_K": 60, "Q3_K": 120, "Q4_K": 80, "Q5_K": 80, "Q6_K": 90, "IQ4_NL": 35, "IQ4_XS": 45}
RATES |= {"IQ2_XXS": 6, "IQ2_XS": 4, "IQ2_S": 4, "IQ3_XXS": 2, "IQ3_S": 2.5}
DEFAULT_RATE = 160
DISK_BYTES_PER_SECOND = 1e9
CALIBRATION_SECONDS = 4e-8  # of one core, for each weight: 512 tokens in float32


def thread_seconds(t: TensorPlan) -> float:
    """What writing a tensor costs one thread, roughly; a run weighs its progress by it."""
    if t.format is None:
        return t.source_bytes / DISK_BYTES_PER_SECOND
    return t.values / RATES.get(t.format_name, DEFAULT_RATE) / 1e6


def estimate_seconds(tensors: tuple[TensorPlan, ...]) -> float:
    """Rough time of a run on this machine's cores; the run itself replaces it by what it measures."""
    encoding = sum(thread_seconds(t) for t in tensors if t.format is not None)
    return encoding / worker_count() + sum(t.source_bytes for t in tensors) / DISK_BYTES_PER_SECOND


def calibration_seconds(tensors: tuple[TensorPlan, ...]) -> float:
    """Rough time that the activations take to be measured, where some tensor needs that."""
    if not any(t.needs_input for t in tensors):
        return 0.0
    return sum(t.values for t in tensors if len(t.shape) > 1) * CALIBRATION_SECONDS / worker_count()


def misfit_costs(checkpoint: Checkpoint, recipe: Recipe) -> dict[Misfit, int | None]:
    """Output bytes under each policy for rows that do not divide; None where the run would stop."""
    costs: dict[Misfit, int | None] = {}
    for policy in Misfit:
        try:
            made = make_plan(checkpoint, replace(recipe, misfit=policy))
        except UserError:
            costs[policy] = None
            continue
        costs[policy] = made.bytes_total
        if policy is Misfit.SMALLER and not any(t.fallback for t in made.tensors):
            return dict.fromkeys(Misfit, made.bytes_total)  # nothing for them to decide
    return costs


@dataclass(frozen=True)
class _Outcome:
    """What tensors that are alike and have the same fate have in common. count: without the padding behind them."""

    fate: Fate
    action: Action
    format_name: str
    count: ByteCount
    parts: tuple[Part, ...]


def _outcomes(tensors: Sequence[MappedTensor], fates: Sequence[Fate]) -> list[_Outcome]:
    """One a tensor; worked out once for all that are alike, of which a model has thousands."""
    known: dict[tuple[object, int], _Outcome] = {}
    outcomes = []
    for t, fate in zip(tensors, fates, strict=True):
        key = (t.kind, id(fate))
        found = known.get(key)
        if found is None:
            found = known[key] = _outcome(t, fate)
        outcomes.append(found)
    return outcomes


def _outcome(t: MappedTensor, fate: Fate) -> _Outcome:
    parts = parts_of(t, fate.format)
    if fate.format is None:
        return _Outcome(fate, Action.COPY, t.dtype, ByteCount(payload=t.source_bytes), parts)
    if fate.lossless:
        action = Action.REPACK
    else:
        action = Action.KEEP if fate.format.contract.scale is None else Action.QUANTIZE
    return _Outcome(fate, action, fate.format.name, fate.format.bytes_for(t.shape), parts)


def _some_move(tensors: Sequence[MappedTensor], fates: Sequence[Fate]) -> bool:
    """Whether codes of some packed weights could be taken over, and those of others not."""
    packed = {f.lossless for t, f in zip(tensors, fates, strict=True) if t.packed and f.format is not None}
    return len(packed) > 1


def _without_numbers(t: MappedTensor) -> MappedTensor:
    """The same, whose codes nobody can take over."""
    return replace(t, pieces=tuple(replace(p, tensor=replace(p.tensor, numbers=None)) for p in t.pieces))


_Decided = tuple[MappedTensor, _Outcome]


def _without_stale_scales(decided: list[_Decided]) -> list[_Decided]:
    """Drop the tensor scales of an NVFP4 source whose weights are encoded anew: reading has applied them already."""
    encoded = {part_name(t.name, ".scale") for t, o in decided if t.dtype == "NVFP4" and o.action is not Action.COPY}
    return [(t, o) for t, o in decided if t.name not in encoded] if encoded else decided


def _ragged(t: TensorPlan) -> bool:
    """Whether its last tile of scales is cut."""
    g = t.format.contract.granularity if t.format else None
    return isinstance(g, PerBlock) and bool(t.rows % g.rows or t.columns % g.cols)


_CACHE_SCALES = (".k_scale", ".v_scale", ".kv_scale")


def _fused(decided: Sequence[_Decided]) -> dict[str, tuple[MappedTensor, ...]]:
    """Of each tensor whose format fuses: the others of its module that are fused with it and have the same format."""
    families: dict[tuple[object, ...], list[MappedTensor]] = {}
    for t, o in decided:
        if o.fate.format is not None and o.fate.format.fuses and not o.fate.lossless:
            number = next((i for i, roles in enumerate(JOINED) if t.role in roles), None)
            if number is not None:
                families.setdefault((module_of(t.name), number, o.fate.format.name), []).append(t)
    return {t.name: tuple(x for x in same if x is not t) for same in families.values() for t in same}


def _with_padding(decided: Sequence[_Decided], layout: Layout) -> tuple[TensorPlan, ...]:
    """Each tensor with the zero bytes that follow its parts up to the next part or the end of the file."""
    ordered = sorted(layout.parts, key=attrgetter("file", "offset", "nbytes"))
    families = _fused(decided)
    between = [sorted(f.between) for f in layout.files]
    padding = [0] * len(decided)
    for p, following in zip_longest(ordered, ordered[1:]):
        last = following is None or following.file != p.file
        end = layout.files[p.file].size if last else following.offset
        inside = between[p.file]
        own = inside[bisect_left(inside, (p.offset,)) : bisect_left(inside, (end,))]
        padding[p.tensor] += end - p.offset - p.nbytes - sum(len(content) for _, content in own)
    counts: dict[tuple[int, int], ByteCount] = {}
    tensors = []
    for (t, o), n in zip(decided, padding, strict=True):
        count = counts.get((id(o), n))
        if count is None:
            count = counts[id(o), n] = o.count + ByteCount(padding=n)
        tensors.append(
            TensorPlan(
                name=t.name,
                shape=t.shape,
                role=t.role,
                layer=t.layer,
                action=o.action,
                format_name=o.format_name,
                format=o.fate.format,
                bytes=count,
                source=t,
                source_dtype=t.dtype,
                source_bytes=t.source_bytes,
                reason=o.fate.reason,
                fallback=o.fate.fallback,
                fused=families.get(t.name, ()),
                rounding=o.fate.rounding,
            )
        )
    return tuple(tensors)


def _warnings(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    out = []
    if plan.bytes_total >= plan.source_bytes:
        same = "Every tensor has its format already. " if all(t.action is Action.COPY for t in plan.tensors) else ""
        out.append(
            f"{same}The output is not smaller than the source ({format_bytes(plan.bytes_total)} against "
            f"{format_bytes(plan.source_bytes)})."
        )
    if plan.fallback_share > FALLBACK_WARNING:
        fallen = [t for t in plan.tensors if t.fallback]
        widths = sorted({t.shape[-1] for t in fallen})
        kinds = sorted({t.format_name for t in fallen})
        out.append(
            f"{len(fallen)} of {len(plan.tensors)} tensors {'get' if len(fallen) > 1 else 'gets'} "
            f"{', '.join(kinds)} instead, because rows of "
            f"{', '.join(format_count(w) for w in widths[:3])} values do not divide into this format's blocks."
        )
    if plan.recipe.online:
        out.append(online_note(any(".experts." in t.name for t in plan.tensors)))
    out += [warning for warning in (apart_warning(plan), few_bits.warning(plan.recipe)) if warning]
    wanting = [t for t in plan.tensors if t.needs_input]
    measured = sum(not (t.format is not None and t.format.derived) for t in wanting)
    if wanting:
        what = f"Scales of the activations of {measured} tensors" if measured else "The ranges of keys and values"
        rest = "; dynamic formats need none." if measured else "."
        out.append(
            f"{what} are measured first, on a text that comes with Bitsmith, "
            f"in about {calibration_seconds(plan.tensors):.0f} s{rest}"
        )
    if any(t.rounding for t in plan.tensors):
        out.append(
            "This output stores the one scale of a tensor as its reciprocal, which float32 has to round: values change "
            "by less than a millionth of themselves."
        )
    if any(t.action is Action.QUANTIZE and t.source_dtype not in FLOAT_DTYPES for t in plan.tensors):
        dtypes = sorted({t.source_dtype for t in plan.tensors if t.source_dtype not in FLOAT_DTYPES and not t.lossless})
        out.append(
            f"The source is already quantized ({', '.join(dtypes)}); quality can only fall. "
            "Use the original if you can."
        )
    asymmetric = {t.format.name for t in plan.tensors if t.format and re.match(r"w\d+a16-.*-asym$", t.format.name)}
    if asymmetric:
        out.append(
            "transformers 5 loads zero points only when from_pretrained gets a "
            "CompressedTensorsConfig with dequantize=True; vLLM needs nothing."
        )
    if any(name.startswith("w8") for name in asymmetric):
        out.append(
            "vLLM's Marlin kernels take zero points with 4 bits only; with 8 bits it needs a Hopper GPU (Machete). "
            "The symmetric target has no such limit."
        )
    ragged = [t for t in plan.tensors if _ragged(t)]
    if ragged:
        out.append(
            f"{len(ragged)} tensors end inside a tile of 128 × 128: the file holds them, but vLLM's and transformers' "
            "kernels take whole tiles only; a format with a scale a row has no such limit."
        )
    if any(t.name.endswith(_CACHE_SCALES) for t in checkpoint.stored.tensors):
        out.append("The source has scales of a key-value cache in 8 bits, which are not taken over.")
    if not plan.target.is_folder and (warning := conversion_warning(checkpoint)):
        out.append(warning)
    if plan.target.is_folder and not checkpoint.config:
        out.append("There is no config.json beside the tensors; runtimes need one to load the result.")
    return out
