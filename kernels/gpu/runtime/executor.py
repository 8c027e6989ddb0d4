"""Runs a program of steps (`kernels.program`) on a GPU: nothing here knows of any architecture.

The residual stream, sums and logits are float32; what products, attention and the cache take is 16 bits. A step of one
token for each of some sequences is captured as a graph of static shapes and replayed; prompts are launched as they are.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kernels.engine_backends import Cancelled
from kernels.gpu import operations
from kernels.gpu.runtime.device import Device, Graph
from kernels.gpu.runtime.flow import key_of_attention, meets_products, read_by_attention
from kernels.gpu.runtime.held import Begun, Held
from kernels.gpu.runtime.needed import check_steps, query_type
from kernels.gpu.runtime.operands import Input, Operand
from kernels.kv import CACHE_FORMATS, kinds
from kernels.matrix import Activations, Matrix
from kernels.program import (
    ActMul,
    Add,
    Attention,
    Embed,
    Experts,
    Linear,
    Norm,
    Program,
    Rope,
    SoftCap,
    Split,
    Step,
)

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # sequences of a captured step; fewer are filled up
CONTEXTS = tuple(1024 * 4**i for i in range(8))  # positions that a captured step may have behind it
MOST_GRAPHS = 8
LARGEST_HALF = 60000.0  # float16 ends at 65504; norms are rounded


@dataclass
class Batch:
    """What one run is of, on the device; int32 [M]. wanted: rows whose logits are asked for, None: all.

    longest: positions that any token has behind it, at least. runs: of prompts, starts [S + 1], sequences and positions
    [S], and the most tokens that one has; None: a token a row. held: where tokens of the cache wait, up to where keys
    and values of each run, or row, are codes, [2, S], and how many tokens its sequence has then, [M].
    """

    tokens: torch.Tensor
    sequences: torch.Tensor
    positions: torch.Tensor
    wanted: torch.Tensor | None
    longest: int
    runs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int] | None = None
    held: tuple[torch.Tensor, torch.Tensor] | None = None
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    waiting: dict[int, torch.Tensor] = field(default_factory=dict)  # sums that a buffer has not got yet

    def value(self, number: int) -> torch.Tensor:
        more = self.waiting.pop(number, None)
        if more is not None:
            self.buffers[number].add_(more)
        return self.buffers[number]

    def put(self, number: int, values: torch.Tensor) -> None:
        self.waiting.pop(number, None)
        self.buffers[number] = values

    def add(self, number: int, values: torch.Tensor) -> None:
        self.value(number)
        self.waiting[number] = values


@dataclass
class _Captured:
    """A step with its own inputs, int32 [3 or 5, bucket], and its result, all at fixed addresses."""

    graph: Graph
    inputs: torch.Tensor
    logits: torch.Tensor


class GpuExecutor:
    """A program and its cache on one device. Raises OutOfMemory, SwitchedOff for a step whose kernel may not be used,
    and ValueError for one that no kernel takes.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self.program, self.device = program, device
        self._cancelled = self._profiling = False
        self._one_run = threading.Lock()
        self._times = [0.0] * len(program.steps)
        self._graphs: OrderedDict[tuple[int, int], _Captured] = OrderedDict()
        self._exact = program.activations is Activations.EXACT
        self.eager_reason = ""
        if any(isinstance(step, Experts) for step in program.steps):
            self.eager_reason = "which experts a token meets is read by the host"
        check_steps(program)
        cache = program.cache
        self._held = Held(cache) if cache.waits else None
        self._queries: torch.dtype = getattr(torch, query_type(cache))
        with device.work():
            self._cache = [operations.layer_cache(cache, layer, device.name) for layer in range(len(cache.layers))]
            rows = max(BUCKETS[-1], cache.sequences) + 1
            self._rows = torch.arange(rows, dtype=torch.int32, device=device.name)  # starts of runs of one token
            self._tables: dict[tuple[bytes, float], tuple[torch.Tensor, torch.Tensor]] = {}
            self._steps = [self._prepared(number, step) for number, step in enumerate(program.steps)]
            device.wait()

    # ---- what engines do -------------------------------------------------------------------------------------------

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """As `kernels.engine.Engine.run`. Raises OutOfMemory, too."""
        self._check(tokens, sequences, positions, wanted)
        with self._one_run:
            self._cancelled = False
            return self._run(tokens, sequences, positions, wanted)

    def _run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        width = self.program.widths[self.program.logits]
        if not len(tokens):
            return np.zeros((0, width), np.float32)
        with self.device.work():
            if len(np.unique(sequences)) == len(sequences):
                found = self._tokens(tokens, sequences, positions, wanted)
            else:
                found = self._prompt(tokens, sequences, positions, wanted)
            if found is None:
                self.device.wait()
                return np.zeros((0, width), np.float32)
            return self.device.read(found)

    def cancel(self) -> None:
        self._cancelled = True

    def profile(self, on: bool) -> None:
        """While on, each step is waited for, and none is captured."""
        self._profiling = on
        if on:
            self._times = [0.0] * len(self._times)

    def times(self) -> list[float]:
        return list(self._times)

    def cache_bytes(self) -> int:
        return sum(layer.nbytes for layer in self._cache)

    def nbytes(self) -> int:
        return self.cache_bytes() + sum(cos.nbytes + sin.nbytes for cos, sin in self._tables.values())

    # ---- batches ---------------------------------------------------------------------------------------------------

    def _tokens(
        self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> torch.Tensor | None:
        """One token of each sequence: by a graph where all their logits are wanted, and one can be had."""
        count = len(tokens)
        begun = self._begun(sequences, positions, np.ones(count, np.int32))
        every = len(wanted) == count and bool((wanted == np.arange(count)).all())
        behind = int(positions.max()) + 1
        longest = min(next((c for c in CONTEXTS if c >= behind), CONTEXTS[-1]), self.program.cache.capacity)
        longest = max(longest, behind)
        if not every or self.eager_reason or self._profiling or count > BUCKETS[-1]:
            rows = None if every else self._numbers(wanted, torch.int64)
            batch = Batch(*self._sent(tokens, sequences, positions), rows, longest)
            if begun is not None:
                batch.held = self._numbers(np.stack(begun.done)), batch.positions + 1
            return self._go(batch, len(wanted), begun)
        bucket = next(b for b in BUCKETS if b >= count)
        # Rows that fill the bucket repeat the first: they write what it writes, and nobody reads them.
        numbers = np.stack([tokens, sequences, positions, *(begun.done if begun is not None else ())])
        filled = np.concatenate([numbers, np.repeat(numbers[:, :1], bucket - count, axis=1)], axis=1)
        key = (bucket, longest)
        known = self._graphs.get(key)
        if known is None:
            return self._first(key, self._numbers(filled), count, longest, begun)
        self._graphs.move_to_end(key)
        self.device.send_into(known.inputs, torch.from_numpy(filled))
        with self._growing(begun):
            known.graph.replay()
        return known.logits[:count]

    def _first(
        self, key: tuple[int, int], inputs: torch.Tensor, count: int, longest: int, begun: Begun | None
    ) -> torch.Tensor | None:
        """Runs a step of new shapes as it is, which compiles its kernels, and captures it for the next time.

        inputs: int32 [3 or 5, bucket], tokens, sequences and positions, and where tokens wait up to where keys and
        values are codes, where the captured step will look for them.
        """

        def batch() -> Batch:
            tokens, sequences, positions, *done = inputs.unbind(0)
            made = Batch(tokens, sequences, positions, None, longest)
            if done:
                made.held = inputs[3:], positions + 1
            return made

        found = self._go(batch(), count, begun)
        assert found is not None
        found = found[:count].clone()
        self.device.wait()
        if begun is not None:  # what runs it again finds nothing to do
            again = np.stack([self._held.ends[side, begun.sequences] for side in range(2)])  # type: ignore[union-attr]
            filled = np.concatenate([again, np.repeat(again[:, :1], inputs.shape[1] - count, axis=1)], axis=1)
            self.device.send_into(inputs[3:], torch.from_numpy(filled))
        made: list[torch.Tensor] = []

        def work() -> None:
            logits = self._go(batch(), count)
            assert logits is not None
            if not made:
                made.append(logits)
            else:  # a stand-in for graphs, which runs it again
                made[0].copy_(logits)

        try:
            graph = self.device.capture(work)
            if not made:
                graph.replay()
        except Cancelled:
            raise
        except RuntimeError as error:
            self.eager_reason = f"the step could not be captured ({str(error).splitlines()[0]})"
            self._graphs.clear()
            return found
        self._graphs[key] = _Captured(graph, inputs, made[0])
        while len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return found

    def _prompt(
        self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray
    ) -> torch.Tensor | None:
        """Several tokens of some sequences: each sequence's as one run, where positions follow one another."""
        order = np.lexsort((positions, sequences))
        tokens, sequences, positions = tokens[order], sequences[order], positions[order]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        starts = np.flatnonzero((np.diff(sequences, prepend=-1) != 0) | (np.diff(positions, prepend=-1) != 1))
        longest = int(positions.max()) + 1
        runs, begun, held = None, None, None
        if len(np.unique(sequences)) == len(starts):
            ends = np.append(starts, len(tokens))
            begun = self._begun(sequences[starts], positions[starts], np.diff(ends))
            if begun is not None:
                counts = np.repeat(begun.counts, np.diff(ends))
                held = self._numbers(np.stack(begun.done)), self._numbers(counts)
            runs = (
                self._numbers(ends), self._numbers(sequences[starts]), self._numbers(positions[starts]),
                int(np.diff(ends).max()),
            )  # fmt: skip
        elif self._held is not None:
            raise ValueError("tokens of a sequence follow one another in a cache whose tokens wait")
        rows = self._numbers(place[wanted], torch.int64)
        batch = Batch(*self._sent(tokens, sequences, positions), rows, longest, runs, held)
        return self._go(batch, len(wanted), begun)

    def _begun(self, sequences: np.ndarray, positions: np.ndarray, tokens: np.ndarray) -> Begun | None:
        """What waits of these runs, None where nothing does. Groups of tokens that they cut wait again."""
        if self._held is None:
            return None
        begun = self._held.begin(sequences, positions, tokens)
        for side, cut in begun.cuts:
            place = self._numbers(np.array(cut))
            for cache in self._cache:
                own = (cache.keys, cache.values)[side]
                if own.waits:
                    operations.reopen_tokens(own, place)
        return begun

    @contextmanager
    def _growing(self, begun: Begun | None) -> Iterator[None]:
        """Around a step: its tokens are there after it. One that ends somewhere leaves layers that differ."""
        if begun is None or self._held is None:
            yield
            return
        try:
            yield
        except BaseException:
            self._held.lose(begun.sequences)
            raise
        self._held.end(begun)

    def _go(self, batch: Batch, wanted: int, begun: Begun | None = None) -> torch.Tensor | None:
        """Every step; logits float32 of the wanted rows, or None of none."""
        with self._growing(begun):
            found = self._went(batch, wanted)
        if self._cancelled and batch.held is not None:
            raise Cancelled
        return found

    def _went(self, batch: Batch, wanted: int) -> torch.Tensor | None:
        for number, step in enumerate(self._steps):
            if self._cancelled and batch.held is None:  # half a step would leave layers with other tokens
                raise Cancelled
            if not self._profiling:
                step(batch, wanted)
                continue
            self.device.wait()
            begin = time.perf_counter()
            step(batch, wanted)
            self.device.wait()
            self._times[number] += time.perf_counter() - begin
        return batch.value(self.program.logits) if wanted else None

    def _check(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> None:
        cache = self.program.cache
        if not len(tokens) == len(sequences) == len(positions):
            raise ValueError("each token has a sequence and a position")
        rows = min((step.weight.rows for step in self.program.steps if isinstance(step, Embed)), default=1 << 31)
        for values, limit, what in (
            (tokens, rows, "token"),
            (sequences, cache.sequences, "sequence"),
            (positions, cache.capacity, "position"),
            (wanted, len(tokens), "wanted row"),
        ):
            if len(values) and not 0 <= values.min() <= values.max() < limit:
                raise ValueError(f"a {what} is outside of 0 … {limit - 1}")

    def _numbers(self, values: np.ndarray, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return self.device.send(torch.from_numpy(np.ascontiguousarray(values)).to(dtype))

    def _sent(self, *values: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens, sequences, positions = (self._numbers(v) for v in values)
        return tokens, sequences, positions

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _prepared(self, number: int, step: Step) -> Callable[[Batch, int], None]:
        """What a step does, with its constants on the device."""
        result = self.program.logits
        match step:
            case Embed():
                return lambda batch, _w: self._embed(batch, step)
            case Norm():
                gain, dtype = self._floats(step.gain), self._norm_type(number, step)
                return lambda batch, _w: self._norm(batch, step, gain, dtype)
            case Linear():
                biases = [None if b is None else self._floats(b) for b in step.biases or (None,) * len(step.outs)]
                return lambda batch, wanted: self._linear(batch, step, biases, wanted)
            case Split():
                return lambda batch, _w: self._split(batch, step)
            case Rope():
                tables, dtype = self._rope_tables(step), self._rope_type(number, step)
                return lambda batch, _w: self._rope(batch, step, tables, dtype)
            case Attention():
                dtype, turning = self._result_type(self._queries), None
                if step.rope is not None:
                    turning = operations.Turning(*self._rope_tables(step.rope), step.rope.pairs)
                return lambda batch, _w: self._attention(batch, step, dtype, turning)
            case ActMul():
                dtype = torch.float32
                if not self._exact and meets_products(self.program, number, step.out):
                    dtype = self.device.wide
                return lambda batch, _w: self._act_mul(batch, step, dtype)
            case Add():
                return lambda batch, _w: batch.add(step.out, batch.value(step.x))
            case Experts():
                return lambda batch, _w: self._experts(batch, step)
            case SoftCap():
                return lambda batch, wanted: self._soft_cap(batch, step) if wanted or step.x != result else None

    def _embed(self, batch: Batch, step: Embed) -> None:
        rows = _operand(step.weight).rows(batch.tokens.long())
        batch.put(step.out, rows if step.scale == 1.0 else rows * step.scale)

    def _norm(self, batch: Batch, step: Norm, gain: torch.Tensor, dtype: torch.dtype) -> None:
        more = batch.waiting.pop(step.x, None) if step.heads == 1 else None
        if more is not None and more.dtype != torch.float32:
            batch.waiting[step.x], more = more, None
        x = batch.buffers[step.x] if more is not None else batch.value(step.x)
        rows = (x if more is None else more).reshape(len(x) * step.heads, -1)
        out = torch.empty(rows.shape, dtype=dtype, device=rows.device)
        operations.rms_norm(rows, gain, step.eps, residual=None if more is None else x, out=out)
        batch.put(step.out, out.reshape(x.shape))

    def _linear(self, batch: Batch, step: Linear, biases: list[torch.Tensor | None], wanted: int) -> None:
        if step.logits and not wanted:
            return
        x = batch.value(step.x)
        if step.logits and batch.wanted is not None:
            x = x.index_select(0, batch.wanted)
        given = self._input(x, step.outliers)
        for weight, out, bias in zip(step.weights, step.outs, biases, strict=True):
            y = _operand(weight).product(given)
            if bias is not None:
                y = y + bias
            if step.accumulate:
                batch.add(out, y)
            else:
                batch.put(out, y)

    def _split(self, batch: Batch, step: Split) -> None:
        for out, part in zip(step.outs, batch.value(step.x).split(step.widths, 1), strict=True):
            batch.put(out, part.contiguous())

    def _rope(self, batch: Batch, step: Rope, tables: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype) -> None:
        x = batch.value(step.x)
        heads = x.reshape(len(x), step.heads, -1)
        out = heads if dtype == x.dtype else torch.empty(heads.shape, dtype=dtype, device=x.device)
        operations.rotate(heads, *tables, batch.positions, step.pairs, out=out)
        batch.put(step.x, out.reshape(x.shape))

    def _attention(self, batch: Batch, step: Attention, dtype: torch.dtype, turning: operations.Turning | None) -> None:
        cache = self._cache[step.layer]
        k, v = (batch.value(n).reshape(-1, step.kv_heads, step.head_dim) for n in (step.k, step.v))
        starts = self._rows[: len(k) + 1] if batch.runs is None else batch.runs[0]
        firsts = (batch.sequences, batch.positions) if batch.runs is None else batch.runs[1:3]
        longest = 1 if batch.runs is None else batch.runs[3]
        waiting = None
        if cache.waits:
            assert batch.held is not None
            own = (operations.waiting_rows(x, s) if s.waits else x for x, s in ((k, cache.keys), (v, cache.values)))
            waiting = operations.Waiting(*own, *batch.held[0].unbind(0))
            operations.close_tokens(cache, waiting, starts, *firsts, longest)
        k, v = (
            operations.turn(x, torch.float32) if side.turned and not side.waits else x
            for x, side in ((k, cache.keys), (v, cache.values))
        )
        operations.store_cache(k, v, cache, batch.sequences, batch.positions)
        q = batch.value(step.q).reshape(-1, step.heads, step.head_dim)
        queries = torch.float32 if self._exact else self._queries
        q = operations.turn(q, queries) if cache.keys.turned and turning is None else q.to(queries)
        out = torch.empty(q.shape, dtype=torch.float32 if cache.values.turned else dtype, device=q.device)
        how: Any = (step.scale, step.window, step.softcap, out, waiting, turning)
        if batch.runs is None:
            operations.attend_tokens(q, cache, batch.sequences, batch.positions, batch.longest, *how)
        else:
            operations.attend_prompt(q, cache, *batch.runs, *how)
        if waiting is not None:
            assert batch.held is not None
            operations.keep_tokens(cache, waiting, batch.sequences, batch.positions, batch.held[1])
        out = operations.turn(out, dtype) if cache.values.turned else out
        batch.put(step.out, out.reshape(len(q), -1))

    def _act_mul(self, batch: Batch, step: ActMul, dtype: torch.dtype) -> None:
        batch.put(step.out, _activated(step.kind, batch.value(step.gate), batch.value(step.up), dtype))

    def _experts(self, batch: Batch, step: Experts) -> None:
        shares = torch.softmax(batch.value(step.logits).float(), 1)
        sizes, chosen = torch.sort(shares, dim=1, descending=True, stable=True)
        sizes, chosen = sizes[:, : step.used], chosen[:, : step.used]
        if step.normalized:
            sizes = sizes / sizes.sum(1, keepdim=True)
        x, out = batch.value(step.x), batch.value(step.out)
        met = self.device.read(chosen)
        dtype = torch.float32 if self._exact else self.device.wide
        for expert in np.unique(met):
            if self._cancelled:
                raise Cancelled
            rows, places = (self._numbers(a, torch.int64) for a in np.nonzero(met == expert))
            given = self._input(x.index_select(0, rows))
            gate, up = (_operand(group[expert]).product(given) for group in (step.gates, step.ups))
            inner = _activated(step.kind, gate, up, dtype)
            y = _operand(step.downs[expert]).product(self._input(inner))
            out.index_add_(0, rows, y * sizes[rows, places][:, None])

    def _soft_cap(self, batch: Batch, step: SoftCap) -> None:
        batch.put(step.x, step.cap * torch.tanh(batch.value(step.x) / step.cap))

    # ---- constants and types ---------------------------------------------------------------------------------------

    def _input(self, x: torch.Tensor, outliers: float = 0.0) -> Input:
        return Input(x, self._exact, self.program.activations is Activations.TOKEN, outliers)

    def _floats(self, values: np.ndarray) -> torch.Tensor:
        return self.device.send(torch.from_numpy(np.array(values, np.float32).reshape(-1)))

    def _norm_type(self, number: int, step: Norm) -> torch.dtype:
        """Of a normalized row: no value of it is larger than √width · the largest gain."""
        if self._exact or not meets_products(self.program, number, step.out):
            return torch.float32
        largest = math.sqrt(len(step.gain)) * float(np.abs(step.gain).max(initial=0))
        return torch.float16 if largest < LARGEST_HALF else self.device.wide

    def _rope_type(self, number: int, step: Rope) -> torch.dtype:
        """Of what has been turned: as attention takes queries; what becomes codes, or is turned again, is not rounded
        before.
        """
        cache = self.program.cache
        if self._exact or not read_by_attention(self.program, number, step.x):
            return torch.float32
        coded = not all(CACHE_FORMATS[name].is_float for name in kinds(cache.dtype))
        whole = cache.rotate_keys or key_of_attention(self.program, number, step.x)
        return torch.float32 if coded and whole else self._queries

    def _result_type(self, cache: torch.dtype) -> torch.dtype:
        """Of attention's result, which is a mean of what the cache holds."""
        if self._exact:
            return torch.float32
        return cache if cache != torch.float32 else self.device.wide

    def _rope_tables(self, step: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, float32 [capacity, pairs]; layers with the same frequencies share them."""
        frequencies = np.asarray(step.frequencies, np.float64)
        key = (frequencies.tobytes(), step.scale)
        if key not in self._tables:
            angles = np.arange(self.program.cache.capacity)[:, None] * frequencies
            cos, sin = (
                self.device.send(torch.from_numpy((step.scale * f(angles)).astype(np.float32)))
                for f in (np.cos, np.sin)
            )
            self._tables[key] = cos, sin
        return self._tables[key]


def _operand(weight: Matrix) -> Operand:
    operand: Any = weight.stored
    return operand


def _activated(kind: str, gate: torch.Tensor, up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(gate.shape, dtype=dtype, device=gate.device)
    return operations.activate_mul(kind, gate, up, out)
