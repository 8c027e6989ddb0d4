"""`bitsmith cache`: what a model's cache of keys and values takes in each format, and what runtimes are told."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.progress import CancelToken
from core.units import format_bytes, format_count

if TYPE_CHECKING:
    from core.kv.scheme import CacheScheme
    from core.models.shape import ModelShape

RUNTIMES = {"llama.cpp": "llama-server", "vLLM": "vllm serve", "SGLang": "sglang", "MLX": "mlx_lm.generate"}
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
    schemes = [chosen] if chosen is not None else _all()
    rows = [_row(shape, scheme, args, weights, room) for scheme in schemes]
    flags = _flags(chosen, shape) if chosen is not None else []
    if args.json:
        from core.cli_commands import show

        show({"context": args.context, "sequences": args.sequences, "formats": rows, "runtimes": flags})
        return 0
    for line in [*_table(rows), *_words(flags)]:
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


def _all() -> list[CacheScheme]:
    """Each format for keys and values; those that need it are rotated, those of channels have values beside them."""
    from core.kv.scheme import CacheScheme
    from kernels.kv import CACHE_FORMATS

    made = []
    for form in CACHE_FORMATS.values():
        scheme = CacheScheme(form.name, f"U{form.bits}-g32" if form.channels else "")
        made.append(replace(scheme, rotate_keys=form.rotated, rotate_values=form.rotated))
    return made


def _row(
    shape: ModelShape, scheme: CacheScheme, args: argparse.Namespace, weights: int, room: int | None
) -> dict[str, Any]:
    from core import memory
    from core.kv.size import effective_bits

    row = {
        "scheme": scheme.text,
        "bits": effective_bits(shape, scheme, args.context),
        "bytes_per_token": memory.kv_bytes_per_token(shape, scheme),
        "bytes": memory.kv_bytes(shape, args.context, args.sequences, scheme),
    }
    if room is not None:
        left = room - weights - memory.workspace_bytes(shape, args.context, args.sequences, scheme)
        row["tokens_that_fit"] = memory.tokens_that_fit(shape, left, scheme)
        row["sequences_that_fit"] = memory.sequences_that_fit(shape, left, args.context, scheme)
    return row


def _flags(scheme: CacheScheme, shape: ModelShape) -> list[dict[str, str]]:
    from core.kv.flags import cache_flags

    found = []
    for runtime, program in RUNTIMES.items():
        try:
            found.append({"runtime": runtime, "options": f"{program} {cache_flags(runtime, scheme, shape.head_dim)}"})
        except UserError as e:
            found.append({"runtime": runtime, "refused": str(e)})
    return found


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


def _words(flags: list[dict[str, str]]) -> list[str]:
    return [f"{each['runtime']}: {each.get('options', each.get('refused', '')).rstrip()}" for each in flags]


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {"cache": cache}
