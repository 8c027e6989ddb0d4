"""A cache's scheme: formats of keys and values, and what is kept in 16 bits beside them. As text and as numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.errors import UserError
from kernels.kv import CACHE_FORMATS, CacheFormat

_SHORT = {"FP8-E4M3": "FP8", "KIVI2": "U2-t32/U2-g32", "KIVI4": "U4-t32/U4-g32"}
_SWITCHES = {
    "rotate-keys": "rotate_keys",
    "rotate-values": "rotate_values",
    "before-rope": "before_rope",
}
_NUMBERS = {"window": "window", "sinks": "sinks", "first": "keep_first", "last": "keep_last"}
MOST = 1 << 24  # tokens of a window; layers


@dataclass(frozen=True)
class CacheScheme:
    """keys, values: names of `kernels.kv.CACHE_FORMATS`; values '': as keys.

    window, sinks: most recent and first tokens that stay in 16 bits. rotate_keys, rotate_values: a Hadamard rotation
    of each head (with the keys, of the queries) before it is quantized. before_rope: keys are quantized before the
    rotary step. keep_first, keep_last: layers whose cache stays in 16 bits.
    """

    keys: str = "F16"
    values: str = ""
    window: int = 0
    sinks: int = 0
    rotate_keys: bool = False
    rotate_values: bool = False
    before_rope: bool = False
    keep_first: int = 0
    keep_last: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", self.values or self.keys)

    @property
    def key_format(self) -> CacheFormat:
        return CACHE_FORMATS[self.keys]

    @property
    def value_format(self) -> CacheFormat:
        return CACHE_FORMATS[self.values]

    @property
    def dtype(self) -> str:
        """As `kernels.program.CacheLayout` has it: 'Q8_0', or 'Q8_0/Q4_0'."""
        return self.keys if self.keys == self.values else f"{self.keys}/{self.values}"

    @property
    def is_plain(self) -> bool:
        """Formats alone: no token or layer is kept, nothing is rotated."""
        return replace(self, keys="F16", values="F16") == CacheScheme()

    @property
    def text(self) -> str:
        """What `parse` reads: 'Q4_0,window=128,rotate'."""
        words = [self.dtype]
        words += [f"{word}={number}" for word, name in _NUMBERS.items() if (number := getattr(self, name))]
        switches = [word for word, name in _SWITCHES.items() if getattr(self, name)]
        if self.rotate_keys and self.rotate_values:
            switches = ["rotate", *switches[2:]]
        return ",".join(words + switches)

    def check(self) -> None:
        """Raises UserError for a scheme that has no meaning."""
        if self.value_format.channels:
            raise UserError(
                f"{self.values} has a scale for each channel, which values have no use for: their outliers are tokens.",
                "Give values a format of their own, as U2-t32/U2-g32 does.",
            )
        for what, form, turned in (
            ("Keys", self.key_format, self.rotate_keys),
            ("Values", self.value_format, self.rotate_values),
        ):
            if form.rotated and not turned:
                raise UserError(
                    f"{what} in {form.name} must be rotated: its levels are those of a normal distribution.",
                    "Add rotate to the scheme.",
                )
        for name in _NUMBERS.values():
            if not 0 <= getattr(self, name) <= MOST:
                raise UserError(
                    f"{getattr(self, name)} is no number of tokens or layers to keep.", "Give 0 or a little more."
                )

    @staticmethod
    def parse(text: str) -> CacheScheme:
        """'q8_0', 'q8_0/q4_0', 'kivi2,window=128', 'lm4,rotate,first=2,last=2'. Raises UserError."""
        first, *rest = (word.strip() for word in text.split(","))
        first = _SHORT.get(first.upper(), first)
        keys, slash, values = first.partition("/")
        fields: dict[str, str | int | bool] = {"keys": _format(keys), "values": _format(values) if slash else ""}
        for word in rest:
            name, equals, number = word.lower().partition("=")
            if equals and name in _NUMBERS and number.isdecimal() and len(number) <= 9:
                fields[_NUMBERS[name]] = int(number)
            elif not equals and name == "rotate":
                fields |= {"rotate_keys": True, "rotate_values": True}
            elif not equals and name in _SWITCHES:
                fields[_SWITCHES[name]] = True
            else:
                known = [*(f"{n}=N" for n in _NUMBERS), "rotate", *_SWITCHES]
                raise UserError(f"'{word}' means nothing for a cache.", f"What can be added: {', '.join(known)}.")
        scheme = CacheScheme(**fields)  # type: ignore[arg-type]
        scheme.check()
        return scheme


def _format(name: str) -> str:
    wanted = _SHORT.get(name.strip().upper(), name.strip().upper())
    for known in CACHE_FORMATS:
        if known.upper() == wanted:
            return known
    raise UserError(f"There is no cache format '{name.strip()}'.", f"Choose one of {', '.join(CACHE_FORMATS)}.")
