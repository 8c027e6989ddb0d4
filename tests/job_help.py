"""Conversions run to their end, and outputs compared."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

from core.checkpoint import open_checkpoint
from core.plan import make_plan
from core.progress import CancelToken, Progress
from core.recipe import Recipe
from core.run import RunResult, run


def drive(job: Generator[Progress, None, RunResult]) -> tuple[list[Progress], RunResult]:
    """Exhaust a run; returns its progress and its result."""
    seen = []
    while True:
        try:
            seen.append(next(job))
        except StopIteration as stop:
            return seen, stop.value


def convert(source: Path, target: str, output: Path, token: CancelToken | None = None, **options: Any):
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, Recipe(target))
        return drive(run(plan, checkpoint, output, token or CancelToken(), **options))


def interrupt(source: Path, target: str, output: Path, steps: int) -> None:
    """Start a conversion and leave it after so many blocks, all finished tensors in the journal."""
    with open_checkpoint(source) as checkpoint:
        job = run(make_plan(checkpoint, Recipe(target)), checkpoint, output, CancelToken(), threads=1)
        for _ in range(steps):
            next(job)
        job.close()


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def digest(path: Path) -> str:
    """Of a file, or of a folder's names and contents."""
    h = hashlib.sha256()
    for f in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if f.is_file():
            h.update(str(f.relative_to(path)).encode() + f.read_bytes())
    return h.hexdigest()
