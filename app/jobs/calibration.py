"""Methods that need data, in the background: what each would do and cost here, and which text calibrates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.jobs.runner import Work
from core import units
from core.methods.choice import Calibrated, DataMethod, Transform
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.calibration.settings import CalibrationText
    from core.calibration.text import Samples
    from core.checkpoint.base import Checkpoint
    from core.formats import Format
    from core.plan import Plan
    from core.recipe import Recipe

METHODS_KEY = "methods"
TEXT_KEY = "calibration-text"
MATRIX_KEY = "importance-matrix"


@dataclass(frozen=True)
class Choice:
    """A method or a transform for one model and target. problem: a sentence why it can not be taken, '' when it can;
    hint: what to do then. seconds: more than without it. note: what it does only in part."""

    seconds: float = 0.0
    problem: str = ""
    hint: str = ""
    note: str = ""


@dataclass(frozen=True)
class Choices:
    """By method and by transform; those that are missing are not known yet. online: of rotation while the model
    runs."""

    methods: dict[DataMethod, Choice] = field(default_factory=dict)
    transforms: dict[Transform, Choice] = field(default_factory=dict)
    online: Choice | None = None


def methods_work(checkpoint: Checkpoint, recipe: Recipe, *, transforms: bool = True) -> Work:
    """What each method would do and cost with the recipe's target and text, and each of the transforms where these are
    asked for. The result is a Choices."""

    def work(token: CancelToken) -> Choices:
        from core.catalog import base_of
        from core.errors import UserError
        from core.methods.forecast import forecast
        from core.methods.prepare import why_not_choose
        from core.plan import make_plan
        from core.targets import find_target

        text = recipe.calibrated.text if recipe.calibrated is not None else Calibrated().text
        target = find_target(recipe.target)
        form = base_of(target)
        least = Calibrated(DataMethod.IMPORTANCE, text=text) if target.needs_importance else None
        try:
            plan = make_plan(checkpoint, replace(recipe, calibrated=least), forecasts=False)
        except UserError as error:
            never = Choice(problem=error.message, hint=error.hint)
            methods = [m for m in DataMethod if m is not DataMethod.NONE]
            return Choices(dict.fromkeys(methods, never), dict.fromkeys(Transform, never))

        def choice(calibrated: Calibrated) -> Choice:
            token.check()
            if why := why_not_choose(calibrated.method, form):
                # Though weights that get another format instead could be chosen so.
                return Choice(problem=f"Not for {form.name}: {why}.", hint="Take a format of plain groups.")
            try:
                made = forecast(replace(plan, recipe=replace(recipe, calibrated=calibrated)), checkpoint)
            except UserError as error:
                return Choice(problem=error.message, hint=error.hint)
            return Choice(made.choosing_seconds)

        methods = {m: choice(Calibrated(m, text=text)) for m in DataMethod if m is not DataMethod.NONE}
        found = {}
        for transform in Transform if transforms else ():
            made = choice(Calibrated(DataMethod.NONE, (transform,), text))
            found[transform] = made if made.problem else _judged(checkpoint, recipe, transform, made)
        rotated = Calibrated(DataMethod.NONE, (Transform.ROTATION,), text, online=True)
        return Choices(methods, found, choice(rotated) if transforms else None)

    return work


def _judged(checkpoint: Checkpoint, recipe: Recipe, transform: Transform, choice: Choice) -> Choice:
    """What the transform itself says of the model, and whether it is of any use in the target."""
    from core.catalog import base_of
    from core.methods.prepare import steps_of_choice
    from core.runtime.load import decoder_config
    from core.targets import find_target

    form = base_of(find_target(recipe.target))
    if transform is Transform.SMOOTHQUANT and not quantizes_inputs(form):
        return Choice(
            problem=f"Nothing to smooth: {form.name} leaves activations in 16 bits.",
            hint="It serves formats with 8-bit activations, such as w8a8.",
        )
    config = decoder_config(checkpoint)
    (step,) = steps_of_choice(Calibrated(DataMethod.NONE, (transform,))).transforms
    if why := step.why_not(config):
        return Choice(problem=f"Not for this model: {why}.", hint="Leave it out, or choose another transform.")
    return replace(choice, note=step.note(config))


def quantizes_inputs(form: Format) -> bool:
    """Whether activations meet a format's weights in few bits."""
    from core.formats.scaled8 import Inputs, Scaled8

    return form.needs_input or (isinstance(form, Scaled8) and form.inputs is not Inputs.NONE) or "a4" in form.name


def for_format(calibrated: Calibrated | None, form: Format) -> Calibrated | None:
    """What is left of a calibration where the target's format is another; None where that is nothing."""
    if calibrated is None:
        return None
    from core.export.online import can_say_online
    from core.formats.coded import Coded
    from core.methods.prepare import chooses

    transforms = calibrated.transforms
    if Transform.SMOOTHQUANT in transforms and not quantizes_inputs(form):
        transforms = tuple(t for t in transforms if t is not Transform.SMOOTHQUANT)
    method = calibrated.method
    if method is not DataMethod.NONE and not chooses(method, form):
        method = DataMethod.NONE
    if form.contract.scale is None or (method is DataMethod.NONE and not transforms):
        return None
    imatrix = calibrated.imatrix if method is DataMethod.IMPORTANCE else ""
    aim = calibrated.aim and method is DataMethod.GPTQ
    online = calibrated.online and isinstance(form, Coded) and can_say_online(form.ecosystem)
    return replace(calibrated, method=method, transforms=transforms, imatrix=imatrix, aim=aim, online=online)


def with_importance(calibrated: Calibrated | None) -> Calibrated:
    """For a target that can not do without: the calibration, by another method where it has one."""
    if calibrated is None:
        return Calibrated(DataMethod.IMPORTANCE)
    return replace(calibrated, method=DataMethod.IMPORTANCE, aim=False)


def text_work(checkpoint: Checkpoint, settings: CalibrationText) -> Work:
    """The samples that would be used. The result is a Samples; raises UserError."""

    def work(token: CancelToken) -> Samples:
        from core.calibration.text import samples

        return samples(checkpoint, settings, token)

    return work


@dataclass(frozen=True)
class MatrixFacts:
    """What an importance matrix has for a model. weights: how many of the model's it knows; chunks: of text."""

    weights: int
    chunks: int
    notes: tuple[str, ...]


def matrix_work(checkpoint: Checkpoint, path: Path) -> Work:
    """Read an importance matrix and fit it to the model. The result is a MatrixFacts; raises UserError."""

    def work(token: CancelToken) -> MatrixFacts:
        from core.calibration.imatrix_file import read_imatrix

        matrix = read_imatrix(path)
        token.check()
        found = matrix.for_checkpoint(checkpoint, checkpoint.architecture)
        return MatrixFacts(len(found), matrix.chunks, matrix.notes)

    return work


def about(seconds: float) -> str:
    """An estimate, no more exact than it is: 'about 35 s', 'about 1 min 40 s', 'about 12 min', 'about 2 h 10 min'."""
    if seconds < 59.5:
        return f"about {max(1, round(seconds))} s"
    tens = round(seconds / 10)
    if tens < 60:
        return f"about {tens // 6} min" + (f" {tens % 6}0 s" if tens % 6 else "")
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60 // 10 * 10:02d} min"


def cost_text(plan: Plan) -> str:
    """What choosing from data adds to a plan; '' where nothing is."""
    calibrated = plan.recipe.calibrated
    if calibrated is None:
        return ""
    name = calibrated.name[:1].upper() + calibrated.name[1:]
    memory = units.format_decimal(plan.expected_memory)
    if not plan.choosing_seconds:
        return f"{name} takes no time of its own, and {memory} of memory."
    words = f"{name} takes {about(plan.choosing_seconds)} of the time and {memory} of memory"
    if calibrated.needs_blocks:
        words += f", and {units.format_decimal(plan.scratch_bytes)} of room on the disk until it is done"
    return f"{words}."
