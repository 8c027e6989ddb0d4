"""Looks for every device of this computer. Never raises: whatever goes wrong becomes a note."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psutil

from core.hardware.amd import detect_amd
from core.hardware.apple import detect_apple
from core.hardware.cpu import detect_cpu
from core.hardware.device import Device, Found, Machine
from core.hardware.intel import detect_intel
from core.hardware.nvidia import detect_nvidia
from core.hardware.table import find_known

VENDORS: tuple[tuple[str, Callable[[], Found]], ...] = (
    ("NVIDIA", detect_nvidia),
    ("AMD", detect_amd),
    ("Intel", detect_intel),
    ("Apple", detect_apple),
)


def detect(
    measure: bool = True,
    vendors: tuple[tuple[str, Callable[[], Found]], ...] = VENDORS,
    processor: Callable[[bool], Device] = detect_cpu,
) -> Machine:
    """This computer's devices, the processor first. measure: also its read bandwidth (0.3 s, once a session)."""
    notes: list[str] = []
    try:
        devices = [_apple_bandwidth(processor(measure))]
    except Exception as error:  # noqa: BLE001  any system may answer in a way nobody has seen; the rest goes on
        notes.append(f"The processor could not be examined ({error}).")
        memory = psutil.virtual_memory()
        devices = [Device("cpu", "Processor", "", "cpu", "unknown", int(memory.total), int(memory.available))]
    for vendor, look in vendors:
        try:
            found = look()
        except Exception as error:  # noqa: BLE001  as above
            notes.append(f"{vendor} devices could not be examined ({error}).")
            continue
        devices.extend(found.devices)
        if found.state:
            notes.append(found.state)
    return Machine(tuple(devices), tuple(notes))


def _apple_bandwidth(cpu: Device) -> Device:
    """Where nothing was measured, the table still knows an Apple chip's bandwidth."""
    if cpu.bandwidth is not None or cpu.vendor != "Apple":
        return cpu
    entry = find_known(cpu.name, None, "Apple")
    return replace(cpu, bandwidth=entry.bandwidth, bandwidth_from="table") if entry else cpu
