"""How products of codes with codes are made, by format and card, and why not better. Imports no torch and no Triton."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """tokens: kind of the activations' codes (`steps.apply.CODES`). format: of the codes; scale: of the groups.

    group: columns that share a scale, 0: a whole row or token; scale_rows: rows of weights that do.
    """

    tokens: str
    format: str
    scale: str
    bits: int = 8
    group: int = 0
    scale_rows: int = 1


KINDS = {
    "int8": Kind("int8", "int8", "single"),
    "e4m3": Kind("e4m3", "e4m3", "single"),
    "e4m3 128 × 128": Kind("e4m3", "e4m3", "single", group=128, scale_rows=128),
    "mxfp8": Kind("mxfp8", "e4m3", "power", group=32),
    "mxfp4": Kind("mxfp4", "e2m1", "power", bits=4, group=32),
    "nvfp4": Kind("nvfp4", "e2m1", "e4m3", bits=4, group=16),
}
# AMD's first 8-bit floats: E4M3 with an exponent one higher, so that each code is half of OCP's, and 0x80 for NaN.
FNUZ = ("gfx940", "gfx941", "gfx942")
_AMD_FLOAT8 = (*FNUZ, "gfx950", "gfx1200", "gfx1201")
_AMD_SCALED = ("gfx950",)


def way_of(kind: str, card: str) -> str:
    """'int8', 'fp8', 'scaled' (all native), or 'upcast': codes become 16-bit floats first. card: 'sm_90', 'gfx942' …"""
    shape = KINDS[kind]
    if shape.format == "int8":
        return "int8"
    number = int(card[3:]) if card.startswith("sm_") else 0
    if shape.scale == "single":
        return "fp8" if number >= 89 or card in _AMD_FLOAT8 else "upcast"
    native = number >= 100 or (card in _AMD_SCALED and shape.scale == "power")
    return "scaled" if native else "upcast"


def work_of(kind: str, way: str) -> str:
    """By what name `kernels.gpu.configurations` knows such a product."""
    return "blocks" if KINDS[kind].group == 128 else way


def why_not_native(kind: str, card: str) -> str:
    """One clause if the card emulates this product; '' if it has instructions for it."""
    if way_of(kind, card) != "upcast":
        return ""
    what = "8-bit floats" if KINDS[kind].scale == "single" else f"{kind.upper()} with its scales"
    return f"emulated: {card} has no instruction for products of {what}, so codes become 16-bit floats first"
