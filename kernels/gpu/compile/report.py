"""Compiles every kernel in its tuned configurations for every card, and checks what the assembler made of it.

    python -m kernels.gpu.compile [--cards sm_90,gfx942] [--kernels 'Q4_K;int4 g128'] [--tokens 1,16]
                                         [--processes 2] [--docs docs/gpu.md]

Needs Triton and no GPU. Fails where registers are spilled, shared memory does not fit the card, a matrix instruction is
missing or of another kind than the format has, or loads are narrower than 16 bytes. --kernels: formats of weight-only
products, or names of all other kernels; without it, all of both. --docs: writes the tables of all that was compiled.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path

from kernels.gpu.compile.assembled import CARDS, Compiled, compile_launch, program_key
from kernels.gpu.compile.cases import Case, cases
from kernels.gpu.compile.machine import assembler
from kernels.gpu.compile.weights import TOKENS, ProductCase, expert_cases, product_cases

_PRODUCTS, _OTHERS = "compiled", "others"  # names of the tables in the document


# What stays; docs/gpu.md says it, too. gfx1100's matrix instruction has its operands twice, in both halves of a wave: a
# query and a key of 256 values take 256 registers, which is all there are, and codes are decoded beside them. Why 128
# values spill where a table or the scales of channels are read, TQ2_0 with four tokens, and gfx1201, was not found.
KNOWN_SPILLS = {  # by case and card: bytes of a thread
    ("TQ2_0, 4", "gfx1100"): 448,
    ("TQ2_0, 4", "gfx1201"): 448,
    ("attention over LM3, prompt, heads of 128", "gfx1100"): 188,
    ("attention over Q4_0, prompt, heads of 256", "gfx1100"): 376,
    ("attention over Q4_0, token, heads of 256", "gfx1100"): 304,
    ("attention over Q4_0, window 128, sinks 4, prompt, heads of 128", "gfx1100"): 48,
    ("attention over Q8_0, prompt, heads of 256", "gfx1100"): 856,
    ("attention over Q8_0, prompt, heads of 256", "gfx1201"): 32,
    ("attention over Q8_0, token, heads of 256", "gfx1100"): 792,
    ("attention over Q8_0, token, heads of 256", "gfx1201"): 16,
    ("attention over U2-t32/U2-g32, prompt, heads of 128", "gfx1100"): 68,
    ("attention over U2-t32/U2-g32, token, heads of 128", "gfx1100"): 32,
    ("attention over U2-t32/U2-g32, window 128, sinks 4, prompt, heads of 128", "gfx1100"): 68,
    ("attention over U2-t32/U2-g32, window 128, sinks 4, token, heads of 128", "gfx1100"): 20,
    ("attention over U2-t32/U2-g32, window 128, sinks 4, token, heads of 128", "gfx1201"): 32,
}

Results = dict[tuple[str, str], Compiled | str]  # by case and card; the error of what does not compile


@cache
def other_cases() -> dict[str, Case]:
    """All but weight-only products of weights that the host names."""
    return expert_cases() | cases()


@cache
def every_case() -> dict[str, Case]:
    """Every case by name, weight-only products first."""
    return {one.case.name: one.case for one in product_cases()} | other_cases()


def compile_all(names: list[str], cards: list[str], processes: int) -> Iterator[list[tuple[str, str, Compiled | str]]]:
    """Case, card and result, as each is found: several where they are one program, which is compiled once."""
    same: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name in names:
        for card in cards:
            launch, *others = every_case()[name].launches(card)
            assert not others, name
            same[program_key(card, launch)].append((name, card))
    jobs = list(same.values())
    if processes == 1:
        for job in jobs:
            yield _of_all(job, _compiled(*job[0]))
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(_compiled, *job[0]): job for job in jobs}
        for done in as_completed(running):
            yield _of_all(running[done], done.result())


def _of_all(job: list[tuple[str, str]], found: Compiled | str) -> list[tuple[str, str, Compiled | str]]:
    return [(name, card, found if isinstance(found, str) else replace(found, card=card)) for name, card in job]


def _compiled(name: str, card: str) -> Compiled | str:
    (launch,) = every_case()[name].launches(card)
    try:
        return compile_launch(card, launch)
    except Exception as error:  # noqa: BLE001  (a compiler's passes raise what they like)
        return f"does not compile: {(str(error).splitlines() or [type(error).__name__])[-1][:200]}"


def problems(result: Compiled | str) -> list[str]:
    return [result] if isinstance(result, str) else result.problems()


def unexplained(name: str, card: str, result: Compiled | str) -> list[str]:
    """Problems but for spills that `KNOWN_SPILLS` has, up to its bytes."""
    if isinstance(result, Compiled):
        result = replace(result, spilled=0) if result.spilled <= KNOWN_SPILLS.get((name, card), 0) else result
    return problems(result)


def product_table(results: Results, wanted: list[ProductCase], cards: list[str]) -> str:
    """Markdown, one row a format and kernel, one column a card."""
    lines = [f"| format | kernel, tokens | {' | '.join(cards)} |", f"|---|---|{'---|' * len(cards)}"]
    for one in wanted:
        cells = [_cell(results[one.case.name, card]) for card in cards]
        lines.append(f"| {one.format} | {one.kernel} | {' | '.join(cells)} |")
    return "\n".join(lines)


def other_table(results: Results, names: list[str], cards: list[str]) -> str:
    """Markdown, one row a kernel that a launcher starts, one column a card."""
    lines = [f"| what | {' | '.join(cards)} |", f"|---|{'---|' * len(cards)}"]
    lines += [f"| {name} | {' | '.join(_cell(results[name, card]) for card in cards)} |" for name in names]
    return "\n".join(lines)


def _cell(result: Compiled | str) -> str:
    parts = []
    if isinstance(result, Compiled):
        lanes = f"{result.lanes} s in lanes" if result.lanes else ""
        parts = [f"{result.registers} r", f"{result.shared / 1024:.3g} K", result.matrix, lanes]
    return ", ".join(filter(None, [*parts, *(f"**{problem}**" for problem in problems(result))]))


def written(text: str, name: str, found: str) -> str:
    """A document with another table between the marks of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    return f"{text.split(begin)[0]}{begin}\n{found}\n{end}{text.split(end)[1]}"


def rows_in(text: str, name: str) -> tuple[list[str], list[list[str]]]:
    """Cards and rows of a document's table of this name."""
    own = re.split(rf"<!-- {name}: (?:begin|end) -->", text)[1]
    head, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in own.strip().splitlines())
    return [name for name in head if name in CARDS], rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu.compile", description=__doc__)
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--kernels", default="")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--docs", type=Path)
    asked = parser.parse_args(arguments)
    cards, tokens = asked.cards.split(","), [int(count) for count in asked.tokens.split(",")]
    only = asked.kernels.split(";") if asked.kernels else []
    products = [one for one in product_cases() if one.tokens in tokens and (not only or one.format in only)]
    others = [name for name in other_cases() if not only or name in only]
    unknown = set(only) - {one.format for one in products} - set(others)
    if unknown:
        parser.error(f"there is no kernel {', '.join(sorted(unknown))}")
    names = [*(one.case.name for one in products), *others]
    results: Results = {}
    begin, programs = time.perf_counter(), 0
    for found in compile_all(names, cards, asked.processes):
        programs += 1
        for name, card, result in found:
            results[name, card] = result
            sys.stdout.write(f"{name} / {card}: {_cell(result)}\n")
        sys.stdout.flush()
    failed = {key: wrong for key, result in results.items() if (wrong := unexplained(*key, result))}
    for (name, card), wrong in failed.items():
        sys.stderr.write(f"{name} on {card}: {'; '.join(wrong)}\n")
    if asked.docs:
        text = asked.docs.read_text(encoding="utf-8")
        text = written(text, "assembler", f"{assembler()}: {programs} programs in {len(results)} cells.")
        if products:
            text = written(text, _PRODUCTS, product_table(results, products, cards))
        if others:
            text = written(text, _OTHERS, other_table(results, others, cards))
        asked.docs.write_text(text, encoding="utf-8")
    seconds = time.perf_counter() - begin
    sys.stdout.write(
        f"{len(results)} kernels, {programs} programs compiled in {seconds:.0f} s, {len(failed)} with problems\n"
    )
    return 1 if failed else 0
