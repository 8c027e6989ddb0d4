"""How quantities are written, in one place, so that the window and the command line never disagree.

Decimal units (kB, MB, GB) are powers of 1000 and binary units (KiB, MiB, GiB) are powers of 1024; a size shows both.
Nothing here depends on the locale: the decimal mark is a point and thousands are parted by a narrow no-break space.
"""

from __future__ import annotations

import math

from core import preferences
from core.preferences import Sizes

THOUSANDS = (
    "\u202f"  # narrow no-break space: ISO 80000-1 groups digits by a thin space, and a line must not break there
)
MINUS = "\u2212"
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN = 1e-4, 1e6  # magnitudes that are written out; beyond them a power of ten is easier to read


def _number(value: float, decimals: int) -> str:
    text = f"{abs(value):,.{decimals}f}".replace(",", THOUSANDS)
    is_zero = not any(c in "123456789" for c in text)
    return text if value >= 0 or is_zero else MINUS + text


def _scaled(n: float, base: int, units: tuple[str, ...]) -> str:
    """Two decimals in the largest unit that keeps the number at 1 or above once it is rounded; plain bytes below."""
    index, value = 0, float(n)
    while index < len(units) - 1 and round(abs(value), 2 if index else 0) >= base:
        index, value = index + 1, value / base
    return f"{_number(value, 2 if index else 0)} {units[index]}"


def format_decimal(n: float) -> str:
    """98 359 296 → '98.36 MB'. Powers of 1000, but of 1024 where somebody wants those alone."""
    return format_binary(n) if _sizes() is Sizes.BINARY else _scaled(n, 1000, _DECIMAL)


def format_binary(n: float) -> str:
    """98 359 296 → '93.80 MiB'. Powers of 1024."""
    return _scaled(n, 1024, _BINARY)


def format_bytes(n: float) -> str:
    """98 359 296 → '98.36 MB (93.80 MiB)', or what is set; under a thousand the two agree: '512 B'."""
    decimal, binary = format_decimal(n), format_binary(n)
    return decimal if decimal == binary or _sizes() is not Sizes.BOTH else f"{decimal} ({binary})"


def _sizes() -> Sizes:
    return Sizes(preferences.current().sizes)


def format_rate(bytes_per_second: float) -> str:
    """3.35e12 → '3.35 TB/s'. Powers of 1000, as vendors state bandwidth."""
    return f"{_scaled(bytes_per_second, 1000, _DECIMAL)}/s"


def format_count(n: float) -> str:
    """262144 → '262 144'. A whole number, also one that is stored as a float."""
    return _number(n, 0)


def format_number(value: float, digits: int = 4) -> str:
    """A quantity without a unit, or in weight units, to so many digits that count: '12.3', '2 410', '1.5·10⁻⁹'.

    A power of ten alone has no mantissa: '10⁻⁷'. NaN: '–'.
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else f"{MINUS}∞"
    mantissa, power = f"{abs(value):.{max(1, digits) - 1}e}".split("e")
    rounded, exponent = float(f"{mantissa}e{power}"), int(power)
    if not rounded or _PLAIN[0] <= rounded < _PLAIN[1]:
        text = f"{rounded:,.{max(0, digits - 1 - exponent)}f}"
        text = (text.rstrip("0").rstrip(".") if "." in text else text).replace(",", THOUSANDS)
    else:
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        text = ("" if mantissa == "1" else f"{mantissa}·") + "10" + str(exponent).translate(_RAISED)
    return f"{MINUS}{text}" if value < 0 and rounded else text


def format_decimals(value: float, decimals: int) -> str:
    """With so many digits behind the point, where numbers stand under each other: '1 234.50', '−0.06'."""
    return format_number(value) if not math.isfinite(value) else _number(value, decimals)


def format_signed(n: int) -> str:
    """−1234 → '−1 234', 1234 → '+1 234'."""
    return f"{'+' if n > 0 else ''}{_number(n, 0)}"


def format_bits(bits: float) -> str:
    """4.5 → '4.50 bits'."""
    return f"{_number(bits, 2)} bits"


def format_percent(ratio: float, decimals: int = 1, signed: bool = False) -> str:
    """0.724 → '72.4 %'; signed puts '+' before an increase."""
    text = _number(ratio * 100, decimals)
    return f"{'+' if signed and ratio > 0 else ''}{text} %"


def format_decibels(db: float) -> str:
    """19.204 → '19.20 dB'; infinite means that nothing was lost: 'exact'."""
    if math.isnan(db):
        return "unknown"
    if math.isinf(db):
        return "exact" if db > 0 else "no signal"
    return f"{_number(db, 2)} dB"


def format_tokens_per_second(rate: float) -> str:
    """23.756 → '23.8 tokens/s'; two decimals under 10, none from 1000 on."""
    decimals = 2 if rate < 10 else 1 if rate < 1000 else 0
    return f"{_number(rate, decimals)} tokens/s"


def format_duration(seconds: float) -> str:
    """0.001343 → '1.34 ms', 3.25 → '3.2 s', 125 → '2 min 05 s', 3780 → '1 h 03 min'; not finite → 'unknown'."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds == 0:
        return "0 s"
    if seconds < 0:
        return MINUS + format_duration(-seconds)
    if seconds < 0.9995e-3:
        return f"{_number(seconds * 1e6, 1)} µs"
    if seconds < 0.9995:
        return f"{_number(seconds * 1e3, 2)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{format_count(hours // 24)} d {hours % 24:02d} h"
