"""The same jobs without a window: info, plan, convert, verify, inspect, generate, bench, eval, formats, devices …

Exit code 0; 1 with one sentence and a hint on stderr, or for a failed verdict; 2 for wrong usage; 3 when cancelled.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import errno
import io
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from core import cli_budget, cli_cache, cli_eval, cli_generate, cli_guide, cli_help, cli_hub, cli_imatrix, cli_inspect
from core.errors import Cancelled, UserError
from core.guide import address
from core.openmp import spin_little
from core.progress import CancelToken
from core.units import THOUSANDS
from core.version import version

_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))  # a write finds no room

_GOES_ON = {
    "convert": "--resume goes on where it stopped.",
    "download": "The same command goes on where it stopped.",
}


class _Usage(Exception):
    """A command line that can not be understood."""


class _Parser(argparse.ArgumentParser):
    commands: Mapping[str, argparse.ArgumentParser]

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{self.prog}: error: {message}\n{self.format_usage()}")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """For terminals and pipes that are not UTF-8: thousands are then parted by a space, other letters are escaped."""
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] == THOUSANDS:
        return " ", error.start + 1
    return codecs.backslashreplace_errors(error)


PLAIN = "bitsmith-plain"
codecs.register_error(PLAIN, _plain)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    spin_little()
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    token = CancelToken()
    leave_signals = _cancel_on_signals(token)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None when closed
            stream.reconfigure(errors=PLAIN)  # for names that the terminal has no letters for
    try:
        code = _run(words, token)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except UserError as e:
        return _complain(e, as_json)
    except (Cancelled, KeyboardInterrupt):
        hint = next((_GOES_ON[word] for word in words if word in _GOES_ON), "")
        return _complain(UserError("Cancelled.", hint, topic="resume"), as_json, code=3)
    except _Usage as e:
        return _complain(UserError(str(e)), as_json, code=2)
    except BrokenPipeError:
        _silence_stdout()
        return 0
    except MemoryError:
        full = UserError("There is not enough memory.", "Close other programs and try again.", topic="memory")
        return _complain(full, as_json)
    except Exception as e:
        if isinstance(e, OSError) and e.errno in _FULL:
            _silence_stdout()
            why = f"The output can not be written ({e.strerror})."
            return _complain(UserError(why, "Free some space, or use another disk.", topic="output"), as_json)
        if os.environ.get("BITSMITH_DEBUG"):
            raise
        where = UserError(
            f"Bitsmith failed where it should not: {type(e).__name__}: {e}.",
            "Please report it; BITSMITH_DEBUG=1 shows where.",
            topic="inside",
        )
        return _complain(where, as_json)
    finally:
        leave_signals()


def _run(words: list[str], token: CancelToken) -> int:
    try:
        args = _parser().parse_args(words)
    except SystemExit as e:  # --help
        return int(e.code or 0)
    if args.command in cli_generate.COMMANDS:
        return cli_generate.COMMANDS[args.command](args, token)
    for part in (cli_inspect, cli_eval, cli_budget, cli_cache, cli_imatrix, cli_hub, cli_guide):
        if args.command in part.COMMANDS:
            return part.COMMANDS[args.command](args, token)
    from core.cli_commands import COMMANDS

    return COMMANDS[args.command](args, token)


def _complain(e: UserError, as_json: bool, code: int = 1) -> int:
    """Say what went wrong; with --json on stdout too."""
    try:
        if as_json:
            print(json.dumps({"error": e.message, "hint": e.hint}), flush=True)
    except OSError:
        _silence_stdout()
    if sys.stderr is not None:  # closed; print would write to stdout
        with contextlib.suppress(OSError):
            print(f"{e.message}\n{e.hint}".strip(), file=sys.stderr)
            if code == 1 and sys.stderr.isatty():  # for a person; a log needs no such line
                print(f"More: bitsmith guide {address(e.topic)}", file=sys.stderr)
    return code


def _silence_stdout() -> None:
    """Nothing can be written there any more: keep Python from trying it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cancel_on_signals(token: CancelToken) -> Callable[[], None]:
    """SIGINT and SIGTERM set the token, so that the journal is left in order; a second SIGINT does not wait for it.

    Python calls handlers between two instructions of the main thread, which a step of compiled code can keep for
    seconds, so a thread that hears of signals at once sets the token, too. Returns what undoes all this.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None  # the caller owns the signals
    handled: list[int] = []

    def cancel(number: int, _frame: object) -> None:
        handled.append(number)
        if len(handled) > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        token.cancel()

    numbers = [number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))]
    previous = {number: signal.signal(number, cancel) for number in numbers}
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    woken = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        with hears:
            while heard := hears.recv(64):  # a byte a signal; none when the other end is closed
                if previous.keys() & set(heard):
                    token.cancel()

    threading.Thread(target=listen, name="signals", daemon=True).start()

    def leave() -> None:
        signal.set_wakeup_fd(woken)
        for number, handler in previous.items():
            signal.signal(number, handler)
        tells.close()

    return leave


def is_command(word: str) -> bool:
    """Whether `bitsmith WORD` is one of the commands."""
    return word in _parser().commands


def _parser() -> _Parser:
    parser = _Parser(prog="bitsmith", description="Quantize language-model checkpoints.")
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--version", action="version", version=f"bitsmith {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parser.commands = commands.choices

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    info = command("info", "Say what a checkpoint is and what is wrong with it.")
    info.add_argument("path", type=Path, metavar="PATH")
    info.add_argument("--scan", action="store_true", help="also look at every value (NaN, Inf, zeros, overflow)")

    plan = command("plan", "Show every tensor's fate and exact bytes; writes nothing.")
    plan.add_argument("path", type=Path, metavar="PATH")
    _recipe_options(plan)

    convert = command("convert", "Convert, verify, and name the output only when it is whole.")
    convert.add_argument("path", type=Path, metavar="PATH")
    _recipe_options(convert)
    convert.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="file or folder to write; default: beside PATH, named by the target",
    )
    limits = convert.add_argument_group("instead of one format: the mix that loses least within a size; it is measured")
    cli_budget.add_limits(limits)
    convert.add_argument("--resume", action="store_true", help="go on with an interrupted run of the same job")
    convert.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    convert.add_argument("--threads", type=int, metavar="N", help="default: the physical cores")

    verify = command("verify", "Decode a finished output; with --source, compare every tensor with it.")
    verify.add_argument("path", type=Path, metavar="OUTPUT")
    verify.add_argument("--source", type=Path, metavar="PATH", help="what it was made from; needs --to as well")
    _recipe_options(verify)

    cli_inspect.add_commands(command, _recipe_options)
    cli_generate.add_commands(command)
    cli_eval.add_commands(command)
    cli_budget.add_commands(command)
    cli_cache.add_commands(command)
    cli_imatrix.add_commands(command)
    cli_hub.add_commands(command)

    formats = command("formats", "List the targets: for which programs, effective bits, and who reads them.")
    formats.add_argument("--markdown", action="store_true", help="the table of the README instead")
    devices = command("devices", "Say what this computer has; with --known, the device table.")
    devices.add_argument("--known", action="store_true", help="list the devices that can be planned for")
    check = command("check", "Check this installation: kernels, memory, disk, drivers.")
    check.add_argument("--folder", type=Path, default=Path.cwd(), help="folder for outputs to check")
    cli_guide.add_commands(command)
    cli_help.complete(parser, commands.choices)
    return parser


def _recipe_options(p: argparse.ArgumentParser) -> None:
    from core.cli_calibration import add_text_options
    from core.few_bits import FEW_BITS
    from core.formats import Method
    from core.methods.choice import DataMethod, Transform
    from core.recipe import KeepGroup, Misfit

    formats = p.add_argument_group("formats")
    names = ", ".join(few.name for few in FEW_BITS)
    formats.add_argument("--to", metavar="TARGET", help="a name from 'bitsmith formats', such as Q4_K_M or w4a16-g128")
    formats.add_argument("--recipe", type=Path, metavar="FILE", help=f"a recipe saved from the window, or {names}")
    formats.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="REGEX=FORMAT",
        help="another format, or keep; the first rule decides",
    )
    formats.add_argument(
        "--keep", action="append", default=[], metavar="REGEX", help="keep these in 16 bits, whatever the rules say"
    )
    formats.add_argument(
        "--keep-group",
        action="append",
        default=[],
        choices=[k.value for k in KeepGroup],
        help="keep a group in 16 bits",
    )
    formats.add_argument("--keep-first", type=int, default=None, metavar="N", help="keep the first N layers in 16 bits")
    formats.add_argument("--keep-last", type=int, default=None, metavar="N", help="keep the last N layers in 16 bits")
    formats.add_argument(
        "--misfit",
        choices=[m.value for m in Misfit],
        help="for rows that the blocks do not divide; default: smaller-block",
    )
    formats.add_argument(
        "--kv-cache",
        choices=("16-bit", "fp8"),
        help="fp8: measure and store scales for a key-value cache in 8 bits (compressed-tensors, ModelOpt)",
    )
    methods = [m.value for m in DataMethod if m is not DataMethod.NONE]
    data = p.add_argument_group("how the numbers are chosen")
    data.add_argument(
        "--method",
        choices=[m.value for m in Method] + methods,
        help=f"how the numbers are chosen; default: clip-search. From what a text sends through the model: "
        f"{', '.join(methods)}",
    )
    data.add_argument(
        "--transform",
        action="append",
        default=[],
        choices=[t.value for t in Transform],
        help="change the weights first so that they lose less; the model computes the same",
    )
    add_text_options(data)
    data.add_argument("--alpha", type=float, metavar="A", help="SmoothQuant's share, 0 to 1; default: searched")
    data.add_argument(
        "--aim", action="store_true", help="GPTQ also makes up for what earlier blocks lost: better, twice the time"
    )
    data.add_argument(
        "--online",
        action="store_true",
        help="with --transform rotation: what comes into down projections is rotated, too, while the model runs",
    )
    data.add_argument("--imatrix", metavar="FILE", help="an importance matrix of llama.cpp's, for --method importance")


if __name__ == "__main__":
    sys.exit(main())
