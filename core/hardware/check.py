"""What `bitsmith check` and the window's self-check say. No user, no host and no path is named in any of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from core import privacy
from core.hardware.detect import detect
from core.hardware.device import Device, Machine
from core.hardware.report import device_sentence, plain_device
from core.units import format_bytes, format_rate
from core.version import version

if TYPE_CHECKING:
    from kernels.gpu.selftest import Result as GpuResult

GREEN, AMBER, RED = "green", "amber", "red"
OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY = 2 * 10**9  # a conversion may take 1.2 GB; the system wants some too
LITTLE_DISK = 10**9
NVIDIA_PCI, DISPLAY_CLASS = "0x10de", "0x03"  # PCI's numbers for the maker and for what shows a picture
PCI = Path("/sys/bus/pci/devices")
# What the vendors' parts of core.hardware say where there is simply nothing to find.
_NOTHING = ("No ", "This Mac has ", "Only Intel graphics ")


@dataclass(frozen=True)
class Check:
    """One line. state: 'green', 'amber' or 'red'. remedy: what to do, '' when all is well."""

    name: str
    state: str
    sentence: str
    remedy: str = ""


def check_report(folder: Path | str | None = None, machine: Machine | None = None) -> list[Check]:
    """Whether this computer can do the work. folder: where output will go; the present folder when None."""
    machine = machine or detect()
    output = Path(folder) if folder else Path()
    lines = [
        _python(),
        _numpy(),
        *_instruction_sets(),
        _kernels(),
        *_kernel_trials(),
        _memory(machine.cpu),
        _bandwidth(machine.cpu),
        *_graphics(machine),
        _torch(),
        _gpu_kernels(),
        *_gpu_trials(),
        _disk("Output folder", output, RED),
        _disk("Scratch folder", Path(tempfile.gettempdir()), AMBER),
        *(_writable(name, find) for name, find in _FOLDERS),
        _display(os.environ, sys.platform),
    ]
    return [replace(c, sentence=privacy.anonymous(c.sentence), remedy=privacy.anonymous(c.remedy)) for c in lines]


def has_failed(checks: Sequence[Check]) -> bool:
    """Whether a line is red."""
    return any(check.state == RED for check in checks)


def report_text(checks: Sequence[Check]) -> str:
    """The report as text, for passing on."""
    about = privacy.anonymous(f"Bitsmith {version()}, {platform.system()} {platform.release()}, {platform.machine()}")
    return "\n".join([about, *(line(check) for check in checks)]) + "\n"


def line(check: Check) -> str:
    """One check as a line of text."""
    return f"  {check.state:<6} {check.name}: {check.sentence} {check.remedy}".rstrip()


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Check("Python", RED, f"Python {found} is too old.", "Install Python 3.11 or newer.")
    return Check("Python", GREEN, f"Python {found} on {platform.system()}, {platform.machine()}.")


def _numpy() -> Check:
    try:
        import numpy as np
    except ImportError:
        return Check("numpy", RED, "numpy is missing.", "Install Bitsmith again, with its dependencies.")
    return Check("numpy", GREEN, f"numpy {np.__version__}.")


def _instruction_sets() -> list[Check]:
    """Of the engine, which multiplies; and a line for each set that the processor lists and that can not be used."""
    from kernels import cpu

    name = "Instruction sets"
    if cpu.engine is None or not cpu.engine_sets:
        why = privacy.without_paths(cpu.engine_missing or "none of them fits this processor")
        remedy = "Install Bitsmith again; its compiled parts belong to it."
        if os.environ.get("BITSMITH_ISA"):
            remedy = "Unset BITSMITH_ISA."
        return [Check(name, AMBER, f"Models run with numpy alone, many times slower: {why}.", remedy)]
    best, others = cpu.engine_sets[0], cpu.engine_sets[1:]
    text = f"Models run with {best}" + (f"; {', '.join(others)} can be used too." if others else ".")
    refused = [
        Check(name, AMBER, f"{one} is listed by the processor and not used: {privacy.without_paths(why)}.",
              "Nothing needs to be done, the next best is used; a virtual machine's host may be able to allow it.")
        for one, why in cpu.engine_refused.items()
    ]  # fmt: skip
    if cpu.engine_missing:  # BITSMITH_ISA names what is not there
        return [Check(name, AMBER, f"{privacy.without_paths(cpu.engine_missing)}.", "Unset BITSMITH_ISA."), *refused]
    return [Check(name, GREEN, text), *refused]


def _kernels() -> Check:
    from kernels import cpu

    name = "Compiled kernels"
    if cpu.extension is None or not cpu.instruction_sets:
        why = privacy.without_paths(cpu.missing or "nothing in them fits this processor")
        remedy = "Install a C++ compiler, then install Bitsmith again."
        if os.environ.get("BITSMITH_ISA"):
            remedy = "Unset BITSMITH_ISA."
        return Check(name, AMBER, f"There are none: {why}. Conversion works, many times slower.", remedy)
    best = cpu.instruction_sets[0]
    if cpu.missing:
        return Check(name, AMBER, f"Held back: {privacy.without_paths(cpu.missing)}.", "Unset BITSMITH_ISA.")
    return Check(name, GREEN, f"Present, running with {best} ({', '.join(cpu.instruction_sets)} usable).")


def _kernel_trials() -> list[Check]:
    """What each compiled operation gives beside the reference; a line of its own for each that differs."""
    from kernels.trial import trials

    found = list(trials())
    bad = [Check(f"Compiled kernel {one.op} {one.variant}".rstrip(), RED,
                 f"Its self-test fails on {one.backend}: {privacy.without_paths(one.reason)}.",
                 "Set BITSMITH_ISA=reference, and report this; files that it wrote may be wrong.")
           for one in found if one.reason]  # fmt: skip
    good: dict[str, list[str]] = {}
    for one in found:
        if not one.reason:
            good.setdefault(one.op, []).extend([one.variant] if one.variant else [])
    if not good:
        return bad
    count = sum(max(1, len(variants)) for variants in good.values())
    names = "; ".join(f"{op} of {', '.join(variants)}" if variants else op for op, variants in good.items())
    text = f"{count} give the reference's bits with {found[0].backend}: {names}."
    return [Check("Self-test of compiled kernels", GREEN, text), *bad]


def _memory(cpu: Device) -> Check:
    total, free = cpu.memory_bytes or 0, cpu.free_bytes or 0
    text = f"{format_bytes(total)}, of which {format_bytes(free)} are free."
    if free < LITTLE_MEMORY:
        return Check("Memory", AMBER, text, "Close other programs before converting.")
    return Check("Memory", GREEN, text)


def _bandwidth(cpu: Device) -> Check:
    if not cpu.bandwidth:
        return Check("Memory bandwidth", AMBER, "Too little memory is free to measure it.", "Close other programs.")
    return Check("Memory bandwidth", GREEN, f"Reads {format_rate(cpu.bandwidth)} ({cpu.bandwidth_from}).")


def _graphics(machine: Machine) -> list[Check]:
    lines = []
    for device in machine.devices[1:]:
        driver = f" Driver {device.driver}." if device.driver else ""
        notes = "".join(f" {note}" for note in device.notes)
        lines.append(Check(device.name, GREEN, device_sentence(plain_device(device)) + driver + notes))
    for note in machine.notes:
        text = privacy.without_paths(note)
        if "nvidia-ml-py" in note:
            lines.append(Check("Graphics", AMBER, text, "Install Bitsmith again, with its dependencies."))
        elif note.startswith("No NVIDIA driver") and has_nvidia_card():
            text = "There is an NVIDIA card, and no driver for it is at work."
            lines.append(Check("Graphics", AMBER, text, "Install NVIDIA's driver and restart the computer."))
        elif note.startswith(_NOTHING):
            lines.append(Check("Graphics", GREEN, text))
        else:
            remedy = "Restart the computer; if that does not help, install the driver again."
            lines.append(Check("Graphics", AMBER, text, remedy))
    return lines


def has_nvidia_card(bus: Path = PCI) -> bool:
    """Whether Linux lists one on the PCI bus, driver or not; False on other systems."""
    for card in bus.glob("*"):
        try:
            maker, kind = ((card / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
        except (OSError, UnicodeDecodeError):
            continue
        if maker == NVIDIA_PCI and kind.startswith(DISPLAY_CLASS):
            return True
    return False


def _torch() -> Check:
    """Imports torch only where a driver shows a GPU, because that takes seconds."""
    from kernels import gpu

    facts = gpu.gather()
    if facts.gpu and facts.torch:
        text = f"PyTorch {facts.torch}, {facts.torch_gpu or 'for processors alone'}"
        built = f", built for {', '.join(facts.architectures)}" if facts.architectures else ""
        return Check("PyTorch", GREEN, f"{text}{built}.")
    if importlib.util.find_spec("torch") is None or (facts.gpu and not facts.torch):
        why = "is not installed" if not facts.gpu or importlib.util.find_spec("torch") is None else "can not be loaded"
        return Check("PyTorch", AMBER, f"It {why}; calibrated methods need it.", "Run: pip install torch")
    try:
        return Check("PyTorch", GREEN, f"PyTorch {importlib.metadata.version('torch')}; no GPU asks for it here.")
    except importlib.metadata.PackageNotFoundError:
        return Check("PyTorch", GREEN, "Present; no GPU asks for it here.")


def _gpu_kernels() -> Check:
    """Whether Triton, its compiler and its cache are in order."""
    from kernels import gpu

    state = gpu.state()
    if state.ready:
        return Check("GPU kernels", GREEN, f"Can run on {state.name or state.card}.")
    cache = os.environ.get("TRITON_CACHE_DIR", "")
    sentence = f"Can not run: {privacy.without_paths(state.reason, [cache])}."
    return Check("GPU kernels", AMBER if state.remedy else GREEN, sentence, state.remedy)


def _gpu_trials() -> list[Check]:
    """A line for each GPU kernel: what its self-tests say. They are made now where this card has not had them."""
    from kernels import gpu
    from kernels.gpu import selftest

    if not gpu.state().ready:
        return []
    tests: dict[str, list[selftest.Result]] = {}
    try:
        for found in selftest.survey():
            tests.setdefault(found.kernel, []).append(found)
    except Exception as error:  # noqa: BLE001  (a driver, Triton or torch that broke meanwhile)
        why = privacy.without_paths(next(iter(str(error).splitlines()), "") or type(error).__name__)
        remedy = "Restart the computer; if that does not help, install PyTorch and Triton again."
        return [Check("GPU kernels", AMBER, f"Their self-tests can not be made: {why}.", remedy)]
    return [_gpu_trial(kernel, found) for kernel, found in tests.items()]


def _gpu_trial(kernel: str, found: Sequence[GpuResult]) -> Check:
    name, bad = f"GPU kernel: {kernel}", [one for one in found if one.reason]
    if not bad:
        classes = "; ".join(one.shape_class for one in found if one.shape_class)
        return Check(name, GREEN, f"Agrees with the reference{f' ({classes})' if classes else ''}.")
    why = "; ".join(f"{one.shape_class}: {one.reason}" if one.shape_class else one.reason for one in bad)
    sentence = f"Switched off, {privacy.without_paths(why)}."
    remedy = "Nothing needs to be done, the processor does its work; newer versions of driver and Triton may help."
    return Check(name, AMBER, sentence, remedy)


def _disk(name: str, folder: Path, failure: str) -> Check:
    """Free space and whether a file can be made there; failure: the state when it can not."""
    existing = next((p for p in (folder, *folder.absolute().parents) if p.is_dir()), None)
    remedy = "Choose another folder." if failure == RED else "Set TMPDIR to a folder that can be written to."
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = psutil.disk_usage(str(existing)).free
    except OSError as error:
        return Check(name, failure, f"It can not be written to ({error.strerror}).", remedy)
    there = "there" if existing == folder else "where it would be made"
    text = f"Can be written to; {format_bytes(free)} are free {there}."
    if free < LITTLE_DISK:
        return Check(name, AMBER, text, "Make room, or choose a folder on another disk.")
    return Check(name, GREEN, text)


def _writable(name: str, find: Callable[[], Path]) -> Check:
    """Whether a file can be made in the folder, or in the nearest of its parents that exists."""
    folder = next((p for p in (find(), *find().parents) if p.is_dir()), None)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name, GREEN, "Can be written to.")
    except OSError as error:
        text = f"Can not be written to ({error.strerror})."
        return Check(name, AMBER, text, "Nothing will be remembered; check its rights.")


def _display(environment: Mapping[str, str], system: str) -> Check:
    if system in ("win32", "darwin") or environment.get("WAYLAND_DISPLAY") or environment.get("DISPLAY"):
        return Check("Display", GREEN, "There is one, so the window can open.")
    if environment.get("QT_QPA_PLATFORM", "").startswith("offscreen"):
        return Check("Display", GREEN, "None; Qt draws off the screen as QT_QPA_PLATFORM asks.")
    text = "There is none, so the window can not open."
    return Check("Display", AMBER, text, "Use the commands, such as bitsmith convert.")


def _config_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", Path.home()))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Preferences"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _cache_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home()))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


_FOLDERS: tuple[tuple[str, Callable[[], Path]], ...] = (
    ("Settings folder", _config_folder),
    ("Cache folder", _cache_folder),
)
