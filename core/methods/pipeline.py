"""Walks a decoder's blocks: transforms, then codes in the order of the computation, each seen by what comes after it.

A finished block waits in the scratch folder; a killed run goes on behind the last one, and gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from core.calibration.forward import BlockForward
from core.calibration.imatrix import ImportanceMatrix, gather
from core.calibration.text import Samples
from core.checkpoint.base import Checkpoint, Container
from core.contract import ElementType
from core.formats import EncodeOptions, Format, Method
from core.formats.numbers import Codes, Integers, Numbers
from core.methods.block_method import BlockMethod, BlockProblem
from core.methods.choosing import FEW_TOKENS, Choosing, Collecting, MeanSquares
from core.methods.grid import quantized
from core.methods.prepare import can_choose
from core.methods.progress import BlockProgress
from core.methods.scratch import BlockFile, Scratch
from core.methods.steps import Steps
from core.methods.transform import BlockWeights, InputStatistics
from core.methods.view import CalibratedCheckpoint, ChangedTensor, Part, SolvedWeight, untied_head
from core.plan import Action, Plan
from core.progress import CancelToken
from core.runtime.weights import Slot
from core.tensor_info import TensorInfo
from core.threads import worker_count
from core.units import format_count, format_percent
from kernels.rotation import Rotation

STATE_SECONDS = 10.0  # of work that a crash may cost; blocks that take longer are each recorded
_OUTER = "outer"
_SQUARED = 2048  # tokens whose mean squares say which codes learning begins with
ENOUGH_AIM = 0.75  # of the way, on average: below, it is said


@dataclass(frozen=True)
class Calibration:
    """view: the source as it is then. importance: where that was measured. notes: sentences for a person."""

    view: CalibratedCheckpoint
    importance: ImportanceMatrix | None
    notes: tuple[str, ...]


def calibrate_weights(
    plan: Plan, checkpoint: Checkpoint, samples: Samples, steps: Steps, scratch: Path, token: CancelToken, resume: bool
) -> Generator[BlockProgress, None, Calibration]:
    """Choose all that a plan's recipe wants chosen from data.

    scratch: the output, beside which the work waits. Raises UserError; Cancelled, which leaves finished blocks.
    """
    job = hashlib.sha256(
        json.dumps([plan.source_fingerprint, plan.recipe.to_json(), samples.fingerprint]).encode()
    ).hexdigest()
    folder = Scratch(scratch, job, resume, token)
    walk = _Walk(plan, checkpoint, samples, steps, folder, token)
    yield from walk.run()
    importance = walk.importance() if steps.measures_importance else None
    return Calibration(walk.view(), importance, walk.notes())


class _Walk:
    def __init__(
        self,
        plan: Plan,
        checkpoint: Checkpoint,
        samples: Samples,
        steps: Steps,
        folder: Scratch,
        token: CancelToken,
    ) -> None:
        self._checkpoint, self._steps, self._folder, self._token = checkpoint, steps, folder, token
        self._forward = BlockForward(checkpoint, samples.ids, token)
        self._formats = formats_of_slots(plan, self._forward.slots)
        chooser = steps.chooser
        self._numbers = {
            name: form.numbers
            for name, form in self._formats.items()
            if chooser is not None and can_choose(chooser, form) and form.numbers is not None
        }

    def run(self) -> Generator[BlockProgress, None, None]:
        total = self._forward.layers
        first = self._begin()
        yield BlockProgress(first, total)
        written = time.monotonic()
        for layer in range(first, total):
            yield from self._block(layer)
            if time.monotonic() - written >= STATE_SECONDS:
                self._folder.write_state(layer + 1, self._hidden())
                written = time.monotonic()
            yield BlockProgress(layer + 1, total)

    def _begin(self) -> int:
        """The first block that is left; the residual stream stands before it."""
        forward = self._forward
        known = self._folder.state()
        if known is not None and known[1]["hidden"].shape[0] == forward.ids.size:
            forward.hidden = torch.from_numpy(known[1]["hidden"])
            forward.full = torch.from_numpy(known[1]["full"]) if "full" in known[1] else None
            return known[0]
        table = None
        if self._steps.transforms:
            loaded = forward.load_outer()
            outer = loaded.copy()
            if any(t.unties(forward.config) for t in self._steps.transforms):
                outer.matrices.setdefault("output.weight", outer.matrices["token_embd.weight"])
            for transform in self._steps.transforms:
                transform.outer(forward.config, outer, self._token)
            self._folder.write_block(_OUTER, _changes(loaded, outer), {})
            table = outer.matrices["token_embd.weight"]
        forward.embed(self._steps.follows_full, table)
        self._folder.write_state(0, self._hidden())
        return 0

    def _hidden(self) -> dict[str, np.ndarray]:
        full = {} if self._forward.full is None else {"full": self._forward.full.numpy()}
        return {"hidden": self._forward.hidden.numpy(), **full}

    def _block(self, layer: int) -> Generator[BlockProgress, None, None]:
        forward, steps = self._forward, self._steps
        loaded = forward.load(layer)
        weights = loaded.copy()
        statistics: Mapping[str, InputStatistics] = {}
        for transform in steps.transforms:
            if transform.needs_statistics and not statistics:  # of the block as the transforms before left it
                statistics = self._statistics(layer, weights)
            statistics = transform.block(forward.config, layer, weights, statistics, self._all_numbers(), self._token)
        floats = _changes(loaded, weights)
        del loaded  # each weight goes as soon as it has been used
        if steps.learner is not None and any(name in self._numbers for name in weights.matrices):
            solved, vectors = self._learn(layer, weights, steps.learner)
            self._folder.write_block(f"{layer:06}", floats | vectors, solved)
            yield BlockProgress(layer, forward.layers, next(reversed(solved), ""))
            return
        originals = weights.copy() if steps.follows_full else None
        choosing = Choosing(self._formats, self._numbers, steps, forward, self._token)
        forward.run(layer, weights, choosing, originals, forget=True)
        yield BlockProgress(layer, forward.layers, next(reversed(choosing.solved), ""))
        name = f"{layer:06}"
        self._folder.write_block(name, floats, choosing.solved, choosing.squares, choosing.experts, choosing.aims)

    def _learn(
        self, layer: int, weights: BlockWeights, learner: BlockMethod
    ) -> tuple[dict[str, Codes], dict[str, np.ndarray]]:
        """All codes of a block at once, and gains and biases that changed; the residual streams go on."""
        forward = self._forward
        assert forward.full is not None
        numbers = {name: self._numbers[name] for name in weights.matrices if name in self._numbers}
        run = forward.steps(layer, weights.rotated)
        seen = MeanSquares()
        enough = None if forward.config.experts else -(-_SQUARED // forward.ids.shape[1])  # an expert meets few of all
        forward.run(layer, weights.copy(), seen, advance=False, samples=enough)
        start = {}
        for name, own in numbers.items():
            options = EncodeOptions(Method.SEARCH, importance=seen.means.get(name), threads=worker_count())
            start[name] = quantized(own, weights.matrices[name], options, self._token)
        problem = BlockProblem(layer, run, weights, numbers, start, forward.hidden, forward.full)
        choice = learner.solve(problem, self._token)
        forward.hidden, forward.full = choice.hidden, choice.full
        return choice.codes, choice.vectors

    def _all_numbers(self) -> dict[str, Numbers]:
        """Of each quantized weight. Super-blocks have none of their own: plain groups of their bits stand for them."""
        found = {}
        for name, form in self._formats.items():
            if form.numbers is not None:
                found[name] = form.numbers
            elif form.weighs_columns and form.contract.bits >= 2:
                found[name] = Integers(min(8, int(form.contract.bits)), 32, False, ElementType.F16)
        return found

    def _statistics(self, layer: int, weights: BlockWeights) -> Mapping[str, InputStatistics]:
        """Of the block as it is; each transform that needs them says what they are after it."""
        seen = Collecting()
        enough = self._steps.statistics_tokens(self._forward.config)
        samples = None if enough is None else -(-enough // self._forward.ids.shape[1])
        self._forward.run(layer, weights, seen, advance=False, samples=samples)
        return seen.statistics

    def view(self) -> CalibratedCheckpoint:
        """The checkpoint with everything that the folder has."""
        slots = self._forward.slots
        floats: dict[str, list[Part]] = {}
        solved: dict[str, list[tuple[Part, Numbers]]] = {}
        added: list[TensorInfo] = []
        names = [f"{i:06}" for i in range(self._forward.layers)]
        for name in ([_OUTER] if self._folder.has_block(_OUTER) else []) + names:
            file = BlockFile(self._folder.block_file(name))
            for weight in file.floats:
                if (slot := slots.get(weight)) is None:
                    added.append(self._added())
                    floats[added[-1].name] = [Part(0, added[-1].rows, file, weight)]
                else:
                    floats.setdefault(slot.stored.name, []).append(_part(slot, file, weight))
            for weight in file.solved:
                slot = slots[weight]
                solved.setdefault(slot.stored.name, []).append((_part(slot, file, weight), self._numbers[weight]))
        columns = {slot.stored.name: slot.shape[-1] for slot in slots.values()}
        return CalibratedCheckpoint(
            self._checkpoint,
            {name: ChangedTensor(parts) for name, parts in floats.items()},
            {name: SolvedWeight([p for p, _ in ps], ps[0][1], columns[name]) for name, ps in solved.items()},
            added,
            {slots[name].stored.name: rotation for name, rotation in self._rotated().items()},
        )

    def _rotated(self) -> dict[str, Rotation]:
        """Weights that are stored for an input that is rotated while the model runs."""
        found: dict[str, Rotation] = {}
        for transform in self._steps.transforms:
            found |= transform.rotated(self._forward.config, self._forward.slots)
        return found

    def notes(self) -> tuple[str, ...]:
        """What a person should know of how it went."""
        files = [BlockFile(self._folder.block_file(f"{layer:06}")) for layer in range(self._forward.layers)]
        met, aims = [n for f in files for n in f.experts], [a for f in files for a in f.aims]
        return (*_about_experts(met), *_about_aims(aims))

    def importance(self) -> ImportanceMatrix:
        """What the blocks' inputs were, where that is measured."""
        sums = {}
        for layer in range(self._forward.layers):
            sums.update(BlockFile(self._folder.block_file(f"{layer:06}")).squares())
        length = self._forward.ids.shape[1]
        return gather(sums, length, experts=self._forward.config.experts)

    def _added(self) -> TensorInfo:
        """A head of its own, where the embedding was the head."""
        embedding = self._checkpoint.tensor(self._forward.slots["token_embd.weight"].stored.name)
        return untied_head(embedding, self._checkpoint.container is Container.GGUF)


def _about_experts(met: Sequence[int]) -> tuple[str, ...]:
    """met: how many tokens, of each expert."""
    few, none = sum(count < FEW_TOKENS for count in met), sum(not count for count in met)
    if not few:
        return ()
    unseen = f" ({format_count(none)} none)" if none else ""
    met_few = f"{format_count(few)} of {format_count(len(met))} experts met fewer than {FEW_TOKENS} tokens{unseen}"
    how = "their numbers were also chosen for what other experts' tokens look like"
    return (f"{met_few} of the text: {how}. More samples help.",)


def _about_aims(aims: Sequence[float]) -> tuple[str, ...]:
    """aims: how far each weight went, 0 … 1."""
    if not aims or fmean(aims) >= ENOUGH_AIM:
        return ()
    none = sum(a == 0 for a in aims)
    unmoved = f", {format_count(none)} of {format_count(len(aims))} weights not at all" if none else ""
    went = f"Making up for earlier layers went {format_percent(fmean(aims), 0)} of the way{unmoved}"
    return (f"{went}: more was worse for the samples that it was not fitted to. More samples help.",)


def _part(slot: Slot, file: BlockFile, weight: str) -> Part:
    return Part(slot.start, slot.stop, file, weight, slot.add)


def _changes(before: BlockWeights, after: BlockWeights) -> dict[str, np.ndarray]:
    """Entries that are others now."""
    return {
        name: a
        for old, new in ((before.matrices, after.matrices), (before.vectors, after.vectors))
        for name, a in new.items()
        if old.get(name) is not a
    }


def formats_of_slots(plan: Plan, slots: Mapping[str, Slot]) -> dict[str, Format]:
    """The format in which a plan quantizes each weight of the decoder, by GGUF's names."""
    by_tensor = {
        s.name: t.format
        for t in plan.tensors
        if t.action is Action.QUANTIZE and t.format is not None
        for s in t.source.sources
    }
    return {name: by_tensor[s.stored.name] for name, s in slots.items() if s.stored.name in by_tensor}
