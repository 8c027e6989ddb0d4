"""Compiles every kernel for every card, and writes what the assembler said into docs/gpu.md.

    python -m kernels.gpu.compile [--cards sm_90,gfx942] [--formats 'Q4_K;int4 g128'] [--tokens 1,16]
                                         [--keep results.json] [--docs docs/gpu.md]

Needs Triton and no GPU. --formats: of weight-only products, or names of all other kernels; without it, all of both.
--keep: results that are there already are not made again. --docs: a table of which nothing was asked stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from kernels.gpu.compile.assembled import CARDS, SHARED_MEMORY, Compiled, compile_launch, compile_product
from kernels.gpu.compile.cases import Case, cases
from kernels.gpu.weights.forms import GGML_FORMS, Form, float8_form, grouped_form

_PRODUCTS, _OTHERS = "compiled", "others"  # names of the tables in the document
ROWS, COLUMNS = 4096, 4096
# Tokens: the vector product with one and with four, and both ends of the tensor cores' regime. The ends that are dear
# to compile are for some formats only; all others differ in their decoders alone.
TOKENS = (1, 16)
MORE_TOKENS = {"int4 g128": (4, 64, 65), "Q4_K": (4, 64, 65), "NVFP4": (64,), "Q6_K": (64,)}
_NAMES = {"vector_product": "vector", "tile_product": "tensor cores", "dequantize": "dequantize"}


def catalogue() -> dict[str, Form]:
    """Every kind of decoder, with rows of `COLUMNS`."""
    zeros = [("int2 g64, zeros", grouped_form(2, 64, "zeros")), ("int3 g128, zeros", grouped_form(3, 128, "zeros"))]
    forms = {
        "int4 g128": grouped_form(4, 128),
        "int4 g128, zeros": grouped_form(4, 128, "zeros"),
        "int4 g64, offsets": grouped_form(4, 64, "minimums"),
        **dict(zeros),
        "int8 per row": grouped_form(8, 0),
        "NF4 g64": grouped_form(4, 64, table=True),
        **{name: form for name, form in GGML_FORMS.items() if name != "TQ2_0"},
        "F8_E4M3 128 × 128": float8_form("F8_E4M3", 128, 128, False),
        "F8_E5M2 per row": float8_form("F8_E5M2", 0, 1, False),
        "MXFP8": float8_form("F8_E4M3", 32, 1, True),
    }
    return {name: form.fitted(COLUMNS) for name, form in forms.items()}


def jobs(formats: list[str], cards: list[str], asked: tuple[int, ...]) -> list[tuple[str, str, int]]:
    """Format, card and tokens of all that is compiled. asked: tokens."""
    return [
        (name, card, tokens)
        for tokens in asked
        for name in formats
        if tokens in (*TOKENS, *MORE_TOKENS.get(name, ()))
        for card in cards
    ]


def problems(result: Compiled, tensor: bool | None = None) -> list[str]:
    """What a tuned configuration must not have, in words. tensor: whether the card has tensor cores for it."""
    found = []
    if tensor is None:
        tensor = result.kernel.startswith("tile") and result.card != "sm_75"
    if result.spilled:
        found.append(f"{result.spilled} spilled")
    if not result.fits:
        found.append(f"{result.shared} bytes of shared memory, the card has {SHARED_MEMORY[result.card]}")
    if result.wide < result.needed:
        found.append(f"{result.wide} loads of 16 bytes, the words take {result.needed}")
    if tensor and not result.tensor:
        found.append("no tensor-core instruction")
    return found


def table(results: dict[str, Compiled], formats: list[str], cards: list[str]) -> str:
    """Markdown, one row a format and kernel, one column a card."""
    lines = [f"| format | kernel, tokens | {' | '.join(cards)} |", f"|---|---|{'---|' * len(cards)}"]
    for tokens in (1, 4, 16, 64, 65):
        for name in formats:
            cells = [results.get(_key(name, card, tokens)) for card in cards]
            some = next((cell for cell in cells if cell), None)
            if some:
                kernel = _NAMES[some.kernel.split()[0]]
                count = "over 64" if tokens > 64 else str(tokens)
                lines.append(f"| {name} | {kernel}, {count} | {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines)


def table_of_cases(results: dict[str, Compiled], names: list[str], cards: list[str]) -> str:
    """Markdown, one row a kernel that a launcher starts, one column a card."""
    lines = [f"| what | {' | '.join(cards)} |", f"|---|{'---|' * len(cards)}"]
    for name, case in cases().items():
        if name in names:
            cells = [_cell(results.get(_key(name, card)), case.tensor(card)) for card in cards]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: Compiled | None, tensor: bool | None = None) -> str:
    if result is None:
        return ""
    parts = [f"{result.registers} r", f"{result.shared / 1024:.3g} K"]
    if result.tensor:
        parts.append(result.tensor.split(".")[0] if "v_" not in result.tensor else result.tensor[2:])
    return ", ".join([*parts, *(f"**{problem}**" for problem in problems(result, tensor))])


def _key(name: str, card: str, tokens: int | None = None) -> str:
    return f"{name} / {card}" if tokens is None else f"{name} / {card} / {tokens}"


def _compiled_case(case: Case, card: str) -> Compiled:
    launch, *others = case.launches(card)
    assert not others
    return compile_launch(card, launch, case.name)


def _written(text: str, name: str, found: str) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    return f"{text.split(begin)[0]}{begin}\n{found}\n{end}{text.split(end)[1]}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu.compile", description=__doc__)
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--formats", default="")
    parser.add_argument("--tokens", default="1,16,4,64,65")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--docs", type=Path)
    asked = parser.parse_args(arguments)
    forms, others, cards = catalogue(), cases(), asked.cards.split(",")
    wanted = asked.formats.split(";") if asked.formats else [*forms, *others]
    formats, names = [name for name in wanted if name in forms], [name for name in wanted if name in others]
    results: dict[str, Compiled] = {}
    if asked.keep and asked.keep.is_file():
        kept = json.loads(asked.keep.read_text(encoding="utf-8"))
        results = {key: Compiled(**values) for key, values in kept.items()}
    failed = 0

    def look_at(key: str, compiled: Callable[[], Compiled], tensor: bool | None = None) -> None:
        nonlocal failed
        if key not in results:
            results[key] = compiled()
            if asked.keep:
                asked.keep.write_text(json.dumps({k: asdict(v) for k, v in results.items()}), encoding="utf-8")
        failed += bool(problems(results[key], tensor))
        sys.stdout.write(f"{key}: {_cell(results[key], tensor)}\n")
        sys.stdout.flush()

    for name, card, tokens in jobs(formats, cards, tuple(map(int, asked.tokens.split(",")))):
        look_at(_key(name, card, tokens), partial(compile_product, card, forms[name], tokens, ROWS, COLUMNS))
    for name in names:
        for card in cards:
            look_at(_key(name, card), partial(_compiled_case, others[name], card), others[name].tensor(card))
    if asked.docs:
        text = asked.docs.read_text(encoding="utf-8")
        if formats:
            text = _written(text, _PRODUCTS, table(results, formats, cards))
        if names:
            text = _written(text, _OTHERS, table_of_cases(results, names, cards))
        asked.docs.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(results)} compiled, {failed} with problems\n")
    return 1 if failed else 0
