"""The GPU's kernels, in Triton. This package imports everywhere; `state` says whether its kernels can run, and why not.

    weights      formats, and packing of weights (numpy alone)      backends    registers all with `kernels.dispatch`
    products     weight-only, and of codes with codes               runtime     whole models: device, executor, graphs
    attention    over the cache of keys and values                  selftest    a kernel proves itself once a card
    steps        norms, rotary positions, activations               bench       measures a card
    encoders     rounding to nearest, GPTQ                          compile     compiles for cards that are not there

`operations` has a function for each operation, `launcher` starts kernels, `configurations` says how they are cut up.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

OLDEST_TRITON = (3, 3)
OLDEST_CARD = 75  # of NVIDIA's, by Triton's assembler
# Older versions compile no matrix products for these, or nothing at all; some end the program over it.
CARD_TRITON = {"sm_103": (3, 6), "sm_110": (3, 7), "sm_120": (3, 4), "sm_121": (3, 6)}
# PyTorch names HIP devices 'cuda' as well.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd")


@dataclass(frozen=True)
class GpuState:
    """kind: 'ready', or what is in the way. reason: one clause; remedy: what to do about it, or ''.

    card: 'sm_90', 'gfx942' …; name: as its maker calls it. Both '' where there is none.
    """

    kind: str
    reason: str = ""
    remedy: str = ""
    card: str = ""
    name: str = ""

    @property
    def ready(self) -> bool:
        return self.kind == "ready"


@dataclass(frozen=True)
class Facts:
    """What `judge` goes by. gpu: the driver shows one. torch_gpu: torch's GPU library ('CUDA 12.8', 'ROCm 6.4' or '').

    torch_sees: whether torch reaches a device. architectures: what torch was built for ('sm_80' …). compiler and
    python_header: paths, or ''. cache_folder: where Triton keeps compiled kernels; cache_writable: whether it can.
    packed: an installer put the program here, with all of its packages, and none can be added. off: the user's word,
    BITSMITH_GPU=0. triton_error: what its import says, where it fails.
    """

    off: bool = False
    gpu: bool = True
    torch: str = "2.13.0"
    torch_gpu: str = "CUDA 13.0"
    torch_sees: bool = True
    card: str = "sm_90"
    name: str = ""
    architectures: tuple[str, ...] = ("sm_90",)
    triton: str = "3.9.0"
    triton_error: str = ""
    compiler: str = "cc"
    python_header: str = "Python.h"
    cache_folder: str = ""
    cache_writable: bool = True
    platform: str = field(default=sys.platform)
    packed: bool = False


def judge(facts: Facts) -> GpuState:
    """The first thing that is in the way of the kernels, or 'ready'."""

    def state(kind: str, reason: str, remedy: str) -> GpuState:
        return GpuState(kind, reason, remedy, facts.card, facts.name)

    if facts.off:
        return state("off", "BITSMITH_GPU=0 asks for none", "Unset BITSMITH_GPU.")
    if not facts.gpu:
        return state("no GPU", "no NVIDIA or AMD GPU is at hand", "")
    if not facts.torch:
        return state("no torch", "PyTorch is not installed", "Install PyTorch with the build for this GPU.")
    if not facts.torch_gpu:
        reason = f"PyTorch {facts.torch} is a build for CPUs alone"
        if facts.packed:
            reason = "this is Bitsmith for processors alone"
            remedy = "Install bitsmith-gpu, the same program with what GPUs need."
            return state("torch without GPU", reason, remedy)
        return state("torch without GPU", reason, "Install PyTorch's build for CUDA or ROCm.")
    if not facts.torch_sees:
        reason = f"PyTorch {facts.torch} ({facts.torch_gpu}) does not reach the GPU"
        return state("GPU out of reach", reason, "Update the GPU's driver, or install PyTorch for the driver at hand.")
    if facts.card.startswith("sm_") and int(facts.card[3:]) < OLDEST_CARD:
        return state("card too old", f"Triton has no code for {facts.card}, only for sm_{OLDEST_CARD} and newer", "")
    if not _built_for(facts.card, facts.architectures):
        reason = f"this build of PyTorch has no code for {facts.card}, only for {', '.join(facts.architectures)}"
        return state("card unknown to torch", reason, f"Install a build of PyTorch that lists {facts.card}.")
    if not facts.triton:
        where = "pip install triton" if facts.platform == "linux" else "pip install triton-windows"
        return state("no Triton", "Triton is not installed", f"Run: {where}")
    if facts.triton_error:
        reason = f"Triton {facts.triton} can not be loaded ({facts.triton_error})"
        return state("Triton broken", reason, "Install PyTorch and Triton again, of versions that go together.")
    if _numbers(facts.triton) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        reason = f"Triton {facts.triton} is older than {oldest}"
        return state("Triton too old", reason, f"Install Triton {oldest} or newer, with the PyTorch that goes with it.")
    needed = CARD_TRITON.get(facts.card, OLDEST_TRITON)
    if _numbers(facts.triton) < needed:
        oldest = ".".join(map(str, needed))
        reason = f"Triton {facts.triton} does not compile all products for {facts.card}"
        remedy = f"Install Triton {oldest} or newer, with the PyTorch that goes with it."
        return state("Triton too old for the card", reason, remedy)
    if not facts.compiler or not facts.python_header:
        missing = "no C compiler" if not facts.compiler else "no Python.h"
        reason = f"{missing} is at hand, and Triton builds its launcher with one"
        packages = "gcc and python3-dev (Debian: apt install gcc python3-dev)"
        return state("no C compiler", reason, f"Install {packages}.")
    if not facts.cache_writable:
        reason = f"Triton can not write its cache in {facts.cache_folder}"
        return state("cache not writable", reason, "Set TRITON_CACHE_DIR to a folder that can be written.")
    return GpuState("ready", card=facts.card, name=facts.name)


@cache
def state() -> GpuState:
    """Of this machine, asked once. Takes as long as importing torch and Triton where there is a GPU, else no time."""
    return judge(gather())


def gather() -> Facts:
    """What is so on this machine. Nothing is imported before a driver shows a GPU; no cause makes it fail."""
    if os.environ.get("BITSMITH_GPU", "").strip().lower() in ("0", "off", "no", "false"):
        return Facts(off=True, card="")
    if not _driver_shows_gpu():
        return Facts(gpu=False, card="")
    torch_version, torch_gpu, sees, card, name, architectures = _torch_facts()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    triton, triton_error = _triton_facts()
    include = sysconfig.get_paths().get("include", "")
    header = Path(include, "Python.h") if include else None
    return Facts(
        torch=torch_version,
        torch_gpu=torch_gpu,
        torch_sees=sees,
        card=card,
        name=name,
        architectures=architectures,
        triton=triton,
        triton_error=triton_error,
        compiler=_compiler(),
        python_header=str(header) if header and header.is_file() else "",
        cache_folder=str(folder),
        cache_writable=_writable(folder),
        packed=bool(getattr(sys, "frozen", False)),  # PyInstaller's mark
    )


def _driver_shows_gpu() -> bool:
    if sys.platform == "win32":
        return Path(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "nvcuda.dll").is_file()
    return any(Path(file).exists() for file in _DEVICE_FILES)


def _torch_facts() -> tuple[str, str, bool, str, str, tuple[str, ...]]:
    try:
        import torch
    except (ImportError, OSError):  # OSError: a library that it loads is missing
        return "", "", False, "", "", ()
    gpu = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    gpu = gpu if torch.version.hip or torch.version.cuda else ""
    try:
        sees = bool(gpu) and bool(torch.cuda.is_available())
        if not sees:
            return str(torch.__version__), gpu, False, "", "", ()
        properties = torch.cuda.get_device_properties(0)
        card = f"sm_{properties.major}{properties.minor}"
        if torch.version.hip:
            card = str(properties.gcnArchName).split(":")[0]
        architectures = tuple(torch.cuda.get_arch_list())
    except RuntimeError:  # what torch raises where a driver is broken
        return str(torch.__version__), gpu, False, "", "", ()
    return str(torch.__version__), gpu, True, card, str(properties.name), architectures


def _built_for(card: str, architectures: tuple[str, ...]) -> bool:
    """NVIDIA: code for an older minor version of the same generation runs, and PTX of any older one ('compute_…')."""
    if not card.startswith("sm_"):
        return card in {name.split(":")[0] for name in architectures}
    number = int(card[3:])
    for name in architectures:
        digits = "".join(c for c in name if c.isdigit())
        if digits and int(digits) <= number and (name.startswith("compute") or int(digits) // 10 == number // 10):
            return True
    return False


def _compiler() -> str:
    """As Triton looks for it; its Windows build brings its own."""
    if sys.platform == "win32":
        return "bundled"
    names = (os.environ.get("CC"), "gcc", "clang", "cc")
    return next((path for name in names if name and (path := shutil.which(name))), "")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _triton_facts() -> tuple[str, str]:
    """Version, or '' where there is none, and what its import says where it fails."""
    import importlib.metadata  # takes a while
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        return "", ""
    named = ""
    for package in ("triton", "triton-windows", "pytorch-triton", "pytorch-triton-rocm"):
        try:
            named = named or importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        import triton
    except Exception as error:  # noqa: BLE001  (a missing library, a build for another Python …: each is a reason)
        return named or "(of no known version)", (str(error).splitlines() or [type(error).__name__])[0][:200]
    return str(getattr(triton, "__version__", "") or named), ""


def _numbers(version: str) -> tuple[int, ...]:
    """(0, 0) where there is none to be read."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
