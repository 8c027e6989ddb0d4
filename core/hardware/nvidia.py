"""NVIDIA devices through NVML. A missing library or driver is a state, not an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from core.hardware.classes import nvidia_class
from core.hardware.device import Device, Found
from core.hardware.table import complete

NO_DRIVER = "No NVIDIA driver is installed."


def detect_nvidia(nvml: Any = None) -> Found:
    """Every NVIDIA device that the driver lists. nvml: a stand-in for the module pynvml."""
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return Found(state="NVIDIA devices were not looked for: the package nvidia-ml-py is not installed.")
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Found(state=_state(error))
    try:
        driver = _text(_ask(nvml, nvml.nvmlSystemGetDriverVersion)) or ""
        devices = tuple(_device(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount()))
        return Found(devices, "" if devices else "The NVIDIA driver is installed, but lists no device.")
    except nvml.NVMLError as error:
        return Found(state=_state(error))
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def _state(error: Exception) -> str:
    kind = type(error).__name__.removeprefix("NVMLError_")
    if kind in ("LibraryNotFound", "DriverNotLoaded"):
        return NO_DRIVER
    if kind == "LibRmVersionMismatch":
        return "The NVIDIA driver was updated while running; restart the computer to use its devices."
    return f"The NVIDIA driver does not answer ({error})."


def _device(nvml: Any, index: int, driver: str) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _text(nvml.nvmlDeviceGetName(handle)) or "NVIDIA device"
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    text = f"{capability[0]}.{capability[1]}" if capability else ""
    hardware_class, note = nvidia_class(text)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    notes = (note,) if note else ()
    if memory is None:  # chips that share the computer's memory (GB10, Jetson) have none of their own
        shared = psutil.virtual_memory()
        total, free = int(shared.total), int(shared.available)
        notes = (*notes, "It shares the computer's memory.")
    else:
        total, free = int(memory.total), int(memory.free)
    bandwidth = _bandwidth(nvml, handle)
    return complete(
        Device(
            id=f"nvidia-{index}",
            name=name,
            vendor="NVIDIA",
            kind="gpu",
            hardware_class=hardware_class,
            memory_bytes=total,
            free_bytes=free,
            bandwidth=bandwidth,
            bandwidth_from="driver" if bandwidth else "",
            compute_capability=text,
            driver=driver,
            unified_memory=memory is None,
            notes=notes,
        )
    )


def _bandwidth(nvml: Any, handle: Any) -> float | None:
    """Bytes/s from bus width and highest memory clock; NVML's clock counts one edge, data moves on both.

    Checked against data sheets: H100 SXM 5120 bit × 2619 MHz = 3.35 TB/s, RTX 4090 384 bit × 10501 MHz = 1008 GB/s.
    """
    width = _ask(nvml, nvml.nvmlDeviceGetMemoryBusWidth, handle)
    clock = _ask(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM)
    return width / 8 * clock * 1e6 * 2 if width and clock else None


def _ask(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The answer, or None for what this device or driver does not support."""
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
