"""`bitsmith inspect`: what stands out in a checkpoint, why, and what can be done, as a table, JSON or a page."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from core.errors import UserError
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.inspect.report import Stage, Wishes

T = TypeVar("T")
MAX_TEXT = 4 << 20  # bytes of a text that are read
PAGE_DETAILS = 3  # tensors that a page shows closely when none is chosen


def add_commands(
    command: Callable[[str, str], argparse.ArgumentParser], recipe: Callable[[argparse.ArgumentParser], None]
) -> None:
    """command: makes the parser of one; recipe: adds the options that describe a recipe."""
    parser = command("inspect", "Show outlier channels, predicted errors and remedies; with --activations, inputs too.")
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--tensor", default="", metavar="NAME", help="look at one tensor closely")
    parser.add_argument("--expert", type=int, metavar="N", help="of a stack of experts, only this one")
    parser.add_argument("--activations", action="store_true", help="also what every linear layer is given over a text")
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text for that; default: one that is included")
    parser.add_argument("--tokens", type=int, metavar="N", help="of the text; default: 512")
    parser.add_argument("--threshold", type=float, metavar="X", help="of LLM.int8()'s outlier columns; default: 6")
    parser.add_argument("--findings", type=int, default=8, metavar="N", help="that get remedies; default: 8")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="a second checkpoint, compared tensor by tensor")
    parser.add_argument("--html", action="store_true", help="write a page with pictures, one file that needs no other")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the page or the JSON is written")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    recipe(parser)


def inspect(args: argparse.Namespace, token: CancelToken) -> int:
    from core.checkpoint import open_checkpoint
    from core.cli_commands import json_text
    from core.inspect.report import gather

    kind = _kind(args)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(open_checkpoint(args.path))
        other = stack.enter_context(open_checkpoint(args.compare)) if args.compare else None
        for opened in filter(None, (checkpoint, other)):
            if opened.packed_problem:
                raise opened.packed_problem
        output = args.output
        if kind == "html" and output is None:
            output = Path(f"{Path(checkpoint.path).absolute().name}-inspect.html")
        if output is not None:
            _check_output(output, args.overwrite, checkpoint, other)
        report = _drive(gather(checkpoint, _wishes(args, kind), token, other), quiet=args.json)
        if kind == "text":
            from core.inspect.report_text import text_lines

            print("\n".join(text_lines(report)))
            return 0
        if kind == "html":
            from core.inspect.report_html import page

            text = page(report)
        else:
            from core.inspect.report_json import report_data

            text = json_text(report_data(report)) + "\n"
    if output is None:
        print(text, end="")
        return 0
    _write(output, text)
    print(json_text({"output": str(output)}) if kind == "json" else f"{output} written")
    return 0


def _kind(args: argparse.Namespace) -> str:
    """'text', 'json' or 'html': as asked, or as the output's name says."""
    if args.json and args.html:
        raise UserError("--json and --html are two different outputs.", "Choose one of them.")
    if args.html or args.json:
        return "html" if args.html else "json"
    if args.output is None:
        return "text"
    known = {".html": "html", ".htm": "html", ".json": "json"}.get(args.output.suffix.lower())
    if known is None:
        raise UserError(f"What is written to {args.output.name} is not said.", "Add --html or --json.")
    return known


def _wishes(args: argparse.Namespace, kind: str) -> Wishes:
    from core.cli_commands import recipe_of
    from core.inspect.report import Wishes

    if args.findings < 0:
        raise UserError(f"{args.findings} findings can not be shown.", "Give 0 or more.")
    threshold = Wishes.threshold if args.threshold is None else args.threshold
    if not 0 <= threshold < math.inf:
        raise UserError(f"A threshold of {threshold:g} means nothing.", "Give a magnitude, such as 6.")
    described = ("to", "recipe", "rule", "keep", "keep_group", "keep_first", "keep_last", "method", "misfit")
    has_recipe = any(getattr(args, name) not in (None, []) for name in described)
    return Wishes(
        tensor=args.tensor,
        expert=args.expert,
        recipe=recipe_of(args) if has_recipe else None,
        activations=args.activations or args.text is not None or args.tokens is not None,
        text=None if args.text is None else _read(args.text),
        tokens=Wishes.tokens if args.tokens is None else args.tokens,
        threshold=threshold,
        findings=args.findings,
        details=PAGE_DETAILS if kind == "html" else 0,
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT)
    except OSError as e:
        raise UserError(
            f"{path.name or path} can not be read ({e.strerror or e}).", "Check the name of the file."
        ) from e
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        if len(data) == MAX_TEXT and e.start > MAX_TEXT - 4:  # cut inside of a letter
            return data[: e.start].decode()
        raise UserError(f"{path.name} is no text in UTF-8.", "Save it as UTF-8.") from e


def _check_output(output: Path, overwrite: bool, checkpoint: Checkpoint, other: Checkpoint | None) -> None:
    """Before minutes of work."""
    from core.output import check_file

    if not output.absolute().parent.is_dir():
        raise UserError(f"{output.name or output} can not be written.", "Choose another place with -o.")
    check_file(output, overwrite, [c for c in (checkpoint, other) if c is not None], " with -o")


def _write(output: Path, text: str) -> None:
    from core.runtime.results import write_whole

    try:
        write_whole(output, text.encode("utf-8", "backslashreplace"))
    except OSError as e:
        raise UserError(f"{output.name} can not be written ({e.strerror}).", "Choose another place with -o.") from e


def _drive(steps: Generator[Stage, None, T], quiet: bool) -> T:
    """Run to the end; what is going on goes to a terminal on stderr, one line that is written over."""
    terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()
    try:
        while True:
            stage = next(steps)
            if terminal:
                text = f"{stage.name} {int(100 * stage.share)} %"
                print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {"inspect": inspect}
