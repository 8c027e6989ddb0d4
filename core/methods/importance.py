"""Importance for a run: from a file of llama.cpp's, from what was measured before, or measured now."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from core.calibration.imatrix import ImportanceMatrix
from core.calibration.imatrix_file import imatrix_bytes, read_imatrix
from core.calibration.loading import torch_ready
from core.calibration.text import Samples, samples
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.inspect.cache import DamagedFile, cache_folder, checked, keep, used, whole
from core.methods.choice import Calibrated
from core.methods.progress import BlockProgress
from core.plan import TensorPlan
from core.progress import CancelToken

VERSION = 2  # of what is measured: another one is measured anew


def importance_of(
    checkpoint: Checkpoint, calibrated: Calibrated, token: CancelToken
) -> Generator[BlockProgress, None, ImportanceMatrix]:
    """The matrix that a recipe means; its notes also say what is odd about the text. Raises UserError; Cancelled."""
    if calibrated.imatrix:
        return read_imatrix(Path(calibrated.imatrix))
    text = samples(checkpoint, calibrated.text, token)
    found = yield from measured(checkpoint, text, token)
    return replace(found, notes=(*text.warnings, *found.notes))


def measured(
    checkpoint: Checkpoint, text: Samples, token: CancelToken
) -> Generator[BlockProgress, None, ImportanceMatrix]:
    """Over these samples. What is measured is kept on the disk, by the checkpoint's fingerprint and the samples. Raises
    UserError for a model that can not be run; Cancelled."""
    path = _cache_path(checkpoint, text)
    notes: tuple[str, ...] = ()
    try:
        if (known := _cached(path)) is not None:
            return known
    except DamagedFile as damaged:
        notes = (damaged.note,)
    torch_ready(token)
    from core.calibration.statistics import measure_importance

    found = yield from measure_importance(checkpoint, text, token)
    keep(path, lambda file: file.write(checked(imatrix_bytes(found))))
    return replace(found, notes=(*found.notes, *notes))


def _cache_path(checkpoint: Checkpoint, text: Samples) -> Path:
    key = f"{VERSION} {checkpoint.fingerprint()} {text.fingerprint}"
    return cache_folder() / f"importance-{hashlib.sha256(key.encode()).hexdigest()[:40]}.gguf"


def _cached(path: Path) -> ImportanceMatrix | None:
    if whole(path) is None:
        return None
    try:
        found = read_imatrix(path)  # a reader of GGUF stops before the checksum
    except UserError:
        raise DamagedFile(path.name) from None
    used(path)
    return found


def left_out(tensors: Sequence[TensorPlan], found: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """A sentence on weights that importance chooses and that have none. found: of `by_output`."""
    chosen = [t.name for t in tensors if t.chosen_by]
    without = [name for name in chosen if name not in found]
    if not without:
        return ()
    some = f"{len(without)} of {len(chosen)} weights, {without[0]} among them"
    return (f"The importance matrix has nothing for {some}: their channels count the same.",)


def by_output(tensors: Sequence[TensorPlan], by_source: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mean squares of each output tensor that is chosen so: float32 [matrices, K], or [1, K] for one matrix.

    by_source: by the source's tensor names, [experts, K].
    """
    found = {}
    for t in tensors:
        parts = [by_source[s.name] for s in t.source.sources if s.name in by_source] if t.chosen_by else []
        if parts and len(parts) == len(t.source.sources):
            found[t.name] = np.concatenate(parts) if len(t.shape) > 2 else parts[0]
    return found
