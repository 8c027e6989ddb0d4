"""From a plan to what is packed: runs what the recipe wants chosen from data, and hands the run a changed source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from core.calibration.loading import torch_ready
from core.calibration.settings import CalibrationText
from core.checkpoint.base import Checkpoint
from core.disk import disk_errors
from core.formats import Format
from core.methods.choice import Calibrated, DataMethod, Transform
from core.methods.record import Known, stamped
from core.plan import Action, Plan, TensorPlan
from core.progress import CancelToken
from core.threads import whole_products

if TYPE_CHECKING:
    from core.calibration.imatrix import ImportanceMatrix
    from core.calibration.text import Samples
    from core.methods.block_method import BlockMethod
    from core.methods.problem import Solver
    from core.methods.progress import BlockProgress
    from core.methods.steps import Steps
    from core.methods.transform import BlockTransform
    from core.methods.view import CalibratedCheckpoint

_EXPERT = re.compile(r"\.\d+\.weight$")  # of the running decoder: 'blk.0.ffn_up.3.weight'
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


@dataclass(frozen=True, eq=False)
class Data:
    """What numbers are chosen from; nothing where they are chosen without. text: the samples; matrix: an importance
    that was measured before."""

    text: Samples | None = None
    matrix: ImportanceMatrix | None = None
    known: Known | None = None

    @property
    def fingerprint(self) -> str:
        """'' without data."""
        return self.known.fingerprint if self.known else ""

    def stamp(self, plan: Plan) -> Plan:
        """The plan whose output says so."""
        if self.known is None or plan.recipe.calibrated is None:
            return plan
        return replace(plan, layout=stamped(plan.layout, plan.recipe.calibrated, self.known))


def read_data(plan: Plan, checkpoint: Checkpoint, token: CancelToken) -> Data:
    """Raises UserError for a text, or a file with an importance, that can not be used; Cancelled."""
    calibrated = plan.recipe.calibrated
    if calibrated is None:
        return Data()
    if calibrated.imatrix:
        from core.calibration.imatrix_file import read_imatrix

        path = Path(calibrated.imatrix)
        matrix = read_imatrix(path)
        with disk_errors(path), path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Data(matrix=matrix, known=Known(digest, entries=len(matrix.entries), chunks=matrix.chunks))
    from core.calibration.text import samples

    text = samples(checkpoint, calibrated.text, token)
    number, length = text.ids.shape
    known = Known(text.fingerprint, number, length, _entries(checkpoint, calibrated), chunks=number)
    return Data(text, known=known)


def _entries(checkpoint: Checkpoint, calibrated: Calibrated) -> int:
    """Weights whose importance is measured, a stack of experts as one; the head only where no block is changed."""
    from core.runtime.load import decoder_config
    from core.runtime.weights import plan_weights

    names = {s.name for s in plan_weights(checkpoint, decoder_config(checkpoint)).slots if not s.is_vector}
    inner = {_EXPERT.sub("_exps.weight", n) for n in names if n.startswith("blk.")}
    return len(inner) + ("output.weight" in names and not calibrated.needs_blocks)


def unprepared(plan: Plan, checkpoint: Checkpoint) -> Prepared:
    """Without data the source is packed as it is."""
    return Prepared(checkpoint, checkpoint, plan.tensors)


def prepare_weights(
    plan: Plan, checkpoint: Checkpoint, data: Data, output: Path, token: CancelToken, resume: bool
) -> Generator[BlockProgress, None, Prepared]:
    """Choose what the recipe wants chosen from data. Raises UserError; Cancelled, after which a run can be resumed."""
    calibrated = plan.recipe.calibrated
    if calibrated is None:
        return unprepared(plan, checkpoint)
    from core.methods.importance import by_output, left_out, measured

    text, found = data.text, data.matrix
    if not calibrated.needs_blocks:
        if found is None:
            assert text is not None
            with whole_products():
                found = yield from measured(checkpoint, text, token)
        weights = by_output(plan.tensors, found.for_checkpoint(checkpoint, checkpoint.architecture))
        notes = (*(text.warnings if text else ()), *found.remarks, *left_out(plan.tensors, weights))
        return replace(unprepared(plan, checkpoint), importance=weights, notes=notes)
    torch_ready(token)
    from core.methods.pipeline import calibrate_weights

    assert text is not None
    steps = steps_of_choice(calibrated)
    with whole_products():
        done = yield from calibrate_weights(plan, checkpoint, text, steps, output, token, resume)
    view = done.view
    tensors = tuple(_of_view(t, view) for t in plan.tensors)
    by_source = {} if done.importance is None else done.importance.for_checkpoint(checkpoint, checkpoint.architecture)
    return Prepared(view, view.unsolved, tensors, by_output(plan.tensors, by_source), (*text.warnings, *done.notes))


def chooses(method: DataMethod, form: Format) -> bool:
    """Whether a method has something to say of a format's numbers."""
    return method is not DataMethod.NONE and not why_not_choose(method, form)


def can_choose(chooser: Solver | BlockMethod, form: Format) -> bool:
    """Whether a method chooses codes for a format: its numbers are of a kind that it knows, one weight at a time."""
    return not _why_no_codes(chooser, form)


def _why_no_codes(chooser: Solver | BlockMethod, form: Format) -> str:
    if form.numbers is None:
        return "each of its blocks is chosen as a whole"
    if form.needs_amax:
        return "one scale of the whole matrix stands behind all others, and what is fused shares it"
    return chooser.why_not(form.numbers)


def why_not_choose(method: DataMethod, form: Format) -> str:
    """'' where a method chooses a format's numbers, else one clause that says why not."""
    if method is DataMethod.IMPORTANCE:
        return "" if form.weighs_columns else "no search for them weighs columns"
    chooser = _learner(method) or _solver(method)
    return "" if chooser is None else _why_no_codes(chooser, form)


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

            transforms.append(Rotation(calibrated.text.seed, calibrated.online))
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
