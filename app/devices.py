"""The devices that a result can be meant for: those of this computer first, then the known ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.units import format_bytes, format_rate

if TYPE_CHECKING:
    from app.services import Services
    from core.hardware import Device

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceChoice:
    """One entry of the device picker. key: stable, remembered. capacity: bytes or None. bandwidth: bytes/s or None.

    own: part of this computer. note: what to know about it, for the tooltip. device: core.hardware's own description.
    """

    key: str
    label: str
    capacity: int | None
    bandwidth: float | None
    own: bool
    note: str = ""
    device: Device | None = None


def load_devices(services: Services) -> None:
    """Find the devices in the background, tell them, and choose the one used last, else the fastest here.

    Where they can not be found out, the window goes on without: sizes are shown, and not whether they fit.
    """

    def done(found: tuple[tuple[DeviceChoice, ...], str]) -> None:
        choices, best = found
        by_key = {choice.key: choice for choice in choices}
        chosen = by_key.get(services.settings.text("last/device")) or by_key.get(best)
        if services.session.current.device is None and chosen is not None:
            services.session.update(device=chosen)
        services.shell.devices_known.emit(choices)

    def failed(error: BaseException) -> None:
        log.warning("no devices", exc_info=error)
        services.shell.devices_known.emit(())
        services.shell.notice.emit(
            "What this computer has could not be found out.",
            "Sizes are exact all the same; Help, Check this computer says what is missing.",
        )

    services.jobs.run("Look for devices", lambda _token: find_devices(), done, failed)


def find_devices() -> tuple[tuple[DeviceChoice, ...], str]:
    """This computer's devices, then the table's; and the key of the fastest one here. Takes about half a second."""
    from core.hardware import detect, known_devices

    machine = detect()
    here = {device.name for device in machine.devices}
    others = [device for device in known_devices() if device.name not in here]
    return tuple(map(choice_of, (*machine.devices, *others))), machine.best.id


def choice_of(device: Device) -> DeviceChoice:
    """A device as an entry of the picker."""
    facts = []
    if device.memory_bytes is not None:
        facts.append(format_bytes(device.memory_bytes))
    if device.bandwidth is not None:
        origin = f" ({device.bandwidth_from})" if device.bandwidth_from else ""
        facts.append(f"reads {format_rate(device.bandwidth)}{origin}")
    note = "\n".join([device.name, ", ".join(facts), *device.notes])
    return DeviceChoice(
        device.id, device.name, device.memory_bytes, device.bandwidth, own=device.present, note=note, device=device
    )
