"""The README's table of formats, made from the registry and the support matrix."""

from __future__ import annotations

from core.catalog import Kind, base_of, family_rows, readers, use_of
from core.formats import Format
from core.formats.numbers import Numbers

BEGIN, END = "<!-- made by: bitsmith formats --markdown -->\n", "<!-- end of formats -->\n"


def format_table() -> str:
    """Markdown: a line for each row of the support matrix. Who reads it: runtimes with a kernel on some hardware."""
    rows = family_rows()
    lines = ["| format | for | read by | effective bits | lossless from |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        first = row.targets[0]
        cells = (row.title, use_of(first).title, ", ".join(readers(first)) or "–", _bits(row), _sources(row, rows))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def in_readme(readme: str) -> str:
    """The table that stands in the text between its two marks, '' without them."""
    _, found, rest = readme.partition(BEGIN)
    return rest.partition(END)[0] if found else ""


def _bits(row: Kind) -> str:
    bits = sorted(base_of(t).contract.effective_bits for t in row.targets)
    low, high = f"{bits[0]:.4g}", f"{bits[-1]:.4g}"
    return low if low == high else f"{low} … {high}"


def _sources(row: Kind, rows: tuple[Kind, ...]) -> str:
    """Other rows with a format whose codes one of this row takes as they are."""
    bases = [base_of(t) for t in row.targets]
    scaled = [b for b in bases if b.contract.scale is not None]
    found = []
    for other in rows:
        if row.targets[0].is_folder and not other.targets[0].is_folder:
            continue  # a GGUF file does not become a folder
        stored = {n for t in other.targets if (n := getattr(base_of(t), "numbers", None)) is not None}
        if other is not row and any(_keeps(b, n) for b in scaled for n in stored):
            found.append(other.title)
    return "; ".join(found) or "–"


def _keeps(base: Format, numbers: Numbers) -> bool:
    same = base.for_numbers(numbers)
    return same is not None and not same.rounding(numbers)
