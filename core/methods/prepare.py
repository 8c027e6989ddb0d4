"""From a plan to what is packed: runs what the recipe wants chosen from data, and hands the run a changed source."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.calibration.settings import CalibrationText
from core.checkpoint.base import Checkpoint
from core.formats import Format
from core.methods.choice import Calibrated, DataMethod, Transform
from core.plan import Action, Plan, TensorPlan
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.methods.block_method import BlockMethod
    from core.methods.problem import Solver
    from core.methods.progress import BlockProgress
    from core.methods.steps import Steps
    from core.methods.transform import BlockTransform
    from core.methods.view import CalibratedCheckpoint

LEARNED_TOKENS = 16_384  # that rounding is learned on, as in docs/quality.md; time grows with them


@dataclass(frozen=True)
class Prepared:
    """checkpoint: what is read and packed. reference: what errors are measured against. tensors: the plan's, with what
    was chosen as their source. importance: of output tensors, float32 [matrices, K].
    notes: sentences for a person."""

    checkpoint: Checkpoint
    reference: Checkpoint
    tensors: tuple[TensorPlan, ...]
    importance: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def unprepared(plan: Plan, checkpoint: Checkpoint) -> Prepared:
    """Without data the source is packed as it is."""
    return Prepared(checkpoint, checkpoint, plan.tensors)


def prepare_weights(
    plan: Plan, checkpoint: Checkpoint, output: Path, token: CancelToken, resume: bool
) -> Generator[BlockProgress, None, Prepared]:
    """Choose what the recipe wants chosen from data. Raises UserError; Cancelled, after which a run can be resumed."""
    calibrated = plan.recipe.calibrated
    if calibrated is None:
        return unprepared(plan, checkpoint)
    from core.methods.importance import by_output, importance_of

    if not calibrated.needs_blocks:
        found = yield from importance_of(checkpoint, calibrated, token)
        weights = by_output(plan.tensors, found.for_checkpoint(checkpoint, checkpoint.architecture))
        notes = (*found.notes, *found.about_experts())
        return replace(unprepared(plan, checkpoint), importance=weights, notes=notes)
    from core.calibration.text import samples
    from core.methods.pipeline import calibrate_weights

    text = samples(checkpoint, calibrated.text, token)
    steps = steps_of_choice(calibrated)
    done = yield from calibrate_weights(plan, checkpoint, text, steps, output, token, resume)
    view, measured = done.view, done.importance
    tensors = tuple(_of_view(t, view) for t in plan.tensors)
    by_source = {} if measured is None else measured.for_checkpoint(checkpoint, checkpoint.architecture)
    return Prepared(view, view.unsolved, tensors, by_output(plan.tensors, by_source), (*text.warnings, *done.notes))


def chooses(method: DataMethod, form: Format) -> bool:
    """Whether a method has something to say of a format's numbers."""
    if method is DataMethod.IMPORTANCE:
        return form.weighs_columns
    chooser = _learner(method) or _solver(method)
    return chooser is not None and can_choose(chooser, form)


def can_choose(chooser: Solver | BlockMethod, form: Format) -> bool:
    """Whether a method chooses codes for a format: its numbers are of a kind that it knows, one weight at a time."""
    return form.numbers is not None and not form.needs_amax and not chooser.why_not(form.numbers)


def steps_of_choice(calibrated: Calibrated) -> Steps:
    """What a recipe names, with its settings."""
    from core.methods.steps import Steps

    transforms: list[BlockTransform] = []
    for transform in calibrated.transforms:
        if transform is Transform.AWQ:
            from core.methods.awq import Awq

            transforms.append(Awq())
        elif transform is Transform.SMOOTHQUANT:
            from core.methods.smoothquant import SmoothQuant

            transforms.append(SmoothQuant(calibrated.alpha))
        else:
            from core.methods.rotation import Rotation

            transforms.append(Rotation(calibrated.text.seed))
    method = calibrated.chooser
    importance = method is DataMethod.IMPORTANCE
    return Steps(tuple(transforms), _solver(method, calibrated.aim), _learner(method, calibrated.text), importance)


def _solver(method: DataMethod, aim: bool = False) -> Solver | None:
    if method is DataMethod.GPTQ:
        from core.methods.gptq import Gptq

        return Gptq(follows_full=aim)
    if method is DataMethod.CLIPPING:
        from core.methods.clipping import ClipSearch

        return ClipSearch()
    return None


def _learner(method: DataMethod, text: CalibrationText | None = None) -> BlockMethod | None:
    if method is DataMethod.LEARNED:
        from core.methods.learned import LearnedRounding, LearnedSettings

        if text is None:
            return LearnedRounding()
        return LearnedRounding(LearnedSettings(epochs=min(1.0, LEARNED_TOKENS / text.tokens), seed=text.seed))
    return None


def _of_view(t: TensorPlan, view: CalibratedCheckpoint) -> TensorPlan:
    """A planned tensor that is read from the view; its codes are packed as they are where they were chosen."""
    pieces = tuple(replace(p, tensor=view.tensor(p.tensor.name)) for p in t.source.pieces)
    source = replace(t.source, pieces=pieces)
    if not pieces or source.numbers is None or not all(view.is_solved(p.tensor.name) for p in pieces):
        return replace(t, source=source)
    assert t.format is not None
    packing = t.format.for_numbers(source.numbers)
    assert packing is not None, t.name
    return replace(t, source=source, action=Action.REPACK, format=packing)
