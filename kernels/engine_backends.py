"""Registers what runs a program ('program') and draws a token ('sample'): numpy, and each compiled instruction set."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np

from kernels import cpu, dispatch
from kernels.kv import kinds
from kernels.matrix import Matrix
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
from kernels.reference.program import ReferenceProgram
from kernels.reference.sample import sample as reference_sample
from kernels.reference.scheme_cache import SchemeCache
from kernels.rotation import Rotation


class Cancelled(Exception):
    """The run was stopped by `Engine.cancel`."""


class ReferenceExecutor(ReferenceProgram):
    """numpy's executor, with a look at the cancel flag and the clock at every step."""

    def __init__(self, program: Program, _threads: int) -> None:
        super().__init__(program)
        self._cancelled = False
        self._times = [0.0] * len(program.steps)
        self._places = {id(step): i for i, step in enumerate(program.steps)}

    def _step(self, step: Step) -> None:
        if self._cancelled:
            raise Cancelled
        started = time.perf_counter()
        super()._step(step)
        self._times[self._places[id(step)]] += time.perf_counter() - started

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        self._cancelled = False
        if not len(tokens) and not len(wanted):
            return np.zeros((0, self.program.widths[self.program.logits]), np.float32)
        return super().run(tokens, sequences, positions, wanted)

    def cancel(self) -> None:
        self._cancelled = True

    def profile(self, on: bool) -> None:
        if on:
            self._times = [0.0] * len(self._times)

    def times(self) -> list[float]:
        return list(self._times)

    def cache_bytes(self) -> int:
        return sum(
            layer.nbytes if isinstance(layer, SchemeCache) else layer.keys.nbytes + layer.values.nbytes
            for layer in self._cache
        )

    def nbytes(self) -> int:
        return self.cache_bytes() + sum(buffer.nbytes for buffer in self._buffers)


class CompiledExecutor:
    """The compiled executor on one instruction set."""

    def __init__(self, extension: ModuleType, isa: str, program: Program, threads: int) -> None:
        cache = program.cache
        self._width = program.widths[program.logits]
        self._program = extension.Program(
            isa=isa,
            threads=threads,
            widths=list(program.widths),
            logits=program.logits,
            sequences=cache.sequences,
            capacity=cache.capacity,
            activations=program.activations.name,
        )
        for i in range(len(cache.layers)):
            _add_layer(self._program, program, i)
        for step in program.steps:
            _add(self._program, step)
        self._program.finish()

    def run(self, tokens: np.ndarray, sequences: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        logits = np.empty((len(wanted), self._width), np.float32)
        if not self._program.run(tokens, sequences, positions, wanted, logits):
            raise Cancelled
        return logits

    def cancel(self) -> None:
        self._program.cancel()

    def profile(self, on: bool) -> None:
        self._program.profile(on)

    def times(self) -> list[float]:
        return list(self._program.times())

    def cache_bytes(self) -> int:
        return int(self._program.cache_bytes())

    def nbytes(self) -> int:
        return int(self._program.nbytes())


def _stored(weights: tuple[Matrix, ...]) -> list[Any]:
    return [weight.stored for weight in weights]


def _floats(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).reshape(-1)


def _turned(rope: Rope | None) -> tuple[np.ndarray, float, bool]:
    return (
        (np.zeros(0, np.float32), 1.0, False) if rope is None else (_floats(rope.frequencies), rope.scale, rope.pairs)
    )


def _rotation(rotation: Rotation | None) -> tuple[int, np.ndarray, np.ndarray]:
    """A size of 0 for none."""
    if rotation is None:
        return 0, np.zeros((1, 1), np.float32), np.zeros(0, np.float32)
    return rotation.size, np.ascontiguousarray(rotation.factor, np.float32), _floats(rotation.signs)


def _add_layer(tape: Any, program: Program, index: int) -> None:
    cache = program.cache.layer(index)
    (heads, width), (keys, values) = cache.layers[0], kinds(cache.dtype)
    late = any(isinstance(s, Attention) and s.layer == index and s.rope is not None for s in program.steps)
    scales = [list(each) for each in cache.scales[0]] if cache.scales else [[], []]
    rotated = cache.rotate_keys, cache.rotate_values
    tape.layer(heads, width, keys, values, cache.window, cache.sinks, *rotated, late, *scales)


def _add(tape: Any, step: Step) -> None:
    match step:
        case Embed():
            tape.embed(step.weight.stored, step.out, step.scale)
        case Norm():
            tape.norm(step.x, step.out, _floats(step.gain), step.eps, step.heads)
        case Linear():
            biases = [None if bias is None else _floats(bias) for bias in step.biases]
            tape.linear(step.x, _stored(step.weights), list(step.outs), biases, step.accumulate, step.outliers)
        case Split():
            tape.split(step.x, list(step.outs))
        case Rope():
            tape.rope(step.x, step.heads, _floats(step.frequencies), step.scale, step.pairs)
        case Attention():
            tape.attention(
                *(step.q, step.k, step.v, step.out, step.layer, step.heads, step.scale, step.window, step.softcap),
                *_turned(step.rope),
            )
        case ActMul():
            tape.act_mul(step.gate, step.up, step.out, step.kind)
        case Hadamard():
            tape.hadamard(step.x, *_rotation(step.rotation))
        case Add():
            tape.add(step.x, step.out)
        case Experts():
            weights = (_stored(step.gates), _stored(step.ups), _stored(step.downs))
            how = step.used, step.normalized, step.kind
            tape.experts(step.x, step.logits, step.out, *weights, *how, *_rotation(step.rotation))
        case SoftCap():
            tape.softcap(step.x, step.cap)


def matrices(program: Program) -> list[Matrix]:
    """Every weight matrix that the program names, in order."""
    found: list[Matrix] = []
    for step in program.steps:
        match step:
            case Embed():
                found.append(step.weight)
            case Linear():
                found += step.weights
            case Experts():
                found += step.gates + step.ups + step.downs
    return found


def packing(program: Program) -> str:
    """The variant of 'program' that dispatch is asked for: 'numpy' where a matrix was packed without the engine."""
    module = cpu.engine
    packed = module is not None and all(isinstance(m.stored, module.PackedMatrix) for m in matrices(program))
    return "" if packed else "numpy"


def _usable(variant: str) -> str:
    return "its weights were packed without the compiled engine" if variant == "numpy" else ""


def _register_refused(module: ModuleType, isa: str, reason: str, rank: int) -> None:
    """Never runs; whoever asks why not is told."""
    for op, function in (("program", CompiledExecutor), ("sample", module.sample)):
        dispatch.register(op, f"cpu:{isa}", function, lambda _variant: reason, rank)


def _register(module: ModuleType, isa: str, rank: int) -> None:
    def program(program: Program, threads: int) -> CompiledExecutor:
        return CompiledExecutor(module, isa, program, threads)

    def sample(*arguments: Any) -> int:
        return int(module.sample(isa, *arguments))

    dispatch.register("program", f"cpu:{isa}", program, _usable, rank)
    dispatch.register("sample", f"cpu:{isa}", sample, priority=rank)


dispatch.register("program", "reference", ReferenceExecutor)
dispatch.register("sample", "reference", reference_sample)
if cpu.engine is not None:
    for _rank, _isa in enumerate(reversed(cpu.engine_sets), start=1):
        _register(cpu.engine, _isa, _rank)
    for _isa, _reason in cpu.engine_refused.items():
        if _isa not in cpu.engine_sets:
            _register_refused(cpu.engine, _isa, _reason, len(cpu.engine_sets) + 1)
