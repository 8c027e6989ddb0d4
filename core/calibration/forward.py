"""Runs a decoder block by block over many samples at once; weights come block by block and may be changed in between.

The steps are those of `core.runtime.decoder`, so every family that the engine runs is run here. Between two blocks only
the residual stream is kept. A block runs in spans of steps that end where a product begins: there a visitor sees the
product's input over all samples, and may replace the weights that it is multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from core.calibration.differentiable import BlockSteps, Named, activate, attend, name_of, rotate
from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.methods.transform import BlockWeights
from core.models.config import DecoderConfig
from core.progress import CancelToken
from core.runtime.decoder import DecoderWeights, decoder_program
from core.runtime.load import decoder_config
from core.runtime.reading import Conversion
from core.runtime.weights import ReadProgress, Slot, WeightPlan, plan_weights, read_weights
from core.threads import in_parallel
from kernels import matrix, ops
from kernels.matrix import Activations, Matrix
from kernels.program import (
    ActMul,
    Add,
    Attention,
    Embed,
    Experts,
    Hadamard,
    Linear,
    Norm,
    Program,
    Rope,
    SoftCap,
    Split,
    Step,
)
from kernels.rotation import Rotation

_PIECE_VALUES = 2 << 20  # float32 values of a step's widest buffer that a thread computes at a time
_BLOCK = 4 << 20  # weights that are read at a time
_PRODUCTS = 1 << 32  # multiplications and additions between two looks at the token: a tenth of a second of one core
_ROWS = 64  # tokens that a product takes together at least, and pieces are multiples of
_TOKENS = 256  # whose embedding is read between two looks
MOST = 1e15  # |x| of an input: the sum of many squares stays below float32's 3e38


@dataclass(frozen=True)
class Product:
    """The weights that meet one input, before they do.

    names: of the matrices, 'blk.3.attn_q.weight' …, all [·, K]. rows: how many tokens meet them; 0 for an expert that
    none was sent to. pieces() → float32 [R, K] in order; full() → the same rows of the stream that was never changed,
    or None without one. everyone() → for an expert's first weights, the rows of all tokens, sent to it or not.
    """

    names: tuple[str, ...]
    columns: int
    rows: int
    pieces: Callable[[], Iterator[np.ndarray]]
    full: Callable[[], Iterator[np.ndarray]] | None = None
    everyone: Callable[[], Iterator[np.ndarray]] | None = None


class Visitor(Protocol):
    """What is done at each product of a block, in the order of the computation."""

    def product(self, product: Product, weights: BlockWeights) -> None: ...


class Nothing:
    """A visitor that lets everything pass."""

    def product(self, product: Product, weights: BlockWeights) -> None:
        pass


@dataclass
class _Stream:
    """One set of weights and what it has computed: buffers by number, float32 [rows, width]."""

    weights: BlockWeights
    buffers: dict[int, torch.Tensor]

    def matrix(self, name: str, exact: bool, token: CancelToken) -> Matrix:
        """The weights in the engine's layout; packed anew when they have been replaced."""
        values = self.weights.matrices[name]
        known = self.weights.packed.get(name)
        if known is None or known[0] is not values:
            known = self.weights.packed[name] = (values, packed(values, token, exact))
        return known[1]

    def release(self, names: Iterable[str], weights: bool) -> None:
        """These were used: their packed form goes, and `weights` too."""
        for name in names:
            self.weights.packed.pop(name, None)
            if weights:
                self.weights.matrices.pop(name, None)


class BlockForward:
    """Samples of a text in a decoder, block by block.

    ids: int32 [S, L]. exact: products in float32; otherwise weights and inputs are rounded to bfloat16, and sums are
    float32, where no visitor has packed the weights in another way. Raises UserError for a model that the runtime has
    no decoder for.
    """

    def __init__(self, checkpoint: Checkpoint, ids: np.ndarray, token: CancelToken, exact: bool = False) -> None:
        self.config: DecoderConfig = decoder_config(checkpoint)
        self.plan: WeightPlan = plan_weights(checkpoint, self.config)
        self.ids, self.exact = np.ascontiguousarray(ids, np.int32), exact
        self._token = token
        self._slots = {slot.name: slot for slot in self.plan.slots}
        self._program = self._shape()
        self._layers = _by_layer(self._program)
        self._arena = _Arena()
        self._residual = 0  # buffer number; the first that `decoder_program` makes
        self.hidden: torch.Tensor = torch.empty(0)
        self.full: torch.Tensor | None = None  # the residual stream of the unchanged weights, where it is followed too

    @property
    def layers(self) -> int:
        return self.config.layers

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Where each weight of the decoder is stored."""
        return self._slots

    def embed(self, follow_full: bool = False, table: np.ndarray | None = None) -> None:
        """Begin: hidden = scaled rows of the embedding [V, D], the model's own where none is given."""
        tokens, places = np.unique(self.ids.reshape(-1), return_inverse=True)
        if table is None:
            slot = self._slots["token_embd.weight"]
            rows = np.empty((len(tokens), self.config.hidden), np.float32)
            for at, t in enumerate(tokens):
                if at % _TOKENS == 0:
                    self._token.check()
                rows[at] = slot.stored.values(slot.start + int(t), slot.start + int(t) + 1).reshape(-1)
        else:
            rows = table[tokens]
        scale = next(s.scale for s in self._program.steps if isinstance(s, Embed))
        _check("token_embd.weight", rows)
        self.hidden = torch.from_numpy(np.ascontiguousarray(rows[places] * np.float32(scale)))
        self.full = self.hidden.clone() if follow_full else None

    def load(self, layer: int) -> BlockWeights:
        """A block's weights, decoded."""
        return self._read(f"blk.{layer}.")

    def load_outer(self) -> BlockWeights:
        """What is in no block: the embedding, the head where it is its own, the last norm."""
        return self._read("")

    def run(
        self,
        layer: int,
        weights: BlockWeights,
        visitor: Visitor | None = None,
        originals: BlockWeights | None = None,
        advance: bool = True,
        forget: bool = False,
        samples: int | None = None,
    ) -> None:
        """One block over all samples. originals: the weights that `full` is computed with, when it is followed.

        advance: whether the residual stream goes on; otherwise the block is run to be looked at, over so many `samples`
        from all over the text where it says how many. forget: matrices are taken out of `weights`, and `originals`, as
        soon as they have been used, so that memory falls along the block.
        """
        visitor = visitor or Nothing()
        streams = [_Stream(weights, {self._residual: self.hidden if advance else self._some(samples)})]
        if self.full is not None and originals is not None:
            streams.append(_Stream(originals, {self._residual: self.full if advance else self.full.clone()}))
        spans = _spans(self._layers[layer], self._residual)
        for span in spans:
            first = span.steps[0]
            if isinstance(first, Linear):
                for stream in streams:
                    self._rotate(stream, span.names, first.x)
                visitor.product(self._product(streams, span.names, first.x), weights)
            if isinstance(first, Experts):
                self._experts(streams, first, visitor, forget)
                continue
            for stream in streams:
                if advance or span is not spans[-1]:
                    self._run_span(stream, span)
                else:  # nobody looks at what comes out
                    self._keep(stream, {})
                stream.release(span.names, forget)
        if advance:
            self.hidden = streams[0].buffers[self._residual]
            if len(streams) > 1:
                self.full = streams[1].buffers[self._residual]

    def _rotate(self, stream: _Stream, names: tuple[str, ...], x: int) -> None:
        """What comes into matrices that are stored rotated; nothing else reads it."""
        if rotation := stream.weights.rotated.get(names[0]):
            stream.buffers[x] = self._rotated(stream.buffers[x], rotation)

    def _rotated(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """x R, float32 [R, K], in place."""
        size = self._some_rows(x.shape[1])

        def compute(start: int) -> None:
            part = x[start : start + size]
            part.copy_(torch.from_numpy(rotation.apply(part.numpy(), self._token.check)))

        self._side_by_side(compute, range(0, len(x), size))
        return x

    def _some(self, samples: int | None) -> torch.Tensor:
        """A copy of the residual stream of that many samples."""
        count, length = self.ids.shape
        wanted = count if samples is None else min(samples, count)
        chosen = torch.arange(wanted) * count // wanted
        return self.hidden.view(count, length, -1)[chosen].reshape(wanted * length, -1)

    def head_input(self, gain: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """What the head is multiplied with after the last block, float32 [R, D], sample by sample."""
        norm = self.last_norm()
        gain = norm.gain if gain is None else gain
        for piece in self.hidden.split(self.ids.shape[1]):
            self._token.check()
            yield _checked("output.weight", _norm(piece, gain, norm.eps, 1).numpy())

    def steps(self, layer: int, rotated: Mapping[str, Rotation] | None = None) -> BlockSteps:
        """A block as a differentiable function of its weights. rotated: as `BlockWeights` has it."""
        steps, labels = zip(*self._layers[layer], strict=True)
        return BlockSteps(steps, labels, self._residual, self.ids.shape[1], rotated=rotated or {})

    def last_norm(self) -> Norm:
        """What the residual stream goes through before the head."""
        return next(s for s in reversed(self._program.steps) if isinstance(s, Norm))

    # ------------------------------------------------------------------------------------------------- inside

    def _shape(self) -> Program:
        """The steps, with matrices that have names and sizes only."""
        vectors = replace(self.plan, slots=tuple(s for s in self.plan.slots if s.is_vector))
        read = _finished(read_weights(vectors, self._token))
        matrices = {
            s.name: Matrix(s.shape[0], s.shape[1], "", Named(s.name)) for s in self.plan.slots if not s.is_vector
        }
        return decoder_program(
            self.config, replace(read, matrices=matrices, rotations={}), self.ids.shape[1], 1, Activations.EXACT, "F32"
        )

    def _read(self, prefix: str) -> BlockWeights:
        found = BlockWeights({}, {})
        for slot in self.plan.slots:
            if not slot.name.startswith(prefix) or (not prefix and slot.name.startswith("blk.")):
                continue
            if slot.is_vector:
                values = slot.stored.values(0, 1).reshape(-1)[slot.start : slot.stop] + np.float32(slot.add)
                found.vectors[slot.name] = np.ascontiguousarray(values, np.float32)
                _check(slot.stored.name, values)
                continue
            step = max(1, _BLOCK // slot.shape[1])
            out = np.empty(slot.shape, np.float32)
            for at in range(0, slot.shape[0], step):
                self._token.check()
                stop = min(at + step, slot.shape[0])
                out[at:stop] = slot.stored.values(slot.start + at, slot.start + stop).reshape(stop - at, -1)
                _check(slot.stored.name, out[at:stop])
            found.matrices[slot.name] = out
        return found

    def _chunk(self, width: int) -> int:
        """Rows of whole samples that are computed at a time."""
        length = self.ids.shape[1]
        return max(1, _PIECE_VALUES // (length * width)) * length

    def _some_rows(self, width: int) -> int:
        """Rows that are computed at a time where each token is on its own."""
        return max(1, _PIECE_VALUES // width // _ROWS) * _ROWS

    def _product(self, streams: list[_Stream], names: tuple[str, ...], x: int) -> Product:
        def pieces(stream: _Stream) -> Callable[[], Iterator[np.ndarray]]:
            held = stream.buffers[x]

            def read() -> Iterator[np.ndarray]:
                for piece in held.split(self._some_rows(held.shape[1])):
                    self._token.check()
                    yield _checked(names[0] if names else "", piece.numpy())

            return read

        full = pieces(streams[1]) if len(streams) > 1 else None
        held = streams[0].buffers[x]
        return Product(names, held.shape[1], len(held), pieces(streams[0]), full)

    def _run_span(self, stream: _Stream, span: _Span) -> None:
        rows = len(stream.buffers[self._residual])
        widest = max(self._program.widths[b] for s in span.steps for b in _touched(s))
        size = self._chunk(widest) if span.mixes_tokens else self._some_rows(widest)
        kept = {
            b: self._arena.take(rows, self._program.widths[b])
            for b in sorted(span.live - {self._residual})
            if b in span.written
        }
        if isinstance(span.steps[0], Linear):
            for name in span.names:
                stream.matrix(name, self.exact, self._token)  # before threads ask for it

        def compute(start: int) -> None:
            part = {b: t[start : start + size] for b, t in stream.buffers.items()}
            for step, label in zip(span.steps, span.labels, strict=True):
                self._token.check()
                self._step(step, label, stream, part)
            for b, whole in kept.items():
                whole[start : start + size] = part[b]

        self._side_by_side(compute, range(0, rows, size))
        self._keep(stream, {b: kept.get(b, t) for b, t in (stream.buffers | kept).items() if b in span.live})

    def _side_by_side(self, compute: Callable[[int], None], starts: range) -> None:
        with one_thread():
            for _ in in_parallel(compute, starts, self._token):
                pass

    def _keep(self, stream: _Stream, buffers: dict[int, torch.Tensor]) -> None:
        """What is left of a stream; its other buffers can be used again."""
        for b, t in stream.buffers.items():
            if buffers.get(b) is not t:
                self._arena.give_back(t)
        stream.buffers = buffers

    def _step(self, step: Step, label: str, stream: _Stream, part: dict[int, torch.Tensor]) -> None:
        if isinstance(step, Linear):
            for weight, out in zip(step.weights, step.outs, strict=True):
                y = self._multiply(stream, name_of(weight), part[step.x])
                if step.accumulate:
                    part[out] += y
                else:
                    part[out] = y
        elif isinstance(step, Norm):
            y = _norm(part[step.x], stream.weights.vectors[label + ".weight"], step.eps, step.heads)
            if step.out == self._residual:
                part[step.out].copy_(y)
            else:
                part[step.out] = y
        elif isinstance(step, Rope):
            part[step.x] = rotate(part[step.x], step, self.ids.shape[1])
        elif isinstance(step, Attention):
            part[step.out] = attend(
                part[step.q], part[step.k], part[step.v], step, self.ids.shape[1], self._token.check
            )
        elif isinstance(step, ActMul):
            part[step.out] = activate(step.kind, part[step.gate]).mul_(part[step.up])
        elif isinstance(step, Add):
            part[step.out] += part[step.x]
        elif isinstance(step, Split):
            for out, piece in zip(step.outs, part[step.x].split(list(step.widths), dim=1), strict=True):
                part[out] = piece.contiguous()
        elif isinstance(step, SoftCap):
            part[step.x] = step.cap * torch.tanh(part[step.x] / step.cap)
        else:
            raise TypeError(type(step).__name__)

    def _multiply(self, stream: _Stream, name: str, x: torch.Tensor) -> torch.Tensor:
        """x · weightᵀ + bias, float32 [R, N]."""
        weight, given = stream.matrix(name, self.exact, self._token), x.numpy()
        y = np.empty((len(given), weight.rows), np.float32)
        step = max(1, _PRODUCTS // (weight.rows * weight.columns) // _ROWS) * _ROWS
        for start in range(0, len(given), step):
            self._token.check()
            y[start : start + step] = matrix.product(given[start : start + step], weight, Activations.FAST)
        bias = stream.weights.vectors.get(name.removesuffix(".weight") + ".bias")
        return torch.from_numpy(y if bias is None else y + bias)

    def _experts(self, streams: list[_Stream], step: Experts, visitor: Visitor, forget: bool) -> None:
        """Expert by expert over all samples; the tokens that one is sent are those of its own stream."""
        for number, stream in enumerate(streams):
            logits = stream.buffers[step.logits]
            shares = torch.softmax(logits, dim=1)
            chosen = torch.argsort(logits, dim=1, descending=True, stable=True)[:, : step.used]
            scores = torch.gather(shares, 1, chosen)
            if step.normalized:
                scores = scores / scores.sum(dim=1, keepdim=True)
            x, out = stream.buffers[step.x], stream.buffers[step.out]
            for expert in range(len(step.gates)):
                self._token.check()
                rows, places = torch.nonzero(chosen == expert, as_tuple=True)
                gate, up, down = (name_of(m[expert]) for m in (step.gates, step.ups, step.downs))
                given = x[rows]
                if number == 0:
                    some = _rows_of(given, (gate, up))
                    visitor.product(replace(some, everyone=self._product([stream], (), step.x).pieces), stream.weights)
                inner = self._in_expert(stream, step, gate, up, given)
                if rotation := stream.weights.rotated.get(down):
                    inner = self._rotated(inner, rotation)
                if number == 0:
                    visitor.product(_rows_of(inner, (down,)), stream.weights)
                if len(rows):
                    out[rows] += scores[rows, places][:, None] * self._out_of_expert(stream, down, inner)
                stream.release((gate, up, down), forget)
            self._keep(stream, {self._residual: out})

    def _in_expert(self, stream: _Stream, step: Experts, gate: str, up: str, given: torch.Tensor) -> torch.Tensor:
        """What comes into the down projection, float32 [R, width]."""
        width = stream.matrix(gate, self.exact, self._token).rows
        stream.matrix(up, self.exact, self._token)  # before threads ask for it
        inner, size = torch.empty((len(given), width)), self._some_rows(width)

        def compute(start: int) -> None:
            some = given[start : start + size]
            inner[start : start + size] = activate(step.kind, self._multiply(stream, gate, some)) * self._multiply(
                stream, up, some
            )

        self._side_by_side(compute, range(0, len(given), size))
        return inner

    def _out_of_expert(self, stream: _Stream, down: str, inner: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(inner), stream.matrix(down, self.exact, self._token).rows))
        size = self._some_rows(max(out.shape[1], inner.shape[1]))

        def compute(start: int) -> None:
            out[start : start + size] = self._multiply(stream, down, inner[start : start + size])

        self._side_by_side(compute, range(0, len(inner), size))
        return out


def _finished(reading: Generator[ReadProgress, None, tuple[DecoderWeights, tuple[Conversion, ...]]]) -> DecoderWeights:
    while True:
        try:
            next(reading)
        except StopIteration as stop:
            return stop.value[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch's operations on one thread, where pieces are computed side by side: more would wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Arena:
    """Large buffers that are used again: the system clears the pages of each new one, a fifteenth of a pass's time."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._lent: dict[int, np.ndarray] = {}  # by address

    def take(self, rows: int, width: int) -> torch.Tensor:
        """float32 [rows, width] of any content."""
        fitting = [a for a in self._free if a.size >= rows * width]
        if fitting:
            array = min(fitting, key=lambda a: a.size)
            self._free = [a for a in self._free if a is not array]
        else:
            self._free.clear()  # too small, and memory that nothing else can have
            array = np.empty(rows * width, np.float32)
        found = torch.from_numpy(array[: rows * width].reshape(rows, width))
        self._lent[found.data_ptr()] = array
        return found

    def give_back(self, buffer: torch.Tensor) -> None:
        """Nothing may use it any more. What was not lent is passed over."""
        array = self._lent.pop(buffer.data_ptr(), None)
        if array is not None:
            self._free.append(array)


def _rows_of(x: torch.Tensor, names: tuple[str, ...]) -> Product:
    return Product(names, x.shape[1], len(x), lambda: iter([_checked(names[0], x.numpy())] if len(x) else []))


def _check(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise UserError(
            f"'{name}' holds NaN or infinite values, so the model can not be run.",
            "The checkpoint is damaged: get it again.",
        )


def _checked(name: str, x: np.ndarray) -> np.ndarray:
    """What comes into a weight, as a visitor sees it: sums of its squares are numbers. Raises UserError."""
    if x.size and not max(float(x.max()), -float(x.min())) <= MOST:
        where = f"What comes into '{name}'" if name else "What comes into the experts"
        raise UserError(
            f"{where} in the calibration holds NaN, infinite or far too large values.",
            "Test the model as it is first: it may be damaged, or its activations may be too large for bfloat16.",
        )
    return x


def packed(values: np.ndarray, token: CancelToken, exact: bool = False) -> Matrix:
    """A matrix [N, K] in the engine's layout, rounded to bfloat16 where it need not be exact. Raises Cancelled."""
    dtype = "F32" if exact else "BF16"

    def read(start: int, stop: int) -> np.ndarray:
        token.check()
        return ops.from_float32(values[start:stop], dtype)

    return matrix.from_elements(dtype, values.shape[0], values.shape[1], read)


# ----------------------------------------------------------------------------------------------------- spans of steps


@dataclass(frozen=True)
class _Span:
    """Steps that run together for a chunk of samples. live: buffers that are read after it; written: by it.
    mixes_tokens: they need whole samples."""

    steps: tuple[Step, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]  # of the matrices of a product that it begins with
    live: frozenset[int]
    written: frozenset[int]
    mixes_tokens: bool


def _by_layer(program: Program) -> list[list[tuple[Step, str]]]:
    layers: dict[int, list[tuple[Step, str]]] = {}
    for step, label in zip(program.steps, program.labels, strict=True):
        if label.startswith("blk."):
            layers.setdefault(int(label.split(".")[1]), []).append((step, label))
    return [layers[i] for i in sorted(layers)]


def _spans(steps: list[tuple[Step, str]], residual: int) -> list[_Span]:
    starts = [i for i, (step, _) in enumerate(steps) if isinstance(step, Linear | Experts)]
    cuts = sorted({0, *starts, *(i + 1 for i, (step, _) in enumerate(steps) if isinstance(step, Experts)), len(steps)})
    live = frozenset({residual})
    spans = []
    for start, stop in reversed(list(pairwise(cuts))):
        some = steps[start:stop]
        written = frozenset(b for step, _ in some for b in _writes(step))
        first = some[0][0]
        names: tuple[str, ...] = ()
        if isinstance(first, Linear):
            names = tuple(name_of(w) for w in first.weights)
        elif isinstance(first, Experts):
            names = tuple(name_of(w) for w in (*first.gates, *first.ups, *first.downs))
        mixes = any(isinstance(step, Rope | Attention) for step, _ in some)
        spans.append(_Span(tuple(s for s, _ in some), tuple(label for _, label in some), names, live, written, mixes))
        for step, _ in reversed(some):
            live = (live - set(_writes(step))) | set(_reads(step)) | {residual}
    return spans[::-1]


def _reads(step: Step) -> tuple[int, ...]:
    match step:
        case Linear():
            return (step.x, *step.outs) if step.accumulate else (step.x,)
        case Attention():
            return (step.q, step.k, step.v)
        case ActMul():
            return (step.gate, step.up)
        case Add():
            return (step.x, step.out)
        case Experts():
            return (step.x, step.logits, step.out)
        case Embed():
            return ()
        case _:
            return (step.x,)


def _writes(step: Step) -> tuple[int, ...]:
    match step:
        case Linear() | Split():
            return step.outs
        case Rope() | SoftCap() | Hadamard():
            return (step.x,)
        case _:
            return (step.out,)


def _touched(step: Step) -> tuple[int, ...]:
    return (*_reads(step), *_writes(step))


# ----------------------------------------------------------------------------------------------------- single steps


def _norm(x: torch.Tensor, gain: np.ndarray, eps: float, heads: int) -> torch.Tensor:
    rows = x.view(len(x), heads, -1)
    squares = torch.linalg.vector_norm(rows, dim=2, keepdim=True).square_()
    return (rows * squares.div_(rows.shape[2]).add_(eps).rsqrt_()).mul_(torch.from_numpy(gain)).reshape(len(x), -1)
