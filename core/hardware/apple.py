"""Apple chips: one memory for processor and graphics."""

from __future__ import annotations

import sys
from collections.abc import Callable

import psutil

from core.hardware.device import Device, Found
from core.hardware.system import sysctl
from core.hardware.table import complete

# What Metal lets graphics use of the memory unless the limit was raised (recommendedMaxWorkingSetSize as seen on Macs).
SHARE_SMALL, SHARE_LARGE, LARGE = 2 / 3, 3 / 4, 36 * 2**30


def detect_apple(ask: Callable[[str], str] = sysctl, system: str = sys.platform) -> Found:
    """The graphics side of an Apple chip, with the part of memory that it may use."""
    if system != "darwin":
        return Found()
    brand = ask("machdep.cpu.brand_string")
    if not brand.startswith("Apple"):
        return Found(state="This Mac has an Intel processor; its graphics are not used.")
    total = int(ask("hw.memsize") or psutil.virtual_memory().total)
    limit = int(ask("iogpu.wired_limit_mb") or 0) * 2**20
    usable = limit or int(total * (SHARE_LARGE if total > LARGE else SHARE_SMALL))
    device = complete(
        Device(
            id="apple-0",
            name=brand,
            vendor="Apple",
            kind="soc",
            hardware_class="apple_m",
            memory_bytes=usable,
            free_bytes=min(usable, int(psutil.virtual_memory().available)),
            unified_memory=True,
            notes=("Graphics and processor share the memory; this is the part that graphics may use.",),
        )
    )
    return Found((device,))
