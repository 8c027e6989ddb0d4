"""PyTorch takes seconds to import: on a thread of its own, so that whoever cancels meanwhile is answered at once."""

from __future__ import annotations

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

from core.progress import CancelToken
from core.threads import aside

_RTLD_NOW = 2  # POSIX leaves the value open; glibc and musl have this


def torch_ready(token: CancelToken) -> None:
    """Import PyTorch and what runs blocks with it. Raises Cancelled, and then the import ends by itself."""
    aside(_import, token)


def _import() -> None:
    load_torch()
    import torch  # noqa: F401 - before the module that needs it: nothing of ours then waits for its import

    import core.calibration.forward  # noqa: F401 - for whoever imports it next


def load_torch() -> None:
    """Load PyTorch's libraries without holding the interpreter: nothing else could run for a second or two.

    What can not be loaded so is loaded by the import that follows.
    """
    if "torch" in sys.modules or not sys.platform.startswith("linux"):
        return
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return
    library = Path(spec.submodule_search_locations[0]) / "lib" / "libtorch_python.so"
    if library.is_file():
        # Called as a foreign function, the loader runs while other threads go on; `ctypes.CDLL` and import do not.
        loader = ctypes.CDLL(None).dlopen
        loader.restype, loader.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
        loader(bytes(library), _RTLD_NOW)
