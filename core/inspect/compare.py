"""Two checkpoints tensor by tensor: source and result, or two results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from core.checkpoint.base import Checkpoint, Columns, Container
from core.checkpoint.reading import windows
from core.errors import UserError
from core.inspect.channel_errors import BlockErrors, ChannelErrors, block_errors
from core.inspect.compare_rows import CompareRow, Match, WorstChannel
from core.inspect.logical import LogicalCheckpoint
from core.inspect.tracing import source_rows
from core.metrics.error import snr_db
from core.models.gguf_tensors import MappedTensor, identity_tensors, map_tensors
from core.models.read_mapped import read_mapped
from core.progress import CancelToken
from core.tensor_info import Role
from core.threads import in_parallel

BLOCK_VALUES = 1 << 19  # of both, read and compared by one thread at once
WORST = 3  # channels of each axis that a row names


@dataclass(frozen=True)
class CompareStep:
    """row: None between the pieces of a large tensor. share: of all bytes, 0 … 1."""

    index: int
    count: int
    share: float
    row: CompareRow | None


def compare(first: Checkpoint, second: Checkpoint, token: CancelToken) -> Iterator[CompareStep]:
    """Every tensor of both; permuted rows, norm offsets and stacked experts of a GGUF are undone on the way.

    Where only one of the two is a GGUF, the other is read as it would be converted. In file order of the first, what
    only the second has at the end. Memory does not grow with the tensors, but for one row.
    Raises UserError when the two have no tensor in common or one can not be read, Cancelled.
    """
    pairs = _pairs(LogicalCheckpoint(first), LogicalCheckpoint(second))
    if not any(p.left and p.right for p in pairs):
        raise UserError(
            "The two have no tensor in common.", "Compare a model with its own quantized version, or two versions."
        )
    total = max(1, sum(p.values for p in pairs))
    done = 0
    for index, pair in enumerate(pairs):
        token.check()
        if pair.left is None or pair.match is not Match.COMPARED:
            done += pair.values
            yield CompareStep(index, len(pairs), done / total, _row(pair, None))
            continue
        sums = _Sums(pair)
        blocks = windows(pair.left.mapped.rows, pair.left.mapped.columns, BLOCK_VALUES)
        with closing(in_parallel(partial(_block, pair), blocks, token)) as parts:
            for part in parts:
                sums.take(part)
                done += part.values
                if sums.values < pair.values:
                    yield CompareStep(index, len(pairs), done / total, None)
        yield CompareStep(index, len(pairs), done / total, _row(pair, sums))


@dataclass(frozen=True)
class _Side:
    """One tensor of one of the two. readable: False when its type has no decoder. note: why it may have no partner."""

    checkpoint: LogicalCheckpoint
    mapped: MappedTensor
    format: str
    readable: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """As its own checkpoint calls it; one name for a stack of experts."""
        names = [s.name for s in self.mapped.sources]
        if not names:
            return self.mapped.name
        return names[0] if len(names) == 1 else re.sub(r"\.experts\.\d+\.", ".experts.*.", names[0])

    def own_row(self, row: int) -> int:
        """The number that a row has in this checkpoint, where heads are permuted."""
        if not self.mapped.permute_heads or len(self.mapped.sources) != 1 or len(self.mapped.shape) < 2:
            return row
        return int(source_rows(self.mapped, self.mapped.sources[0].name)[row])


@dataclass(frozen=True)
class _Pair:
    left: _Side | None
    right: _Side | None

    @property
    def values(self) -> int:
        side = self.left or self.right
        return math.prod(side.mapped.shape) if side else 0

    @property
    def match(self) -> Match:
        if self.left is None or self.right is None:
            return Match.ONLY_RIGHT if self.left is None else Match.ONLY_LEFT
        if not (self.left.readable and self.right.readable):
            return Match.UNREADABLE
        return Match.COMPARED if self.left.mapped.shape == self.right.mapped.shape else Match.SHAPES


def _pairs(first: LogicalCheckpoint, second: LogicalCheckpoint) -> list[_Pair]:
    both = (first, second)
    gguf = [c.container is Container.GGUF for c in both]
    named = gguf[0] == gguf[1] and bool({t.name for t in first.tensors} & {t.name for t in second.tensors})
    sides: list[dict[str, _Side]] = []
    for checkpoint, is_gguf in zip(both, gguf, strict=True):
        mapped = identity_tensors(checkpoint) if is_gguf or named else map_tensors(checkpoint)
        found = {m.name: _Side(checkpoint, m, _format(m)) for m in mapped}
        used = {s.name for m in mapped for s in m.sources}
        for m in identity_tensors(checkpoint):  # what a conversion does not take over
            if m.name not in used and m.name not in found:
                note = "repeats the embedding" if m.role is Role.HEAD else "follows from the configuration"
                found[m.name] = _Side(checkpoint, m, _format(m), note=note)
        for t in checkpoint.unknown:
            m = MappedTensor(t.name, t.shape or (1,), (), role=t.role, layer=t.layer)
            found.setdefault(t.name, _Side(checkpoint, m, t.dtype, readable=False))
        sides.append(found)
    pairs = [_Pair(sides[0].get(n), sides[1].get(n)) for n in dict.fromkeys([*sides[0], *sides[1]])]
    return sorted(pairs, key=lambda p: p.left is None)


def _format(m: MappedTensor) -> str:
    return " and ".join(dict.fromkeys(s.dtype for s in m.sources)) or "computed"


@dataclass(frozen=True)
class _Part:
    """One block of rows and columns of a pair."""

    start: int
    columns: tuple[int, int]
    values: int
    errors: BlockErrors


def _block(pair: _Pair, block: tuple[int, int, Columns]) -> _Part:
    assert pair.left is not None
    assert pair.right is not None
    start, stop, columns = block
    x, y = (read_mapped(s.checkpoint, s.mapped, start, stop, columns) for s in (pair.left, pair.right))
    return _Part(start, columns, x.size, block_errors(x, y, signal=True)[0])


class _Sums(ChannelErrors):
    """What is known of a pair so far."""

    def __init__(self, pair: _Pair) -> None:
        assert pair.left is not None
        super().__init__(pair.left.mapped.rows, pair.left.mapped.columns)

    def take(self, p: _Part) -> None:
        self.add(p.errors, slice(p.start, p.start + len(p.errors.axes[0].largest)), slice(*p.columns))

    def worst(self, side: _Side) -> tuple[WorstChannel, ...]:
        """Of each axis that has more than one channel those with most of the squared error."""
        found = []
        for number, name in enumerate(("output", "input")):
            axis = self.axes[number]
            total = float(axis.squares.sum())
            if len(axis.squares) < 2 or not total or not math.isfinite(total):
                continue
            count = self.values / len(axis.squares)
            found += [
                WorstChannel(
                    axis=name,
                    index=side.own_row(i) if number == 0 else i,
                    max_error=float(axis.largest[i]),
                    rms_error=math.sqrt(axis.squares[i] / count),
                    share=float(axis.squares[i]) / total,
                    snr_db=snr_db(float(axis.signal[i]), float(axis.squares[i])),
                )
                for i in self.most(number, WORST)
            ]
        return tuple(found)


def _row(pair: _Pair, sums: _Sums | None) -> CompareRow:
    left, right = pair.left, pair.right
    side = left or right
    assert side is not None
    return CompareRow(
        name=left.name if left else "",
        other_name=right.name if right else "",
        shape=left.mapped.shape if left else (),
        other_shape=right.mapped.shape if right else (),
        format=left.format if left else "",
        other_format=right.format if right else "",
        match=pair.match,
        layer=side.mapped.layer,
        role=side.mapped.role.value,
        error=sums.error.stats() if sums else None,
        nrmse=sums.error.nrmse if sums else math.nan,
        worst=sums.worst(left) if sums and left else (),
        note=_note(pair),
    )


def _note(pair: _Pair) -> str:
    notes = []
    for s in (pair.left, pair.right):
        if s is None:
            continue
        if not s.readable:
            notes.append(f"{s.format} can not be decoded")
        elif s.note and pair.match is not Match.COMPARED:
            notes.append(s.note)
        if pair.match is Match.COMPARED and s.mapped.permute_heads:
            notes.append("rows of each head put in order")
        if pair.match is Match.COMPARED and s.mapped.add:
            notes.append(f"{s.mapped.add:g} added to the norm, as a GGUF stores it")
    return "; ".join(dict.fromkeys(notes))
