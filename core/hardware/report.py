"""What `bitsmith devices` says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from core.hardware.detect import detect
from core.hardware.device import Device, Machine
from core.hardware.matrix import hardware_classes
from core.hardware.table import known_devices
from core.units import format_bytes, format_rate


def devices_report(known: bool = False, machine: Machine | None = None) -> dict[str, Any]:
    """This computer's devices, with known=True also those of the table: plain values for JSON."""
    machine = machine or detect()
    report: dict[str, Any] = {
        "devices": [plain_device(device) for device in machine.devices],
        "notes": list(machine.notes),
    }
    if known:
        report["known"] = [plain_device(device) for device in known_devices()]
    return report


def device_lines(report: Mapping[str, Any]) -> list[str]:
    """The report as lines of text."""
    lines = ["This computer:"]
    lines += [f"  {device_sentence(row)}" for row in report["devices"]]
    lines += [f"  {note}" for note in report["notes"]]
    if "known" in report:
        lines += ["", "Devices that can be chosen as target:"]
        lines += [f"  {device_sentence(row)}" for row in report["known"]]
    return lines


def print_devices(report: Mapping[str, Any]) -> None:
    """Write `device_lines` to standard output."""
    sys.stdout.write("\n".join(device_lines(report)) + "\n")


def plain_device(device: Device) -> dict[str, Any]:
    """All that is known of a device: plain values for JSON."""
    row = asdict(device)
    row["hardware_class_label"] = hardware_classes().get(device.hardware_class, "not in the matrix")
    row["peak"] = dict(device.peak)
    return row


def device_sentence(row: Mapping[str, Any]) -> str:
    """One row of the report as a sentence."""
    parts = [row["name"]]
    if row["memory_bytes"]:
        parts.append(format_bytes(row["memory_bytes"]))
    if row["bandwidth"]:
        parts.append(f"{format_rate(row['bandwidth'])} ({row['bandwidth_from']})")
    if row["instruction_sets"]:
        parts.append(" ".join(row["instruction_sets"]))
    return ", ".join([*parts, row["hardware_class_label"]]) + "."
