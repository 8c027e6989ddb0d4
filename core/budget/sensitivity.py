"""From a checkpoint and a wish to the table of what each weight costs in each format; kept on the disk."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from core.budget.table import VERSION, Option, Sensitivities, UnitSensitivity
from core.budget.units import Survey, survey
from core.budget.wish import Wish
from core.calibration.loading import torch_ready
from core.calibration.text import samples
from core.checkpoint.base import Checkpoint
from core.inspect.cache import DamagedFile, cache_folder, checked, keep, used, whole
from core.methods.choice import Calibrated, DataMethod
from core.methods.forecast import BASE_MEMORY, CORE_FLOPS, block_bytes, check_can_calibrate, layer_flops
from core.methods.importance import importance_of
from core.methods.progress import BlockProgress
from core.plan import DEFAULT_RATE, RATES
from core.progress import CancelToken
from core.threads import worker_count

if TYPE_CHECKING:
    from core.budget.measure import Measured

# Float operations a second of one core, products and logits of copies together: SmolLM2-135M on two shared cores.
COPY_FLOPS = 5e10

_T = TypeVar("_T")


@dataclass(frozen=True)
class Cost:
    """What a measurement takes, about: seconds on this machine's cores, and bytes of memory."""

    seconds: float
    memory: int


@dataclass(frozen=True)
class SensitivityProgress:
    """phase: 'importance' or 'sensitivity'. done of total blocks are finished; name: of what was measured last."""

    phase: str
    done: int
    total: int
    name: str = ""


def cost(checkpoint: Checkpoint, wish: Wish) -> Cost:
    """Reads headers only. Raises UserError for a model that can not be run."""
    config = check_can_calibrate(checkpoint, _runs(wish))
    found = survey(checkpoint, wish)
    tokens = wish.probe.tokens
    head = 2.0 * config.hidden * config.vocab
    run = sum(layer_flops(config) * (config.layers - (u.layer or 0)) + head for u in found.units)
    rates = {name: RATES.get(name, DEFAULT_RATE) * 1e6 for name in found.formats}
    encode = sum(u.values / rates[p.format] for u in found.units for p in u.possible if p.changes)
    seconds = tokens * run / COPY_FLOPS + encode
    if wish.calibrated is not None and not wish.calibrated.imatrix:
        seconds += wish.calibrated.text.tokens * layer_flops(config) * config.layers / CORE_FLOPS
    copies = 2 * 4 * len(found.units) * tokens * config.hidden
    outer = 3 * 4 * config.hidden * config.vocab
    return Cost(seconds / worker_count(), BASE_MEMORY + copies + outer + 3 * block_bytes(config))


def known(checkpoint: Checkpoint, wish: Wish) -> Sensitivities | None:
    """What has been measured before, if it is still kept."""
    with suppress(DamagedFile):
        return _kept(_path(checkpoint, wish))
    return None


def _kept(path: Path) -> Sensitivities | None:
    """None when there is nothing. Raises DamagedFile."""
    data = whole(path)
    if data is None:
        return None
    try:
        found = Sensitivities.from_json(data.decode("utf-8"))
    except ValueError:
        raise DamagedFile(path.name) from None
    used(path)
    return found


def sensitivities(
    checkpoint: Checkpoint, wish: Wish, token: CancelToken
) -> Generator[SensitivityProgress, None, Sensitivities]:
    """What each weight costs in each format. Kept by the checkpoint's fingerprint and the wish. Raises UserError;
    Cancelled within some tenths of a second."""
    check_can_calibrate(checkpoint, _runs(wish))
    notes: tuple[str, ...] = ()
    try:
        if (before := _kept(_path(checkpoint, wish))) is not None:
            return before
    except DamagedFile as damaged:
        notes = (damaged.note,)
    torch_ready(token)
    from core.budget.measure import measure, one_probe

    begun = time.process_time()
    found = survey(checkpoint, wish)
    importance = yield from importance_by_source(checkpoint, wish, token)
    ids = samples(checkpoint, wish.probe_text(), token).ids
    job = measure(checkpoint, found, ids, importance, one_probe(found), token)
    measured = yield from _as_progress("sensitivity", job)
    made = table(found, measured, wish, ids.size, time.process_time() - begun)
    keep(_path(checkpoint, wish), lambda file: file.write(checked(made.to_json().encode())))
    return replace(made, notes=notes)


def importance_by_source(
    checkpoint: Checkpoint, wish: Wish, token: CancelToken
) -> Generator[SensitivityProgress, None, Mapping[str, np.ndarray]]:
    """By the checkpoint's tensor names, float32 [experts, K]; {} for a wish without importance."""
    if wish.calibrated is None:
        return {}
    matrix = yield from _as_progress("importance", importance_of(checkpoint, wish.calibrated, token))
    return matrix.for_checkpoint(checkpoint, checkpoint.architecture)


def table(found: Survey, measured: Measured, wish: Wish, tokens: int, cpu_seconds: float) -> Sensitivities:
    """Predictions from the measured errors and probes. A unit without a probe, whose output is always 0 for one, has
    the median slope, so that no bytes are thrown at what has no error, and none are cut where nothing is known."""
    slopes: dict[int, tuple[float, str]] = {}
    for probe, kl in measured.kl:
        error = measured.errors[probe.unit][probe.option] * probe.scale**2
        if error > 0:
            slopes[probe.unit] = kl / error, found.units[probe.unit].possible[probe.option].format
    usual = median([s for s, _ in slopes.values()] or [0.0])
    units = []
    for number, unit in enumerate(found.units):
        slope, name = slopes.get(number, (usual, ""))
        options = tuple(
            Option(p.format, p.bytes, error, slope * error)
            for p, error in zip(unit.possible, measured.errors[number], strict=True)
        )
        units.append(UnitSensitivity(unit.tensors, unit.layer, unit.values, slope, name, options))
    recipe = wish.recipe.to_json()
    return Sensitivities(recipe, tuple(units), found.other_bytes, found.source_bytes, tokens, cpu_seconds)


def _runs(wish: Wish) -> Calibrated:
    """What says that the model is run, in an error."""
    return wish.calibrated or Calibrated(DataMethod.IMPORTANCE)


def _path(checkpoint: Checkpoint, wish: Wish) -> Path:
    return cache_folder() / f"budget-{_key(checkpoint, wish)}.json"


def _key(checkpoint: Checkpoint, wish: Wish) -> str:
    shape = [f.name for f in wish.choices()]
    about = [VERSION, checkpoint.fingerprint(), wish.recipe.to_json(), shape, wish.probe_text().to_dict()]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:40]


def _as_progress(phase: str, job: Generator[BlockProgress, None, _T]) -> Generator[SensitivityProgress, None, _T]:
    while True:
        try:
            step = next(job)
        except StopIteration as stop:
            return stop.value
        yield SensitivityProgress(phase, step.done, step.total, step.name)
