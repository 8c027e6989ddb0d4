"""Which tensors get a format together, and what each format makes of their size: from plans, so bytes are exact."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from core.assign import quantizable
from core.budget.wish import Wish
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.ecosystems import ECOSYSTEMS
from core.formats import Format
from core.joined import EXPERT, JOINED, module_of
from core.plan import Action, Plan, TensorPlan, make_plan
from core.recipe import KEEP, Misfit, Recipe, Rule


@dataclass(frozen=True)
class Possible:
    """A format for a unit. bytes: of all its tensors in the file, with padding and what the header says of them, exact
    for GGUF. changes: whether values change."""

    format: str
    bytes: int
    changes: bool


@dataclass(frozen=True)
class Unit:
    """Tensors of the output that get one format. sources: the checkpoint's tensors. possible: each format that fits
    all of them; the last is `KEEP`."""

    tensors: tuple[str, ...]
    sources: tuple[str, ...]
    layer: int | None
    values: int
    possible: tuple[Possible, ...]

    @property
    def name(self) -> str:
        """The first tensor's."""
        return self.tensors[0]


@dataclass(frozen=True)
class Survey:
    """units: what can be chosen. other_bytes: of the output besides them: header, norms, files of a folder."""

    units: tuple[Unit, ...]
    formats: Mapping[str, Format]
    other_bytes: int
    source_bytes: int


def survey(checkpoint: Checkpoint, wish: Wish) -> Survey:
    """Reads headers only. Raises UserError for a checkpoint that has no such output."""
    formats = {f.name: f for f in wish.choices()}
    bare = replace(wish.recipe, misfit=Misfit.KEEP)
    kept = _plan_with(checkpoint, bare, KEEP)
    groups = _groups(kept, wish)
    if not groups:
        raise UserError("This checkpoint has no weights that can be quantized.", "Open the model's original.")
    chosen = frozenset(t.name for members in groups for t in members)
    other = _other_bytes(kept, chosen)
    made = {name: _plan_with(checkpoint, bare, name) for name in formats}
    # What a folder's header says of a quantized module more than of one in 16 bits.
    words = {name: max(0, _other_bytes(plan, chosen) - other) // len(groups) for name, plan in made.items()}
    plans = {name: _by_name(plan) for name, plan in made.items()}
    as_kept = _by_name(kept)
    units = []
    for members in groups:
        possible = []
        for name, planned in plans.items():
            found = [planned[t.name] for t in members]
            if all(_is(t, name) for t in found):
                changes = any(t.action is Action.QUANTIZE for t in found)
                possible.append(Possible(name, sum(t.bytes.total for t in found) + words[name], changes))
        keep = [as_kept[t.name] for t in members]
        possible.append(Possible(KEEP, sum(t.bytes.total for t in keep), False))
        sources = tuple(dict.fromkeys(s.name for t in members for s in t.source.sources))
        units.append(
            Unit(
                tuple(t.name for t in members),
                sources,
                members[0].layer,
                sum(t.values for t in members),
                tuple(possible),
            )
        )
    return Survey(tuple(units), formats, other, checkpoint.file_bytes)


def _other_bytes(plan: Plan, chosen: Collection[str]) -> int:
    return plan.bytes_total - sum(t.bytes.total for t in plan.tensors if t.name in chosen)


def _plan_with(checkpoint: Checkpoint, recipe: Recipe, format_name: str) -> Plan:
    return make_plan(checkpoint, replace(recipe, rules=_everywhere(checkpoint, recipe, format_name)), forecasts=False)


def _everywhere(checkpoint: Checkpoint, recipe: Recipe, format_name: str) -> tuple[Rule, ...]:
    """A rule for all that a format of the output can hold."""
    plan = make_plan(checkpoint, recipe, forecasts=False)
    names = [t.name for t in plan.tensors if _is_chosen(t, plan)]
    return (Rule(f"^(?:{'|'.join(map(re.escape, names))})$", format_name),) if names else ()


def _is_chosen(t: TensorPlan, plan: Plan) -> bool:
    """Whether its format is a matter of choice: all that GGUF can quantize, and what loaders of a folder take."""
    if not quantizable(t.source, plan.target):
        return False
    return not plan.target.is_folder or t.role in ECOSYSTEMS[plan.target.ecosystem].roles


def _is(t: TensorPlan, name: str) -> bool:
    return t.format_name == name and not t.fallback


def _by_name(plan: Plan) -> dict[str, TensorPlan]:
    return {t.name: t for t in plan.tensors}


def _groups(plan: Plan, wish: Wish) -> list[list[TensorPlan]]:
    """In the order of the model; experts of a layer are one where each is a tensor, since kernels take them at once."""
    found: dict[tuple[object, ...], list[TensorPlan]] = {}
    for t in plan.tensors:
        if _is_chosen(t, plan):
            found.setdefault(_key(t, wish.fuses), []).append(t)
    return list(found.values())


def _key(t: TensorPlan, fuses: bool) -> tuple[object, ...]:
    if EXPERT.search(t.name):
        return (t.layer, "experts") if fuses else (t.layer, EXPERT.sub(".experts.", t.name))
    roles = next((i for i, r in enumerate(JOINED) if t.role in r), None) if fuses else None
    return (t.name,) if roles is None else (t.layer, module_of(t.name), roles)


def slots_of(units: Sequence[Unit], stored_names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """For each unit the decoder's weights ('blk.0.attn_q.weight') that are in it. stored_names: of each, the
    checkpoint's tensor."""
    by_source: dict[str, list[str]] = {}
    for slot, stored in stored_names.items():
        by_source.setdefault(stored, []).append(slot)
    return [tuple(s for source in unit.sources for s in by_source.get(source, ())) for unit in units]
