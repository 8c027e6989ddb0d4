"""The compiled kernels, when there are any.

BITSMITH_ISA=avx512|avx2|baseline holds them to one instruction set; BITSMITH_ISA=reference leaves them out.
"""

from __future__ import annotations

import os
from types import ModuleType

extension: ModuleType | None = None
missing = ""  # why there are no compiled kernels; '' when there are
instruction_sets: tuple[str, ...] = ()  # usable here, best first

_wanted = os.environ.get("BITSMITH_ISA", "").strip().lower()

try:
    from kernels.cpu import _cpu as extension  # type: ignore[attr-defined,no-redef]
except ImportError as error:
    missing = f"the compiled kernels are not installed ({error})"

if extension is not None:
    instruction_sets = tuple(extension.instruction_sets())
    if _wanted == "reference":
        instruction_sets, missing = (), "BITSMITH_ISA=reference asks for none"
    elif _wanted:
        if _wanted not in instruction_sets:
            missing = f"BITSMITH_ISA={_wanted}, which this computer or build does not have"
        instruction_sets = tuple(name for name in instruction_sets if name == _wanted)
