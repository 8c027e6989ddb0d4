"""What can go wrong on a GPU, known where torch is not."""

from __future__ import annotations

import re
import traceback


class OutOfMemory(Exception):
    """wanted: bytes that were asked for, 0 where that is not known; free: left."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} bytes were asked for, {free} are free")
        self.wanted, self.free = wanted, free


class SwitchedOff(Exception):
    """A kernel that a step needs has failed its self-test, and nothing stands in for it."""


def out_of_memory(error: Exception, free: int) -> OutOfMemory:
    """torch's error, which has its number in a sentence alone, as ours."""
    found = re.search(r"allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)", str(error))
    if found is None:
        return OutOfMemory(0, free)
    return OutOfMemory(round(float(found[1]) * 1024 ** ("bytes", "KiB", "MiB", "GiB", "TiB").index(found[2])), free)


def forget(error: BaseException) -> None:
    """Let go of what the functions held that an error has left: tensors that would stay as long as it does."""
    met: BaseException | None = error
    while met is not None:
        traceback.clear_frames(met.__traceback__)
        met.__traceback__ = None
        met = met.__cause__ or met.__context__
