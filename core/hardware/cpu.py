"""The processor and main memory: names, cores, and the instruction sets that the operating system lets us use."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from core.hardware.bandwidth import measured_bandwidth
from core.hardware.classes import cpu_class
from core.hardware.device import Device
from core.hardware.system import run, sysctl
from core.units import format_bytes

# Linux lists a feature only when the kernel saves its registers, so these flags are what may be used.
_LINUX_X86 = {
    "sse4_2": "sse4.2",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "avx2": "avx2",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
}
_LINUX_ARM = {"asimd": "neon", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve", "sve2": "sve2"}
_MAC = {
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.avx512vnni": "avx512_vnni",
    "hw.optional.fma": "fma",
    "hw.optional.arm.FEAT_DotProd": "dotprod",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}
_WINDOWS = {  # IsProcessorFeaturePresent, winnt.h: PF_*_AVAILABLE
    38: "sse4.2",
    39: "avx",
    40: "avx2",
    41: "avx512f",
    43: "dotprod",
    66: "i8mm",
}
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux, x86-64: asm/prctl.h

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def detect_cpu(measure: bool = True) -> Device:
    """This processor with its memory. measure: read memory for 0.3 s once a session, else bandwidth stays unknown."""
    machine = architecture()
    sets = instruction_sets(machine)
    hardware_class, note = cpu_class(machine, sets)
    refused = _amx_refused()
    notes = (note, f"AMX is not used: {refused}." if refused else "")
    total, free = memory()
    bandwidth = measured_bandwidth() if measure else None
    brand, vendor = brand_and_vendor()
    return Device(
        id="cpu",
        name=brand,
        vendor=vendor,
        kind="cpu",
        hardware_class=hardware_class,
        memory_bytes=total,
        free_bytes=free,
        bandwidth=bandwidth,
        bandwidth_from="measured" if bandwidth else "",
        instruction_sets=sets,
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        threads=psutil.cpu_count() or 1,
        notes=tuple(note for note in notes if note),
    )


def architecture() -> str:
    """'x86-64', 'arm64' or what the system calls it."""
    machine = platform.machine().casefold()
    return {"amd64": "x86-64", "x86_64": "x86-64", "aarch64": "arm64", "arm64": "arm64"}.get(machine, machine)


def instruction_sets(machine: str) -> tuple[str, ...]:
    """Instruction sets that this process may use, best last. AMX only once the Linux kernel has granted it."""
    if sys.platform == "linux":
        names = _LINUX_ARM if machine == "arm64" else _LINUX_X86
        sets = linux_sets(read_cpuinfo(), names)
    elif sys.platform == "darwin":
        sets = tuple(name for key, name in _MAC.items() if sysctl(key) == "1")
    elif sys.platform == "win32":
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        sets = tuple(name for number, name in _WINDOWS.items() if present(number))
    else:
        sets = ()
    if machine == "arm64" and "neon" not in sets:
        sets = ("neon", *sets)  # part of every 64-bit Arm
    return with_compiled(sets, _compiled_sets())


def linux_sets(cpuinfo: str, names: dict[str, str], granted: Callable[[], bool] | None = None) -> tuple[str, ...]:
    """Names of the flags in /proc/cpuinfo's text, in the order of `names`; AMX only when `granted()`."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    flags = next((set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")), set())
    sets = tuple(name for flag, name in names.items() if flag in flags)
    if "amx_tile" in sets and not (granted or amx_granted)():
        sets = tuple(name for name in sets if not name.startswith("amx"))
    return sets


def amx_granted() -> bool:
    """Ask Linux for the AMX tile registers, as every process that wants them must; False when it refuses.

    False, too, where the compiled engine has tried AMX and it faults, as in some virtual machines.
    """
    if _amx_refused():
        return False
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
    except (OSError, AttributeError):
        return False


def with_compiled(sets: tuple[str, ...], compiled: Collection[str]) -> tuple[str, ...]:
    """Add what the compiled kernels found with cpuid and xgetbv, for systems that do not tell."""
    implied = {"avx2": ("avx2", "fma"), "avx512": ("avx512f", "avx512bw")}
    found = [name for key in ("avx2", "avx512") if key in compiled for name in implied[key]]
    return (*sets, *(name for name in found if name not in sets))


def memory() -> tuple[int, int]:
    """Total and free bytes of main memory, a container's limit respected."""
    state = psutil.virtual_memory()
    total, free = int(state.total), int(state.available)
    try:
        limit = int(CGROUP_LIMIT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return total, free
    with contextlib.suppress(OSError, ValueError):  # what the container's programs have already
        free = min(free, max(0, limit - int(CGROUP_LIMIT.with_name("memory.current").read_text(encoding="ascii"))))
    return min(total, limit), min(free, limit)


def short_of_memory(needed: int, there: int) -> str:
    """What to say when so many bytes are needed, of which this program has some, and the rest is not free; else ''."""
    free = memory()[1]
    if needed - there <= free:
        return ""
    return (
        f"This takes about {format_bytes(needed)} of memory, and {format_bytes(free)} are free: close other programs "
        "first; a run that the system ends can be resumed."
    )


def brand_and_vendor() -> tuple[str, str]:
    """('AMD EPYC 9654 96-Core Processor', 'AMD'); the architecture's name when the system does not say."""
    brand = ""
    if sys.platform == "linux":
        lines = (line.partition(":") for line in read_cpuinfo().splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines if value}
        brand = fields.get("model name") or fields.get("Model") or fields.get("Hardware") or ""
    elif sys.platform == "darwin":
        brand = sysctl("machdep.cpu.brand_string")
    elif sys.platform == "win32":
        brand = run(["powershell", "-NoProfile", "-Command", "(Get-CimInstance Win32_Processor).Name"])
    brand = " ".join((brand or platform.processor() or architecture()).split())
    vendors = ("AMD", "Intel", "Apple", "Qualcomm", "Ampere", "NVIDIA", "Raspberry Pi")
    vendor = next((v for v in vendors if v.casefold() in brand.casefold()), "")
    return brand, vendor or ("Arm" if architecture() == "arm64" else "")


def read_cpuinfo() -> str:
    """/proc/cpuinfo up to the end of its first processor, and the board's name that Arm puts at the end."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    blocks = text.strip().split("\n\n")
    return "\n".join((blocks[0], *(blocks[-1:] if len(blocks) > 1 and "processor" not in blocks[-1] else ())))


def _amx_refused() -> str:
    """Why the compiled engine does without AMX although the processor lists it; '' when it does not."""
    try:
        from kernels import cpu
    except ImportError:
        return ""
    return cpu.engine_refused.get("amx", "")


def _compiled_sets() -> Collection[str]:
    try:
        from kernels import cpu
    except ImportError:
        return ()
    return cpu.instruction_sets
