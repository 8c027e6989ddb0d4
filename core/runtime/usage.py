"""What a run takes of this machine besides time: peak memory and energy, where the system tells."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

POWERCAP = Path("/sys/class/powercap")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """Let the peak start anew at what is resident now. Linux only; elsewhere the peak is that of the process."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")  # proc(5): resets VmHWM


def peak_rss() -> int:
    """Largest resident memory in bytes since `reset_peak`, or of the process where that has no effect."""
    try:
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):  # Windows
        return int(info.peak_wset)
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit
    return int(info.rss)


@dataclass(frozen=True)
class Energy:
    """joules: of all processor packages together, None when unknown, and then `reason` says why in one sentence."""

    joules: float | None
    reason: str = ""


class EnergyMeter:
    """RAPL counters as Linux shows them, from `start` to `stop`. They count the whole package, other programs too."""

    def __init__(self, root: Path = POWERCAP) -> None:
        # 'intel-rapl:0' is a package (on AMD, too); 'intel-rapl:0:0' a part of it that it already counts.
        self._zones = sorted(p for p in root.glob("intel-rapl:*") if p.name.count(":") == 1 and _is_package(p))
        self._before: list[int] = []
        self.reason = "" if self._zones else "This computer shows no energy counters."

    def start(self) -> None:
        try:
            self._before = [_number(zone / "energy_uj") for zone in self._zones]
        except PermissionError:
            self.reason = "The energy counters may be read by the administrator only."
        except (OSError, ValueError):
            self.reason = "The energy counters can not be read."

    def stop(self) -> Energy:
        if self.reason or not self._before:
            return Energy(None, self.reason or "The energy counters were not started.")
        try:
            used = 0
            for zone, before in zip(self._zones, self._before, strict=True):
                now = _number(zone / "energy_uj")
                # A counter starts at 0 again after its range, some minutes of full load.
                used += now - before if now >= before else now - before + _number(zone / "max_energy_range_uj")
        except (OSError, ValueError):
            return Energy(None, "The energy counters can not be read.")
        if used <= 0:
            return Energy(None, "The energy counters stand still.")
        return Energy(used / 1e6)


def _is_package(zone: Path) -> bool:
    try:
        return (zone / "name").read_text(encoding="ascii").startswith("package")
    except OSError:
        return False


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
