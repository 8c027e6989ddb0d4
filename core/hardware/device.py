"""What is known of a device that computes, on this computer or in the table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One device that a model could run on.

    id: stable, 'cpu', 'nvidia-0' here and 'known-…' for the table. hardware_class: a class of the support matrix.
    kind: cpu, gpu or soc here; the table also says datacenter, workstation, consumer, laptop, apu.
    memory_bytes, free_bytes: None when not known; for unified memory what the system shares with graphics.
    bandwidth: bytes/s, None when not known; bandwidth_from: 'measured', 'driver' (computed from clock and bus width),
    'table', or ''. compute_capability: NVIDIA's '8.9', AMD's 'gfx1100'. instruction_sets: of a processor, best last.
    present: part of this computer. peak: (type, dense 10^12 operations/s). notes: sentences worth reading.
    """

    id: str
    name: str
    vendor: str
    kind: str
    hardware_class: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    bandwidth: float | None = None
    bandwidth_from: str = ""
    compute_capability: str = ""
    instruction_sets: tuple[str, ...] = ()
    cores: int = 0
    threads: int = 0
    driver: str = ""
    present: bool = True
    unified_memory: bool = False
    peak: tuple[tuple[str, float], ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """This computer: its devices, the processor first, and what was looked for and not found."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()

    @property
    def cpu(self) -> Device:
        return self.devices[0]

    @property
    def best(self) -> Device:
        """The device with the highest bandwidth: where a model that fits decodes fastest."""
        return max(self.devices, key=lambda d: d.bandwidth or 0.0)


@dataclass(frozen=True)
class Found:
    """What looking for one vendor's devices gave. state: '' when all is well, else one sentence (no driver, …)."""

    devices: tuple[Device, ...] = ()
    state: str = ""
