"""`bitsmith eval`: measure a finished file against its source, and judge it by thresholds that were set before."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from core.cli_generate import device_options
from core.errors import UserError
from core.progress import CancelToken
from core.threads import MAX_THREADS
from core.units import format_count

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint
    from core.verdict.evaluation import Evaluation
    from core.verdict.settings import EvalSettings
    from core.verdict.thresholds import Verdict

_REPORTS = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json"}
FAILED = 1  # exit code of a verdict that fails


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = command("eval", "Measure a finished file against its source; exit code 1 when it fails the thresholds.")
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT")
    parser.add_argument("--text", type=Path, metavar="FILE", help="to measure on; default: one that is included")
    parser.add_argument("--windows", type=int, default=16, metavar="N", help="of the text; default: 16")
    parser.add_argument("--length", type=int, default=512, metavar="N", help="tokens of a window; default: 512")
    parser.add_argument(
        "--score",
        choices=("all", "second-half"),
        default="all",
        help="tokens of a window that count; second-half: as llama.cpp's perplexity does",
    )
    parser.add_argument(
        "--from-start", action="store_true", help="windows one after the other, not spread over the text"
    )
    parser.add_argument(
        "--arithmetic",
        choices=("exact", "fast", "token", "llm.int8"),
        default="exact",
        help="what weights are multiplied with: float32, or int8 as the engine does; default: exact",
    )
    parser.add_argument(
        "--cache-type",
        default="f16",
        metavar="TYPE",
        help="what the artifact's keys and values are kept in, as of generate; the source's in f16; default: f16",
    )
    parser.add_argument(
        "--thresholds", default="balanced", metavar="NAME", help="strict, balanced (default), loose, or a JSON file"
    )
    parser.add_argument("--layers", type=int, default=128, metavar="N", help="tokens for the error by layer; 0: none")
    parser.add_argument(
        "--tasks", type=Path, metavar="FILE", help='lines of {"prompt": "…", "choices": ["…", "…"], "answer": 0}'
    )
    parser.add_argument(
        "--needle",
        nargs="*",
        type=int,
        metavar="TOKENS",
        help="also whether a number hidden in texts of so many tokens is found; without a number: 256, 1024 and 4096",
    )
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="to compare greedy texts; default: three")
    parser.add_argument("--new-tokens", type=int, default=48, metavar="N", help="of each text; 0: no texts")
    parser.add_argument("--speed", action="store_true", help="also how fast both run here, in alternation")
    parser.add_argument("--method", default="", metavar="TEXT", help="how the artifact was made, for the report")
    parser.add_argument("--calibration", default="", metavar="TEXT", help="what it was calibrated on, for the report")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report there: .html, .md or .json")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing report")
    parser.add_argument("--no-cache", action="store_true", help="do not keep the source's logits, nor use kept ones")
    parser.add_argument("--threads", type=int, metavar="N", help="default: the physical cores")
    device_options(parser)


def evaluate(args: argparse.Namespace, token: CancelToken) -> int:
    from core.checkpoint import open_checkpoint
    from core.verdict.thresholds import find_thresholds, judge

    settings, thresholds = _settings(args), find_thresholds(args.thresholds)
    with ExitStack() as stack:
        source = stack.enter_context(open_checkpoint(args.source))
        artifact = stack.enter_context(open_checkpoint(args.artifact))
        if args.report is not None:
            _check_report(args.report, args.overwrite, source, artifact)
        evaluation = _drive(source, artifact, settings, token, quiet=args.json)
    verdict = judge(evaluation, thresholds)
    if args.report is not None:
        _write(args.report, evaluation, verdict)
    if args.json:
        from core.cli_commands import show
        from core.verdict.report import report_data

        show(report_data(evaluation, verdict))
    else:
        print("\n".join(_lines(evaluation, verdict)))
        if args.report is not None:
            print(f"{args.report} written")
    return 0 if verdict.passed else FAILED


def _settings(args: argparse.Namespace) -> EvalSettings:
    from core.verdict.needle import LENGTHS
    from core.verdict.settings import EvalSettings, EvalText, Score
    from core.verdict.texts import PROMPTS

    if args.threads is not None and not 1 <= args.threads <= MAX_THREADS:
        raise UserError(
            f"{format_count(args.threads)} threads can not compute.", f"Give 1 to {format_count(MAX_THREADS)}."
        )
    if args.new_tokens < 0:
        raise UserError(f"{args.new_tokens} tokens can not be written.", "Give 0 or more.")
    path = "" if args.text is None else str(args.text)
    prompts = tuple(args.prompt or PROMPTS) if args.new_tokens else ()
    return EvalSettings(
        text=EvalText(path, args.windows, args.length, Score(args.score), not args.from_start),
        arithmetic=args.arithmetic,
        cache=args.cache_type,
        layers=args.layers,
        tasks="" if args.tasks is None else str(args.tasks),
        needle=() if args.needle is None else tuple(args.needle) or LENGTHS,
        prompts=prompts,
        new_tokens=max(args.new_tokens, 1),
        speed=args.speed,
        use_cache=not args.no_cache,
        threads=args.threads,
        device=args.device,
        fallback=args.fallback is not None,
        method=args.method,
        calibration=args.calibration,
    )


def _drive(
    source: Checkpoint, artifact: Checkpoint, settings: EvalSettings, token: CancelToken, quiet: bool
) -> Evaluation:
    """Run to the end; what is going on goes to a terminal on stderr, one line that is written over."""
    from core.verdict.evaluate import EvalStep
    from core.verdict.evaluate import evaluate as run

    terminal = not quiet and sys.stderr is not None and sys.stderr.isatty()

    def show(step: EvalStep) -> None:
        found = "" if step.quality is None else f", mean KL {step.quality.kl_mean.value:.4g}"
        print(f"\r\x1b[K{step.stage} {int(100 * step.share)} %{found}", end="", file=sys.stderr, flush=True)

    try:
        return run(source, artifact, settings, show if terminal else None, token)
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _check_report(path: Path, overwrite: bool, *checkpoints: Checkpoint) -> None:
    """Before minutes of work."""
    from core.output import check_file

    if path.suffix.lower() not in _REPORTS:
        raise UserError(f"A report is not written as '{path.suffix}'.", "Name it .html, .md or .json.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path.name or path} can not be written.", "Choose another place.")
    check_file(path, overwrite, checkpoints)


def _write(path: Path, evaluation: Evaluation, verdict: Verdict) -> None:
    from core.cli_commands import json_text
    from core.runtime.results import write_whole
    from core.verdict.report import markdown, report_data
    from core.verdict.report_html import page

    kind = _REPORTS[path.suffix.lower()]
    if kind == "json":
        text = json_text(report_data(evaluation, verdict)) + "\n"
    else:
        text = page(evaluation, verdict) if kind == "html" else markdown(evaluation, verdict)
    try:
        write_whole(path, text.encode("utf-8", "backslashreplace"))
    except OSError as e:
        raise UserError(f"{path.name} can not be written ({e.strerror}).", "Choose another place.") from e


def _lines(evaluation: Evaluation, verdict: Verdict) -> list[str]:
    """The same sections as the report's, for a terminal; files, serving and rollback are left to it."""
    from core.verdict.report import Code, Table, sections

    lines: list[str] = []
    for section in sections(evaluation, verdict):
        if section.key in ("files", "serving", "rollback"):
            continue
        lines += ["", section.title] if section.key != "verdict" else []
        for block in section.blocks:
            if isinstance(block, Table):
                rows = (block.head, *block.rows)
                widths = [max(len(row[i]) for row in rows) for i in range(len(block.head))]
                for row in rows:
                    cells = (
                        cell.rjust(w) if i in block.numeric else cell.ljust(w)
                        for i, (cell, w) in enumerate(zip(row, widths, strict=True))
                    )
                    lines.append(f"  {'  '.join(cells)}".rstrip())
            elif isinstance(block, Code):
                lines += [f"    {line}" for line in block.text.splitlines()]
            else:
                lines.append(f"  {block}" if section.key != "verdict" else block)
    return lines


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {"eval": evaluate}
