"""Runs a Program in numpy, step by step: what every step means. Float32 between steps, float64 inside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kernels.matrix import Matrix, read_rows
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
from kernels.reference.attention import LayerCache, rotate
from kernels.reference.elementwise import activate, rms_norm, rotated, soft_cap, softmax
from kernels.reference.matrix import round_activations
from kernels.reference.scheme_cache import SchemeCache

_ROWS = 4096  # weights that are decoded at a time


class ReferenceProgram:
    """A program and its cache. A sequence's positions are given in order; a position given again is overwritten."""

    def __init__(self, program: Program) -> None:
        cache = program.cache
        self.program = program
        self._cache = [_layer_cache(program, i) for i in range(len(cache.layers))]
        self._buffers: list[np.ndarray] = []
        self._tokens = self._sequences = self._positions = self._wanted = np.zeros(0, np.int32)

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Logits float32 [W, vocabulary] of the batch's rows `wanted`; all arguments are integers, [M] and [W].

        Raises ValueError for a token, sequence, position or row that does not exist.
        """
        tokens, sequences, positions, wanted = (
            np.asarray(a, np.int32).reshape(-1) for a in (tokens, sequences, positions, wanted)
        )
        cache = self.program.cache
        if not len(tokens) == len(sequences) == len(positions):
            raise ValueError("each token has a sequence and a position")
        for values, limit, what in (
            (sequences, cache.sequences, "sequence"),
            (positions, cache.capacity, "position"),
            (wanted, len(tokens), "wanted row"),
        ):
            if len(values) and not 0 <= values.min() <= values.max() < limit:
                raise ValueError(f"a {what} is outside of 0 … {limit - 1}")
        self._tokens, self._sequences, self._positions, self._wanted = tokens, sequences, positions, wanted
        self._buffers = [np.zeros((len(tokens), width), np.float32) for width in self.program.widths]
        for step in self.program.steps:
            self._step(step)
        return self._buffers[self.program.logits][wanted]

    def _step(self, step: Step) -> None:
        _STEPS[type(step)](self, step)

    def _embed(self, step: Embed) -> None:
        if len(self._tokens) and not 0 <= self._tokens.min() <= self._tokens.max() < step.weight.rows:
            raise ValueError(f"a token is outside of 0 … {step.weight.rows - 1}")
        self._buffers[step.out][:] = np.float32(step.scale) * read_rows(step.weight, self._tokens)

    def _norm(self, step: Norm) -> None:
        x = self._buffers[step.x].reshape(len(self._tokens), step.heads, len(step.gain))
        self._buffers[step.out][:] = rms_norm(x, step.gain, step.eps).reshape(len(self._tokens), -1)

    def _linear(self, step: Linear) -> None:
        rows = self._wanted if step.logits else np.s_[:]
        x = self._buffers[step.x][rows]
        for weight, out, bias in zip(step.weights, step.outs, step.biases or (None,) * len(step.outs), strict=True):
            y = self._product(x, weight, step.outliers)
            if bias is not None:
                y += bias
            if step.accumulate:
                y += self._buffers[out][rows]
            self._buffers[out][rows] = y

    def _product(self, x: np.ndarray, weight: Matrix, outliers: float = 0.0) -> np.ndarray:
        """x · weightᵀ, float64 [M, N]. Columns with outliers keep their float32 values, the others are rounded."""
        apart = (np.abs(x) >= outliers).any(axis=0) & (outliers > 0)
        kept, activations = np.where(apart, np.float32(0), x), self.program.activations.name
        left = np.where(apart, x, round_activations(kept, weight.stored.kind, activations, weight.order))
        y = np.empty((len(x), weight.rows))
        for start in range(0, weight.rows, _ROWS):
            stop = min(start + _ROWS, weight.rows)
            right = read_rows(weight, np.arange(start, stop, dtype=np.int32))
            y[:, start:stop] = left @ right.astype(np.float64).T
        return y

    def _split(self, step: Split) -> None:
        ends = np.cumsum(step.widths)
        for out, width, end in zip(step.outs, step.widths, ends, strict=True):
            self._buffers[out][:] = self._buffers[step.x][:, end - width : end]

    def _rope(self, step: Rope) -> None:
        x = self._buffers[step.x]
        heads = x.reshape(len(x), step.heads, -1)
        x[:] = rotate(heads, self._positions, step.frequencies, step.scale, step.pairs).reshape(x.shape)

    def _attention(self, step: Attention) -> None:
        cache = self._cache[step.layer]
        queries = self._buffers[step.q].reshape(-1, step.heads, step.head_dim)
        keys, values = self._buffers[step.k], self._buffers[step.v]
        how = step.scale, step.window, step.softcap
        if isinstance(cache, LayerCache):
            cache.store(self._sequences, self._positions, keys, values)
            for row, place in enumerate(zip(self._sequences, self._positions, strict=True)):
                y = cache.attend(queries[row], int(place[0]), int(place[1]), *how)
                self._buffers[step.out][row] = y.reshape(-1)
            return
        rope = None if step.rope is None else partial(_turn, step.rope)
        # One after the other: what a token sees are codes as if it were the last that has come.
        for row in np.argsort(self._positions, kind="stable"):
            sequence, position = int(self._sequences[row]), int(self._positions[row])
            cache.store(sequence, position, keys[row], values[row])
            self._buffers[step.out][row] = cache.attend(queries[row], sequence, position, *how, rope).reshape(-1)

    def _act_mul(self, step: ActMul) -> None:
        gate, up = (self._buffers[b].astype(np.float64) for b in (step.gate, step.up))
        self._buffers[step.out][:] = activate(step.kind, gate) * up

    def _hadamard(self, step: Hadamard) -> None:
        self._buffers[step.x][:] = rotated(self._buffers[step.x], step.rotation)

    def _add(self, step: Add) -> None:
        self._buffers[step.out] += self._buffers[step.x]

    def _experts(self, step: Experts) -> None:
        logits = self._buffers[step.logits].astype(np.float64)
        shares = softmax(logits)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : step.used]
        weights = np.take_along_axis(shares, chosen, axis=1)
        if step.normalized:
            weights /= weights.sum(axis=1, keepdims=True)
        x, out = self._buffers[step.x], self._buffers[step.out].astype(np.float64)
        for expert, (gate, up, down) in enumerate(zip(step.gates, step.ups, step.downs, strict=True)):
            rows, places = np.nonzero(chosen == expert)
            if not len(rows):
                continue
            inner = activate(step.kind, self._product(x[rows], gate)) * self._product(x[rows], up)
            if step.rotation is not None:
                inner = rotated(inner, step.rotation)
            out[rows] += weights[rows, places][:, None] * self._product(inner.astype(np.float32), down)
        self._buffers[step.out][:] = out

    def _soft_cap(self, step: SoftCap) -> None:
        x = self._buffers[step.x]
        x[:] = soft_cap(x.astype(np.float64), step.cap)


# Functions, not an executor's own methods: those would keep it, and its weights, until the collector comes by.
_STEPS: dict[type, Callable[[ReferenceProgram, Any], None]] = {
    Embed: ReferenceProgram._embed,
    Norm: ReferenceProgram._norm,
    Linear: ReferenceProgram._linear,
    Split: ReferenceProgram._split,
    Rope: ReferenceProgram._rope,
    Attention: ReferenceProgram._attention,
    ActMul: ReferenceProgram._act_mul,
    Hadamard: ReferenceProgram._hadamard,
    Add: ReferenceProgram._add,
    Experts: ReferenceProgram._experts,
    SoftCap: ReferenceProgram._soft_cap,
}


def _layer_cache(program: Program, index: int) -> LayerCache | SchemeCache:
    cache = program.cache.layer(index)
    late = any(isinstance(s, Attention) and s.layer == index and s.rope is not None for s in program.steps)
    if cache.waits or cache.rotate_keys or cache.rotate_values or cache.scales or late:
        return SchemeCache(cache)
    return LayerCache(cache.sequences, cache.capacity, *cache.layers[0], cache.dtype)


def _turn(rope: Rope, keys: np.ndarray) -> np.ndarray:
    """Keys [tokens, D] of positions from 0 on."""
    positions = np.arange(len(keys))
    return rotate(keys[:, None], positions, rope.frequencies, rope.scale, rope.pairs)[:, 0]
