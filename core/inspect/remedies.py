"""What can be done about a finding, as recipe rules, with the price in bytes and the gain in error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from core.checkpoint.base import Checkpoint
from core.contract import PerGroup, SuperBlock
from core.errors import UserError
from core.formats import FORMATS, Format, Method
from core.formats.coded import Coded
from core.inspect.error_map import error_map
from core.inspect.findings import Finding, FindingKind
from core.joined import JOINED, module_of
from core.plan import Action, Plan, TensorPlan, make_plan
from core.preview import preview
from core.progress import CancelToken, ErrorStats
from core.recipe import KEEP, Recipe, Rule

QUICK_VALUES = 1 << 19  # of a tensor, for figures that come at once
SMALL = 1 << 20  # values; such a tensor is measured whole at once


class RemedyKind(Enum):
    """How a finding is answered."""

    KEEP = "keep in 16 bits"
    EIGHT = "8 bits here"
    GROUP = "smaller group"
    ASYMMETRIC = "asymmetric"
    SEARCH = "clipping search"
    FORMAT = "another format"


@dataclass(frozen=True)
class Remedy:
    """rules: put before the recipe's own; empty for the clipping search, which sets the recipe's `method`.

    possible: False with why_not, one clause. format: what the tensor gets. bytes_change: the new plan's total less the
    old one's. before, after: errors of the tensor, infinite SNR where the bytes are copied; None when not possible, and
    before when the present format refuses the values.
    sampled: measured on evenly spread rows; the same remedy comes again with the whole tensor measured.
    """

    kind: RemedyKind
    title: str
    format: str
    rules: tuple[Rule, ...]
    method: Method | None
    possible: bool
    why_not: str
    bytes_change: int
    before: ErrorStats | None
    after: ErrorStats | None
    sampled: bool

    @property
    def gain_db(self) -> float:
        """SNR after less SNR before, dB; inf when it becomes exact or can be stored at all, 0 when both are exact."""
        if self.before is None and self.after is not None:
            return math.inf
        if self.before is None or self.after is None or self.before.snr_db == self.after.snr_db:
            return 0.0
        return self.after.snr_db - self.before.snr_db


def remedies(checkpoint: Checkpoint, plan: Plan, finding: Finding, token: CancelToken) -> Iterator[Remedy]:
    """All that the target can carry, and those that it can not with the reason; quick figures first (`sampled`).

    What the tensor has already (a search, a zero point) is left out; formats that refuse its values are not possible.
    Raises Cancelled.
    """
    t = plan.tensors[finding.index]
    if t.action is not Action.QUANTIZE or t.format is None:
        return
    priced: list[tuple[Remedy, TensorPlan]] = []
    for draft in _drafts(plan, t, t.format, finding):
        token.check()
        remedy, planned = _priced(checkpoint, plan, t, draft)
        if planned is None:
            yield remedy
        elif not any(_same(planned, other) for _, other in priced):
            priced.append((remedy, planned))
    old = plan.recipe.method
    whole = t.values <= SMALL or finding.kind is FindingKind.REFUSED  # a sample may miss what is refused
    for exact in (True,) if whole else (False, True):
        before, _ = _measured(checkpoint, t, old, token, exact)
        for remedy, planned in priced:
            after, why_not = _measured(checkpoint, planned, remedy.method or old, token, exact)
            if after is None:
                yield replace(remedy, possible=False, why_not=why_not, bytes_change=0)
            else:
                yield replace(remedy, before=before, after=after, sampled=not exact)


def _measured(
    checkpoint: Checkpoint, tensor: TensorPlan, method: Method, token: CancelToken, exact: bool
) -> tuple[ErrorStats | None, str]:
    """The error, or None and why the format refuses the values, one clause."""
    try:
        return measured_error(checkpoint, tensor, method, token, exact), ""
    except UserError as error:
        return None, error.message.rstrip(".")


def measured_error(
    checkpoint: Checkpoint, tensor: TensorPlan, method: Method, token: CancelToken, exact: bool = True
) -> ErrorStats:
    """The error that a conversion will measure of a planned tensor, or that of evenly spread rows of it."""
    if tensor.format is None:
        return ErrorStats(tensor.values, math.inf, 0.0, 0.0)
    if not exact:
        return preview(checkpoint, tensor, method, token, QUICK_VALUES).error
    stats = None
    for step in error_map(checkpoint, tensor, method, token, height=1, width=1, seconds=math.inf):
        stats = step.stats
    assert stats is not None
    return stats


def apply(recipe: Recipe, remedy: Remedy) -> Recipe:
    """A new recipe; the old value is the undo. A rule for the same tensor that an earlier remedy made is replaced."""
    patterns = {r.pattern for r in remedy.rules}
    others = tuple(r for r in recipe.rules if not (r.reason and r.pattern in patterns))
    return replace(recipe, rules=(*remedy.rules, *others), method=remedy.method or recipe.method)


@dataclass(frozen=True)
class _Draft:
    """A remedy before it is planned. format: a rule's, None for the search. missing: why the family has none."""

    kind: RemedyKind
    title: str
    format: str | None
    rules: tuple[Rule, ...] = ()
    missing: str = ""


def _priced(checkpoint: Checkpoint, plan: Plan, t: TensorPlan, draft: _Draft) -> tuple[Remedy, TensorPlan | None]:
    """The remedy with its price, and the tensor as it would be; None when it can not be."""
    method = Method.SEARCH if draft.kind is RemedyKind.SEARCH else None
    remedy = Remedy(
        draft.kind, draft.title, draft.format or t.format_name, draft.rules, method, False, draft.missing, 0, None,
        None, False,
    )  # fmt: skip
    if draft.missing:
        return remedy, None
    try:
        other = make_plan(checkpoint, apply(plan.recipe, remedy))
    except UserError as error:
        return replace(remedy, why_not=error.message.rstrip(".")), None
    planned = next((o for o in other.tensors if o.name == t.name), None)
    if planned is None or planned.fallback or (draft.format not in (None, KEEP, planned.format_name)):
        why = planned.reason if planned is not None else "the tensor is not in that output"
        return replace(remedy, why_not=why), None
    change = other.bytes_total - plan.bytes_total
    if draft.format == KEEP and planned.format_name not in ("BF16", "F16"):
        remedy = replace(remedy, title=draft.title.replace("in 16 bits", "as it is"))
    return replace(remedy, format=planned.format_name, possible=True, bytes_change=change), planned


def _same(one: TensorPlan, other: TensorPlan) -> bool:
    """Whether two remedies come to the same, as with a source whose blocks are copied."""
    return one.format_name == other.format_name and (one.format is None) == (other.format is None)


def _drafts(plan: Plan, t: TensorPlan, now: Format, finding: Finding) -> Iterator[_Draft]:
    """Cheapest to think of first."""
    tensors = _joined(plan, t)
    also = [_last_word(o.name) for o in tensors if o is not t]
    joined = f", with {' and '.join(also)}, which vLLM joins to it" if also else ""

    def draft(kind: RemedyKind, words: str, wanted: Format | None, missing: str = "") -> _Draft:
        name = KEEP if wanted is None else wanted.name
        verb = "kept" if wanted is None else words
        rules = tuple(Rule(f"^{re.escape(_rule_name(o))}$", name, f"{verb}: {finding.because}") for o in tensors)
        title = "Keep in 16 bits" if wanted is None else f"{words[:1].upper()}{words[1:]} ({name})"
        return _Draft(kind, title + joined, name, () if missing else rules, missing)

    yield draft(RemedyKind.KEEP, "kept", None)
    if now.contract.bits < 8 and (eight := _eight_bits(now)):
        yield draft(RemedyKind.EIGHT, "8 bits", eight)
    finer = _finer(now, t.shape)
    for f in finer:
        yield draft(RemedyKind.GROUP, f"groups of {_group(f)}", f)
    if not finer:
        yield _Draft(RemedyKind.GROUP, "Smaller groups", now.name, (), _no_finer(now))
    if now.contract.symmetric:
        other = _asymmetric(now, t.shape)
        if other is not None:
            yield draft(RemedyKind.ASYMMETRIC, "asymmetric", other)
        else:
            missing = f"there is no {now.contract.bits:g}-bit format with a zero point or minimum"
            yield _Draft(RemedyKind.ASYMMETRIC, "Asymmetric", now.name, (), missing)
    if plan.recipe.method is not Method.SEARCH:
        yield _Draft(RemedyKind.SEARCH, "Search for the best clipping, in all tensors", None)
    taken = {f.name for f in finer}
    for f in _stronger(now, t.shape):
        if f.name not in taken:
            yield draft(RemedyKind.FORMAT, f"{f.contract.effective_bits:.3g} bits a value", f)


def _rule_name(t: TensorPlan) -> str:
    """The source's name where there is one, since it holds for every target; else the output's."""
    return t.source.sources[0].name if len(t.source.sources) == 1 else t.name


def _last_word(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]


def _joined(plan: Plan, t: TensorPlan) -> tuple[TensorPlan, ...]:
    """Tensors that must have one scheme: vLLM makes one matrix of query, key and value, and of gate and up."""
    roles = next((r for r in JOINED if t.role in r), frozenset())
    if not plan.target.is_folder or t.layer is None or not roles:
        return (t,)
    stem = module_of(t.name)
    same = [o for o in plan.tensors if o.role in roles and o.name.startswith(stem + ".") and o.name.endswith(".weight")]
    return (t, *(o for o in same if o is not t and o.layer == t.layer))


def _group(f: Format) -> int:
    """Neighbours that share a scale; 0: the row."""
    g = f.contract.granularity
    return g.sub if isinstance(g, SuperBlock) else g.size if isinstance(g, PerGroup) else 0


def _family(now: Format) -> list[Format]:
    """Formats with scales that can stand in the same output."""
    same = (now.container, now.ecosystem)
    return [f for f in FORMATS if (f.container, f.ecosystem) == same and f.contract.scale is not None]


def _eight_bits(now: Format) -> Format | None:
    """8 bits in the same groups where there are such, else any 8 bits that can stand beside it."""
    eight = [f for f in _family(now) if f.contract.bits == 8]
    if not isinstance(now, Coded):
        return next((f for f in eight if f.name == "Q8_0"), None)
    like = (type(now), _group(now), now.contract.symmetric)
    near = sorted(eight, key=lambda f: [a != b for a, b in zip(_kind(f), like, strict=True)])
    return near[0] if near else None


def _kind(f: Format) -> tuple[type, int, bool]:
    return type(f), _group(f), f.contract.symmetric


def _finer(now: Format, shape: tuple[int, ...]) -> list[Format]:
    """The same bits in smaller groups, largest first; the same kind of zero point where there is a choice."""
    group = _group(now) or math.inf
    fitting = [f for f in _family(now) if f.contract.bits == now.contract.bits and 0 < _group(f) < group]
    if isinstance(now, Coded):
        fitting = [f for f in fitting if isinstance(f, type(now)) and f.like(now)]
    fitting.sort(key=lambda f: -_group(f))
    return [f for f in fitting if not f.accepts(shape)][:2] or fitting[:1]


def _no_finer(now: Format) -> str:
    bits, group = f"{now.contract.bits:g}", _group(now) or "a row"
    return (
        f"there is no format of {bits} bits in groups smaller than {group}" if group else f"{bits} bits have no groups"
    )


def _asymmetric(now: Format, shape: tuple[int, ...]) -> Format | None:
    """The same bits with a zero point or a minimum, in groups of about the same size."""
    fitting = [f for f in _family(now) if f.contract.bits == now.contract.bits and not f.contract.symmetric]
    if isinstance(now, Coded):
        fitting = [f for f in fitting if isinstance(f, type(now)) and _group(f) == _group(now)]
    bits = now.contract.effective_bits
    return min(fitting, key=lambda f: (bool(f.accepts(shape)), abs(f.contract.effective_bits - bits)), default=None)


_LADDER = ("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K")


def _stronger(now: Format, shape: tuple[int, ...]) -> list[Format]:
    """The next two types of more bits that the rows divide into; of a folder the finest scheme of the same bits."""
    if isinstance(now, Coded):
        fitting: list[Format] = [
            f for f in _family(now) if type(f) is type(now) and f.contract.bits == now.contract.bits
        ]
        finest = min((_group(f) for f in fitting if _group(f)), default=0)
        fitting = [f for f in fitting if _group(f) == finest and not f.contract.symmetric and f.name != now.name]
        return [f for f in fitting if not f.accepts(shape)][:1]
    bits = now.contract.effective_bits
    more = [
        f for f in _family(now) if f.name in _LADDER and f.contract.bits > now.contract.bits and not f.accepts(shape)
    ]
    more.sort(key=lambda f: (f.contract.effective_bits, f.name not in ("Q4_K", "Q5_K", "Q6_K")))
    distinct = {f.contract.bits: f for f in reversed(more) if f.contract.effective_bits > bits}
    return sorted(distinct.values(), key=lambda f: f.contract.effective_bits)[:2]
