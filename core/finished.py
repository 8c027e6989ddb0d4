"""Whether an output that is there already is what a plan would write.

No record of a run outlives it, so the output itself is asked: sizes, headers and files beside them, and the first block
of every tensor, encoded anew. Encoding gives the same bytes each time, so another source or recipe shows. What was
chosen from data is not chosen again: there the header speaks, which names method and text, and what is not chosen so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from core.blocks import encoded_runs, split, with_options
from core.calibrate import calibrated
from core.checkpoint.base import Checkpoint
from core.disk import disk_errors
from core.errors import UserError
from core.formats import EncodeOptions
from core.journal import journal_path, partial_path
from core.methods.choice import Transform
from core.output import output_size
from core.plan import Plan, TensorPlan
from core.progress import CancelToken


def is_finished(plan: Plan, checkpoint: Checkpoint, output: Path, token: CancelToken) -> bool:
    """True when nothing is left to do. Raises UserError when source or output can not be read, Cancelled."""
    layout, choice = plan.layout, plan.recipe.calibrated
    if choice is not None and Transform.ROTATION in choice.transforms:
        return False  # nothing is left that could be compared
    with disk_errors(output):
        if partial_path(output).exists() or journal_path(output).exists():
            return False
        if not output.exists() or output.is_dir() != layout.folder:
            return False
        if output_size(output) != plan.bytes_total:
            return False
        files = [output / f.name if layout.folder else output for f in layout.files]
        for path, f in zip(files, layout.files, strict=True):
            if (
                not path.is_file()
                or path.stat().st_size != f.size
                or any(_bytes_at(path, offset, len(content)) != content for offset, content in f.fixed)
            ):
                return False
        for name, content in layout.extras:
            wanted = content if isinstance(content, bytes) else content.read_bytes()
            if not (output / name).is_file() or (output / name).read_bytes() != wanted:
                return False
        places = {(p.tensor, p.part): p for p in layout.parts}
        inputs = calibrated(checkpoint, plan.tensors, token)
        for i, t in enumerate(plan.tensors):
            token.check()
            if t.chosen_by or (choice is not None and choice.changes_weights and _in_a_block(t)):
                continue
            options = EncodeOptions(method=plan.recipe.method, input_amax=inputs.get(t.name, 0.0))
            block, own = next(with_options(checkpoint, t, split(i, t, 1), options, token))
            try:
                runs = encoded_runs(checkpoint, t, block, own)
            except UserError:
                return False  # the run would have stopped here, so this is another one's output
            for part, offset, data in runs:
                place = places[i, part]
                found = _bytes_at(files[place.file], place.offset + offset, data.size)
                if not np.array_equal(np.frombuffer(found, np.uint8), data):
                    return False
    return True


def _in_a_block(t: TensorPlan) -> bool:
    return any(s.layer is not None for s in t.source.sources)


def _bytes_at(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)
