"""What a computer is and what it can run, in words for somebody who knows neither instruction sets nor bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.hardware.device import Device
from core.units import format_count, format_decimal, format_decimals

# A model in 4 bits as llama.cpp's Q4_K_M has it, 4.85 bits a weight, with cache and workspace for 8,192 tokens: those
# take 0.13 bytes a weight in models of 8 B (Llama 3: 1.07 GB) and less in larger ones.
BYTES_PER_WEIGHT = 4.85 / 8 + 0.1
SHARED, OWN = 0.8, 0.92  # of a memory that the system uses as well, and of a graphics card's
COMMON = 8e9  # weights of a model of which a speed is told
_SETS = (  # the best that is found is named; the beginning of its name → words
    ("amx", "matrix units (AMX)"),
    ("avx512", "16 numbers at a time (AVX-512)"),
    ("avx2", "8 numbers at a time (AVX2)"),
    ("avx", "8 numbers at a time (AVX)"),
    ("sse", "4 numbers at a time (SSE)"),
    ("i8mm", "products of 8-bit matrices (I8MM)"),
    ("sve", "several numbers at a time (SVE)"),
    ("dotprod", "16 products at a time (NEON)"),
    ("neon", "4 numbers at a time (NEON)"),
)


@dataclass(frozen=True)
class Ability:
    """Sentences about a computer. graphics: '' where there is no device but the processor."""

    processor: str
    memory: str
    graphics: str
    largest: str


def ability(devices: Sequence[Device]) -> Ability:
    """devices: those of this computer, the processor first."""
    cpu, cards = devices[0], devices[1:]
    cores = f"{format_count(cpu.cores)} {'core' if cpu.cores == 1 else 'cores'}" if cpu.cores else ""
    sets = instruction_words(cpu.instruction_sets)
    processor = ", ".join(part for part in (cpu.name, cores, sets) if part)
    memory = f"{format_decimal(cpu.memory_bytes)} of memory" if cpu.memory_bytes else "an unknown amount of memory"
    if cpu.free_bytes:
        memory += f", {format_decimal(cpu.free_bytes)} of it free"
    graphics = "; ".join(
        f"{card.name} with {format_decimal(card.memory_bytes)}" if card.memory_bytes else card.name for card in cards
    )
    return Ability(processor, memory, graphics, _largest(devices))


def instruction_words(sets: Sequence[str]) -> str:
    """('avx', 'avx2') → '8 numbers at a time (AVX2)'; '' when nothing is known."""
    names = [name.casefold() for name in sets]
    return next((words for start, words in _SETS if any(name.startswith(start) for name in names)), "")


def largest_model(device: Device) -> float | None:
    """Weights of the largest model that fits the device at 4 bits; None while its memory is not known."""
    if not device.memory_bytes:
        return None
    own = device.kind not in ("cpu", "soc", "apu") and not device.unified_memory
    return device.memory_bytes * (OWN if own else SHARED) / BYTES_PER_WEIGHT


def weights_words(weights: float) -> str:
    """27.3e9 → '27 billion', 1.26e9 → '1.3 billion', 4e8 → '400 million'."""
    if weights >= 0.95e9:
        billions = weights / 1e9
        short = format_decimals(billions, 1).removesuffix(".0") if billions < 9.95 else format_count(billions)
        return f"{short} billion"
    return f"{format_count(round(weights / 1e6, -1))} million"


def _largest(devices: Sequence[Device]) -> str:
    known = [(found, device) for device in devices if (found := largest_model(device))]
    if not known:
        return "How large a model fits is not known."
    most, _ = max(known, key=lambda pair: pair[0])
    text = f"Runs models of up to about {weights_words(most)} weights at 4 bits"
    quick = max(devices, key=lambda d: d.bandwidth or 0.0)
    if quick.bandwidth and (room := largest_model(quick)):
        size = min(COMMON, room)
        rate = quick.bandwidth / (size * BYTES_PER_WEIGHT)
        speed = format_count(rate) if rate >= 2 else format_decimals(rate, 1)
        text += f"; one of {weights_words(size)} writes at most {speed} tokens a second"
    return f"{text}."
