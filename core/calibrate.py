"""Static scales of activations: the largest |x| that each weight is multiplied with, over the bundled text.

Experts of a layer share their range: runtimes compute them together and take the largest of their scales, and a text
need not reach every one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.plan import TensorPlan
from core.progress import CancelToken


@dataclass(frozen=True)
class CalibrationProgress:
    """done of total layers are finished; name: of the input that was measured last."""

    done: int
    total: int
    name: str


def calibrate(
    checkpoint: Checkpoint, tensors: Sequence[TensorPlan], token: CancelToken, use_cache: bool = True
) -> Generator[CalibrationProgress, None, dict[str, float]]:
    """The largest |activation| of each planned tensor that `needs_input`, by its name.

    Measured once for a checkpoint and kept on the disk, unless `use_cache` is False, as it has to be for one whose
    weights are not those of its files. Raises UserError for a model that can not be run, or a tensor
    that no token meets; Cancelled.
    """
    wanted = [t for t in tensors if t.needs_input]
    if not wanted:
        return {}
    from core.inspect.activations import ActivationLayer
    from core.inspect.layerwise import measure_activations

    found: list[ActivationLayer] = []
    cache: tuple[tuple[float, float], ...] = ()
    # A runtime rounds what it has rotated.
    job = measure_activations(checkpoint, token=token, use_cache=use_cache, rotated=bool(checkpoint.rotations))
    while True:
        try:
            step = next(job)
        except StopIteration as stop:
            found, cache = list(stop.value.layers), stop.value.cache
            break
        yield CalibrationProgress(step.done, step.total, step.found[-1].name if step.found else "")
    by_weight: dict[str, float] = {}
    by_layer: dict[tuple[object, object], float] = {}
    of_expert: dict[str, tuple[object, object]] = {}
    for a in found:
        for name in a.tensors:
            by_weight[name] = max(by_weight.get(name, 0.0), a.amax)
            if a.expert is not None:
                of_expert[name] = (a.layer, a.place)
                by_layer[a.layer, a.place] = max(by_layer.get((a.layer, a.place), 0.0), a.amax)
    inputs = {}
    for t in wanted:
        if t.format is not None and t.format.derived:  # '….k_scale' or '….v_scale' of a layer
            keys, values = cache[t.layer] if t.layer is not None else (0.0, 0.0)
            by_weight[t.name] = keys if t.name.endswith("k_scale") else values
        sources = [s.name for s in t.source.sources] or [t.name]
        amax = max((by_layer[of_expert[n]] if n in of_expert else by_weight.get(n, 0.0) for n in sources), default=0.0)
        if amax <= 0:
            raise UserError(
                f"No activation of the calibration text reaches '{t.name}', so {t.format_name} has no range for it.",
                "Keep this tensor with a rule, or choose fp8-dynamic, which needs no ranges.",
            )
        inputs[t.name] = amax
    return inputs


def calibrated(checkpoint: Checkpoint, tensors: Sequence[TensorPlan], token: CancelToken) -> Mapping[str, float]:
    """The same at once."""
    job = calibrate(checkpoint, tensors, token)
    while True:
        try:
            next(job)
        except StopIteration as stop:
            return dict(stop.value)


def check_can_calibrate(checkpoint: Checkpoint, format_name: str) -> None:
    """Raise UserError, before anything runs, for a model whose activations can not be measured."""
    from core.inspect.layerwise import check_can_measure

    try:
        check_can_measure(checkpoint)
    except UserError as problem:
        raise UserError(
            f"{format_name} stores the range of activations, and this model can not be run to find it: "
            f"{problem.message}",
            "Choose fp8-dynamic, whose activations are scaled as they come, and a cache in 16 bits.",
        ) from None
