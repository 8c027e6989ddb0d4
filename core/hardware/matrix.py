"""The support matrix: which runtime runs which format on which hardware, and why (resources/support_matrix.json).

`cell` answers for hardware alone; `cell_for_model` also looks at the row lengths of the model that is loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any

from core.errors import UserError
from core.formats import find_format
from core.formats.coded import Coded
from core.targets import find_target
from core.units import format_count
from kernels.layouts import GRID_KINDS
from resources import read_json


class State(Enum):
    """How far a runtime supports a format. UNKNOWN is the honest answer where nobody has looked."""

    NATIVE = "native"
    EMULATED = "weight-only or emulated"
    STORED = "stored only"
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cell:
    """One answer. reason: a sentence or two. source: where it was read, checked: on which day.

    misfits: row lengths that the format's blocks do not divide, filled by `cell_for_model`; such tensors get another
    type, and `reason` says so.
    """

    state: State
    reason: str
    source: str = ""
    checked: str = ""
    misfits: tuple[int, ...] = ()


# Bitsmith's formats by the matrix row that answers for them. The tensors that a mix treats better are of near kinds.
_FAMILIES = {
    "Q4_0": "Q4_0",
    "Q4_1": "legacy",
    "Q5_0": "legacy",
    "Q5_1": "legacy",
    "Q8_0": "Q8_0",
    "Q2_K": "K",
    "Q3_K": "K",
    "Q4_K": "K",
    "Q5_K": "K",
    "Q6_K": "K",
    "IQ4_NL": "IQ4",
    "IQ4_XS": "IQ4",
    **dict.fromkeys(GRID_KINDS, "IQ"),
    "TQ1_0": "TQ",
    "TQ2_0": "TQ",
    "MXFP4": "MXFP4",
    "NVFP4": "NVFP4",
    "F32": "float",
    "F16": "float",
    "BF16": "float",
}
FAVOURED = ("llama.cpp", "vLLM", "Transformers", "SGLang", "TensorRT-LLM", "MLX")  # the order of columns


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = read_json("support_matrix.json")
    return document


@cache
def runtimes() -> tuple[str, ...]:
    """Every runtime of the matrix, those that read what Bitsmith writes first."""
    named = dict.fromkeys(row["runtime"] for row in _document()["rows"])
    return (*FAVOURED, *(name for name in named if name not in FAVOURED))


def hardware_classes() -> dict[str, str]:
    """Hardware class → what it stands for, those that are judged like another one included."""
    document = _document()
    return {**document["classes"], **{name: entry["label"] for name, entry in document["like"].items()}}


def family(format_name: str) -> str:
    """The matrix's name for a format or target of ours: 'Q4_K_M' → 'K', 'w4a16-g64-asym' → 'w4a16-asym'.

    Raises UserError for a name that is neither.
    """
    name = format_name.strip()
    if name.upper() in _FAMILIES:
        return _FAMILIES[name.upper()]
    target = find_target(name)
    base = find_format(target.base, target.container)
    if isinstance(base, Coded):
        return base.family
    return target.name if target.is_folder else _FAMILIES[target.base]


@lru_cache(maxsize=1024)
def row_for(kind: str, runtime: str) -> dict[str, Any] | None:
    """The row of the document that answers for a family in a runtime: one whose `covers` names it or has a pattern."""
    named, patterns = _covered(runtime)
    return named.get(kind) or next((row for pattern, row in patterns if fnmatchcase(kind, pattern)), None)


@cache
def _covered(runtime: str) -> tuple[dict[str, dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """A runtime's rows by the names in `covers`, and those with patterns."""
    pairs = [(word, row) for row in _document()["rows"] if row["runtime"] == runtime for word in row["covers"]]
    wild = {word for word, _ in pairs if "*" in word or "?" in word}
    return {w: row for w, row in pairs if w not in wild}, [(w, row) for w, row in pairs if w in wild]


@cache
def judged_alike(kind: str) -> tuple[int, ...]:
    """Families with the same answer have the same cells everywhere."""
    return tuple(id(row_for(kind, runtime)) for runtime in runtimes())


@cache
def readers(kind: str, *, unpacked: bool = False) -> tuple[str, ...]:
    """Runtimes that run a family on some hardware, natively or emulated. unpacked: those that unpack it first, too."""
    enough = {State.NATIVE, State.EMULATED} | ({State.STORED} if unpacked else set())
    named = ((runtime, row_for(kind, runtime)) for runtime in runtimes())
    return tuple(name for name, row in named if row and any(State(c["state"]) in enough for c in row["cells"]))


@lru_cache(maxsize=4096)  # the window asks for all of them at every change of model or device
def cell(format_name: str, runtime: str, hardware_class: str) -> Cell:
    """What a runtime does with a format on hardware of that class.

    Raises UserError for an unknown format or runtime; an unknown class gives State.UNKNOWN.
    """
    if runtime not in runtimes():
        raise UserError(f"There is no runtime '{runtime}' in the matrix.", f"Use one of: {', '.join(runtimes())}.")
    kind = family(format_name)
    document = _document()
    row = row_for(kind, runtime)
    if row is None:
        absent = document["absent"].get(runtime)
        if absent:
            return Cell(State.IMPOSSIBLE, absent, document["sources"]["exllama"], document["generated"])
        return Cell(State.UNKNOWN, f"Nobody has checked {format_name} in {runtime} yet.")
    like = document["like"].get(hardware_class)
    if like is None:
        return _look_up(row, hardware_class)
    if like["runtimes"] is not None and runtime not in like["runtimes"]:
        return Cell(State.UNKNOWN, f"Nobody has checked {runtime} on {like['label']} yet.")
    if hardware_class in row.get("native_on", ()):
        like_cell = _look_up(row, like["like"])
        return replace(like_cell, state=State.NATIVE, reason=f"{like['label']} has units of its own for it.")
    found = _look_up(row, like["like"])
    return replace(found, reason=f"{found.reason} Judged as {document['classes'][like['like']]}.")


def cell_for_model(format_name: str, runtime: str, hardware_class: str, columns: Collection[int]) -> Cell:
    """`cell`, and what the loaded model's row lengths do to it. columns: lengths K of the weights to quantize."""
    found = cell(format_name, runtime, hardware_class)
    misfits = misfit_columns(format_name, columns)
    if not misfits:
        return found
    target = find_target(format_name)
    block = _block(target.base, target.container)
    lengths = " and ".join(filter(None, (", ".join(map(format_count, misfits[:-1])), format_count(misfits[-1]))))
    which = "All weights" if len(misfits) == len(set(columns)) else f"Weights with rows of {lengths} values"
    fate = "stay in 16 bits unless the recipe says otherwise" if target.is_folder else "get a type with shorter blocks"
    why = f"{which} {fate}: {lengths} is no multiple of {block}."
    return replace(found, reason=f"{found.reason} {why}", misfits=misfits)


def misfit_columns(format_name: str, columns: Collection[int]) -> tuple[int, ...]:
    """Those of the row lengths that the format's blocks or groups do not divide, ascending."""
    return _misfits(format_name, frozenset(columns))


@lru_cache(maxsize=512)
def _misfits(format_name: str, columns: frozenset[int]) -> tuple[int, ...]:
    target = find_target(format_name)
    base = find_format(target.base, target.container)
    return tuple(sorted(k for k in columns if k > 0 and base.accepts((32, k))))


def _block(base: str, container: str) -> int:
    contract = find_format(base, container).contract
    return max(contract.block, getattr(contract.granularity, "size", 1))


def _look_up(row: dict[str, Any], hardware_class: str) -> Cell:
    for entry in row["cells"]:
        if hardware_class in entry["classes"]:
            source = _document()["sources"][entry["source"]]
            return Cell(State(entry["state"]), entry["reason"], source, _document()["generated"])
    return Cell(State.UNKNOWN, "This hardware is not in the matrix.")
