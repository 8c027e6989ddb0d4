"""The targets as one looks for them: for which programs, which kind of format, and which of its members."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from core.contract import ElementType, NumericContract, PerBlock, PerChannel, PerGroup, PerTensor, SuperBlock
from core.export.ecosystems import ECOSYSTEMS
from core.formats import Format, find_format
from core.formats.coded import Coded
from core.hardware import matrix
from core.targets import TARGETS, Target
from kernels.layouts import GRID_KINDS

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.formats.numbers import Numbers

# Ecosystem, in any case, '' for GGUF → for whom it is, in the order in which they are offered.
_USES = {
    "": "llama.cpp and relatives (GGUF)",
    "compressed-tensors": "vLLM (compressed-tensors)",
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "mlx": "MLX (Mac)",
    "hqq": "HQQ",
    "modelopt": "ModelOpt (TensorRT-LLM)",
    "fp8": "Hugging Face FP8",
    "plain": "Not quantized (Hugging Face)",
}
_USUAL_GROUP = {"mlx": 64, "hqq": 64}  # what their own tools take unasked; elsewhere it is 128
# What the matrix does not have: models are published as plain folders, and hqq is a library.
_READERS = {"plain": ("vLLM", "Transformers", "SGLang"), "hqq": ("hqq",)}
_USUAL = ("Q4_K_M",)
_KINDS = {  # base type that is not of a folder's own → kind
    "Q4_0": "Blocks of 32", "Q4_1": "Blocks of 32", "Q5_0": "Blocks of 32", "Q5_1": "Blocks of 32",
    "Q8_0": "Blocks of 32", "Q2_K": "K-quants", "Q3_K": "K-quants", "Q4_K": "K-quants", "Q5_K": "K-quants",
    "Q6_K": "K-quants", "IQ4_NL": "Uneven levels", "IQ4_XS": "Uneven levels", "TQ1_0": "Ternary", "TQ2_0": "Ternary",
    **dict.fromkeys(GRID_KINDS, "Grid points"),
    "MXFP4": "4-bit floats", "NVFP4": "4-bit floats", "F32": "Not quantized", "F16": "Not quantized",
    "BF16": "Not quantized",
}  # fmt: skip
_FLOAT_SCALES = (ElementType.F8_E4M3, ElementType.F8_E8M0)
_FIRST_KINDS = ("K-quants", "Blocks of 32")


class Knob(Enum):
    """What members of a kind can differ in. title: of its control. missing: why there is nothing to choose."""

    BITS = ("Bits", "Every format of this kind has {}.")
    GRANULARITY = ("Granularity", "Every format of this kind has {}.")
    SYMMETRIC = ("Zero points", "Every format of this kind is {}.")
    DOUBLE = ("Double quantization", "{} format of this kind has double quantization.")

    def __init__(self, title: str, missing: str) -> None:
        self.title = title
        self.missing = missing


@dataclass(frozen=True)
class Kind:
    """Formats that differ in their knobs only. key: stable. title: words and names."""

    key: str
    title: str
    targets: tuple[Target, ...]

    def values(self, knob: Knob) -> list[object]:
        """What the knob can be set to, ascending."""
        found = {knob_value(t, knob) for t in self.targets}
        return sorted(found, key=_order)

    def fixed(self, knob: Knob) -> str:
        """'' where there is a choice, else the reason why there is none."""
        if not self.targets[0].is_folder and knob is not Knob.BITS:
            return "A GGUF type fixes this; choose another one under Target."
        values = self.values(knob)
        if len(values) > 1:
            return ""
        words = ("Every" if values[0] else "No") if knob is Knob.DOUBLE else knob_text(knob, values[0])
        return knob.missing.format(words)

    def with_knob(self, target: Target, knob: Knob, value: object) -> Target:
        """The member with this value that is nearest to a target otherwise."""
        fitting = [t for t in self.targets if knob_value(t, knob) == value]
        return max(fitting, key=_likeness(target)) if fitting else target

    def nearest(self, target: Target) -> Target:
        """The member that is most like a target of another kind."""
        return max(self.targets, key=_likeness(target))

    def usual(self, columns: Collection[int] = (), wanted: Collection[str] = ()) -> Target:
        """The member to start with: one of `wanted`, else one that divides rows of these lengths, of 4 bits if it can
        be, and symmetric."""
        return min(self.targets, key=lambda t: _unusual(t, columns, wanted))


@dataclass(frozen=True)
class Use:
    """Formats of one family of programs. key: the ecosystem's name, 'gguf' for GGUF."""

    key: str
    title: str
    kinds: tuple[Kind, ...]


def base_of(target: Target) -> Format:
    """The format that most tensors of a target get."""
    return find_format(target.base, target.container)


@cache
def uses() -> tuple[Use, ...]:
    """Everything that can be written, by the programs that it is written for."""
    by_use: dict[str, dict[tuple[object, ...], list[Target]]] = {}
    for t in TARGETS:
        by_use.setdefault(t.ecosystem, {}).setdefault(_kind_key(t), []).append(t)
    known = [*_USES]
    order = sorted(by_use, key=lambda e: known.index(e.lower()) if e.lower() in known else len(known))
    return tuple(Use(e or "gguf", _USES.get(e.lower(), e), _kinds(by_use[e])) for e in order)


def use_of(target: Target) -> Use:
    """The use that has the target."""
    return next(u for u in uses() if u.key == (target.ecosystem or "gguf"))


def kind_of(target: Target) -> Kind:
    """The kind that has the target."""
    return next(k for k in use_of(target).kinds if target in k.targets)


@cache
def family_rows() -> tuple[Kind, ...]:
    """The targets as rows of the support matrix: members of one row have the same cell under every runtime."""
    rows: dict[tuple[object, ...], list[Target]] = {}
    for use in uses():
        for kind in use.kinds:
            for t in kind.targets:
                rows.setdefault((kind.key, matrix.judged_alike(matrix.family(t.name))), []).append(t)
    return tuple(Kind(f"{key[0]}/{ts[0].name}", short_names(ts), tuple(ts)) for key, ts in rows.items())


def knob_value(target: Target, knob: Knob) -> object:
    """A target's setting of a knob."""
    c = base_of(target).contract
    match knob:
        case Knob.BITS:
            return c.bits
        case Knob.GRANULARITY:
            return granularity_text(c)
        case Knob.SYMMETRIC:
            return c.symmetric
        case Knob.DOUBLE:
            return c.outer_scale is not None


def knob_text(knob: Knob, value: object) -> str:
    """The setting in words."""
    match knob:
        case Knob.BITS:
            return f"{value:g} bits"
        case Knob.SYMMETRIC:
            return "symmetric" if value else "asymmetric"
        case Knob.DOUBLE:
            return "double quantization" if value else "no double quantization"
    return str(value)


def granularity_text(c: NumericContract) -> str:
    """Which values share a scale, in words."""
    if c.scale is None:
        return "no scale: values stand for themselves"
    match c.granularity:
        case PerTensor():
            return "one scale for the tensor"
        case PerChannel():
            return "one scale for each row"
        case PerGroup(size):
            return f"one scale for {size} values"
        case PerBlock(rows, cols):
            return f"one scale for {rows} × {cols} values"
        case SuperBlock(size, sub, scale_bits, zero_bits):
            extra = f" and {zero_bits}-bit minimum" if zero_bits else ""
            return f"{sub} values share a {scale_bits}-bit scale{extra}, {size} a 16-bit one"


def bits_text(target: Target) -> str:
    """Effective bits a weight: '4.25', and what each row adds: '8 + 16 a row'."""
    c = base_of(target).contract
    return f"{c.effective_bits:.4g}" + (f" + {c.bits_a_row} a row" if c.bits_a_row else "")


# ---- what loses nothing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """How some weights of an open checkpoint are stored."""

    numbers: Numbers | None
    dtype: str
    roles: frozenset[object]


def stored_numbers(checkpoint: Checkpoint) -> tuple[Stored, ...]:
    """The kinds of packed weights of a checkpoint; none where all are floats. One walk over the tensors."""
    from core.assign import FLOAT_DTYPES

    found: dict[tuple[Numbers | None, str], set[object]] = {}
    for t in checkpoint.tensors:
        if len(t.shape) > 1 and not t.tied_to and t.dtype not in FLOAT_DTYPES:
            found.setdefault((t.numbers, t.dtype), set()).add(t.role)
    return tuple(Stored(numbers, dtype, frozenset(roles)) for (numbers, dtype), roles in found.items())


def lossless(stored: Iterable[Stored], folders: bool = True) -> frozenset[str]:
    """Names of the targets whose format holds all packed weights as they are: only the packing changes.

    folders: whether the source can become one, which a GGUF can not.
    """
    stored = tuple(stored)
    able = [t for t in TARGETS if folders or not t.is_folder] if stored else []
    return frozenset(t.name for t in able if all(_holds(t, s) for s in stored))


def one_a_use(names: Collection[str]) -> tuple[str, ...]:
    """The plainest of these targets for each family of programs."""
    found = ([t for kind in use.kinds for t in kind.targets if t.name in names] for use in uses())
    return tuple(min(ts, key=lambda t: _unusual(t, (), ())).name for ts in found if ts)


def _holds(target: Target, stored: Stored) -> bool:
    if target.is_folder and not stored.roles <= ECOSYSTEMS[target.ecosystem].roles:
        return False
    if not target.is_folder and target.base == stored.dtype:
        return True
    base = base_of(target)
    if stored.numbers is None or base.contract.scale is None:
        return False
    same = base.for_numbers(stored.numbers)
    return same is not None and not same.rounding(stored.numbers)


# ---- how targets are sorted ------------------------------------------------------------------------------------------


def short_names(targets: Iterable[Target]) -> str:
    """What to call several: their names without the size of groups and the like, all of them or the first and last."""
    targets = tuple(targets)
    if len(targets) == 1:
        return targets[0].name
    targets = tuple(sorted(targets, key=lambda t: base_of(t).contract.bits))
    symmetric = {_stem(t) for t in targets if base_of(t).contract.symmetric}
    alone = dict.fromkeys(_stem(t) for t in targets if _stem(t) not in symmetric and "-asym" in t.name)
    names = list(dict.fromkeys(_stem(t) for t in targets))
    if len(alone) == len(names):
        return f"{_span(names)}, asymmetric"
    return _span([f"{name}-asym" if name in alone else name for name in names])


def _span(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"


def _stem(target: Target) -> str:
    """The name without the size of its groups, its symmetry and the like, or a mix's base type."""
    base = base_of(target)
    if not isinstance(base, Coded):
        return target.name if target.is_folder else base.name
    return re.sub(r"-(g\d+|channel|asym|v2|dq)(?=-|$)", "", target.name)


def _kinds(groups: dict[tuple[object, ...], list[Target]]) -> tuple[Kind, ...]:
    made = [Kind("/".join(map(str, key)), _kind_title(key, members), tuple(members)) for key, members in groups.items()]
    order = {title: place for place, title in enumerate(_FIRST_KINDS)}
    return tuple(sorted(made, key=lambda k: order.get(k.title.split(" (")[0], len(order))))


def _kind_key(target: Target) -> tuple[object, ...]:
    base, c = base_of(target), base_of(target).contract
    if not isinstance(base, Coded):
        return (target.ecosystem or "gguf", _KINDS[target.base])
    scale = c.scale.label if c.scale in _FLOAT_SCALES else ""
    levels = " ".join(f"{v:g}" for v in c.levels) if c.element is ElementType.CODEBOOK else ""
    return (base.ecosystem, type(base).__name__, c.element.label, scale, levels)


def _kind_title(key: tuple[object, ...], members: list[Target]) -> str:
    return f"{_words(key, members)} ({short_names(members)})"


def _words(key: tuple[object, ...], members: list[Target]) -> str:
    if len(key) == 2:
        return str(key[1])
    c = base_of(members[0]).contract
    bits = sorted({base_of(t).contract.bits for t in members})
    span = f"{bits[0]:g}" if len(bits) == 1 else f"{bits[0]:g} to {bits[-1]:g}"
    if c.element is ElementType.INT:
        return f"Integers of {span} bits"
    if c.element is ElementType.CODEBOOK and c.scale not in _FLOAT_SCALES:
        return f"{span} bits on uneven levels"
    power = " with power-of-two scales" if c.scale is ElementType.F8_E8M0 else ""
    return f"{span}-bit floats{power}"


def _order(value: object) -> tuple[float, str]:
    if isinstance(value, str):
        number = re.search(r"\d+", value)
        return (float(number[0]) if number else 1e9, value)
    return (float(value), "")  # type: ignore[arg-type]


_WEIGHTS = {Knob.BITS: 8, Knob.GRANULARITY: 4, Knob.SYMMETRIC: 2, Knob.DOUBLE: 1}


def _likeness(target: Target) -> Callable[[Target], tuple[float, float, int]]:
    """How near members are to a target: knobs first, then words of the name."""
    own = {knob: knob_value(target, knob) for knob in Knob}
    words = set(re.split(r"[-_]", target.name))

    def near(t: Target) -> tuple[float, float, int]:
        same = sum(weight for knob, weight in _WEIGHTS.items() if knob_value(t, knob) == own[knob])
        bits = abs(base_of(t).contract.bits - base_of(target).contract.bits)
        return (same, -bits, len(words & set(re.split(r"[-_]", t.name))))

    return near


def _unusual(t: Target, columns: Collection[int], wanted: Collection[str]) -> tuple[object, ...]:
    c = base_of(t).contract
    group = getattr(c.granularity, "size", 0)
    usual = _USUAL_GROUP.get(t.ecosystem.lower(), 128)
    return (
        t.name not in wanted,
        bool(columns and matrix.misfit_columns(t.name, columns)),
        t.name not in _USUAL,
        abs(c.bits - 4),
        not c.symmetric,
        abs(group - usual) if t.is_folder else 0,
        c.outer_scale is None,
    )


def readers(target: Target) -> tuple[str, ...]:
    """Runtimes that run what a target writes, on some hardware at least."""
    if target.ecosystem.lower() in _READERS:
        return _READERS[target.ecosystem.lower()]
    return matrix.readers(matrix.family(target.name))
