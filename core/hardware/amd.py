"""AMD graphics on Linux: what the kernel's own files say, with rocm-smi for a name where it is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from core.hardware.classes import amd_class
from core.hardware.device import Device, Found
from core.hardware.system import read, read_int, run
from core.hardware.table import complete

VENDOR_ID = 0x1002
DRM, KFD = Path("/sys/class/drm"), Path("/sys/class/kfd/kfd/topology/nodes")
SMALL_VRAM = 4 * 2**30  # less belongs to a processor's own graphics, which borrow main memory (GTT) besides
_ROCM_SMI = ("rocm-smi", "--showproductname", "--json")


def detect_amd(drm: Path = DRM, kfd: Path = KFD, ask: Callable[[tuple[str, ...]], str] = run) -> Found:
    """Every AMD graphics device that Linux lists, in the order of its cards."""
    cards = [card / "device" for card in sorted(drm.glob("card[0-9]*")) if "-" not in card.name]
    cards = [
        card for card in cards if read_int(card / "vendor") == VENDOR_ID and read_int(card / "mem_info_vram_total")
    ]
    if not cards:
        return Found(state="No AMD graphics device was found.")
    chips = gfx_names(kfd)
    names = product_names(ask(_ROCM_SMI)) if any(not read(card / "product_name") for card in cards) else []
    devices = []
    for index, card in enumerate(cards):
        chip = chips[index] if index < len(chips) else ""
        name = read(card / "product_name") or (names[index] if index < len(names) else "") or f"AMD graphics {chip}"
        devices.append(_device(index, card, name.strip(), chip))
    state = "" if chips else "AMD's compute driver (amdkfd) is not loaded, so the chip can not be told."
    return Found(tuple(devices), state)


def gfx_names(kfd: Path) -> list[str]:
    """'gfx942', 'gfx1100' … of the nodes with graphics, from gfx_target_version (90402: 9, 4, 2; last part in hex)."""
    chips = []
    nodes = sorted(kfd.glob("*"), key=lambda node: int(node.name) if node.name.isdigit() else 0)
    for node in nodes:
        fields = dict(line.split(None, 1) for line in read(node / "properties").splitlines() if " " in line)
        version = int(fields.get("gfx_target_version", "0") or 0)
        if version:
            chips.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    return chips


def product_names(text: str) -> list[str]:
    """Names in rocm-smi's JSON, {"card0": {"Card Series": …}}; [] when it said nothing that can be read."""
    try:
        cards = json.loads(text)
        return [str(card.get("Card Series") or card.get("Card series") or "") for _, card in sorted(cards.items())]
    except (ValueError, AttributeError):
        return []


def _device(index: int, card: Path, name: str, chip: str) -> Device:
    hardware_class, note = amd_class(chip)
    kinds = ("vram", "gtt") if (read_int(card / "mem_info_vram_total") or 0) < SMALL_VRAM else ("vram",)
    total = sum(read_int(card / f"mem_info_{kind}_total") or 0 for kind in kinds)
    used = sum(read_int(card / f"mem_info_{kind}_used") or 0 for kind in kinds)
    return complete(
        Device(
            id=f"amd-{index}",
            name=name,
            vendor="AMD",
            kind="gpu",
            hardware_class=hardware_class,
            memory_bytes=total,
            free_bytes=max(total - used, 0),
            compute_capability=chip,
            unified_memory="gtt" in kinds,
            notes=(note,) if note else (),
        )
    )
