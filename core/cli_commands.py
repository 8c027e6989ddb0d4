"""What each command does: builds the objects of `core`, prints text or JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from core import few_bits
from core.catalog import base_of, bits_text, granularity_text, kind_of, readers, use_of, uses
from core.checkpoint import Checkpoint, open_checkpoint
from core.cli_budget import best_within, has_limit
from core.cli_calibration import calibrated_of, method_of, samples_of, say_warnings, text_data, text_lines
from core.errors import UserError
from core.format_table import format_table
from core.hardware.matrix import family
from core.plan import Plan, make_plan, misfit_costs
from core.preferences import results_folder
from core.progress import CancelToken, Progress, TensorResult
from core.recipe import KEEP, KeepGroup, Misfit, Recipe, Rule
from core.run import RunResult, run, unfinished
from core.serving import Command, serving
from core.targets import TARGETS, Target
from core.units import format_bytes, format_count, format_duration

MAX_RECIPE = 4 << 20  # bytes; a recipe that a person made has some hundred


def recipe_of(args: argparse.Namespace, checkpoint: Checkpoint | None = None) -> Recipe:
    """The recipe that the options describe; they win over a recipe file. checkpoint: what it is for, where it is open:
    a recipe by name may depend on it. Raises UserError when no target is given."""
    recipe = Recipe(target="")
    if args.recipe and (few := few_bits.find(str(args.recipe))):
        recipe = few.suited(checkpoint).recipe
    elif args.recipe:
        try:
            if args.recipe.stat().st_size > MAX_RECIPE or not args.recipe.is_file():
                raise OSError
            recipe = Recipe.from_json(args.recipe.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            raise UserError(f"The recipe {args.recipe} can not be read.", "Check the name of the file.") from None
    rules = [Rule(pattern, KEEP) for pattern in args.keep]
    for text in args.rule:
        pattern, separator, name = text.rpartition("=")
        if not separator or not pattern or not name:
            raise UserError(f"'{text}' is not a rule.", "Write it as REGEX=FORMAT, such as 'down_proj=Q6_K'.")
        rules.append(Rule(pattern, name))
    recipe = replace(
        recipe,
        target=args.to or recipe.target,
        rules=(*rules, *recipe.rules),
        keep=recipe.keep | {KeepGroup(k) for k in args.keep_group},
        keep_first=recipe.keep_first if args.keep_first is None else _not_negative(args.keep_first),
        keep_last=recipe.keep_last if args.keep_last is None else _not_negative(args.keep_last),
        method=method_of(args) or recipe.method,
        calibrated=calibrated_of(args, recipe.calibrated),
        misfit=Misfit(args.misfit) if args.misfit else recipe.misfit,
        cache=recipe.cache if args.kv_cache is None else args.kv_cache.replace("16-bit", ""),
    )
    if not recipe.target:
        raise UserError("No target is given.", "Add --to with a name from 'bitsmith formats', such as Q4_K_M.")
    return recipe


def _not_negative(n: int) -> int:
    if n < 0:
        raise UserError(f"{n} layers can not be kept.", "Give 0 or more.")
    return n


def show(data: dict[str, Any]) -> None:
    """Print strict JSON: numbers that JSON has no word for become null."""
    print(json_text(data))


def json_text(data: dict[str, Any]) -> str:
    """As `show` prints it."""
    return json.dumps(_finite(data), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def info(args: argparse.Namespace, token: CancelToken) -> int:
    from core.checkpoint.doctor import Finding, examine, scan_values
    from core.models import model_shape

    with open_checkpoint(args.path) as checkpoint:
        findings = list(examine(checkpoint))
        if args.scan:
            found = [f for step in scan_values(checkpoint, token) for f in step.findings]
            findings += found or [
                Finding("info", "values-read", "Every value was read; none is out of the ordinary.", "")
            ]
        shape = model_shape(checkpoint)
        values = sum(t.values for t in checkpoint.tensors if not t.tied_to)
        if args.json:
            show(
                {
                    "path": str(args.path),
                    "container": checkpoint.container.value,
                    "architecture": checkpoint.architecture,
                    "parameters": values,
                    "bytes": checkpoint.total_bytes,
                    "shape": vars_of(shape),
                    "findings": [vars_of(f) for f in findings],
                    "tensors": [
                        {
                            "name": t.name,
                            "shape": list(t.shape),
                            "dtype": t.dtype,
                            "bytes": t.nbytes,
                            "role": t.role.value,
                            "layer": t.layer,
                            "tied_to": t.tied_to or None,
                        }
                        for t in checkpoint.tensors
                    ],
                }
            )
            return 0
        print(f"{args.path}: {checkpoint.container.value}, architecture {checkpoint.architecture or 'unknown'}")
        print(
            f"  {format_count(values)} parameters in {format_count(len(checkpoint.tensors))} tensors, "
            f"{format_bytes(checkpoint.total_bytes)}"
        )
        if shape:
            print(
                f"  {shape.layers} layers, width {format_count(shape.hidden)}, {shape.heads} heads "
                f"({shape.kv_heads} for keys and values), "
                f"vocabulary {format_count(shape.vocab)}, context {format_count(shape.context)}"
            )
        for f in findings:
            print(f"  {f.severity}: {f.message} {f.hint}".rstrip())
    return 0


def vars_of(value: Any) -> dict[str, Any] | None:
    return dict(vars(value)) if value is not None else None


def plan_data(plan: Plan) -> dict[str, Any]:
    """The JSON of a plan."""
    return {
        "target": plan.target.name,
        "bytes_total": plan.bytes_total,
        "source_bytes": plan.source_bytes,
        "change": plan.change,
        "bits_per_weight": plan.bits_per_weight,
        "bytes": vars_of(plan.bytes),
        "expected_seconds": plan.expected_seconds,
        "expected_memory_bytes": plan.expected_memory,
        "scratch_bytes": plan.scratch_bytes,
        "warnings": list(plan.warnings),
        "lossless": plan.lossless_note or None,
        "tensors": [
            {
                "name": t.name,
                "action": t.action.value,
                "format": t.format_name,
                "bytes": t.bytes.total,
                "shape": list(t.shape),
                "reason": t.reason,
                "chosen_by": t.chosen_by or None,
                "fallback": t.fallback,
            }
            for t in plan.tensors
        ],
    }


def plan(args: argparse.Namespace, token: CancelToken) -> int:
    recipe_of(args)  # what is wrong with the options is said before anything is opened
    with open_checkpoint(args.path) as checkpoint:
        recipe = recipe_of(args, checkpoint)
        made = make_plan(checkpoint, recipe)
        costs = misfit_costs(checkpoint, recipe) if any(t.fallback for t in made.tensors) else {}
        text = samples_of(checkpoint, recipe.calibrated, token)
        if args.json:
            misfits = {policy.value: size for policy, size in costs.items()}
            calibration = None if text is None else text_data(text)
            show({**plan_data(made), "misfit_bytes": misfits, "calibration": calibration})
            return 0
        _print_summary(made)
        print(
            f"  takes about {format_duration(made.expected_seconds)}, up to {format_bytes(made.expected_memory)} of "
            f"memory, and {format_bytes(made.scratch_bytes)} of disk beside the output"
        )
        for line in text_lines(text) if text is not None else ():
            print(f"  {line}")
        if costs:
            sizes = (f"{p.value} {'refuses' if n is None else format_bytes(n)}" for p, n in costs.items())
            print(f"  where rows do not divide, --misfit {recipe.misfit.value} was chosen: {', '.join(sizes)}")
        width = max((len(t.name) for t in made.tensors), default=0)
        for t in made.tensors:
            size = format_count(t.bytes.total)
            print(f"  {t.name:<{width}}  {t.action.value:<8} {t.format_name:<16} {size:>14} B  {t.reason}")
    return 0


def _print_summary(made: Plan) -> None:
    print(
        f"{made.target.name}: {format_bytes(made.bytes_total)}, {format_count(made.bytes_total)} bytes exactly; "
        f"{made.change:+.1%} against the source, {made.bits_per_weight:.2f} bits a weight"
    )
    if made.lossless_note:
        print(f"  {made.lossless_note}")
    for w in made.warnings:
        print(f"  warning: {w}")


def convert(args: argparse.Namespace, token: CancelToken) -> int:
    limited = has_limit(args)
    recipe = Recipe("") if limited else recipe_of(args)  # what is wrong with the options is said first
    if args.threads is not None and args.threads < 1:
        raise UserError("At least one thread is needed.", "Give --threads 1 or more.")
    with open_checkpoint(args.path) as checkpoint:
        if limited:
            recipe = best_within(args, checkpoint, token)
        elif args.recipe:
            recipe = recipe_of(args, checkpoint)
        made = make_plan(checkpoint, recipe)
        output = args.output or default_output(checkpoint, made, "mix" if limited else "")
        if not args.json:
            _print_summary(made)
        if not args.resume and unfinished(output, made):
            print("An unfinished run of this job is there; it starts anew. --resume would go on.", file=sys.stderr)
        text = None if args.json else samples_of(checkpoint, made.recipe.calibrated, token)
        if text is not None:
            say_warnings(text)
        said = () if text is None else text.warnings
        job = run(made, checkpoint, output, token, args.resume, args.threads, args.overwrite)
        result = _drive(job, quiet=args.json)
        serve = serving(made, result.output)
        if args.json:
            show({**result_data(result), "serve": [vars_of(command) for command in serve]})
        elif result.was_there:
            print(f"{result.output} is finished already, as this command would write it; nothing was left to do.")
        else:
            print(f"done in {format_duration(result.seconds)}: {result.output} ({format_bytes(result.actual_bytes)})")
            for note in result.notes:
                if note not in said:
                    print(f"  {note}")
            print(
                f"  predicted {format_count(result.predicted_bytes)} bytes, written "
                f"{format_count(result.actual_bytes)}, read back and verified"
            )
        if not args.json:
            _print_serving(serve)
    return 0


def _print_serving(commands: Sequence[Command]) -> None:
    """How to run the result. What is Python is indented, so that it can be copied as a whole."""
    for command in commands:
        lines = command.text.splitlines()
        print(f"  {command.runtime}: {lines[0]}" if len(lines) == 1 else f"  {command.runtime}:")
        for text in lines if len(lines) > 1 else ():
            print(f"      {text}")
        if command.note:
            print(f"    {command.note}")


def default_output(checkpoint: Checkpoint, made: Plan, kind: str = "") -> Path:
    """Beside the source, or in the folder that is set for results: its name, the target's unless another `kind` is
    given, and '.gguf' for a file."""
    path = Path(checkpoint.path).absolute()
    stem = path.name if path.is_dir() else path.stem
    return (results_folder() or path.parent) / (
        f"{stem}-{kind or made.target.name}" + ("" if made.target.is_folder else ".gguf")
    )


def _drive(job: Generator[Progress, None, RunResult], quiet: bool) -> RunResult:
    show_step = _overwrite if sys.stderr.isatty() else _tenths()
    while True:
        try:
            p = next(job)
        except StopIteration as stop:
            if not quiet and sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return stop.value
        if not quiet:
            left = f", {format_duration(max(1.0, round(p.seconds_left)))} left" if p.seconds_left is not None else ""
            what = "layer" if p.phase == "calibrating" else "tensor"
            text = f"{p.phase} {int(p.share * 100)} %, {what} {p.tensor_index + 1} of {p.tensor_count}{left}"
            show_step(text, p.share)


def _overwrite(text: str, _share: float) -> None:
    """One line that is written over, on a terminal."""
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _tenths() -> Callable[[str, float], None]:
    """A line for each tenth of the work, where there is no terminal."""
    shown = 0

    def step(text: str, share: float) -> None:
        nonlocal shown
        if int(share * 10) > shown:
            shown = int(share * 10)
            print(f"  {text}", file=sys.stderr, flush=True)

    return step


def result_data(result: RunResult) -> dict[str, Any]:
    """The JSON of a conversion. snr_db is null where the copy is exact."""
    return {
        "output": str(result.output),
        "predicted_bytes": result.predicted_bytes,
        "actual_bytes": result.actual_bytes,
        "seconds": result.seconds,
        "peak_rss_bytes": result.peak_rss_bytes,
        "notes": list(result.notes),
        "tensors": [tensor_data(t) for t in result.tensors],
    }


def tensor_data(t: TensorResult) -> dict[str, Any]:
    return {
        "name": t.name,
        "format": t.format,
        "bytes": t.bytes,
        "snr_db": t.error.snr_db if t.error else None,
        "max_error": t.error.max_error if t.error else 0.0,
    }


def verify(args: argparse.Namespace, token: CancelToken) -> int:
    from core.verify import verify_against, verify_alone

    with open_checkpoint(args.path) as output:
        if args.source is None:
            health = verify_alone(output, token)
            if args.json:
                show({"ok": health.nonfinite == 0, **(vars_of(health) or {})})
            else:
                print(
                    f"{args.path}: {format_count(health.tensors)} tensors decoded, "
                    f"{format_count(health.nonfinite)} values not finite"
                )
            if health.nonfinite:
                raise UserError(
                    f"{format_count(health.nonfinite)} values are NaN or infinite.", "Convert it again from the source."
                )
            return 0
        with open_checkpoint(args.source) as source:
            made = make_plan(source, recipe_of(args, source))
            results = [r for _, r in verify_against(made, source, output, token)]
    if args.json:
        show({"ok": True, "tensors": [tensor_data(r) for r in results]})
    else:
        worst = min((r.error.snr_db for r in results if r.error), default=math.inf)
        print(
            f"{args.path}: {format_count(len(results))} tensors inside their formats' bounds; lowest SNR {worst:.2f} dB"
        )
    return 0


def formats(args: argparse.Namespace, token: CancelToken) -> int:
    if args.markdown:
        print(format_table(), end="")
        return 0
    if args.json:
        show({"targets": [target_data(t) for t in TARGETS]})
        return 0
    width = max(len(t.name) for t in TARGETS)
    for use in uses():
        print(use.title)
        for kind in use.kinds:
            print(f"  {kind.title}")
            who = ""
            for t in kind.targets:
                if (now := ", ".join(readers(t)) or "no runtime that has been checked") != who:
                    who = now
                    print(f"    read by {who}:")
                print(f"      {t.name:<{width}}  {bits_text(t):<13}  {t.summary}")
    return 0


def target_data(t: Target) -> dict[str, Any]:
    """The JSON of a target. effective_bits: of the type that most tensors get; each row adds `bits_a_row`."""
    contract = base_of(t).contract
    return {
        "name": t.name,
        "kind": t.kind.value,
        "container": t.container,
        "for": use_of(t).title,
        "ecosystem": t.ecosystem or None,
        "group": kind_of(t).title,
        "family": family(t.name),
        "base": t.base,
        "bits": contract.bits,
        "effective_bits": contract.effective_bits,
        "bits_a_row": contract.bits_a_row,
        "granularity": granularity_text(contract),
        "symmetric": contract.symmetric,
        "double_quantization": contract.outer_scale is not None,
        "runtimes": list(readers(t)),
        "summary": t.summary,
    }


def devices(args: argparse.Namespace, token: CancelToken) -> int:
    from core.hardware.report import devices_report, print_devices

    data = devices_report(known=args.known)
    show(data) if args.json else print_devices(data)
    return 0


def check(args: argparse.Namespace, token: CancelToken) -> int:
    from core.hardware.check import check_report, has_failed, report_text

    lines = check_report(args.folder)
    if args.json:
        show({"checks": [vars_of(line) for line in lines]})
    else:
        sys.stdout.write(report_text(lines))
    return 1 if has_failed(lines) else 0


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {
    "info": info,
    "plan": plan,
    "convert": convert,
    "verify": verify,
    "formats": formats,
    "devices": devices,
    "check": check,
}
