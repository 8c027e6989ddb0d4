"""A plugin of pytest: `kernels.cpu._engine` is the test build that BITSMITH_EMULATED_ENGINE names.

It offers only what that build adds: see `tests/kernels/test_emulated_sets.py`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

NAME = "kernels.cpu._engine"
ADDED = ("amx_by_avx512", "amx_by_avx2", "avxvnni_by_avx512")


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if "BITSMITH_EMULATED_ENGINE" in os.environ:
    engine = load(os.environ["BITSMITH_EMULATED_ENGINE"])
    usable = engine.instruction_sets()
    engine.instruction_sets = lambda: [name for name in usable if name in ADDED]
    sys.modules[NAME] = engine
