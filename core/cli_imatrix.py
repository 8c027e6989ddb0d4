"""`bitsmith imatrix`: an importance matrix of a model, as llama.cpp's tools write and read them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

from core.progress import CancelToken

if TYPE_CHECKING:
    from core.calibration.imatrix import ImportanceMatrix
    from core.methods.progress import BlockProgress


def add_commands(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """The command and its options."""
    from core.cli_calibration import add_text_options

    p = command("imatrix", "Measure how much each input channel of each weight matters, for --imatrix and llama.cpp.")
    p.add_argument("path", type=Path, metavar="SOURCE")
    p.add_argument("-o", "--output", type=Path, metavar="OUT", required=True, help="a GGUF; .dat is the older format")
    p.add_argument("--overwrite", action="store_true", help="replace an existing file")
    add_text_options(p)


def imatrix(args: argparse.Namespace, token: CancelToken) -> int:
    """Measure, or take what was measured before, and write it."""
    from core.calibration.imatrix_file import write_imatrix
    from core.calibration.text import samples
    from core.checkpoint import open_checkpoint
    from core.cli_calibration import say_warnings, text_of
    from core.cli_commands import show
    from core.methods.choice import Calibrated, DataMethod
    from core.methods.forecast import check_can_calibrate
    from core.methods.importance import measured
    from core.output import check_file

    with open_checkpoint(args.path) as checkpoint:
        check_file(args.output, args.overwrite, [checkpoint])
        calibrated = Calibrated(DataMethod.IMPORTANCE, text=text_of(args))
        check_can_calibrate(checkpoint, calibrated)
        text = samples(checkpoint, calibrated.text, token)
        if not args.json:
            say_warnings(text)
        found = _measured(measured(checkpoint, text, token), quiet=args.json)
    write_imatrix(args.output, found)
    notes = list(found.remarks)
    if args.json:
        about = {"output": str(args.output), "entries": len(found.entries), "chunks": found.chunks}
        show({**about, "chunk_size": found.chunk_size, "notes": [*text.warnings, *notes]})
        return 0
    print(f"{args.output}: {len(found.entries)} weights over {found.chunks} × {found.chunk_size} tokens")
    for note in notes:
        print(f"  {note}")
    return 0


def _measured(job: Generator[BlockProgress, None, ImportanceMatrix], quiet: bool) -> ImportanceMatrix:
    while True:
        try:
            step = next(job)
        except StopIteration as stop:
            return stop.value
        if not quiet:
            print(f"  layer {step.done} of {step.total}", file=sys.stderr, flush=True)


COMMANDS = {"imatrix": imatrix}
