"""The one formatter of quantities."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest

from core import units

THIN = units.THOUSANDS


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1000, f"1.00 kB (1{THIN}000 B)"),
        (1024, "1.02 kB (1.00 KiB)"),
        (98_360_000, "98.36 MB (93.80 MiB)"),
        (14_000_000_000, "14.00 GB (13.04 GiB)"),
        (999_999, "1.00 MB (976.56 KiB)"),
        (2**30 - 1, "1.07 GB (1.00 GiB)"),
        (1.5e12, "1.50 TB (1.36 TiB)"),
        (-2_000_000, "\u22122.00 MB (\u22121.91 MiB)"),
    ],
)
def test_bytes(n: float, text: str) -> None:
    assert units.format_bytes(n) == text


def test_decimal_and_binary_are_never_mixed() -> None:
    for power, (decimal, binary) in enumerate(
        zip(("kB", "MB", "GB", "TB"), ("KiB", "MiB", "GiB", "TiB"), strict=True), 1
    ):
        assert units.format_decimal(1000**power) == f"1.00 {decimal}"
        assert units.format_binary(1024**power) == f"1.00 {binary}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5e-5, "25.0 µs"),
        (0.0013433, "1.34 ms"),
        (0.9999, "1.0 s"),
        (3.24, "3.2 s"),
        (59.99, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3780, "1 h 03 min"),
        (26 * 3600, "1 d 02 h"),
        (math.inf, "unknown"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


def test_other_quantities() -> None:
    assert units.format_count(262144) == f"262{THIN}144"
    assert units.format_count(999) == "999"
    assert units.format_rate(3.35e12) == "3.35 TB/s"
    assert units.format_bits(4.5) == "4.50 bits"
    assert units.format_percent(-0.7241, signed=True) == "\u221272.4 %"
    assert units.format_percent(0.031, signed=True) == "+3.1 %"
    assert units.format_percent(-0.00001) == "0.0 %"
    assert units.format_decibels(19.204) == "19.20 dB"
    assert units.format_decibels(math.inf) == "exact"
    assert units.format_tokens_per_second(23.756) == "23.8 tokens/s"
    assert units.format_tokens_per_second(6.25) == "6.25 tokens/s"


def test_no_other_file_writes_a_size_unit_of_its_own() -> None:
    """A string literal that is formatted next to a size unit must come from core.units."""
    root = Path(units.__file__).parents[1]
    offenders = []
    for path in sorted((*root.glob("app/**/*.py"), *root.glob("core/**/*.py"))):
        if path.name == "units.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for before, after in zip(node.values, node.values[1:], strict=False):
                if isinstance(before, ast.FormattedValue) and isinstance(after, ast.Constant):
                    words = str(after.value).split()
                    if words and words[0].strip("/.,;:()") in {
                        "kB",
                        "KB",
                        "MB",
                        "GB",
                        "TB",
                        "KiB",
                        "MiB",
                        "GiB",
                        "TiB",
                    }:
                        offenders.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not offenders


def test_no_other_file_parts_thousands_in_a_way_of_its_own() -> None:
    """Neither `{n:,}` in a format nor '65,504' in a text: readers would meet two ways of writing one number."""
    root = Path(units.__file__).parents[1]
    offenders = []
    for path in sorted((*root.glob("app/**/*.py"), *root.glob("core/**/*.py"))):
        if path.name == "units.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            written = False
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                written = bool(re.search(r"(?<![{\d])\d{1,3},\d{3}(?!\d)|:,[.\d]*[df]?\}", node.value))
            elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                written = "," in ast.unparse(node.format_spec)
            if written:
                offenders.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not offenders


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 4, "0"),
        (-0.0, 4, "0"),
        (0.5, 4, "0.5"),
        (12.3456, 4, "12.35"),
        (-0.00012345, 3, "\u22120.000123"),
        (2412.3, 2, f"2{THIN}400"),
        (12345.6, 4, f"12{THIN}350"),
        (999_999, 4, "10⁶"),
        (1.5e-9, 3, "1.5·10⁻⁹"),
        (-1e-7, 3, "\u221210⁻⁷"),
        (math.nan, 4, "–"),
        (-math.inf, 4, "\u2212∞"),
    ],
)
def test_numbers_without_a_unit(value: float, digits: int, text: str) -> None:
    assert units.format_number(value, digits) == text


def test_numbers_under_each_other_and_changes() -> None:
    assert units.format_decimals(1234.5, 2) == f"1{THIN}234.50"
    assert units.format_decimals(-0.001, 2) == "0.00"
    assert units.format_decimals(math.inf, 1) == "∞"
    assert [units.format_signed(n) for n in (-1234, 0, 5678)] == [f"\u22121{THIN}234", "0", f"+5{THIN}678"]
