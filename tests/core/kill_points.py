"""Program of test_killed_anywhere: kill −9 before every call that changes the disk, resume, and compare the bytes.

kill_points.py SOURCE FOLDER TARGET. One process per point, forked, so that the libraries are loaded only once. Prints
how many points there were, and where a resumed run ended otherwise.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

import job_help

from core import journal, recorder
from core import run as module
from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.journal import journal_path, partial_path
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe
from kernels import stretches

CALLS = [
    *((os, name) for name in ("pwrite", "fsync", "ftruncate", "open")),
    *((Path, name) for name in ("replace", "unlink", "mkdir", "open")),
    (journal.Journal, "_write"),
    (stretches, "write"),
    (module.OutputFiles, "finish"),
    (module, "discard"),
    (recorder, "intact"),  # reading back
]


def convert(source: Path, target: str, output: Path, resume: bool) -> None:
    with open_checkpoint(source) as checkpoint:
        job_help.drive(module.run(make_plan(checkpoint, Recipe(target)), checkpoint, output, CancelToken(), resume, 1))


def killed_at(point: int, source: Path, target: str, output: Path) -> bool:
    """A child that is killed before its call number `point`; False when it came to its end before that."""
    child = os.fork()
    if child == 0:
        module.SYNC_SECONDS = 0.0
        seen = [0]

        def counted(real):  # type: ignore[no-untyped-def]
            def call(*args, **options):  # type: ignore[no-untyped-def]
                seen[0] += 1
                if seen[0] == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)

            return call

        for owner, name in CALLS:
            setattr(owner, name, counted(getattr(owner, name)))
        convert(source, target, output, resume=False)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main() -> int:
    source, folder, target = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    whole = folder / "whole"
    convert(source, target, whole, resume=False)
    right = job_help.digest(whole)
    output = folder / "out"
    point = wrong = resumed = 0
    while killed_at(point := point + 1, source, target, output):
        had_name = output.exists()
        resumed += journal_path(output).exists() and partial_path(output).exists()
        try:
            convert(source, target, output, resume=True)
        except UserError as error:
            print(f"point {point}: {error}")
            wrong += 1
        if not output.exists() or job_help.digest(output) != right:
            print(f"point {point}: other bytes")
            wrong += 1
        left = [p.name for p in folder.iterdir() if p.name not in ("whole", "out")]
        if left or (had_name and job_help.digest(output) != right):
            print(f"point {point}: left {left}")
            wrong += 1
        if output.is_dir():
            shutil.rmtree(output)
        else:
            output.unlink(missing_ok=True)
    print(f"{point - 1} points, {resumed} with something to go on from")
    return 1 if wrong or point < 20 or not resumed else 0


if __name__ == "__main__":
    sys.exit(main())
