"""One conversion as background work, and what it is called and where it goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.jobs.runner import Work
from core.preferences import results_folder
from core.progress import CancelToken, TensorResult
from core.recipe import Recipe
from core.targets import TARGETS, Target, find_target

if TYPE_CHECKING:
    from core.plan import Plan

HEAD_START = 0.03  # seconds in which the window shows the new conversion, before this one competes with it


@dataclass(frozen=True)
class Order:
    """What shall be converted. plan None: it is made when the job starts, for orders of an earlier session.

    resume: go on from an unfinished output when there is one, and never delete what another job has chosen from data.
    overwrite: replace a finished output of that name.
    """

    source: Path
    recipe: Recipe
    output: Path
    plan: Plan | None = None
    resume: bool = True
    overwrite: bool = False


@dataclass(frozen=True)
class Planned:
    """The plan that the job follows; the first thing it yields. `result` is set, so that the runner never drops it."""

    plan: Plan
    resumed: bool
    finished: tuple[TensorResult, ...] = ()  # tensors that an interrupted run has already written

    @property
    def result(self) -> Plan:
        return self.plan


def convert_work(order: Order) -> Work:
    """Yields one Planned, then Progress; the result is core.run's RunResult. Raises UserError, OtherRun where only a
    start anew helps, and Cancelled.

    The job opens the source for itself, so that another model can be opened in the window meanwhile.
    """

    def work(token: CancelToken) -> Iterator[Any]:
        from core.checkpoint import open_checkpoint
        from core.plan import make_plan
        from core.run import OtherRun, others_work, run, unfinished

        time.sleep(HEAD_START)
        with open_checkpoint(order.source) as checkpoint:
            plan = order.plan
            if plan is None or plan.source_fingerprint != checkpoint.fingerprint():
                plan = make_plan(checkpoint, order.recipe)
            token.check()
            resume = order.resume and unfinished(order.output, plan)
            if order.resume and others_work(order.output, plan):
                raise OtherRun
            yield Planned(plan, resume, _finished(order.output, plan) if resume else ())
            result = yield from run(plan, checkpoint, order.output, token, resume=resume, overwrite=order.overwrite)
        return result

    return work


def discard_work(output: Path) -> Work:
    """Delete what an unfinished conversion has left for going on. Raises UserError while another program goes on."""

    def work(_token: CancelToken) -> None:
        from core.journal import Journal, journal_path
        from core.methods.scratch import remove_scratch
        from core.output import discard

        journal = Journal(journal_path(output))
        try:
            remove_scratch(output)
            discard(output)
        except BaseException:
            journal.close()
            raise
        journal.close(done=True)

    return work


def _finished(output: Path, plan: Plan) -> tuple[TensorResult, ...]:
    from core.journal import journal_path, read
    from core.run import job_id

    entries = read(journal_path(output), job_id(plan)) or ()
    tensors = ((plan.tensors[e.tensor], e.error) for e in entries)
    return tuple(TensorResult(t.name, t.format_name, t.bytes.total, error) for t, error in tensors)


_ENDINGS = (".safetensors.index.json", ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json")


def model_name(source: Path) -> str:
    """What to call a model from its path: without the ending and without the target that it was converted to."""
    name = source.name
    if source.is_file() and source.suffix != ".gguf":
        name = source.parent.name  # model.safetensors says nothing
    if source.parent.name == "snapshots":  # Hugging Face cache: models--org--name/snapshots/<hash>
        name = source.parent.parent.name.rpartition("--")[2]
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    lowered = name.casefold()
    for target in sorted((t.name.casefold() for t in TARGETS), key=len, reverse=True):
        for mark in ("-", ".", "_"):
            if lowered.endswith(mark + target):
                return name[: -len(target) - 1] or name
    return name or "model"


def output_name(source: Path, target: Target | str) -> str:
    """'smollm2-135m' and Q4_K_M → 'smollm2-135m-Q4_K_M.gguf'; a folder's name for folder targets."""
    target = find_target(target) if isinstance(target, str) else target
    return f"{model_name(source)}-{target.name}" + ("" if target.is_folder else ".gguf")


def output_folder(source: Path) -> Path:
    """The folder set for results; else beside the source where that can be written and is no cache; else home."""
    if (chosen := results_folder()) is not None:
        return chosen
    folder = source.parent if source.is_dir() else _outside_model(source)
    cached = any(part in (".cache", "snapshots", "blobs", ".ollama", ".lmstudio") for part in folder.parts)
    if not cached and folder.is_dir() and os.access(folder, os.W_OK):
        return folder
    return Path.home()


def _outside_model(source: Path) -> Path:
    # A file of a Hugging Face folder: put the result beside the folder, not among its shards.
    is_shard = source.suffix != ".gguf" and (source.parent / "config.json").exists()
    return source.parent.parent if is_shard else source.parent


def free_output(source: Path, target: Target | str, folder: Path | None = None) -> Path:
    """Where the result goes if nobody says otherwise: a name that no finished output has."""
    path = (folder or output_folder(source)) / output_name(source, target)
    stem, ending = (path.name[: -len(path.suffix)], path.suffix) if path.suffix == ".gguf" else (path.name, "")
    number = 2
    while path.exists():
        path = path.with_name(f"{stem}-{number}{ending}")
        number += 1
    return path
