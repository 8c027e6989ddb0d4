"""What a computer can run, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.hardware.device import Device
from core.hardware.words import ability, instruction_words, largest_model, weights_words

CPU = Device(
    "cpu", "Some CPU", "AMD", "cpu", "x86_avx2", 16_000_000_000, 9_000_000_000, 50e9,
    instruction_sets=("sse4.2", "avx", "avx2"), cores=8, threads=16,
)  # fmt: skip
CARD = Device("nvidia-0", "RTX 4090", "NVIDIA", "gpu", "nvidia_ada", 24_000_000_000, bandwidth=1008e9)


def test_a_computer_without_a_card() -> None:
    found = ability([CPU])
    assert found.processor == "Some CPU, 8 cores, 8 numbers at a time (AVX2)"
    assert found.memory == "16.00 GB of memory, 9.00 GB of it free"
    assert found.graphics == ""
    # 0.8 × 16 GB ÷ (4.85 ÷ 8 + 0.1) bytes; 50 GB/s ÷ (8·10⁹ × 0.706 bytes)
    assert found.largest == (
        "Runs models of up to about 18 billion weights at 4 bits; one of 8 billion writes at most 9 tokens a second."
    )


def test_a_card_counts_where_it_holds_more_and_reads_faster() -> None:
    found = ability([CPU, CARD])
    assert found.graphics == "RTX 4090 with 24.00 GB"
    assert found.largest.startswith("Runs models of up to about 31 billion weights at 4 bits; one of 8 billion writes")
    small = ability([replace(CPU, memory_bytes=64_000_000_000), replace(CARD, memory_bytes=4_000_000_000)])
    assert "up to about 72 billion" in small.largest
    assert "one of 5.2 billion" in small.largest


def test_what_is_not_known_is_not_said() -> None:
    bare = Device("cpu", "Processor", "", "cpu", "unknown")
    found = ability([bare])
    assert found.processor == "Processor"
    assert found.largest == "How large a model fits is not known."
    assert largest_model(bare) is None
    assert ability([replace(bare, memory_bytes=8 * 10**9)]).largest.endswith("at 4 bits.")


def test_eight_billion_at_four_bits_fit_eight_gigabytes() -> None:
    """Llama 3 8B in Q4_K_M is 4.92 GB, its cache for 8,192 tokens 1.07 GB, its workspace some 0.3 GB."""
    room = largest_model(replace(CPU, memory_bytes=8 * 10**9))
    assert room is not None
    assert 8.0e9 < room < 10e9
    assert room * (4.85 / 8 + 0.1) > 4.92e9 + 1.07e9 + 0.3e9


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("sse4.2", "avx", "avx2", "avx512f"), "16 numbers at a time (AVX-512)"),
        (("avx512f", "amx_tile"), "matrix units (AMX)"),
        (("neon", "dotprod"), "16 products at a time (NEON)"),
        ((), ""),
        (("something",), ""),
    ],
)
def test_instruction_sets(sets: tuple[str, ...], words: str) -> None:
    assert instruction_words(sets) == words


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (27.4e9, "27 billion"),
        (8e9, "8 billion"),
        (1.26e9, "1.3 billion"),
        (9.97e9, "10 billion"),
        (4.04e8, "400 million"),
    ],
)
def test_numbers_of_weights(weights: float, words: str) -> None:
    assert weights_words(weights) == words
