"""The devices that a result can be meant for: those of this computer first, then the known ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.services import Services


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
    device: Any = None


def load_devices(services: Services, show: Callable[[Sequence[DeviceChoice]], object]) -> None:
    """Find the devices in the background, hand them to `show` and choose the one used last, else the first."""

    def done(choices: tuple[DeviceChoice, ...]) -> None:
        wanted = services.settings.text("last/device")
        chosen = next((choice for choice in choices if choice.key == wanted), choices[0] if choices else None)
        if services.session.current.device is None and chosen is not None:
            services.session.update(device=chosen)
        show(choices)

    services.jobs.run("Look for devices", lambda _token: find_devices(), done)


def find_devices() -> tuple[DeviceChoice, ...]:
    """This computer's memory as the system reports it."""
    import psutil

    total = int(psutil.virtual_memory().total)
    return (DeviceChoice("cpu", "This computer's memory", total, None, own=True),)
