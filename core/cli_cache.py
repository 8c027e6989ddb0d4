"""`bitsmith cache`: what a model's cache of keys and values takes in each format, and what runtimes are told."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.progress import CancelToken
from core.units import format_bytes, format_count

if TYPE_CHECKING:
    from core.kv.planning import PlannedCache

MOST = 1 << 40  # tokens and sequences that can be planned for


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    p = command("cache", "Say what keys and values take in each format, what fits, and what runtimes are told.")
    p.add_argument("path", type=Path, metavar="PATH")
    p.add_argument(
        "--type",
        metavar="SCHEME",
        help="one alone: q8_0, q8_0/q4_0 for keys and for values, 'kivi2,window=128', 'int4,rotate,first=2,last=2'",
    )
    p.add_argument("--context", type=int, default=8192, metavar="N", help="tokens of a sequence; default: 8192")
    p.add_argument("--sequences", type=int, default=1, metavar="N", help="at once; default: 1")
    p.add_argument("--device", metavar="NAME", help="say what fits there; see 'bitsmith devices --known'")
    p.add_argument("--memory", metavar="SIZE", help="instead: what fits into so much memory")


def cache(args: argparse.Namespace, _token: CancelToken) -> int:
    from core.checkpoint import open_checkpoint
    from core.kv.flags import told_runtimes
    from core.kv.planning import offered, plan_cache
    from core.kv.scheme import CacheScheme
    from core.models import model_shape

    for what, number in (("tokens", args.context), ("sequences", args.sequences)):
        if not 1 <= number <= MOST:
            raise UserError(f"{format_count(number)} {what} can not be planned for.", "Give 1 or more.")
    chosen = CacheScheme.parse(args.type) if args.type is not None else None
    with open_checkpoint(args.path) as checkpoint:
        shape, weights = model_shape(checkpoint), checkpoint.total_bytes
    if shape is None or not shape.layers:
        raise UserError("The size of this model's cache is not known.", "Give a model whose configuration is there.")
    room = _room(args)
    schemes = offered() if chosen is None else (chosen,)
    left = None if room is None else room - weights
    rows = [_row(planned) for planned in plan_cache(shape, schemes, args.context, args.sequences, left)]
    told = told_runtimes(chosen, shape.head_dim) if chosen is not None else ()
    if args.json:
        from core.cli_commands import show

        words = [
            {"runtime": each.runtime, **({"refused": each.text} if each.refused else {"options": each.command})}
            for each in told
        ]
        show({"context": args.context, "sequences": args.sequences, "formats": rows, "runtimes": words})
        return 0
    for line in [*_table(rows), *(f"{t.runtime}: {t.text}" for t in told)]:
        print(line)
    return 0


def _room(args: argparse.Namespace) -> int | None:
    from core.budget.device import find_device
    from core.cli_budget import parse_size

    if args.memory is not None:
        return parse_size(args.memory)
    if args.device is None:
        return None
    device = find_device(args.device)
    if device.memory_bytes is None:
        raise UserError(f"The memory of {device.name} is not known.", "Give it with --memory.")
    return device.memory_bytes


def _row(planned: PlannedCache) -> dict[str, Any]:
    row: dict[str, Any] = {
        "scheme": planned.scheme.text,
        "bits": planned.bits,
        "bytes_per_token": planned.bytes_per_token,
        "bytes": planned.bytes,
    }
    if planned.room is not None:
        row |= {"tokens_that_fit": planned.tokens, "sequences_that_fit": planned.sequences}
    return row


def _table(rows: list[dict[str, Any]]) -> list[str]:
    width = max(len("cache"), *(len(row["scheme"]) for row in rows))
    fits = "tokens_that_fit" in rows[0]
    head = f"{'cache':<{width}}  {'bits':>7}  {'a token':>9}  {'all of it':<26}"
    lines = [(head + "  tokens that fit  sequences" if fits else head).rstrip()]
    for row in rows:
        line = f"{row['scheme']:<{width}}  {row['bits']:>7.3f}  {format_count(row['bytes_per_token']):>7} B"
        line += f"  {format_bytes(row['bytes']):<26}"
        if fits:
            tokens, sequences = row["tokens_that_fit"], row["sequences_that_fit"]
            line += f"  {'any' if tokens is None else format_count(tokens):>15}"
            line += f"  {'any' if sequences is None else format_count(sequences):>9}"
        lines.append(line.rstrip())
    return lines


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {"cache": cache}
