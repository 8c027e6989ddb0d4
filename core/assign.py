"""Decides, for one tensor after another, which format it gets and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from core import mixes
from core.errors import UserError
from core.export.ecosystem import Ecosystem
from core.export.ecosystems import ECOSYSTEMS
from core.formats import FORMATS, Format, Method, find_format
from core.formats.coded import Coded
from core.formats.numbers import Integers
from core.methods.choice import DataMethod
from core.models.gguf_tensors import MappedTensor
from core.models.shape import ModelShape
from core.recipe import KEEP, KeepGroup, Misfit, Recipe, Rule
from core.targets import Target
from core.tensor_info import Role
from core.units import format_count

GROUP_ROLES = {
    KeepGroup.EMBEDDING: frozenset({Role.EMBED}),
    KeepGroup.HEAD: frozenset({Role.HEAD}),
    KeepGroup.ROUTER: frozenset({Role.ROUTER}),
    KeepGroup.ATTENTION: frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.ATTN_QKV, Role.ATTN_OUT}),
    KeepGroup.FFN_DOWN: frozenset({Role.FFN_DOWN}),
}

MOST_SECONDS = 10.0  # that all rules together may look through the names

FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})


@dataclass(frozen=True)
class Fate:
    """What a tensor becomes. format None: its stored bytes are copied as they are. lossless: its codes are.

    rounding: of such codes, by how much of itself a value may change (`Format.rounding`).
    alone: it was decided by values of this tensor, and others that are like it may fare otherwise.
    """

    format: Format | None
    reason: str
    fallback: bool = False
    lossless: bool = False
    rounding: float = 0.0
    alone: bool = False


def decide(
    target: Target, recipe: Recipe, tensors: Sequence[MappedTensor], model: ModelShape | None, from_gguf: bool
) -> list[Fate]:
    """One fate a tensor, in their order; tensors that are alike share one.

    Raises UserError for a rule that matches nothing, or rows that must divide.
    """
    rules = _first_rules(recipe.rules, tensors, target)
    if model and max(recipe.keep_first, recipe.keep_last) > model.layers:
        raise UserError(
            f"The model has {model.layers} layers; {max(recipe.keep_first, recipe.keep_last)} can not be kept.",
            "Keep fewer layers.",
        )
    tied = not any(t.role is Role.HEAD and len(t.shape) > 1 for t in tensors)
    keeps = bool(recipe.keep or recipe.keep_first or recipe.keep_last)
    mixed = not target.is_folder
    data = recipe.calibrated
    importance = data is not None and data.method is DataMethod.IMPORTANCE
    order = dict.fromkeys(Role, 0)
    fates: dict[str, Fate] = {}
    choices: dict[tuple[object, ...], mixes.Choice] = {}
    known: dict[tuple[object, ...], Fate] = {}  # ten thousand tensors have a dozen fates
    for t in sorted(tensors, key=lambda t: -1 if t.layer is None else t.layer):
        rule = rules.get(t.name)
        why = _kept_by_recipe(recipe, t, model) if keeps and rule is None else ""
        choice = None
        if mixed and not rule and not why and _gguf_quantizable(t):
            placed = t.role in mixes.PLACED_ROLES
            choice = None if placed else choices.get(t.kind)
            if choice is None:
                subject = mixes.Subject(t.role, t.layer, order[t.role], t.shape)
                choice = mixes.choose(target, subject, model, tied, importance)
                if not placed:
                    choices[t.kind] = choice
        if len(t.shape) > 1:
            order[t.role] += 1
        key = (t.kind, rule, why, choice)
        fate = known.get(key)
        if fate is None:
            fate = (
                _decide_gguf(recipe, t, rule, why, choice, from_gguf)
                if mixed
                else _decide_folder(target, recipe, t, rule, why)
            )
            _check_method(recipe, fate)
            _check_importance(fate, t, importance)
            if not fate.alone:
                known[key] = fate
        fates[t.name] = fate
    return [fates[t.name] for t in tensors]


def _check_method(recipe: Recipe, fate: Fate) -> None:
    """Raise UserError where a format's numbers can not be chosen in the way that the recipe wants."""
    form = fate.format
    if form is None or form.contract.scale is None or fate.lossless or recipe.method in form.methods:
        return
    names = ", ".join(m.value for m in Method if m in form.methods)
    raise UserError(
        f"{form.name} has no groups with zero points of their own, which {recipe.method.value} chooses.",
        f"Choose another method ({names}), or a target with zero points such as w4a16-g64-asym.",
    )


def _check_importance(fate: Fate, t: MappedTensor, importance: bool) -> None:
    """Raise UserError where a format needs to know which channels matter, and nothing says so."""
    form = fate.format
    if form is None or not form.needs_importance or fate.lossless or importance:
        return
    if t.role in (Role.EMBED, Role.HEAD):  # what is measured of inputs has nothing for them
        return
    raise UserError(
        f"{form.name} needs an importance matrix: without one, too little is left of the model at its bits.",
        "Choose the method 'importance', or a larger target such as IQ3_S or Q3_K_M.",
    )


def _decide_gguf(
    recipe: Recipe, t: MappedTensor, rule: Rule | None, why: str, choice: mixes.Choice | None, from_gguf: bool
) -> Fate:
    """choice: the mix's, where neither a rule nor the recipe's exceptions (`why`) decide."""
    if not _gguf_quantizable(t):
        if from_gguf:
            return Fate(None, _kept_reason(t))
        return Fate(find_format("F32", "gguf"), _kept_reason(t))
    if why:
        return _sixteen(t, "gguf", why)
    if rule is not None and rule.format.lower() == KEEP:
        return _sixteen(t, "gguf", rule.why)
    if rule is not None:
        wanted, reason = find_format(rule.format, "gguf"), rule.why
        if wanted.contract.tensor_scale and t.role is Role.EMBED:
            raise UserError(
                f"The embedding can not be {wanted.name}: llama.cpp reads no tensor scale for it.",
                "Choose another format for the embedding.",
            )
    else:
        assert choice is not None
        wanted, reason = find_format(choice.format, "gguf"), choice.reason
    fate = _fit(wanted, reason, t, recipe.misfit, [find_format(n, "gguf") for n in mixes.smaller_blocks(wanted.name)])
    if fate.format is not None and fate.format.name == t.dtype and t.identity and not t.packed:
        return replace(fate, format=None, reason=f"it is {fate.format.name} already: copied")
    return fate


def _decide_folder(target: Target, recipe: Recipe, t: MappedTensor, rule: Rule | None, why: str) -> Fate:
    kept = partial(_sixteen, t, "safetensors")
    if rule is not None and rule.format.lower() == KEEP:
        return kept(rule.why)
    ecosystem = ECOSYSTEMS[target.ecosystem]
    if not isinstance(find_format(target.base, "safetensors"), Coded) and rule is None:
        return _plain(t, ecosystem)
    if not _folder_quantizable(t, ecosystem):
        if len(t.shape) == 2 and ".experts." in t.name:
            return kept("its loaders read experts in 16 bits only")
        return kept("experts stored as one tensor stay as they are" if len(t.shape) == 3 else _kept_reason(t))
    if rule is None:
        if t.role is Role.HEAD and Role.HEAD not in ecosystem.roles:
            return kept("runtimes expect the output head in 16 bits")
        if t.role not in ecosystem.roles:
            return kept("its purpose is not known; a rule can quantize it")
        if why:
            return kept(why)
        wanted, reason = find_format(target.base, "safetensors"), "the target's scheme"
    else:
        wanted, reason = find_format(rule.format, "safetensors"), rule.why
        if wanted.ecosystem and wanted.ecosystem != target.ecosystem:
            raise UserError(
                f"{wanted.name} can not stand in a folder for {target.ecosystem}, which {target.name} writes.",
                "Choose a format of the same kind for the rule, or another target.",
            )
    return _fit(wanted, reason, t, recipe.misfit, _smaller_groups(wanted))


def _plain(t: MappedTensor, ecosystem: Ecosystem) -> Fate:
    """In a folder of 16 bits: what is packed is unpacked, and matrices of more bits lose them."""
    if t.packed:
        return Fate(find_format("BF16", "safetensors"), "it is unpacked")
    if t.dtype in ("F32", "F64") and _folder_quantizable(t, ecosystem):
        return Fate(find_format("BF16", "safetensors"), "the target's 16 bits")
    return Fate(None, "it is not packed")


def _smaller_groups(wanted: Format) -> list[Coded]:
    """The same scheme with smaller groups, largest first."""
    if not isinstance(wanted, Coded):
        return []
    same = [f for f in FORMATS if isinstance(f, type(wanted)) and f.like(wanted)]
    own = wanted.numbers.group
    return sorted((f for f in same if 0 < f.numbers.group < own), key=lambda f: -f.numbers.group)


def _fit(wanted: Format, reason: str, t: MappedTensor, misfit: Misfit, smaller: Iterable[Format]) -> Fate:
    problem = wanted.accepts(t.shape)
    if not problem:
        same, looked = _lossless(wanted, t)
        if same is not None and t.numbers is not None:
            rounding = same.rounding(t.numbers)
            reason = "the same numbers, packed another way: nothing is lost"
            if rounding:
                reason = "the same codes, packed another way; the tensor's scale is stored as its reciprocal"
            return Fate(same, reason, lossless=True, rounding=rounding, alone=looked)
        return Fate(wanted, reason, alone=looked)
    if misfit is Misfit.STOP:
        raise UserError(
            f"'{t.name}' can not be {wanted.name}: {problem}.",
            "Choose a smaller block or group, or let such tensors fall back (--misfit smaller-block).",
        )
    if misfit is Misfit.SMALLER:
        for f in smaller:
            if not f.accepts(t.shape):
                return Fate(f, f"{wanted.name} does not fit: {problem}", fallback=True)
    kept = _sixteen(t, wanted.container, f"{wanted.name} does not fit: {problem}")
    return replace(kept, fallback=True)


def _lossless(wanted: Format, t: MappedTensor) -> tuple[Format | None, bool]:
    """The format if it can take the source's codes over; and whether its scales had to be looked at for that."""
    if t.numbers is None:
        return None, False
    if same := wanted.for_numbers(t.numbers):
        return same, False
    own = wanted.numbers
    if not isinstance(own, Integers) or not isinstance(t.numbers, Integers) or own.scale is t.numbers.scale:
        return None, False
    same = wanted.for_numbers(replace(t.numbers, scale=own.scale))
    return (same if same is not None and t.scales_fit(own.scale) else None), same is not None


def _sixteen(t: MappedTensor, container: str, why: str) -> Fate:
    """Kept in 16 bits: the source's own 16-bit type, or its quantized blocks as they are; BF16 for anything wider,
    since it can not overflow."""
    dtype = t.dtype
    if container == "safetensors":
        if t.packed:
            return Fate(find_format("BF16", container), why)
        if t.identity:
            return Fate(None, why)
        return Fate(find_format(dtype if dtype in ("F16", "F32") else "BF16", container), why)  # experts in one tensor
    if dtype in ("F16", "BF16"):
        return Fate(None if t.identity else find_format(dtype, "gguf"), why)
    if dtype in FLOAT_DTYPES or not t.identity or t.packed:
        return Fate(find_format("BF16", "gguf"), why)
    return Fate(None, why)


def _kept_by_recipe(recipe: Recipe, t: MappedTensor, model: ModelShape | None) -> str:
    for group in recipe.keep:
        if t.role in GROUP_ROLES[group]:
            return f"you keep the {group.value.replace('-', ' ')}"
    layers = model.layers if model else 0
    if t.layer is not None:
        if t.layer < recipe.keep_first:
            return f"you keep the first {recipe.keep_first} layers"
        if layers and t.layer >= layers - recipe.keep_last:
            return f"you keep the last {recipe.keep_last} layers"
    return ""


def _kept_reason(t: MappedTensor) -> str:
    reasons = {
        Role.NORM: "norms are small and sensitive",
        Role.ROUTER: "the expert router is small and sensitive",
        Role.EMBED: "runtimes expect the embedding in 16 bits",
        Role.BIAS: "biases are small",
        Role.ROPE: "a table of the rotary positions",
        Role.CONV: "convolutions are small",
    }
    return reasons.get(t.role, "too small to matter" if len(t.shape) < 2 else "not a weight matrix")


def _names(t: MappedTensor) -> list[str]:
    return [t.name, *(s.name for s in t.sources)]


def quantizable(t: MappedTensor, target: Target) -> bool:
    """Whether any format of fewer bits can hold it in such an output."""
    return _folder_quantizable(t, ECOSYSTEMS[target.ecosystem]) if target.is_folder else _gguf_quantizable(t)


def _first_rules(rules: Sequence[Rule], tensors: Sequence[MappedTensor], target: Target) -> dict[str, Rule]:
    """The rule that decides a tensor, by its name. Raises UserError for a rule that changes nothing."""
    first: dict[str, Rule] = {}
    deadline = time.monotonic() + MOST_SECONDS
    for rule in rules:
        found = []
        for t in tensors:
            if rule.matches(*_names(t)):
                found.append(t)
            if time.monotonic() > deadline:
                raise UserError(
                    f"Looking for '{rule.pattern}' in {format_count(len(tensors))} names takes too long.",
                    "Write the rule with fewer repeats.",
                )
        if not found:
            example = tensors[len(tensors) // 2].name if tensors else ""
            raise UserError(
                f"The rule '{rule.pattern}' matches no tensor.",
                f"Names look like '{example}'; 'bitsmith plan' lists them all.",
            )
        if rule.format.lower() != KEEP and not any(quantizable(t, target) for t in found):
            raise UserError(
                f"The rule '{rule.pattern}' matches only tensors that can not be quantized, such as '{found[0].name}'.",
                "Remove the rule, or let it match weight matrices.",
            )
        for t in found:
            first.setdefault(t.name, rule)
    return first


def _gguf_quantizable(t: MappedTensor) -> bool:
    return not t.keep and len(t.shape) > 1


def _folder_quantizable(t: MappedTensor, ecosystem: Ecosystem) -> bool:
    return (
        ecosystem.takes(t)
        and (t.packed or t.dtype in FLOAT_DTYPES)
        and (t.role in ecosystem.roles or t.role not in (Role.EMBED, Role.NORM, Role.ROPE, Role.CONV, Role.ROUTER))
    )
