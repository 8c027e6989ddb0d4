"""Where a model runs: on the processor, or on a GPU that the kernels can use; and what is in the way.

Nothing here imports torch before a GPU is asked for and a driver shows one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.units import format_bytes, format_count

if TYPE_CHECKING:
    from core.runtime.reading import Matrices
    from core.runtime.weights import WeightPlan
    from kernels.matrix import Activations
    from kernels.program import CacheLayout, Program

_ASK_CPU = "Choose the processor (cpu)."
# What a first product of each shape takes beside weights and cache: the driver's context, kernels, cuBLAS's workspace.
OVERHEAD = 600 * 10**6


@dataclass(frozen=True)
class Place:
    """A device: the processor, or GPU `index`."""

    gpu: bool = False
    index: int = 0

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"gpu:{self.index}" if self.gpu else "cpu"


CPU = Place()


def parse_place(text: str) -> Place:
    """'cpu', 'gpu' or 'gpu:1'. Raises UserError for anything else."""
    found = re.fullmatch(r"(cpu)|gpu(?::(\d{1,4}))?", text.strip().lower())
    if found is None:
        raise UserError(f"'{text}' is no device that models run on.", "Give cpu, gpu, or gpu:1 for the second GPU.")
    return CPU if found[1] else Place(True, int(found[2] or 0))


def problem(place: Place) -> tuple[str, str]:
    """Why nothing can run there, as a clause, and what to do about it; two empty texts where it can."""
    if not place.gpu:
        return "", ""
    from kernels import gpu

    state = gpu.state()
    if not state.ready:
        return state.reason, state.remedy or _ASK_CPU
    import torch

    count = torch.cuda.device_count()
    if place.index >= count:
        there = "there is one GPU" if count == 1 else f"there are {format_count(count)} GPUs"
        return f"{there}, numbered from 0", f"Choose gpu:{count - 1}." if count else _ASK_CPU
    return "", ""


def check_place(place: Place, fallback: bool = False) -> None:
    """Raise UserError where nothing can run there, and nothing else was asked for then."""
    reason, remedy = problem(place)
    if reason and not fallback:
        raise UserError(f"{_shown(place)} can not be used: {reason}.", remedy)


def open_device(place: Place) -> Any:
    """The `kernels.gpu.runtime.device.Device`. Raises UserError where nothing can run there."""
    check_place(place)
    from kernels.gpu.runtime.device import Device
    from kernels.gpu.runtime.failures import OutOfMemory

    try:
        return Device(place.index)
    except OutOfMemory as error:
        raise out_of_memory(place, error.wanted, error.free) from error


def device_matrices(device: Any, activations: Activations) -> Matrices:
    """What packs weights for a device, for programs with these activations."""
    from kernels.gpu.runtime.matrices import DeviceMatrices

    return DeviceMatrices(device, activations)


def gpu_places() -> tuple[tuple[Place, str], ...]:
    """Every GPU that the kernels can use, with its name; takes as long as importing torch where there is one."""
    if problem(Place(True))[0]:
        return ()
    import torch

    return tuple((Place(True, i), str(torch.cuda.get_device_name(i))) for i in range(torch.cuda.device_count()))


def memory_of(place: Place) -> tuple[int, int] | None:
    """Bytes in use, by all programs, and all there are, as the driver says; None where it does not."""
    if not place.gpu:
        return None
    from core.hardware.nvidia import detect_nvidia

    devices = detect_nvidia().devices
    if len(devices) == 1 and devices[0].memory_bytes and not devices[0].unified_memory:
        return devices[0].memory_bytes - (devices[0].free_bytes or 0), devices[0].memory_bytes
    import torch  # numbers devices as models were placed; NVML may not

    try:
        free, total = torch.cuda.mem_get_info(place.index)
    except (RuntimeError, AssertionError):
        return None
    return int(total - free), int(total)


def check_room(place: Place, plan: WeightPlan, cache: CacheLayout, work: int, free: int) -> None:
    """Raise UserError, before anything is read, where weights, cache and work do not fit in `free` bytes."""
    need = device_bytes(plan, cache, work)
    if need <= free:
        return
    raise UserError(
        f"{_shown(place)} has {format_bytes(free)} free, and the model needs {format_bytes(need)} there: "
        f"{format_bytes(weight_bytes(plan))} for the weights, {format_bytes(cache.nbytes)} for a context of "
        f"{format_count(cache.capacity)} tokens.",
        "Choose a shorter context, a smaller file, or the processor (cpu).",
    )


def device_bytes(plan: WeightPlan, cache: CacheLayout, work: int) -> int:
    """What a model is going to take of a GPU's memory."""
    return weight_bytes(plan) + cache.nbytes + work + largest_copy(plan) + OVERHEAD


def weight_bytes(plan: WeightPlan) -> int:
    """About what packed weights take: as in the file and some percent, or in 16 bits where no decoder reads them."""
    from kernels.gpu.weights.layout import packed_row
    from kernels.layouts import BLOCK_KINDS, PLAIN_KINDS

    total = 0.0
    for slot in plan.slots:
        kind = slot.stored.format
        if kind in BLOCK_KINDS and kind not in PLAIN_KINDS and not slot.is_vector:
            row = packed_row(kind, slot.shape[-1]) or 2.0 * slot.shape[-1]
            total += row * _values(slot.shape[:-1])
        else:
            total += slot.memory_bytes
    return round(total)


def largest_copy(plan: WeightPlan) -> int:
    """Bytes of the largest layer in 16 bits: what the library multiplies prompts with."""
    sizes = [
        2 * _values(slot.shape)
        for slot in plan.slots
        if not slot.is_vector and slot.name not in ("token_embd.weight", "output.weight")
    ]
    return max(sizes, default=0)


def out_of_memory(place: Place, wanted: int, free: int, program: Program | None = None) -> UserError:
    """A run's or a load's end, with the numbers that are known."""
    what = f" for {format_bytes(wanted)}" if wanted else ""
    held = f" besides a cache of {format_bytes(program.cache.nbytes)}" if program is not None else ""
    return UserError(
        f"The memory of {_shown(place, middle=True)} did not suffice{what}: {format_bytes(free)} are free{held}.",
        "Choose a shorter context, a smaller file, or the processor (cpu).",
    )


def not_usable(place: Place, reason: str) -> UserError:
    """Of a model that the kernels there do not take. reason: a clause."""
    return UserError(f"{_shown(place)} can not run this model: {reason}.", _ASK_CPU)


def _shown(place: Place, middle: bool = False) -> str:
    the = "the" if middle else "The"
    return f"{the} GPU" if not place.index else f"GPU {place.index}"


def _values(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
