"""Starts kernels, or, for cards that are not there, writes down what would be started.

All launchers start kernels by `launch`, so that ahead-of-time compilation sees the very arguments, constants and
settings that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Launch:
    """arguments: in order; constants: by name. stages: of software pipelining; fusion: a · b + c rounded once.

    stages None: as many as the compiler takes for the card by itself, for loops that do not say it. registers: that a
    thread may have; 0: as many as the assembler takes, of NVIDIA's one that rather spills a few than run fewer at once.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int
    stages: int | None
    fusion: bool
    registers: int = 0


_recording: list[tuple[str, list[Launch]]] = []


@contextmanager
def recording(card: str) -> Iterator[list[Launch]]:
    """Nothing is started until it ends; launchers take tensors on torch's 'meta' device, as if on this card."""
    found: list[Launch] = []
    _recording.append((card, found))
    try:
        yield found
    finally:
        _recording.pop()


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    warps: int = 4,
    stages: int | None = 3,
    fusion: bool = True,
    registers: int = 0,
    **constants: Any,
) -> None:
    """fusion False: each product and sum is rounded by itself, as the reference rounds it."""
    if _recording:
        _recording[-1][1].append(Launch(kernel, grid, arguments, constants, warps, stages, fusion, registers))
        return
    settings = {"num_warps": warps, "enable_fp_fusion": fusion}
    if stages is not None:
        settings["num_stages"] = stages
    if registers:
        settings["maxnreg"] = registers
    kernel[grid](*arguments, **constants, **settings)


def card_of(tensor: torch.Tensor) -> str:
    """'sm_90', 'gfx942' … of the tensor's device; 'cpu' under the interpreter."""
    if _recording:
        return _recording[-1][0]
    return card_at(tensor.device.index) if tensor.is_cuda else "cpu"


@cache
def card_at(index: int) -> str:
    """The card of a device of torch's."""
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def power_above(value: int, least: int = 1) -> int:
    """The least power of two that is neither below `value` nor `least`, which is one itself."""
    return max(1 << max(value - 1, 0).bit_length(), least)
