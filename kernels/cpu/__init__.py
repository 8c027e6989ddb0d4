"""The compiled kernels, when there are any: `extension` for conversion, `engine` for products and whole programs.

BITSMITH_ISA=avx512|avx2|baseline holds both to one family of instruction sets, the name of one of the engine's own
(amx, avx512bf16, avx512vnni, avxvnni, neon …) the engine alone; BITSMITH_ISA=reference leaves both out.
"""

from __future__ import annotations

import os
from types import ModuleType

extension: ModuleType | None = None
missing = ""  # why there are no compiled kernels; '' when there are
instruction_sets: tuple[str, ...] = ()  # usable here, best first

engine: ModuleType | None = None
engine_missing = ""  # the same for the engine
engine_sets: tuple[str, ...] = ()
engine_refused: dict[str, str] = {}  # sets that the CPU lists and that can not run here: why
bfloat16_pays = False  # whether this CPU is taken to multiply bfloat16 faster than float32, by whatever library

# The engine's instruction sets that belong to one of the other extension.
_FAMILIES = {
    "avx512": ("amx", "avx512bf16", "avx512vnni"),
    "avx2": ("avxvnni", "avx2"),
    "baseline": ("i8mm", "neon", "portable"),
}

_ENGINE_ONLY = {name for names in _FAMILIES.values() for name in names} - set(_FAMILIES)

_wanted = os.environ.get("BITSMITH_ISA", "").strip().lower()

try:
    from kernels.cpu import _cpu as extension  # type: ignore[attr-defined,no-redef]
except ImportError as error:
    missing = f"the compiled kernels are not installed ({error})"

if extension is not None:
    instruction_sets = tuple(extension.instruction_sets())
    if _wanted == "reference":
        instruction_sets, missing = (), "BITSMITH_ISA=reference asks for none"
    elif _wanted and _wanted not in _ENGINE_ONLY:
        if _wanted not in instruction_sets:
            missing = f"BITSMITH_ISA={_wanted}, which this computer or build does not have"
        instruction_sets = tuple(name for name in instruction_sets if name == _wanted)

try:
    from kernels.cpu import _engine as engine  # type: ignore[attr-defined,no-redef]
except ImportError as error:
    engine_missing = f"the compiled engine is not installed ({error})"

if engine is not None:
    engine_sets, engine_refused = tuple(engine.instruction_sets()), dict(engine.refused_sets())
    bfloat16_pays = hasattr(engine, "bfloat16_pays") and engine.bfloat16_pays()  # not in older builds
    if _wanted == "reference":
        engine_sets, engine_missing = (), "BITSMITH_ISA=reference asks for none"
    elif _wanted:
        allowed = _FAMILIES.get(_wanted, (_wanted,))
        if not set(allowed) & set(engine_sets):
            why = engine_refused.get(_wanted, "this computer or build does not have it")
            engine_missing = f"BITSMITH_ISA={_wanted} can not be used: {why}"
        engine_sets = tuple(name for name in engine_sets if name in allowed)


def engine_set(wanted: str = "") -> str:
    """The engine's instruction set for 'cpu:<name>', the best for 'cpu' or ''; '' when it has to be the reference.

    Names of the other extension's sets stand for their family. Raises RuntimeError for what can not run here.
    """
    if wanted == "reference" or not engine_sets:
        if wanted.startswith("cpu"):
            raise RuntimeError(f"{wanted} can not run products: {engine_missing}")
        return ""
    name = wanted.removeprefix("cpu").removeprefix(":")
    allowed = engine_sets if not name else _FAMILIES.get(name, (name,))
    for found in engine_sets:
        if found in allowed:
            return found
    why = engine_refused.get(name, "this computer or build does not have it")
    raise RuntimeError(f"{wanted} can not run products: {why}")
