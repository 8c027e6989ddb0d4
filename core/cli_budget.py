"""`bitsmith budget`: which format each weight gets so that the file takes at most so many bytes, found by measuring.

`bitsmith convert --size` does the same on its way.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.budget.recipes import Point
    from core.budget.sensitivity import SensitivityProgress
    from core.budget.table import Sensitivities
    from core.budget.wish import Wish
    from core.checkpoint.base import Checkpoint
    from core.recipe import Recipe

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    from core.calibration.settings import Domain

    p = command("budget", "Find the recipe of mixed formats that loses least within a size, by measuring each weight.")
    p.add_argument("source", type=Path, metavar="SOURCE")
    add_limits(p)
    p.add_argument("--curve", action="store_true", help="print the curve of quality and size")
    p.add_argument(
        "--container", default="gguf", metavar="KIND", help="gguf (default), compressed-tensors, mlx, gptq …"
    )
    p.add_argument("--formats", metavar="A,B,…", help="that may be used; default: the usual ones; 16 bits always may")
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the recipe there, for --recipe")
    p.add_argument("--overwrite", action="store_true", help="replace an existing recipe")
    p.add_argument("--method", choices=("importance", "clip-search"), default="importance", help="default: importance")
    p.add_argument("--imatrix", metavar="FILE", help="an importance matrix of llama.cpp's; default: it is measured")
    p.add_argument("--calibration-text", metavar="PATH", help="default: texts that are included")
    p.add_argument(
        "--domain",
        action="append",
        default=[],
        choices=[d.value for d in Domain],
        help="of the included texts only this",
    )
    p.add_argument("--samples", type=int, metavar="N", help="of the calibration text; default: 64")
    p.add_argument("--length", type=int, metavar="N", help="tokens of each; default: 512")
    p.add_argument("--seed", type=int, metavar="N", help="of the choice of samples; default: 0")
    p.add_argument("--windows", type=int, metavar="N", help="of text that KL is measured on; default: 8")
    p.add_argument("--window-length", type=int, metavar="N", help="tokens of each; default: 64")
    p.set_defaults(transform=[], alpha=None, aim=False, online=False, chat=False)


def add_limits(p: argparse._ActionsContainer) -> None:
    """How large the output may be."""
    p.add_argument("--size", metavar="SIZE", help="of the output at most: 80MB, 4.5GiB, or a number of bytes")
    p.add_argument("--device", metavar="NAME", help="instead: what fits there; see 'bitsmith devices --known'")
    p.add_argument("--memory", metavar="SIZE", help="instead: what fits into so much memory")
    p.add_argument("--context", type=int, default=8192, metavar="N", help="tokens, for both; default: 8192")
    p.add_argument("--cache-type", default="f16", metavar="SCHEME", help="of its cache; see 'bitsmith cache'")


def has_limit(args: argparse.Namespace) -> bool:
    """Whether the options say how large the output may be. Raises UserError where they do so twice."""
    given = sum(x is not None for x in (args.size, args.device, args.memory))
    if given > 1:
        raise UserError("Several budgets are given.", "Give one of --size, --device and --memory.")
    return given == 1


def best_within(args: argparse.Namespace, checkpoint: Checkpoint, token: CancelToken) -> Recipe:
    """The mix that loses least, for a conversion whose options say how large its output may be; it is printed, too.

    --to says for which programs. Raises UserError for options that decide formats themselves, and those of `budget`;
    Cancelled.
    """
    from core.budget.wish import Wish
    from core.cli_calibration import calibrated_of
    from core.formats import Method
    from core.methods.choice import Calibrated, DataMethod
    from core.output import check_file
    from core.targets import find_target

    deciding = ("recipe", "rule", "keep", "keep_group", "keep_first", "keep_last", "misfit", "kv_cache")
    if given := next((name for name in deciding if getattr(args, name) not in (None, [])), ""):
        raise UserError(
            f"A size decides the formats, and so does --{given.replace('_', '-')}.",
            "Leave one of them out; 'bitsmith budget' writes a recipe that can be changed.",
        )
    if args.method in {m.value for m in Method} - {Method.SEARCH.value}:
        raise UserError(
            f"Sensitivities are not measured with {args.method}.", "Measure with 'importance' or 'clip-search'."
        )
    if args.output is not None and not args.output.is_dir():
        check_file(args.output, args.overwrite or args.resume, [checkpoint])
    container = find_target(args.to).ecosystem.lower() if args.to else ""
    wish = Wish(container or "gguf", calibrated=calibrated_of(args, Calibrated(DataMethod.IMPORTANCE)))
    limit = _limit(args, checkpoint)
    assert limit is not None
    found, chosen = _measured(checkpoint, wish, limit, token, quiet=args.json)
    assert chosen is not None
    if not args.json:
        print("\n".join(_lines(found, limit, chosen, ())))
    return chosen.recipe


def budget(args: argparse.Namespace, token: CancelToken) -> int:
    from core.budget.recipes import curve
    from core.checkpoint import open_checkpoint
    from core.output import check_file

    wish = _wish(args)
    limited = has_limit(args)
    if args.output is not None and not args.output.absolute().parent.is_dir():
        raise UserError(f"{args.output} can not be written.", "Choose another place.")
    with open_checkpoint(args.source) as checkpoint:
        if args.output is not None:
            check_file(args.output, args.overwrite, [checkpoint])
        if not limited and not args.curve:
            raise UserError("No budget is given.", "Add --size 4GB, --device with a name, or --curve to see all sizes.")
        if not limited and args.output is not None:
            raise UserError("The curve has many recipes.", "Add --size to say which one to write.")
        limit = _limit(args, checkpoint)
        found, chosen = _measured(checkpoint, wish, limit, token, quiet=args.json)
        points = curve(found) if args.curve else ()
    if chosen is not None and args.output is not None:
        _write(args.output, chosen.recipe.to_json() + "\n")
    if args.json:
        from core.cli_commands import show

        show(_data(found, limit, chosen, points))
        return 0
    for line in _lines(found, limit, chosen, points):
        print(line)
    if chosen is not None and args.output is not None:
        print(f"{args.output} written; use it with: bitsmith convert {args.source} --recipe {args.output}")
    return 0


def _measured(
    checkpoint: Checkpoint, wish: Wish, limit: int | None, token: CancelToken, quiet: bool
) -> tuple[Sensitivities, Point | None]:
    """What each weight costs, and the best mix within a limit where there is one."""
    from core.budget.recipes import best

    if limit is not None:
        _check_early(checkpoint, wish, limit)
    found = _drive(checkpoint, wish, token, quiet)
    return found, None if limit is None else best(found, limit, checkpoint)


def parse_size(text: str) -> int:
    """'80MB' → 80 000 000; '4.5 GiB'; a plain number is bytes. Raises UserError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UserError(f"'{text}' is not a size.", "Write it as 80MB, 4.5GiB, or a number of bytes.")
    unit = match[2].lower()
    size = float(match[1]) * (1024 if unit.endswith("i") else 1000) ** _POWERS[unit.removesuffix("i")]
    if not math.isfinite(size):
        raise UserError(f"'{text}' is too large.", "Write it as 80MB, 4.5GiB, or a number of bytes.")
    return int(size)


def _wish(args: argparse.Namespace) -> Wish:
    from dataclasses import replace

    from core.budget.wish import PROBE, Wish
    from core.cli_calibration import calibrated_of

    formats = tuple(name.strip() for name in (args.formats or "").split(",") if name.strip())
    changes = {"samples": args.windows, "length": args.window_length}
    probe = replace(PROBE, **{k: v for k, v in changes.items() if v is not None})
    return Wish(args.container.lower(), formats, calibrated_of(args, None), probe)


def _limit(args: argparse.Namespace, checkpoint: Checkpoint) -> int | None:
    from core.budget.device import budget_of, find_device
    from core.kv.scheme import CacheScheme

    cache = CacheScheme.parse(args.cache_type)
    if args.size is not None:
        return parse_size(args.size)
    if args.memory is not None:
        return budget_of(checkpoint, parse_size(args.memory), args.context, cache=cache)
    if args.device is None:
        return None
    device = find_device(args.device)
    if device.memory_bytes is None:
        raise UserError(f"The memory of {device.name} is not known.", "Give it with --memory.")
    return budget_of(checkpoint, device.memory_bytes, args.context, cache=cache)


def _check_early(checkpoint: Checkpoint, wish: Wish, limit: int) -> None:
    """A budget that can not be met is refused before anything is measured."""
    from core.budget.recipes import check_bytes
    from core.budget.units import survey

    found = survey(checkpoint, wish)
    smallest = found.other_bytes + sum(min(p.bytes for p in u.possible) for u in found.units)
    check_bytes(limit, smallest, found.other_bytes + sum(u.possible[-1].bytes for u in found.units))


def _drive(checkpoint: Checkpoint, wish: Wish, token: CancelToken, quiet: bool) -> Sensitivities:
    from core.budget.sensitivity import cost, sensitivities
    from core.units import format_bytes, format_duration

    job: Generator[SensitivityProgress, None, Sensitivities] = sensitivities(checkpoint, wish, token)
    terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()
    said = False
    while True:
        try:
            step = next(job)
        except StopIteration as stop:
            if terminal:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            found: Sensitivities = stop.value
            for note in found.notes if sys.stderr is not None else ():
                print(note, file=sys.stderr)
            return found
        if not said and not quiet and sys.stderr is not None:
            said, expected = True, cost(checkpoint, wish)
            print(
                f"Measuring takes about {format_duration(expected.seconds)} and {format_bytes(expected.memory)} of "
                "memory; it is kept for the next time.",
                file=sys.stderr,
            )
        if terminal:
            print(
                f"\r\x1b[K{step.phase}: block {step.done} of {step.total} {step.name}",
                end="",
                file=sys.stderr,
                flush=True,
            )


def _lines(found: Sensitivities, limit: int | None, chosen: Point | None, points: tuple[Point, ...]) -> list[str]:
    from core.units import format_bytes, format_count

    lines = []
    if points:
        lines += ["size              predicted KL"]
        lines += [f"{format_count(p.bytes):>13} B   {p.kl:<10.4g}" for p in points]
    if chosen is not None and limit is not None:
        lines.append(
            f"{format_bytes(chosen.bytes)} of {format_bytes(limit)}; predicted KL {chosen.kl:.3g} nats a token"
        )
        values: Counter[str] = Counter()
        for unit, form in zip(found.units, chosen.formats, strict=True):
            values[form] += unit.values
        total = sum(values.values())
        lines += [f"  {form:<16} {100 * n / total:5.1f} % of the values" for form, n in values.most_common()]
        lines += [f"  {rule.pattern} → {rule.format} ({rule.reason})" for rule in chosen.recipe.rules]
    return lines


def _data(found: Sensitivities, limit: int | None, chosen: Point | None, points: tuple[Point, ...]) -> dict[str, Any]:
    import json

    def words(p: Point) -> dict[str, Any]:
        return {"bytes": p.bytes, "kl": p.kl}

    data: dict[str, Any] = {
        "budget": limit,
        "smallest": found.smallest,
        "largest": found.largest,
        "tokens": found.tokens,
        "cpu_seconds": found.cpu_seconds,
        "curve": [words(p) for p in points],
        "chosen": None,
        "units": [
            {
                "tensors": list(u.tensors),
                "kl_per_error": u.slope,
                "options": [{"format": o.format, "bytes": o.bytes, "error": o.error, "kl": o.kl} for o in u.options],
            }
            for u in found.units
        ],
    }
    if chosen is not None:
        formats = {t: form for u, form in zip(found.units, chosen.formats, strict=True) for t in u.tensors}
        data["chosen"] = {**words(chosen), "formats": formats, "recipe": json.loads(chosen.recipe.to_json())}
    return data


def _write(path: Path, text: str) -> None:
    from core.runtime.results import write_whole

    try:
        write_whole(path, text.encode("utf-8", "backslashreplace"))
    except OSError as e:
        raise UserError(f"{path.name} can not be written ({e.strerror}).", "Choose another place.") from e


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {"budget": budget}
