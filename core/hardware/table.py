"""The table of known devices (resources/devices.json) and which entry a driver's name stands for."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from core.hardware.device import Device
from resources import read_json

GB = 10**9  # the table states GB as vendors do

# Words that vendors add or leave out without meaning another chip.
_NOISE = frozenset(
    (
        "nvidia",
        "amd",
        "intel",
        "geforce",
        "tesla",
        "radeon",
        "instinct",
        "gpu",
        "graphics",
        "generation",
        "edition",
        "workstation",
        "server",
        "r",
        "tm",
        "dgx",
        "spark",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
        "sxm",
        "sxm2",
        "sxm4",
        "sxm5",
        "oam",
        "core",
        "blackwell",
    )
)
_MEMORY_TOLERANCE = 0.13  # '24 GB' on the box is 24 GiB on the chip (7 %), less what error correction and drivers take


@cache
def known_devices() -> tuple[Device, ...]:
    """Every device of the table, in its order. None of them is part of this computer."""
    return tuple(_device(row) for row in read_json("devices.json")["devices"])


def find_known(name: str, memory_bytes: int | None = None, vendor: str = "") -> Device | None:
    """The entry for a name as a driver or a person writes it, None when none fits.

    memory_bytes decides between sizes of one chip; an entry whose memory differs by more than a seventh never fits.
    """
    wanted = _words(name)
    entries = [d for d in known_devices() if not vendor or d.vendor.casefold() == vendor.casefold()]
    for ignored in (frozenset[str](), frozenset({"pcie"})):
        same = (d for d in entries if _words(d.name) - ignored == wanted - ignored)
        fitting = [d for d in same if _same_memory(d, name, memory_bytes)]
        if fitting:
            return min(fitting, key=lambda d: abs((d.memory_bytes or 0) - (memory_bytes or d.memory_bytes or 0)))
    return None


def complete(device: Device) -> Device:
    """The device with what only the table knows: bandwidth when no better figure is there, and peak rates."""
    entry = find_known(device.name, device.memory_bytes, device.vendor)
    if entry is None:
        return device
    device = replace(device, peak=entry.peak, source=entry.source)
    if device.bandwidth is None:
        device = replace(device, bandwidth=entry.bandwidth, bandwidth_from="table")
    if device.memory_bytes is None:
        device = replace(device, memory_bytes=entry.memory_bytes)
    return device


def _same_memory(entry: Device, name: str, memory_bytes: int | None) -> bool:
    size = memory_bytes or _stated_memory(name)
    if size is None or entry.memory_bytes is None or entry.kind in ("soc", "apu", "cpu"):
        return True
    return abs(size / entry.memory_bytes - 1) <= _MEMORY_TOLERANCE


def _stated_memory(name: str) -> int | None:
    found = re.search(r"(\d+)\s*GB\b", name, re.IGNORECASE)
    return int(found.group(1)) * GB if found else None


def _words(name: str) -> frozenset[str]:
    plain = re.sub(r"\(.*?\)|\b\d+\s*gb\b", " ", name.casefold())
    return frozenset(re.findall(r"[a-z0-9+]+", plain)) - _NOISE


def _device(row: dict[str, object]) -> Device:
    memory, bandwidth, peak = row["memory_gb"], row["bandwidth_gbs"], row["peak"]
    assert isinstance(peak, dict)
    name = str(row["name"])
    return Device(
        id="known-" + re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-"),
        name=name,
        vendor=str(row["vendor"]),
        kind=str(row["kind"]),
        hardware_class=str(row["hardware_class"]),
        memory_bytes=round(memory * GB) if isinstance(memory, int | float) else None,
        bandwidth=bandwidth * 1e9 if isinstance(bandwidth, int | float) else None,
        bandwidth_from="table" if bandwidth else "",
        compute_capability=str(row["compute_capability"]),
        present=False,
        unified_memory=row["kind"] in ("soc", "apu"),
        peak=tuple((kind, float(rate)) for kind, rate in peak.items()),
        source=str(row["source"]),
        notes=(str(row["note"]),) if row["note"] else (),
    )
