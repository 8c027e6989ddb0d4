"""`bitsmith generate` and `bitsmith bench`: run a file, and say how fast it ran."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.threads import MAX_THREADS
from core.units import format_count

if TYPE_CHECKING:
    from core.runtime.generate import GenerateRequest, GenerationResult
    from core.runtime.load import LoadedModel
    from core.runtime.results import Number
    from core.runtime.speed import Comparison, SpeedResult
    from core.runtime.sweep import Sweep
    from core.runtime.weights import ReadProgress

MAX_PROMPT = 1 << 24  # bytes of a prompt file; no context is so long
SWEEP_CONTEXT = 128
SWEEP_SEQUENCES = (128, 64, 32, 16, 8)  # the most that the memory allows are taken
ACTIVATIONS = ("fast", "exact", "token", "llm.int8")  # the keys of core.runtime.arithmetic.ARITHMETICS
OWN_SHAPES = 4  # of a model's layers, those that are read the most

T = TypeVar("T")


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add both commands to the parser."""
    generate = command("generate", "Continue a prompt or answer a question with the model in a file.")
    generate.add_argument("path", type=Path, metavar="PATH")
    source = generate.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="text to continue as it stands")
    source.add_argument("--chat", metavar="TEXT", help="a question, put into the model's chat template")
    source.add_argument("--file", type=Path, metavar="FILE", help="a file with the prompt; - reads standard input")
    generate.add_argument("--system", metavar="TEXT", default="", help="what comes before the question of --chat")
    generate.add_argument("--max-tokens", type=int, default=128, metavar="N", help="0: until the context is full")
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    generate.add_argument("--special", action="store_true", help="take special tokens in the prompt as such")
    generate.add_argument("--ignore-end", action="store_true", help="go on after the model's own end")
    generate.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampling; default: 0")
    generate.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0, the default: the likeliest")
    generate.add_argument("--top-k", type=int, default=0, metavar="K", help="0: off")
    generate.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1: off")
    generate.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0: off")
    generate.add_argument("--repetition", type=float, default=1.0, metavar="R", help="penalty; 1: off")
    generate.add_argument("--context", type=int, metavar="N", help="tokens that the cache holds")
    _engine_options(generate)

    bench = command("bench", "Measure the speed of the model in a file; with --baseline, of two in alternation.")
    bench.add_argument("path", type=Path, metavar="PATH")
    bench.add_argument("--baseline", type=Path, metavar="PATH", help="a second file, measured in the same process")
    bench.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="that are read; default: 512")
    bench.add_argument("--decode-tokens", type=int, default=64, metavar="N", help="that are written; default: 64")
    bench.add_argument(
        "--context", type=int, metavar="N", help="tokens before the first decoded one; default: the prompt"
    )
    bench.add_argument("--runs", type=int, default=3, metavar="N", help="of which the medians are taken")
    bench.add_argument("--sweep", action="store_true", help="also over the batch, 16 bits against quantized")
    bench.add_argument("--csv", type=Path, metavar="FILE", help="write the sweep's points there")
    bench.add_argument("--no-history", action="store_true", help="do not keep the result")
    _engine_options(bench)


def _engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        default="fast",
        help="what weights are multiplied with: int8 per 32 values, float32, int8 per token (W8A8), "
        "or that with outlier columns apart; default: fast",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: the physical cores")
    parser.add_argument(
        "--cache-type",
        default="",
        metavar="SCHEME",
        help="what keys and values are kept in: f16, q8_0, int8, fp8 …; two, as q8_0/q4_0, for keys and for values; "
        "'int4,rotate,window=128'; 'bitsmith cache' has all; default: f16, or fp8 where the file has scales for it",
    )
    device_options(parser)


def device_options(parser: argparse.ArgumentParser) -> None:
    """Where models run."""
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="cpu (the default), gpu, or gpu:1 for the second GPU"
    )
    parser.add_argument(
        "--fallback", choices=("cpu",), help="where to run what the device can not; default: it is refused"
    )


def open_model(
    stack: ExitStack, path: Path, args: argparse.Namespace, capacity: int | None, token: CancelToken, sequences: int = 1
) -> LoadedModel:
    """Load a file; it is unloaded when the stack is left. Progress goes to a terminal on stderr."""
    from core.checkpoint import open_checkpoint
    from core.runtime.arithmetic import ARITHMETICS
    from core.runtime.device import check_place, parse_place
    from core.runtime.load import load

    if args.threads is not None and not 1 <= args.threads <= MAX_THREADS:
        raise UserError(
            f"{format_count(args.threads)} threads can not compute.", f"Give 1 to {format_count(MAX_THREADS)}."
        )
    place = parse_place(args.device)
    check_place(place, args.fallback is not None)
    checkpoint = stack.enter_context(open_checkpoint(path))
    show = _show_loading if sys.stderr is not None and sys.stderr.isatty() and not args.json else None
    try:
        model = load(
            checkpoint, capacity, sequences, ARITHMETICS[args.activations], args.threads, args.cache_type,
            progress=show, token=token, place=place, fallback=args.fallback is not None,
        )  # fmt: skip
    finally:
        if show is not None:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    stack.callback(model.unload)
    if not args.cache_type and model.cache_dtype != "F16" and model.file_scales.layers:
        _note(f"The cache is kept in {model.cache_words}; --cache-type f16 keeps it in 16 bits.")
    if model.fell_back:
        _note(f"{model.fell_back} It runs on the processor.")
    return model


def _show_loading(step: ReadProgress) -> None:
    percent = 100 * step.bytes_done // max(step.bytes_total, 1)
    print(f"\r\x1b[Kloading {percent} %", end="", file=sys.stderr, flush=True)


def generate(args: argparse.Namespace, token: CancelToken) -> int:
    from core.runtime.generate import Finish, warm_up
    from core.runtime.generate import generate as run

    request = _request(args)
    with ExitStack() as stack:
        model = open_model(stack, args.path, args, args.context, token)
        _ = model.text  # a missing tokenizer is told before any work
        warm_up(model, token)
        result = _drive(run(model, request, token), None if args.json else lambda event: _say(event.text))
        if not args.json:
            print(flush=True)
        if result.finish is Finish.CANCELLED:
            raise Cancelled
        data = _generation_data(result, model)
    if args.json:
        from core.cli_commands import show

        show(data)
    else:
        _note(_summary(result))
        slow = next((use for use in data["kernels"] if use["isa"] == "numpy"), None)
        if slow is not None:
            _note(f"The compiled engine did not run: {slow['reason']}.")
    return 0


def _request(args: argparse.Namespace) -> GenerateRequest:
    from core.runtime.generate import GenerateRequest
    from core.runtime.sampling import Sampling
    from core.runtime.tokenizer import Message

    if args.max_tokens < 0:
        raise UserError(f"{args.max_tokens} tokens can not be generated.", "Give 1 or more, or 0 for no limit.")
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.repetition, args.seed)
    sampling.check()
    messages = []
    if args.chat is not None:
        messages = [Message("system", args.system)] if args.system else []
        messages.append(Message("user", args.chat))
    return GenerateRequest(
        prompt=_read(args.file) if args.file is not None else args.prompt or "",
        messages=tuple(messages),
        max_tokens=args.max_tokens or None,
        stop=tuple(args.stop),
        sampling=sampling,
        parse_special=args.special,
        ignore_end=args.ignore_end,
    )


def _read(path: Path) -> str:
    name = "Standard input" if str(path) == "-" else path.name or str(path)
    try:
        if str(path) == "-":
            if sys.stdin is None:
                raise UserError("Standard input is closed.", "Give the prompt with --prompt, or a file.")
            data = sys.stdin.buffer.read(MAX_PROMPT + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_PROMPT + 1)
    except OSError as e:
        raise UserError(f"{name} can not be read ({e.strerror or e}).", "Check the name of the file.") from e
    if len(data) > MAX_PROMPT:
        raise UserError(f"{name} is longer than any context.", "Give a shorter text.")
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise UserError(f"{name} is no text in UTF-8.", "Save it as UTF-8.") from e


def _note(text: str) -> None:
    """For the person, beside the output."""
    if sys.stderr is not None:  # closed; print would write to stdout
        print(text, file=sys.stderr)


def _say(text: str) -> None:
    if text:
        print(text, end="", flush=True)


def _drive(steps: Generator[Any, None, T], see: Callable[[Any], None] | None = None) -> T:
    while True:
        try:
            value = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if see is not None:
            see(value)


def _generation_data(result: GenerationResult, model: LoadedModel) -> dict[str, Any]:
    from core.runtime.speed import device_bytes_of, kernel_data

    return {
        "text": result.text,
        "tokens": list(result.tokens),
        "finish": result.finish.value,
        "prompt_tokens": result.prompt_tokens,
        "generated_tokens": len(result.tokens),
        "prompt_tokens_per_s": result.prompt_tokens_per_s,
        "decode_tokens_per_s": result.decode_tokens_per_s,
        "ttft_ms": result.ttft_ms,
        "itl_ms": {"p50": result.itl_p50, "p95": result.itl_p95},
        "peak_rss_bytes": result.peak_memory,
        "weight_bytes": model.weight_bytes,
        "bytes_per_token": model.engine.bytes_per_token,
        "cache": {"type": model.cache_dtype, "bytes": model.program.cache.nbytes, "tokens": model.capacity},
        "kernels": [kernel_data(use) for use in model.engine.report()],
        "device": model.place.name,
        "device_bytes": device_bytes_of(model) or None,
        "fell_back": model.fell_back or None,
    }


def _summary(result: GenerationResult) -> str:
    from core.units import format_bytes, format_duration, format_tokens_per_second

    parts = [
        f"{len(result.tokens)} tokens ({result.finish.value})",
        f"first after {format_duration(result.ttft_ms / 1000)}",
    ]
    if result.itl_p50 is not None and result.decode_tokens_per_s is not None:
        parts.append(f"then {format_duration(result.itl_p50 / 1000)} each")
        parts.append(format_tokens_per_second(result.decode_tokens_per_s))
    return ", ".join([*parts, f"peak memory {format_bytes(result.peak_memory)}"])


def bench(args: argparse.Namespace, token: CancelToken) -> int:
    from core.runtime.speed import BenchSettings, against, measure, speed_data

    settings = BenchSettings(args.prompt_tokens, args.decode_tokens, args.context, args.runs)
    settings.check()
    _check_csv(args)
    paths = [args.path, *([args.baseline] if args.baseline else [])]
    with ExitStack() as stack:
        models = [open_model(stack, path, args, settings.capacity, token) for path in paths]
        results = _drive(measure(models, settings, token))
        contract = models[0].contract
        sweeps = _layer_sweeps(models[0], args, token) if args.sweep else []
        context = args.context or min(SWEEP_CONTEXT, *(max(model.config.context - 1, 1) for model in models))
    comparison = against(results[0], results[1]) if args.baseline else None
    if args.sweep and args.baseline:
        sweeps.append(_decode_sweep(args, context, token))
    data = speed_data(results[0], comparison)
    if args.sweep:
        from core.runtime.sweep import sweep_data

        data["sweeps"] = [sweep_data(sweep) for sweep in sweeps]
    if args.json:
        from core.cli_commands import show

        show(data)
    else:
        _print_speed(results[0], comparison)
        for sweep in sweeps:
            _print_sweep(sweep)
    if not args.no_history:
        tokens = f"prompt of {settings.prompt_tokens}, {settings.decode_tokens} tokens decoded"
        _keep("bench", f"{args.path.name}, {tokens}", contract, results[0].numbers, data)
        for sweep, values in zip(sweeps, data.get("sweeps", ()), strict=True):
            _keep("sweep", f"{args.path.name}, {sweep.title}", contract, sweep.numbers, values)
    if args.csv:
        _write_csv(args.csv, sweeps)
    return 0


def _layer_sweeps(model: LoadedModel, args: argparse.Namespace, token: CancelToken) -> list[Sweep]:
    """The square layer in the model's main format, then the model's own."""
    from core.runtime.layers import SQUARE, layer_shapes, main_format, sample_matrix
    from core.runtime.sweep import layer_sweep
    from core.threads import worker_count

    if model.place.gpu:
        return _device_sweeps(model, token)
    threads = args.threads or worker_count()
    pairs = []
    name = main_format(model.program)
    try:
        pairs.append((sample_matrix("BF16", SQUARE, SQUARE), sample_matrix(name, SQUARE, SQUARE)))
    except ValueError:
        _note(f"No {SQUARE} × {SQUARE} layer in {name} can be made up; the model's own follow.")
    own = layer_shapes(model.program)[:OWN_SHAPES]
    pairs += [(sample_matrix("BF16", matrix.rows, matrix.columns), matrix) for matrix in own]
    return [_drive(layer_sweep(a, b, model.arithmetic.activations, threads, cancel=token)) for a, b in pairs]


def _device_sweeps(model: LoadedModel, token: CancelToken) -> list[Sweep]:
    """As `_layer_sweeps`, with weights made up on the GPU."""
    from core.runtime.layers import SQUARE, layer_shapes, main_format
    from core.runtime.sweep import device_layer_sweep

    own = [(matrix.format, matrix.rows, matrix.columns) for matrix in layer_shapes(model.program)[:OWN_SHAPES]]
    sweeps = []
    for shape in dict.fromkeys(((main_format(model.program), SQUARE, SQUARE), *own)):
        try:
            steps = device_layer_sweep(model.place, shape, model.arithmetic.activations, cancel=token)
            sweeps.append(_drive(steps))
        except ValueError as error:
            _note(f"No {shape[1]} × {shape[2]} layer in {shape[0]} is measured: {error}.")
    return sweeps


def _decode_sweep(args: argparse.Namespace, context: int, token: CancelToken) -> Sweep:
    from core.runtime.sweep import decode_sweep

    for sequences in SWEEP_SEQUENCES:
        with ExitStack() as stack:
            try:
                models = [
                    open_model(stack, path, args, context + 1, token, sequences) for path in (args.baseline, args.path)
                ]
            except UserError:
                if sequences == SWEEP_SEQUENCES[-1]:
                    raise
                continue
            return _drive(decode_sweep((models[0], models[1]), context, cancel=token))
    raise AssertionError


def _check_csv(args: argparse.Namespace) -> None:
    """Before minutes of measuring."""
    if args.csv and not args.sweep:
        raise UserError("--csv writes the points of a sweep, and none is measured.", "Add --sweep.")
    if args.csv and (args.csv.is_dir() or not os.access(args.csv.parent, os.W_OK)):
        raise UserError(f"{args.csv.name or args.csv} can not be written.", "Choose another place.")


def _write_csv(path: Path, sweeps: list[Sweep]) -> None:
    from core.runtime.results import write_whole
    from core.runtime.sweep import sweep_csv

    lines: list[str] = []
    for sweep in sweeps:
        head, *rows = sweep_csv(sweep).splitlines()
        lines += [] if lines else [f"layer,{head}"]
        lines += [f'"{sweep.title}",{row}' for row in rows]
    try:
        write_whole(path, ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
    except OSError as e:
        raise UserError(f"{path.name} can not be written ({e.strerror}).", "Choose another place.") from e


def _print_speed(result: SpeedResult, comparison: Comparison | None) -> None:
    from core.runtime.results import number_text

    second = {n.name: n.value for n in comparison.baseline.numbers} if comparison else {}
    for number in result.numbers:
        text = number_text(number.value, number.unit)
        if number.name.startswith("Energy") and number.value is None:
            text = result.energy_reason
        beside = f"   baseline {number_text(second[number.name], number.unit)}" if number.name in second else ""
        print(f"  {number.name:<32} {text}{beside if number.value is not None else ''}")
    if comparison:
        rates = f"generation {comparison.decode_ratio:.2f} ×, prompt {comparison.prompt_ratio:.2f} ×"
        print(f"  Times the baseline's rates: {rates}")
        if comparison.why:
            print(f"  {comparison.why}")
    for use in result.kernels:
        print(f"  {use.op} {use.shape}: {use.kernel}, {use.isa} ({use.reason})")


def _print_sweep(sweep: Sweep) -> None:
    from core.units import format_bytes, format_duration

    print(f"  {sweep.title}: {sweep.names[0]} against {sweep.names[1]}")
    times = [{p.batch: p.seconds for p in sweep.side(side)} for side in (0, 1)]
    for batch, ratio in sweep.speedups:
        sides = "   ".join(format_duration(t[batch]) for t in times)
        print(f"    batch {batch:>3}: {sides}   {ratio:.2f} times as fast")
    where = "nowhere up to the largest batch" if sweep.crossover is None else f"from batch {sweep.crossover} on"
    print(f"    Compression stops helping {where}.")
    for way, moved in sweep.traffic:
        print(f"    {way}: {format_bytes(round(moved))} moved")
    if sweep.note:
        print(f"    {sweep.note}")


def _keep(kind: str, title: str, contract: str, numbers: Sequence[Number], data: dict[str, Any]) -> None:
    """Into the history; a history that can not be written does not spoil the measurement."""
    from core.runtime.results import ResultStore, new_result

    try:
        ResultStore().add(new_result(kind, title, contract, numbers, data))
    except UserError as e:
        _note(str(e))


COMMANDS: dict[str, Callable[[argparse.Namespace, CancelToken], int]] = {"generate": generate, "bench": bench}
