"""From what a driver says about a chip to a hardware class of the support matrix."""

from __future__ import annotations

from collections.abc import Collection

Class = tuple[str, str]  # the class, and a note when the chip is only judged like that class ('' when it is of it)


def nvidia_class(compute_capability: str) -> Class:
    """'8.9' → ('nvidia_sm89', ''). A capability between or beyond the known ones is judged as the nearest below."""
    major, _, minor = compute_capability.partition(".")
    try:
        number = int(major) * 10 + int(minor or 0)
    except ValueError:
        return "nvidia_sm80_86", "The driver does not say which chip this is; it is judged as NVIDIA Ampere."
    if number < 75:
        return "nvidia_sm75", (
            f"Compute capability {compute_capability} is older than all the matrix knows; judged as Turing, which "
            "promises too much."
        )
    steps = ((120, "nvidia_sm120"), (100, "nvidia_sm100"), (90, "nvidia_sm90"), (89, "nvidia_sm89"))
    found = next((name for least, name in (*steps, (80, "nvidia_sm80_86")) if number >= least), "nvidia_sm75")
    exact = number in (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)
    note = f"Compute capability {compute_capability} is not in the matrix; judged as the nearest older chip."
    return found, "" if exact else note


def amd_class(gfx: str) -> Class:
    """'gfx1100' → ('amd_rdna3', ''). Unknown ones are judged as the nearest of their family, with a note."""
    known = {"gfx94": "amd_cdna3", "gfx95": "amd_cdna4", "gfx103": "amd_rdna2", "gfx110": "amd_rdna3"}
    known |= {"gfx115": "amd_rdna3", "gfx120": "amd_rdna4"}
    for prefix, name in known.items():
        if gfx.startswith(prefix):
            return name, ""
    if gfx.startswith("gfx9"):
        return "amd_cdna3", f"{gfx} is not in the matrix; judged as CDNA 3, which may promise too much."
    if gfx.startswith("gfx10"):
        return "amd_rdna2", f"{gfx} is not in the matrix; judged as RDNA 2, which may promise too much."
    if gfx.startswith("gfx1"):
        return "amd_rdna4", f"{gfx} is not in the matrix; judged as RDNA 4, the nearest known."
    return "amd_rdna3", "The driver does not say which chip this is; it is judged as RDNA 3."


def cpu_class(architecture: str, instruction_sets: Collection[str]) -> Class:
    """A processor by its architecture ('x86-64', 'arm64') and the instruction sets that may be used."""
    if architecture == "arm64":
        if "dotprod" in instruction_sets:
            faster = "" if "i8mm" in instruction_sets else "Without i8mm instructions prompts are computed more slowly."
            return "arm_neon_dotprod_i8mm", faster
        return "arm_neon", "Without dot-product instructions quantized weights are multiplied more slowly."
    if architecture == "x86-64":
        if "amx_int8" in instruction_sets:
            return "x86_amx", ""
        if "avx512_vnni" in instruction_sets:
            return "x86_avx512_vnni", ""
        if "avx2" in instruction_sets:
            return "x86_avx2", ""
        return "x86_avx2", "This processor has no AVX2; it is judged as if it had, and will be several times slower."
    return "unknown", f"Processors of the kind {architecture or 'unknown'} are not in the matrix."
