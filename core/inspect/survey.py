"""The whole model in one streaming pass: what the map of the model is coloured by, and which channels stand out."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from core.checkpoint.base import Checkpoint
from core.checkpoint.dtypes import is_readable
from core.inspect.matrix import Matrix
from core.inspect.measures import Measure
from core.inspect.outliers import OutlierChannel, rank_channels
from core.inspect.predicted import PredictedError, key_of, planned, predict, sample_size
from core.inspect.statistics import Block, ChannelTotals, ValueStatistics, ValueSums, find_pivot
from core.inspect.survey_cache import Known, SurveyCache
from core.plan import Plan, TensorPlan
from core.progress import CancelToken
from core.tensor_info import Role, TensorInfo
from core.threads import in_parallel
from kernels import ops

LARGE = 128 << 20  # bytes: tensors larger than this come last, so that the first rows are there at once


@dataclass(frozen=True)
class SurveyRow:
    """One tensor of the source. statistics None: its type can not be decoded. predicted None: no plan, or not in it.

    worst: the output and the input channel of the largest ratio (`core.inspect.outliers`), where there are any; of a
    stack of experts, the rows of all experts one after the other.
    bytes_done of bytes_total: stored bytes surveyed so far, of the pass. cached: nothing was read for it.
    """

    name: str
    role: Role
    layer: int | None
    expert: int | None
    shape: tuple[int, ...]
    dtype: str
    statistics: ValueStatistics | None
    predicted: PredictedError | None
    bytes_done: int
    bytes_total: int
    worst: tuple[OutlierChannel, ...] = ()
    cached: bool = False

    def measure(self, which: Measure) -> float | None:
        """The number to colour by; None where there is none."""
        if which in _OF_VALUES:
            return getattr(self.statistics, _OF_VALUES[which]) if self.statistics and self.statistics.finite else None
        if self.predicted is None or self.predicted.problem:
            return None
        return {
            Measure.PREDICTED_SNR: self.predicted.snr_db,
            Measure.PREDICTED_ERROR: self.predicted.nrmse,
            Measure.FINER_GAIN: self.predicted.finer_gain_db,
        }[which]


_OF_VALUES = {Measure.RANGE: "amax", Measure.OUTLIER_RATIO: "outlier_ratio", Measure.KURTOSIS: "kurtosis"}


def survey(
    checkpoint: Checkpoint, plan: Plan | None, token: CancelToken, cache: Path | None = None
) -> Iterator[SurveyRow]:
    """Every tensor once, each as soon as it is known: in file order, tensors over 128 MiB after all others.

    The statistics are of all values. The predicted error is of a sample (`PredictedError`). What is known from an
    earlier survey of the same files is not read again; what is found is kept even when the survey is cancelled.
    cache: folder of the results kept, the user's cache folder when None. Raises UserError when the source can not be
    read, Cancelled between row blocks.
    """
    yield from _Survey(checkpoint, plan, token, cache).rows()


@dataclass(frozen=True)
class _Task:
    """A block of a tensor, or (block None) what follows its last one. pivot: `ValueSums`."""

    tensor: TensorInfo
    matrix: Matrix | None
    block: Block | None
    pivot: float = 0.0


class _Survey:
    def __init__(self, checkpoint: Checkpoint, plan: Plan | None, token: CancelToken, cache: Path | None) -> None:
        self._checkpoint, self._plan, self._token = checkpoint, plan, token
        self._cache = SurveyCache(checkpoint.fingerprint(), cache)
        self._known = self._cache.load_statistics()
        self._errors = self._cache.load_errors() if plan else {}
        self._planned = planned(plan) if plan else {}
        self._new_facts = self._new_errors = False

    def rows(self) -> Iterator[SurveyRow]:
        own = [t for t in self._checkpoint.tensors if not t.tied_to]
        order = sorted(own, key=lambda t: t.nbytes > LARGE)
        total, done = sum(t.nbytes for t in own), 0
        try:
            with closing(self._all(order)) as found_in_order:
                for tensor, found, predicted, cached in found_in_order:
                    done += tensor.nbytes
                    yield _row(tensor, found, predicted, done, total, cached)
            for tensor in (t for t in self._checkpoint.tensors if t.tied_to):
                found = self._known.get(tensor.tied_to)
                if found:
                    found = (replace(found[0], name=tensor.name, shape=tensor.shape), found[1])
                predicted = self._predict(tensor, found) if tensor.name in self._planned else None
                yield _row(tensor, found, predicted, done, total, found is not None)
        finally:
            if self._new_facts:
                self._cache.save_statistics(self._known)
            if self._new_errors:
                self._cache.save_errors(self._errors)

    def _all(
        self, order: list[TensorInfo]
    ) -> Generator[tuple[TensorInfo, Known | None, PredictedError | None, bool], None, None]:
        """Blocks of all tensors go through one pool, so that small tensors keep all cores busy, too."""
        sums: ValueSums | None = None
        totals: ChannelTotals | None = None
        with closing(in_parallel(self._work, self._tasks(order), self._token)) as results:
            for task, result in results:
                tensor = task.tensor
                if task.block is not None:
                    assert task.matrix is not None
                    if sums is None or totals is None:
                        sums, totals = ValueSums(task.matrix.dtype, task.pivot), ChannelTotals(task.matrix)
                    found, own = result
                    totals.add(task.block, found)
                    sums.merge(own)
                    continue
                fresh = task.matrix is not None
                if task.matrix is not None:
                    sums = sums or ValueSums(task.matrix.dtype)
                    channels = (totals or ChannelTotals(task.matrix)).finish()
                    worst = tuple(c for axis in channels if tensor.values for c in rank_channels(axis, 1))
                    self._known[tensor.name] = sums.statistics(tensor.name, tensor.shape), worst
                    self._new_facts = True
                    sums = totals = None
                known = self._known.get(tensor.name)
                predicted = result if isinstance(result, PredictedError) else self._predict(tensor, known)
                yield tensor, known, predicted, not fresh and (known is not None)

    def _tasks(self, order: list[TensorInfo]) -> Iterator[_Task]:
        for tensor in order:
            if tensor.name in self._known or not is_readable(tensor):
                yield _Task(tensor, None, None)
                continue
            matrix = Matrix(self._checkpoint, tensor)
            pivot = find_pivot(matrix)
            for block in matrix.blocks():
                yield _Task(tensor, matrix, block, pivot)
            yield _Task(tensor, matrix, None)

    def _work(self, task: _Task) -> tuple[_Task, Any]:
        if task.block is not None and task.matrix is not None:
            start, stop, columns = task.block
            stored = task.matrix.read(start, stop, columns)
            own = ValueSums(task.matrix.dtype, task.pivot)
            own.add(stored)
            return task, (ops.channel_sums(stored, task.matrix.dtype, medians=False), own)
        tensors = self._planned.get(task.tensor.name, [])
        if not tensors or not is_readable(task.tensor):
            return task, None
        if any(t.format and t.format.needs_amax for t in tensors):
            return task, None  # for these, the largest |x| has to be known first
        if self._key(tensors) in self._errors:
            return task, None
        return task, self._measure(task.tensor, tensors, None)

    def _measure(self, tensor: TensorInfo, tensors: list[TensorPlan], amax: float | None) -> PredictedError:
        assert self._plan is not None
        method, size = self._plan.recipe.method, sample_size(tensor)
        found = predict(self._checkpoint, tensors, method, size, self._token, amax)
        self._errors[self._key(tensors)] = list(astuple(found))
        self._new_errors = True
        return found

    def _predict(self, tensor: TensorInfo, known: Known | None) -> PredictedError | None:
        """From the cache, or now, where the tensor's largest |x| had to be known first."""
        tensors = self._planned.get(tensor.name, [])
        if not tensors or not is_readable(tensor):
            return None
        stored = self._errors.get(self._key(tensors))
        if stored is not None:
            try:
                name, snr, nrmse, sampled, gain, problem = stored
                gain = None if gain is None else float(gain)
                return PredictedError(str(name), float(snr), float(nrmse), int(sampled), gain, str(problem))
            except (TypeError, ValueError):
                pass  # not one of ours
        return self._measure(tensor, tensors, known[0].amax if known else None)

    def _key(self, tensors: list[TensorPlan]) -> str:
        assert self._plan is not None
        return key_of(tensors, self._plan.recipe.method)


def _row(
    tensor: TensorInfo, found: Known | None, predicted: PredictedError | None, done: int, total: int, cached: bool
) -> SurveyRow:
    return SurveyRow(
        name=tensor.name,
        role=tensor.role,
        layer=tensor.layer,
        expert=tensor.expert,
        shape=tensor.shape,
        dtype=tensor.dtype,
        statistics=found[0] if found else None,
        predicted=predicted,
        bytes_done=done,
        bytes_total=total,
        worst=found[1] if found else (),
        cached=cached,
    )
