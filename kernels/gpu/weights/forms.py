"""What the GPU's products need to know of a format: bits of its codes, and which decoders read codes and scales.

Every format is  weight = scale · level(code) + offset,  one scale (and offset) for `group` neighbours of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GGML_FORMS: dict[str, Form]
_SHORT_GROUP = 64  # columns: a tile has four scales or more, all of which are in registers at once


@dataclass(frozen=True)
class Form:
    """levels, scales: names of functions in `products.decoders`; the numbers are their compile-time constants.

    bits: of a code in the plane of words (2, 4 or 8); high: further bits of a code, in a plane of their own (0, 1, 2).
    middle: subtracted from integer codes. group: columns that share a scale, a multiple of 16; 0: the whole row.
    words: 32-bit words of one row in one tile, 16 or 32. scale_rows: rows that share a scale; 0: all.
    """

    label: str
    levels: str
    scales: str
    bits: int
    high: int = 0
    middle: int = 0
    group: int = 0
    words: int = 32
    scale_rows: int = 1

    @property
    def short(self) -> str:
        """For people."""
        return self.label + {"zeros": ", zeros", "minimums": ", offsets"}.get(self.scales, "")

    @property
    def codes(self) -> tuple[str, ...]:
        """Names of what makes some formats dearer to compile than others; `configurations.json` has lines of them."""
        table = ("table",) if self.levels == "codebook" else ()
        short = ("short groups",) if self.span <= _SHORT_GROUP else ()
        offsets = ("short groups, offsets",) if short and self.offset else ()
        return f"{self.slots} slots", f"{self.bits + self.high} bits", *table, *short, *offsets

    @property
    def slots(self) -> int:
        """Codes in one word."""
        return 32 // self.bits

    @property
    def tile(self) -> int:
        """Columns of one tile: code j of word w is that of column j · words + w."""
        return self.slots * self.words

    @property
    def span(self) -> int:
        """Columns after which a tile may come to another group."""
        if not self.group or self.group % self.tile == 0:
            return self.tile
        return self.group if self.tile % self.group == 0 else self.words

    @property
    def offset(self) -> bool:
        """Whether weights have an offset beside the scale."""
        return self.scales in ("zeros", "minimums", "nibble_pairs", "byte_pairs")

    def tiles(self, columns: int) -> int:
        return -(-columns // self.tile)

    def groups(self, columns: int) -> int:
        """Groups of a row, those that pad the last tile included."""
        return -(-self.tiles(columns) * self.tile // self.group) if self.group else 1

    def fitted(self, columns: int) -> Form:
        """With the tile that pads rows of `columns` least; a slice of `words` columns lies within one group."""
        narrow = replace(self, words=16)
        if self.group % 32:
            return narrow
        wide = replace(self, words=32)
        return wide if wide.tiles(columns) * wide.tile <= narrow.tiles(columns) * narrow.tile else narrow


GGML_FORMS = {
    form.label: form
    for form in (
        Form("Q4_0", "integers", "plain", 4, 0, 8, 32),
        Form("Q4_1", "integers", "minimums", 4, 0, 0, 32),
        Form("Q5_0", "integers", "plain", 4, 1, 16, 32),
        Form("Q5_1", "integers", "minimums", 4, 1, 0, 32),
        Form("Q8_0", "integers", "plain", 8, 0, 128, 32),
        Form("Q2_K", "integers", "nibble_pairs", 2, 0, 0, 16),
        Form("Q3_K", "integers", "sixes", 2, 1, 4, 16),
        Form("Q4_K", "integers", "byte_pairs", 4, 0, 0, 32),
        Form("Q5_K", "integers", "byte_pairs", 4, 1, 0, 32),
        Form("Q6_K", "integers", "signed_bytes", 4, 2, 32, 16),
        Form("IQ4_NL", "codebook", "plain", 4, 0, 0, 32),
        Form("IQ4_XS", "codebook", "sixes", 4, 0, 0, 32),
        Form("TQ2_0", "integers", "plain", 2, 0, 1, 256),
        Form("MXFP4", "e2m1", "half_powers", 4, 0, 0, 32),
        Form("NVFP4", "e2m1", "unsigned_e4m3", 4, 0, 0, 16),
    )
}

# Codes of 1 and 7 bits have no two planes; nothing that is in use has them.
_PLANES = {2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 8: (8, 0)}
CODE_BITS = tuple(_PLANES)


def grouped_form(bits: int, group: int, third: str = "", table: bool = False) -> Form:
    """Codes with plain scales. third: '', 'zeros' or 'minimums' (offsets). group: 0 for one scale a row.

    Raises ValueError for what no decoder reads.
    """
    if bits not in _PLANES:
        raise ValueError(f"the GPU has no decoder for codes of {bits} bits")
    if group < 0 or group % 16:
        raise ValueError(f"the GPU has no decoder for groups of {group}, which is no multiple of 16")
    size = f"g{group}" if group else "per row"
    if table:
        if bits != 4 or third:
            raise ValueError("a table has 16 levels and no zeros")
        return Form(f"table4 {size}", "codebook", "plain", 4, group=group)
    low, high = _PLANES[bits]
    middle = 0 if third == "minimums" else 1 << (bits - 1)
    return Form(f"int{bits} {size}", "integers", third or "plain", low, high, middle, group)


def float8_form(dtype: str, group: int, scale_rows: int, powers: bool) -> Form:
    """8-bit floats: 'F8_E4M3' or 'F8_E5M2'. powers: scales are E8M0."""
    if group % 16:
        raise ValueError(f"the GPU has no decoder for scales of {group} columns, which is no multiple of 16")
    levels = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}[dtype]
    return Form(dtype, levels, "powers" if powers else "plain", 8, group=group, scale_rows=scale_rows)
