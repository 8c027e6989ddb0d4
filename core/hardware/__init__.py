"""What this computer is, the table of known devices, and which runtime runs which format on what."""

from __future__ import annotations

from core.hardware.detect import detect
from core.hardware.device import Device, Machine
from core.hardware.matrix import Cell, State, cell, cell_for_model, runtimes
from core.hardware.table import find_known, known_devices

__all__ = [
    "Cell",
    "Device",
    "Machine",
    "State",
    "cell",
    "cell_for_model",
    "detect",
    "find_known",
    "known_devices",
    "runtimes",
]
