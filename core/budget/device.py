"""How many bytes a model may take so that it runs on a device with a context: the arithmetic of `core.memory`."""

from __future__ import annotations

from core.checkpoint.base import Checkpoint
from core.contract import ByteCount
from core.errors import UserError
from core.hardware.device import Device
from core.hardware.table import find_known, known_devices
from core.memory import Cache, estimate
from core.models import model_shape
from core.units import format_bytes, format_count


def find_device(key: str) -> Device:
    """A device of the table by its id ('known-rtx-4060'), its id without 'known-', or its name. Raises UserError."""
    word = key.strip().casefold()
    for device in known_devices():
        if word in (device.id, device.id.removeprefix("known-"), device.name.casefold()):
            return device
    found = find_known(key)
    if found is None:
        raise UserError(f"There is no device '{key}' in the table.", "See 'bitsmith devices --known', or give --size.")
    return found


def budget_of(checkpoint: Checkpoint, memory_bytes: int, context: int, batch: int = 1, cache: Cache = 16) -> int:
    """Bytes that are left for the file beside the cache of `batch` sequences of `context` tokens and the workspace.

    The table has GB where chips have GiB, which is more than a driver takes. Raises UserError where nothing is left, or
    the shape of the model is not known.
    """
    shape = model_shape(checkpoint)
    if shape is None:
        raise UserError("The size of this model's cache is not known.", "Give the budget in bytes with --size.")
    if context < 1 or batch < 1:
        raise UserError(f"A context of {format_count(context)} tokens can not be planned for.", "Give 1 or more.")
    rest = estimate(ByteCount(), shape=shape, context=context, batch=batch, cache=cache).used
    if rest >= memory_bytes:
        raise UserError(
            f"The cache and the workspace for {format_count(context)} tokens take {format_bytes(rest)}; the device has "
            f"{format_bytes(memory_bytes)}.",
            "Choose a shorter context, or a device with more memory.",
        )
    return memory_bytes - rest
