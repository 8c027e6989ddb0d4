"""What `bitsmith devices` and `bitsmith check` say. No user name and no home path is in any of it."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from core.hardware.detect import detect
from core.hardware.device import Device, Machine
from core.hardware.matrix import hardware_classes
from core.hardware.table import known_devices
from core.units import format_bytes, format_rate

OK, WARNING, ERROR = "ok", "warning", "error"
OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY = 2 * 10**9  # a conversion may take 1.2 GB; the system wants some too
LITTLE_DISK = 10**9


@dataclass(frozen=True)
class Check:
    """One line of `bitsmith check`. status: 'ok', 'warning' or 'error'. remedy: what to do, '' when all is well."""

    name: str
    status: str
    sentence: str
    remedy: str = ""


def devices_report(known: bool = False, machine: Machine | None = None) -> dict[str, Any]:
    """This computer's devices, with known=True also those of the table: plain values for JSON."""
    machine = machine or detect()
    report: dict[str, Any] = {
        "devices": [_plain(device) for device in machine.devices],
        "notes": list(machine.notes),
    }
    if known:
        report["known"] = [_plain(device) for device in known_devices()]
    return report


def device_lines(report: Mapping[str, Any]) -> list[str]:
    """The report as lines of text."""
    lines = ["This computer:"]
    lines += [f"  {_sentence(row)}" for row in report["devices"]]
    lines += [f"  {note}" for note in report["notes"]]
    if "known" in report:
        lines += ["", "Devices that can be chosen as target:"]
        lines += [f"  {_sentence(row)}" for row in report["known"]]
    return lines


def print_devices(report: Mapping[str, Any]) -> None:
    """Write `device_lines` to standard output."""
    sys.stdout.write("\n".join(device_lines(report)) + "\n")


def check_report(folder: Path | str | None = None, machine: Machine | None = None) -> list[Check]:
    """Whether this computer can do the work. folder: where output will go; the present folder when None."""
    machine = machine or detect()
    return [
        _python(),
        _numpy(),
        _kernels(),
        _gpu_kernels(),
        _memory(machine.cpu),
        _bandwidth(machine.cpu),
        *_graphics(machine),
        _disk(Path(folder) if folder else Path()),
        *(_writable(name, find) for name, find in _FOLDERS),
        _display(os.environ, sys.platform),
    ]


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Check("Python", ERROR, f"Python {version} is too old.", "Install Python 3.11 or newer.")
    return Check("Python", OK, f"Python {version} on {platform.system()}, {platform.machine()}.")


def _numpy() -> Check:
    try:
        import numpy as np
    except ImportError:
        return Check("numpy", ERROR, "numpy is missing.", "Install Bitsmith again, with its dependencies.")
    return Check("numpy", OK, f"numpy {np.__version__}.")


def _kernels() -> Check:
    from kernels import cpu

    if cpu.extension is None or not cpu.instruction_sets:
        why = cpu.missing or "nothing in them fits this processor"
        return Check(
            "Compiled kernels",
            WARNING,
            f"There are none: {_without_paths(why)}. Conversion works, many times slower.",
            "Install a C++ compiler, then install Bitsmith again.",
        )
    best = cpu.instruction_sets[0]
    if cpu.missing:
        return Check("Compiled kernels", WARNING, f"Held back: {_without_paths(cpu.missing)}.", "Unset BITSMITH_ISA.")
    return Check("Compiled kernels", OK, f"Present, running with {best} ({', '.join(cpu.instruction_sets)} usable).")


def _gpu_kernels() -> Check:
    from kernels import gpu

    state = gpu.state()
    if state.ready:
        return Check("GPU kernels", OK, f"Can run on {state.name or state.card}; nothing uses them yet.")
    sentence = f"Can not run: {_without_paths(state.reason)}."
    return Check("GPU kernels", WARNING if state.remedy else OK, sentence, state.remedy)


def _memory(cpu: Device) -> Check:
    total, free = cpu.memory_bytes or 0, cpu.free_bytes or 0
    text = f"{format_bytes(total)}, of which {format_bytes(free)} are free."
    if free < LITTLE_MEMORY:
        return Check("Memory", WARNING, text, "Close other programs before converting.")
    return Check("Memory", OK, text)


def _bandwidth(cpu: Device) -> Check:
    if not cpu.bandwidth:
        return Check("Memory bandwidth", WARNING, "Too little memory is free to measure it.", "Close other programs.")
    return Check("Memory bandwidth", OK, f"Reads {format_rate(cpu.bandwidth)} ({cpu.bandwidth_from}).")


def _graphics(machine: Machine) -> list[Check]:
    found = [
        Check(d.name, OK, _sentence(_plain(d)) + "".join(f" {note}" for note in d.notes)) for d in machine.devices[1:]
    ]
    absent = [Check("Graphics", OK, note) for note in machine.notes]
    return [*found, *absent]


def _disk(folder: Path) -> Check:
    existing = next((p for p in (folder, *folder.absolute().parents) if p.is_dir()), None)
    if existing is None or not os.access(existing, os.W_OK):
        return Check("Output folder", ERROR, "The output folder can not be written to.", "Choose another folder.")
    try:
        free = psutil.disk_usage(str(existing)).free
    except OSError as error:
        return Check("Output folder", ERROR, f"Its free space can not be read ({error.strerror}).", "Choose another.")
    there = "there" if existing == folder else "where it would be made"
    text = f"{format_bytes(free)} are free {there}."
    if free < LITTLE_DISK:
        return Check("Output folder", WARNING, text, "Make room, or choose a folder on another disk.")
    return Check("Output folder", OK, text)


def _writable(name: str, find: Callable[[], Path]) -> Check:
    """Whether a file can be made in the folder, or in the nearest of its parents that exists."""
    folder = next((p for p in (find(), *find().parents) if p.is_dir()), None)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check(name, OK, "Can be written to.")
    except OSError as error:
        return Check(
            name, WARNING, f"Can not be written to ({error.strerror}).", "Nothing will be remembered; check its rights."
        )


def _display(environment: Mapping[str, str], system: str) -> Check:
    if system in ("win32", "darwin") or environment.get("WAYLAND_DISPLAY") or environment.get("DISPLAY"):
        return Check("Display", OK, "There is one, so the window can open.")
    if environment.get("QT_QPA_PLATFORM", "").startswith("offscreen"):
        return Check("Display", OK, "None; Qt draws off the screen as QT_QPA_PLATFORM asks.")
    return Check(
        "Display", WARNING, "There is none, so the window can not open.", "Use the commands, such as bitsmith convert."
    )


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
    ("Temporary folder", lambda: Path(tempfile.gettempdir())),
)


def _without_paths(text: str) -> str:
    """Import errors name the file; a report that is passed on must not tell whose computer it is."""
    return " ".join("…" if "/" in word or "\\" in word else word for word in text.split())


def _plain(device: Device) -> dict[str, Any]:
    row = asdict(device)
    row["hardware_class_label"] = hardware_classes().get(device.hardware_class, "not in the matrix")
    row["peak"] = dict(device.peak)
    return row


def _sentence(row: Mapping[str, Any]) -> str:
    parts = [row["name"]]
    if row["memory_bytes"]:
        parts.append(format_bytes(row["memory_bytes"]))
    if row["bandwidth"]:
        parts.append(f"{format_rate(row['bandwidth'])} ({row['bandwidth_from']})")
    if row["instruction_sets"]:
        parts.append(" ".join(row["instruction_sets"]))
    return ", ".join([*parts, row["hardware_class_label"]]) + "."
