"""The formats that a cache keeps keys and values in, and what each takes. `kernels.reference.kv` is their definition.

A row is what one head keeps of one token: `dim` values. Formats whose scales belong to a channel have no rows: their
unit is `group` tokens of a head, which are stored together once all of them are there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheFormat:
    """bits: of a code. group: values that share a scale, neighbours in a row; 0: the whole row. metadata: bits of a
    group's scale, minimum or norm together.

    channels: a group is `group` tokens of one channel instead. given: a scale in float32 that is chosen before
    ('tensor' or 'head'), not found in the row. whole: a last group that is not full takes as much as a full one.
    rotated: made for vectors whose values are alike, as a rotation leaves them.
    """

    name: str
    bits: int
    group: int = 0
    metadata: int = 0
    channels: bool = False
    given: str = ""
    whole: bool = False
    rotated: bool = False

    @property
    def is_float(self) -> bool:
        """Whether values are kept as 16 or 32 bit floats, to which window, sinks and rotation do nothing."""
        return self.bits >= 16

    @property
    def waits(self) -> int:
        """Tokens that are stored together."""
        return self.group if self.channels else 1

    def row_bytes(self, dim: int) -> int:
        """Of one token and head. Raises ValueError for formats that store tokens together."""
        if self.channels:
            raise ValueError(f"{self.name} keeps {self.group} tokens together")
        groups = -(-dim // self.group) if self.group else 1
        codes = groups * self.group if self.whole else dim
        return -(-codes * self.bits // 8) + groups * self.metadata // 8

    def unit_bytes(self, dim: int) -> int:
        """Of one head and `waits` tokens."""
        if not self.channels:
            return self.row_bytes(dim)
        return dim * (-(-self.group * self.bits // 8) + self.metadata // 8)

    def bits_per_value(self, dim: int) -> float:
        """Scales included, but for a given one."""
        return 8 * self.unit_bytes(dim) / (self.waits * dim)


def _ggml(name: str, bits: int, metadata: int) -> CacheFormat:
    return CacheFormat(name, bits, 32, metadata, whole=True)


CACHE_FORMATS: dict[str, CacheFormat] = {
    f.name: f
    for f in (
        CacheFormat("F32", 32),
        CacheFormat("F16", 16),
        CacheFormat("BF16", 16),
        CacheFormat("FP8", 8, given="tensor"),  # E4M3
        CacheFormat("FP8-head", 8, given="head"),
        CacheFormat("FP8-E5M2", 8, given="tensor"),
        CacheFormat("FP8-E5M2-head", 8, given="head"),
        CacheFormat("INT8", 8, metadata=16),
        CacheFormat("INT4", 4, metadata=16),
        # The same with a scale for each group of a head; Q8_0 is what INT8-g32 would be.
        CacheFormat("INT8-g64", 8, 64, 16, whole=True),
        CacheFormat("INT4-g64", 4, 64, 16, whole=True),
        CacheFormat("INT4-g32", 4, 32, 16, whole=True),
        _ggml("Q8_0", 8, 16),
        _ggml("Q5_1", 5, 32),
        _ggml("Q5_0", 5, 16),
        _ggml("Q4_1", 4, 32),
        _ggml("Q4_0", 4, 16),
        _ggml("IQ4_NL", 4, 16),
        # Unsigned codes with a scale and a minimum, along the head …
        CacheFormat("U8-g64", 8, 64, 32, whole=True),
        CacheFormat("U4-g64", 4, 64, 32, whole=True),
        CacheFormat("U4-g32", 4, 32, 32, whole=True),
        CacheFormat("U2-g32", 2, 32, 32, whole=True),
        # … and along the tokens.
        CacheFormat("U4-t32", 4, 32, 32, channels=True),
        CacheFormat("U2-t32", 2, 32, 32, channels=True),
        # Indices into the best levels for a normal distribution, with the vector's norm.
        CacheFormat("LM4", 4, metadata=16, rotated=True),
        CacheFormat("LM3", 3, metadata=16, rotated=True),
        CacheFormat("LM2", 2, metadata=16, rotated=True),
    )
}


def kinds(dtype: str) -> tuple[str, str]:
    """'Q8_0' or 'Q8_0/Q4_0' → formats of keys and of values. Raises ValueError for a name that is none."""
    keys, _, values = dtype.partition("/")
    for name in (keys, values or keys):
        if name not in CACHE_FORMATS:
            raise ValueError(f"{name!r} is no format of a cache")
    return keys, values or keys


def quantized(count: int, waits: int, window: int, sinks: int) -> tuple[int, int]:
    """The range of tokens, of the first `count`, that are quantized; empty ranges are (n, n)."""
    first = -(-sinks // waits) * waits
    last = max(count - window, 0) // waits * waits
    return first, max(first, last)


def head_bytes(form: CacheFormat, dim: int, tokens: int, window: int = 0, sinks: int = 0) -> int:
    """Of one head's keys, or values, when it has `tokens` tokens; a given scale is not among them."""
    if form.is_float:
        return tokens * form.row_bytes(dim)
    first, last = quantized(tokens, form.waits, window, sinks)
    coded = min(last, tokens) - min(first, tokens)
    return coded // form.waits * form.unit_bytes(dim) + (tokens - coded) * 2 * dim


def reserved_bytes(form: CacheFormat, dim: int, tokens: int, window: int = 0, sinks: int = 0) -> int:
    """The most that a head takes on the way to `tokens` tokens: a group takes more before it is closed."""
    widest = max(tokens - (tokens - window + 1) % form.waits, 0)  # the last time that all but one of a group waited
    return max(head_bytes(form, dim, n, window, sinks) for n in (widest, tokens))
