"""Intel graphics on Linux: Arc cards by their PCI number. Level Zero is not needed to name them."""

from __future__ import annotations

from pathlib import Path

from core.hardware.device import Device, Found
from core.hardware.system import read_int
from core.hardware.table import complete

VENDOR_ID = 0x8086
DRM = Path("/sys/class/drm")
ARC = {  # PCI device numbers: include/drm/intel/pciids.h of Linux
    0x56A0: "Arc A770 16GB",
    0x56A1: "Arc A750",
    0x56A5: "Arc A380",
    0xE20B: "Arc B580",
    0xE20C: "Arc B570",
    0xE211: "Arc Pro B60",
    0xE212: "Arc Pro B50",
}
_MEMORY = ("lmem_total_bytes", "device/tile0/physical_vram_size_bytes")


def detect_intel(drm: Path = DRM) -> Found:
    """Every Intel Arc card that Linux lists. Graphics inside a processor share its memory and are left out."""
    devices: list[Device] = []
    integrated = False
    for card in sorted(drm.glob("card[0-9]*")):
        if "-" in card.name or read_int(card / "device" / "vendor") != VENDOR_ID:
            continue
        name = ARC.get(read_int(card / "device" / "device") or 0, "")
        if not name:
            integrated = True
            continue
        memory = next((size for file in _MEMORY if (size := read_int(card / file))), None)
        devices.append(
            complete(
                Device(
                    id=f"intel-{len(devices)}",
                    name=name,
                    vendor="Intel",
                    kind="gpu",
                    hardware_class="intel_xe",
                    memory_bytes=memory,
                )
            )
        )
    if devices:
        return Found(tuple(devices))
    inside = "Only Intel graphics inside the processor were found; they share its memory."
    return Found(state=inside if integrated else "No Intel graphics card was found.")
